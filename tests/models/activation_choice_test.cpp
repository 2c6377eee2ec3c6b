// The choice for a chain of layers, held against all assignments there are, whose memory and cost are found by
// going through the passes.
#include "../../models/activation_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::models {
namespace {

enum class Fate { keep, recompute, move };

/// What an assignment takes: bytes by going through a step, tensor by tensor.
struct Taken {
  std::int64_t device = 0;
  std::int64_t slots = 0;
  double flops = 0;
  std::int64_t moved_bytes = 0;  ///< both ways, for one micro-batch
};

Taken walk(const ActivationChain& chain, const std::vector<Fate>& fates) {
  const auto layers = static_cast<std::int64_t>(fates.size());
  const auto fate = [&](std::int64_t layer) { return fates[static_cast<std::size_t>(layer)]; };
  Taken taken;
  std::int64_t live = chain.micro_batches, most = live;
  const auto hold = [&](std::int64_t more) {
    live += more;
    most = std::max(most, live);
  };
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (std::int64_t m = 0; m < chain.micro_batches; ++m) {
      hold(1);
      if (fate(layer) == Fate::move) --live;
    }
    if (fate(layer) == Fate::keep) {
      taken.device += chain.micro_batches * chain.kept_bytes;
    } else {
      taken.flops += chain.layer_flops;
    }
    if (fate(layer) == Fate::move) {
      taken.slots += chain.micro_batches;
      taken.moved_bytes += 2 * chain.input_bytes;
    }
  }
  hold(chain.micro_batches);    // the gradients behind the head
  live -= chain.micro_batches;  // the last outputs
  bool fetched = false;
  for (std::int64_t layer = layers - 1; layer >= 0; --layer) {
    for (std::int64_t m = 0; m < chain.micro_batches; ++m) {
      if (fate(layer) == Fate::move && !fetched) hold(1);
      const bool holds_middle = fate(layer) != Fate::keep;
      if (holds_middle) hold(1);
      const std::int64_t next = m + 1 < chain.micro_batches ? layer : layer - 1;
      fetched = fate(layer) == Fate::move && next >= 0 && fate(next) == Fate::move;
      if (fetched) hold(1);
      live -= holds_middle ? 2 : 1;
    }
  }
  EXPECT_EQ(live, chain.micro_batches);
  taken.device += most * chain.input_bytes;
  return taken;
}

std::vector<std::vector<Fate>> all_assignments(std::int64_t layers) {
  std::vector<std::vector<Fate>> all{{}};
  for (std::int64_t i = 0; i < layers; ++i) {
    std::vector<std::vector<Fate>> longer;
    for (const auto& one : all) {
      for (const Fate fate : {Fate::keep, Fate::recompute, Fate::move}) {
        longer.push_back(one);
        longer.back().push_back(fate);
      }
    }
    all = std::move(longer);
  }
  return all;
}

bool within(std::int64_t bytes, std::int64_t limit) {
  return limit < 0 || bytes <= limit;
}

/// The least cost of all assignments, tiers, and ways between layers that fit; infinite where none does.
double least_cost(const ActivationChain& chain, const std::vector<Taken>& assignments,
                  const ActivationRoom& room) {
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](std::int64_t device, std::int64_t slots, Tier tier, double flops,
                            std::int64_t moved) {
    const std::int64_t host = slots == 0           ? 0
                              : tier == Tier::host ? slots * chain.input_bytes
                                                   : room.nvme_staging;
    if (tier == Tier::nvme && !room.has_nvme) return;
    if (!within(device, room.device) || !within(host, room.host) || !within(device + host, room.together))
      return;
    const double weight = tier == Tier::host ? kFlopsPerHostByte : kFlopsPerNvmeByte;
    least = std::min(least, flops + weight * static_cast<double>(moved));
  };
  for (const Tier tier : {Tier::host, Tier::nvme}) {
    for (const Taken& taken : assignments)
      consider(taken.device, taken.slots, tier, taken.flops, taken.moved_bytes);
    // What passes between layers moved too: by the formulas, which runs of the decoder hold to account.
    for (std::int64_t kept = 0; kept <= chain.layers; ++kept) {
      for (std::int64_t moved = 0; kept + moved <= chain.layers; ++moved) {
        const ActivationChoice choice{kept, moved, tier, true};
        const ActivationTraffic traffic = activation_traffic(chain, choice);
        consider(device_bytes(chain, choice), activation_slots(chain, choice), tier,
                 static_cast<double>(chain.layers - kept) * chain.layer_flops, traffic.down + traffic.up);
      }
    }
  }
  return least;
}

TEST(ActivationChoice, IsTheCheapestOfAllAssignmentsThatFit) {
  std::mt19937 random(3);
  const auto between = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  int fitting = 0, refused = 0;
  for (std::int64_t layers = 1; layers <= 8; ++layers) {
    const auto all = all_assignments(layers);
    for (const std::int64_t micro_batches : {1, 2, 3, 7}) {
      ActivationChain chain{.layers = layers, .micro_batches = micro_batches, .input_bytes = 64};
      chain.kept_bytes = 64 * between(1, 10);
      // From recomputing that is nearly free to moving that is.
      chain.layer_flops = std::pow(10.0, static_cast<double>(between(2, 8)));
      std::vector<Taken> taken;
      for (const auto& one : all) taken.push_back(walk(chain, one));
      const std::int64_t whole = device_bytes(chain, {.kept = layers});
      for (int i = 0; i < 60; ++i) {
        ActivationRoom room{.device = between(0, whole + 128), .has_nvme = between(0, 1) == 1};
        if (between(0, 2) == 0) room.host = between(0, (layers + 2) * micro_batches * 64);
        if (between(0, 2) == 0) room.together = between(0, 2 * whole);
        if (between(0, 5) == 0) room.device = -1;
        room.nvme_staging = 64 * between(1, 4);
        const ActivationChoice choice = choose_activations(ActivationPolicy::automatic, chain, room);
        const double best = least_cost(chain, taken, room);
        const std::string what = "layers " + std::to_string(layers) + ", micro-batches " +
                                 std::to_string(micro_batches) + ", device " + std::to_string(room.device) +
                                 ", host " + std::to_string(room.host) + ", together " +
                                 std::to_string(room.together) + ": " + describe(chain, choice);
        const std::int64_t slots = activation_slots(chain, choice);
        const std::int64_t host = slots == 0                  ? 0
                                  : choice.tier == Tier::host ? slots * chain.input_bytes
                                                              : room.nvme_staging;
        const bool fits = within(device_bytes(chain, choice), room.device) && within(host, room.host) &&
                          within(host + device_bytes(chain, choice), room.together);
        ASSERT_EQ(fits, std::isfinite(best)) << what;
        ++(fits ? fitting : refused);
        if (!fits) continue;
        ASSERT_DOUBLE_EQ(activation_cost(chain, choice), best) << what;
      }
    }
  }
  EXPECT_GT(fitting, 500);
  EXPECT_GT(refused, 100);
}

// The formulas of the choice are what its own assignment takes.
TEST(ActivationChoice, TakesWhatAWalkThroughItTakes) {
  for (std::int64_t layers = 1; layers <= 7; ++layers) {
    for (const std::int64_t micro_batches : {1, 2, 5}) {
      const ActivationChain chain{layers, micro_batches, 64, 640, 1e6};
      for (std::int64_t kept = 0; kept <= layers; ++kept) {
        for (std::int64_t moved = 0; kept + moved <= layers; ++moved) {
          std::vector<Fate> fates(static_cast<std::size_t>(layers), Fate::recompute);
          std::fill_n(fates.begin(), moved, Fate::move);
          std::fill_n(fates.rbegin(), kept, Fate::keep);
          const Taken taken = walk(chain, fates);
          const ActivationChoice choice{.kept = kept, .moved = moved};
          EXPECT_EQ(device_bytes(chain, choice), taken.device) << layers << micro_batches << kept << moved;
          EXPECT_EQ(activation_slots(chain, choice), taken.slots);
          const ActivationTraffic traffic = activation_traffic(chain, choice);
          EXPECT_EQ(traffic.down + traffic.up, taken.moved_bytes);
          EXPECT_DOUBLE_EQ(activation_cost(chain, choice),
                           taken.flops + kFlopsPerHostByte * static_cast<double>(taken.moved_bytes));
        }
      }
    }
  }
}

TEST(ActivationChoice, WithoutALimitKeepsEverything) {
  const ActivationChain chain{12, 1, 1 << 20, 10 << 20, 1e9};
  EXPECT_EQ(choose_activations(ActivationPolicy::automatic, chain, {}), (ActivationChoice{.kept = 12}));
}

TEST(ActivationChoice, ThatIsGivenIsThatOfEveryLayer) {
  const ActivationChain chain{12, 1, 1 << 20, 10 << 20, 1e9};
  const ActivationRoom none{.device = 0, .host = 0};
  EXPECT_EQ(choose_activations(ActivationPolicy::keep, chain, none), (ActivationChoice{.kept = 12}));
  EXPECT_EQ(choose_activations(ActivationPolicy::recompute, chain, none), ActivationChoice{});
  EXPECT_EQ(choose_activations(ActivationPolicy::host, chain, none),
            (ActivationChoice{.moved = 12, .tier = Tier::host}));
  EXPECT_EQ(choose_activations(ActivationPolicy::nvme, chain, none),
            (ActivationChoice{.moved = 12, .tier = Tier::nvme}));
  // Of many micro-batches at once, what passes between layers is moved where it does not fit, and only there.
  const ActivationChain many{12, 20, 1 << 20, 10 << 20, 1e9};
  EXPECT_TRUE(choose_activations(ActivationPolicy::host, many, {.device = 30 << 20}).moves_between);
  EXPECT_FALSE(choose_activations(ActivationPolicy::host, many, {.device = 40 << 20}).moves_between);
  EXPECT_FALSE(choose_activations(ActivationPolicy::host, many, {}).moves_between);
}

TEST(ActivationChoice, OfMoreMemoryNeverCostsMore) {
  const ActivationChain chain{24, 4, 1 << 20, 10 << 20, 1e10};
  double before = std::numeric_limits<double>::infinity();
  bool moved = false, recomputed = false, mixed = false;
  for (std::int64_t device = std::int64_t{6} << 20; device < std::int64_t{1200} << 20; device += 1 << 20) {
    const ActivationChoice choice = choose_activations(ActivationPolicy::automatic, chain, {.device = device});
    ASSERT_LE(device_bytes(chain, choice), device);
    ASSERT_LE(activation_cost(chain, choice), before);
    before = activation_cost(chain, choice);
    moved |= choice.moved == 24;
    recomputed |= choice.moved == 0 && choice.kept == 0;
    mixed |= choice.moved == 0 && choice.kept > 0;
  }
  EXPECT_TRUE(moved && recomputed && mixed);
  EXPECT_EQ(before, 0);
}

TEST(ActivationChoice, IsDescribedInOneLine) {
  const ActivationChain chain{12, 1, 1 << 20, 10 << 20, 1e9};
  EXPECT_EQ(describe(chain, {.kept = 12}), "12 layers kept: nothing is computed again");
  EXPECT_EQ(describe(chain, {}),
            "12 layers recomputed: 120 MiB of device memory saved, 12 GFLOP a micro-batch computed again");
  EXPECT_EQ(
      describe(chain, {.kept = 3, .moved = 2}),
      "3 layers kept, 9 recomputed, 2 of them from inputs in host memory: 92 MiB of device memory saved, 9 "
      "GFLOP a micro-batch computed again, 2 MiB moved each way");
  EXPECT_EQ(describe(chain, {.moved = 12, .tier = Tier::nvme}),
            "12 layers recomputed, from inputs on nvme: 130 MiB of device memory saved, 12 GFLOP a micro-batch "
            "computed again, 12 MiB moved each way");
}

}  // namespace
}  // namespace spillway::models
