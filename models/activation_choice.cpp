#include "activation_choice.h"

#include "../core/size.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>

namespace spillway::models {
namespace {

std::int64_t resident(const ActivationChain& chain, const ActivationChoice& choice) {
  return chain.layers - choice.moved;
}

/// The most inputs that stay where the device holds `buffers` tensors; negative where that is not enough for
/// any.
std::int64_t most_resident(const ActivationChain& chain, std::int64_t buffers, bool moves_between) {
  // As activation_buffers, solved for the inputs that stay; of layers that are moved, the fewer the better.
  const std::int64_t m = chain.micro_batches;
  const std::int64_t n = moves_between ? (buffers < 5 ? -1 : (buffers - 5) / m) : buffers / m - 2;
  if (n < 0) return -1;
  const ActivationChoice choice{.moved = chain.layers - std::min(n, chain.layers),
                                .moves_between = moves_between};
  return activation_buffers(chain, choice) <= buffers ? chain.layers - choice.moved : -1;
}

bool fits(std::int64_t bytes, std::int64_t limit) {
  return limit < 0 || bytes <= limit;
}

/// Of host memory.
std::int64_t host_bytes(const ActivationChain& chain, const ActivationChoice& choice,
                        const ActivationRoom& room) {
  const std::int64_t slots = activation_slots(chain, choice);
  if (slots == 0) return 0;
  return choice.tier == Tier::host ? slots * chain.input_bytes : room.nvme_staging;
}

bool host_fits(const ActivationChain& chain, const ActivationChoice& choice, const ActivationRoom& room) {
  const std::int64_t bytes = host_bytes(chain, choice, room);
  return fits(bytes, room.host) && fits(bytes + device_bytes(chain, choice), room.together);
}

/// With so many layers kept, the most others whose inputs stay and that fit, if any do.
std::optional<ActivationChoice> with_kept(const ActivationChain& chain, const ActivationRoom& room,
                                          ActivationChoice choice) {
  // What goes to host memory does not leave the limit of both; what goes to NVMe passes through some of it.
  for (const std::int64_t staging : {std::int64_t{0}, room.nvme_staging}) {
    std::int64_t limit = room.device;
    if (room.together >= 0) {
      const std::int64_t left = std::max<std::int64_t>(room.together - staging, 0);
      limit = limit < 0 ? left : std::min(limit, left);
    }
    std::int64_t stay = chain.layers;
    if (limit >= 0) {
      const std::int64_t left = limit - choice.kept * chain.micro_batches * chain.kept_bytes;
      if (left < 0) return std::nullopt;
      stay = most_resident(chain, left / chain.input_bytes, choice.moves_between);
    }
    if (stay < choice.kept) return std::nullopt;
    choice.moved = chain.layers - stay;
    if (host_fits(chain, choice, room)) return choice;
  }
  return std::nullopt;
}

std::vector<Tier> tiers(const ActivationRoom& room) {
  return room.has_nvme ? std::vector{Tier::host, Tier::nvme} : std::vector{Tier::host};
}

ActivationChoice choose_automatically(const ActivationChain& chain, const ActivationRoom& room) {
  std::optional<ActivationChoice> best;
  for (const Tier tier : tiers(room)) {
    for (const bool moves_between : {false, true}) {
      for (std::int64_t kept = chain.layers; kept >= 0; --kept) {
        const auto choice =
            with_kept(chain, room, {.kept = kept, .tier = tier, .moves_between = moves_between});
        if (choice && (!best || activation_cost(chain, *choice) < activation_cost(chain, *best))) best = choice;
      }
    }
  }
  if (best) return *best;
  ActivationChoice least;
  for (const Tier tier : tiers(room)) {
    for (const bool moves_between : {false, true}) {
      const ActivationChoice choice{.moved = chain.layers, .tier = tier, .moves_between = moves_between};
      if (host_fits(chain, choice, {.host = room.host, .nvme_staging = room.nvme_staging}) &&
          device_bytes(chain, choice) < device_bytes(chain, least))
        least = choice;
    }
  }
  return least;
}

}  // namespace

std::int64_t activation_buffers(const ActivationChain& chain, const ActivationChoice& choice) {
  const std::int64_t m = chain.micro_batches, stay = resident(chain, choice) * m;
  // In the last pass of each direction but one: a tensor and its gradient, of this micro-batch and of the next
  // one, which comes, and of the last one, which goes; a layer without an input that stays needs one more for
  // the middle of the residual stream.
  if (choice.moves_between) return stay + (stay == 0 ? 6 : 5);
  // Around the head, the outputs of the last layer and their gradients. In a layer whose input was moved, the
  // gradients, its input, the middle of the residual stream, and the input of the next one.
  return m + std::max(stay + m, 1 + std::min<std::int64_t>(2, choice.moved * m));
}

std::int64_t device_bytes(const ActivationChain& chain, const ActivationChoice& choice) {
  return activation_buffers(chain, choice) * chain.input_bytes +
         choice.kept * chain.micro_batches * chain.kept_bytes;
}

std::int64_t activation_slots(const ActivationChain& chain, const ActivationChoice& choice) {
  return (choice.moved + (choice.moves_between ? 2 : 0)) * chain.micro_batches;
}

ActivationTraffic activation_traffic(const ActivationChain& chain, const ActivationChoice& choice) {
  // An input goes out once and comes back once. What passes between layers: an input comes back for its layer's
  // forward pass too; the last layer's output goes out, and comes back for the head and for the final norm; a
  // gradient goes out behind the head, the final norm and each layer, and comes back for the norm, each layer,
  // and twice for the embedding.
  const std::int64_t between = choice.moves_between ? 1 : 0;
  return {(choice.moved + between * (1 + 2 + chain.layers)) * chain.input_bytes,
          (choice.moved * (1 + between) + between * (2 + 3 + chain.layers)) * chain.input_bytes};
}

double activation_cost(const ActivationChain& chain, const ActivationChoice& choice) {
  const ActivationTraffic traffic = activation_traffic(chain, choice);
  const double weight = choice.tier == Tier::host ? kFlopsPerHostByte : kFlopsPerNvmeByte;
  return static_cast<double>(chain.layers - choice.kept) * chain.layer_flops +
         weight * static_cast<double>(traffic.down + traffic.up);
}

ActivationChoice choose_activations(ActivationPolicy policy, const ActivationChain& chain,
                                    const ActivationRoom& room) {
  switch (policy) {
    case ActivationPolicy::automatic:
      return choose_automatically(chain, room);
    case ActivationPolicy::keep:
      return {.kept = chain.layers};
    case ActivationPolicy::recompute:
      return {};
    case ActivationPolicy::host:
    case ActivationPolicy::nvme:
      break;
  }
  ActivationChoice choice{.moved = chain.layers,
                          .tier = policy == ActivationPolicy::host ? Tier::host : Tier::nvme};
  ActivationChoice smaller = choice;
  smaller.moves_between = true;
  const bool fit = fits(device_bytes(chain, choice), room.device) && host_fits(chain, choice, room);
  return !fit && device_bytes(chain, smaller) < device_bytes(chain, choice) ? smaller : choice;
}

std::string describe(const ActivationChain& chain, const ActivationChoice& choice) {
  const auto layers = [](std::int64_t count) {
    return fmt::format("{} layer{}", count, count == 1 ? "" : "s");
  };
  const std::int64_t recomputed = chain.layers - choice.kept;
  const char* const where = choice.tier == Tier::host ? "in host memory" : "on nvme";
  std::string text;
  if (choice.kept > 0) text = layers(choice.kept) + " kept";
  if (recomputed > 0)
    text += text.empty() ? layers(recomputed) + " recomputed" : fmt::format(", {} recomputed", recomputed);
  if (choice.moved > 0) {
    text += choice.moved == recomputed ? fmt::format(", from inputs {}", where)
                                       : fmt::format(", {} of them from inputs {}", choice.moved, where);
  }
  if (choice.moves_between) text += fmt::format(", what passes between them {}", where);
  const std::int64_t saved = device_bytes(chain, {.kept = chain.layers}) - device_bytes(chain, choice);
  if (recomputed == 0 && saved == 0) return text + ": nothing is computed again";
  text += fmt::format(": {} of device memory saved", format_size(std::max<std::int64_t>(saved, 0)));
  if (recomputed > 0) {
    text += fmt::format(", {:.3g} GFLOP a micro-batch computed again",
                        static_cast<double>(recomputed) * chain.layer_flops * 1e-9);
  }
  const ActivationTraffic traffic = activation_traffic(chain, choice);
  if (traffic.down > 0) {
    text += traffic.down == traffic.up
                ? fmt::format(", {} moved each way", format_size(traffic.down))
                : fmt::format(", {} moved out and {} back", format_size(traffic.down), format_size(traffic.up));
  }
  return text;
}

}  // namespace spillway::models
