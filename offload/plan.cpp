#include "plan.h"

#include "../aio/volume.h"
#include "../core/error.h"
#include "../core/size.h"
#include "../cpu_adam/norm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace spillway {

StateSizes::StateSizes(const Config& config)
    : weight(config.precision),
      weight_bytes(size_of(config.precision)),
      record(config.state_format, config.optimizer.optimizer, config.precision) {}

Chunks::Chunks(const Layout& layout, const StateSizes& sizes)
    : elements(std::min(kChunkElements, round_up(layout.largest_unit(), 2048))),
      record_bytes(round_up(sizes.record.bytes(elements), kBlockBytes)),
      weight_bytes(elements * sizes.weight_bytes) {}

std::int64_t Chunks::unit_record_bytes(const Layout::Unit& unit, const StateSizes& sizes) const {
  return unit.trainable / elements * record_bytes +
         round_up(sizes.record.bytes(unit.trainable % elements), kBlockBytes);
}

std::int64_t Chunks::record_bytes_of(const Layout::Unit& unit, std::int64_t index,
                                     const StateSizes& sizes) const {
  return round_up(sizes.record.bytes(std::min(elements, unit.trainable - index * elements)), kBlockBytes);
}

bool is_resident(std::int64_t index, std::int64_t all, std::int64_t resident) {
  return (index + 1) * resident / all > index * resident / all;
}

GradientPlanes::GradientPlanes(const Layout::Unit& unit, const Config& config)
    : planes(unit.uses), is_sum(config.accumulation > 1 || unit.uses > 1) {
  type = is_sum ? DType::fp32 : StateSizes(config).weight;
  bytes = planes * unit.trainable * size_of(type);
}

GradientPieces::GradientPieces(const Layout& layout, const Config& config, const Chunks& chunks) {
  const bool in_rows = sums_before_moving(config);
  const std::int64_t moved = in_rows ? 4 : StateSizes(config).weight_bytes;
  for (const Layout::Unit& unit : layout.units()) {
    const GradientPlanes form(unit, config);
    const std::int64_t n = std::min(unit.trainable, chunks.elements), size = size_of(form.type);
    staged = std::max(staged, round_up(n * moved, kBlockBytes));
    if (form.is_sum && (!in_rows || unit.uses > 1)) sum = std::max(sum, round_up(n * 4, kBlockBytes));
    read = std::max(read, round_up(n * size, kBlockBytes));
    nvme += gradient_generations(config) * form.planes * round_up(unit.trainable * size, kBlockBytes);
  }
}

ActivationBytes::ActivationBytes(const Layout& layout) {
  for (const ActivationSlot& slot : layout.options().activations) {
    if (slot.tier == Tier::host) {
      host += slot.bytes;
    } else {
      const std::int64_t bytes = round_up(slot.bytes, kBlockBytes);
      nvme += bytes;
      staging = std::max(staging, bytes);
      ++nvme_slots;
    }
  }
}

const std::vector<std::string>& activation_directories(const Config& config) {
  return config.parameter_nvme_paths.empty() ? config.optimizer_nvme_paths : config.parameter_nvme_paths;
}

bool sums_before_moving(const Config& config) {
  return config.accumulation_order == AccumulationOrder::layer && config.accumulation > 1;
}

int gradient_generations(const Config& config) {
  return config.delayed_update ? 2 : 1;
}

namespace {

/// All chunks with optimizer state, in the order of units.
std::int64_t record_chunks(const Layout& layout, const Chunks& chunks) {
  std::int64_t count = 0;
  for (const Layout::Unit& unit : layout.units()) count += chunks.records(unit);
  return count;
}

/// What checksums occupy: one for each write of a chunk, or, with several directories, for each part of it.
std::int64_t checksum_bytes(const Layout& layout, const Config& config, const StateSizes& sizes,
                            const Chunks& chunks, const Room& room) {
  if (!config.checksums) return 0;
  const std::int64_t all = record_chunks(layout, chunks);
  std::int64_t count = 0, record = 0;
  const auto add = [&](std::int64_t bytes, const std::vector<std::string>& directories) {
    // A row of stripes may begin and end inside of one.
    if (bytes > 0) count += directories.size() > 1 ? bytes / aio::VolumeOptions{}.stripe_bytes + 2 : 1;
  };
  for (const Layout::Unit& unit : layout.units()) {
    const GradientPlanes gradient(unit, config);
    const int gradients = room.spills_gradients ? gradient_generations(config) * gradient.planes : 0;
    for (std::int64_t first = 0; first < unit.elements; first += chunks.elements) {
      const std::int64_t elements = std::min(chunks.elements, unit.elements - first);
      const std::int64_t state = std::clamp<std::int64_t>(unit.trainable - first, 0, chunks.elements);
      if (config.parameter_tier == Tier::nvme) add(elements * sizes.weight_bytes, config.parameter_nvme_paths);
      if (config.optimizer_tier == Tier::nvme && state > 0 && !is_resident(record++, all, room.resident_chunks))
        add(sizes.record.bytes(state), config.optimizer_nvme_paths);
      for (int i = 0; i < gradients; ++i) add(state * size_of(gradient.type), config.optimizer_nvme_paths);
    }
  }
  for (const ActivationSlot& slot : layout.options().activations) {
    if (slot.tier == Tier::nvme) add(slot.bytes, activation_directories(config));
  }
  return count * kChecksumBytes;
}

std::int64_t resident_bytes(const Layout& layout, const Config& config, std::int64_t resident) {
  const StateSizes sizes(config);
  const Chunks chunks(layout, sizes);
  const std::int64_t all = record_chunks(layout, chunks);
  if (resident == 0) return 0;
  // Of the first i chunks of all: what is_resident() counts up to.
  const auto among = [&](std::int64_t i) { return i * resident / all; };
  std::int64_t bytes = 0, index = 0;
  for (const Layout::Unit& unit : layout.units()) {
    const std::int64_t count = chunks.records(unit);
    if (count == 0) continue;
    // All but a unit's last chunk have one size; there may be many millions of them.
    const std::int64_t last = index + count - 1;
    bytes += (among(last) - among(index)) * chunks.record_bytes_of(unit, 0, sizes);
    if (is_resident(last, all, resident)) bytes += chunks.record_bytes_of(unit, count - 1, sizes);
    index = last + 1;
  }
  return bytes;
}

Plan plan_with(const Layout& layout, const Config& config, const Room& room) {
  const StateSizes sizes(config);
  const Chunks chunks(layout, sizes);
  const auto& options = layout.options();
  std::int64_t weights = 0, weights_in_file = 0, records = 0, gradients = 0, largest_sum = 0;
  for (const Layout::Unit& unit : layout.units()) {
    const GradientPlanes planes(unit, config);
    weights += unit.elements * sizes.weight_bytes;
    weights_in_file += round_up(unit.elements * sizes.weight_bytes, kBlockBytes);
    records += chunks.unit_record_bytes(unit, sizes);
    gradients += gradient_generations(config) * planes.bytes;
    if (planes.is_sum) largest_sum = std::max(largest_sum, unit.trainable);
  }
  const GradientPieces pieces(layout, config, chunks);
  const bool update_on_device = config.optimizer_tier == Tier::device;
  const std::int64_t weight_slots = room.update_slots * chunks.weight_bytes;
  const std::int64_t unit_bytes = layout.largest_unit() * sizes.weight_bytes;

  Plan plan;
  for (const PlanEntry& entry : options.model_memory) plan.device.add(entry.name, entry.bytes);
  if (config.parameter_tier == Tier::device) {
    plan.device.add("parameters", weights);
  } else {
    plan.device.add("parameter slots", room.parameter_slots * unit_bytes);
  }
  plan.device.add("gradient slots", options.live_gradients * layout.largest_trainable() * 4);
  if (update_on_device) {
    plan.device.add("optimizer records", records);
    plan.device.add("gradients", gradients);
    plan.device.add("gradient wire", largest_sum * sizes.weight_bytes);
    if (config.parameter_tier != Tier::device) plan.device.add("update slots", weight_slots);
  } else {
    plan.device.add("gradient wire", kStagingSlots * layout.largest_trainable() * sizes.weight_bytes);
    if (sums_before_moving(config)) plan.device.add("gradient sums", kStagingSlots * largest_sum * 4);
  }

  if (config.parameter_tier == Tier::host) plan.host.add("parameters", weights);
  if (config.parameter_tier == Tier::nvme) {
    plan.host.add("parameter staging", room.parameter_cache_slots * round_up(unit_bytes, kBlockBytes));
  }
  if (config.parameter_tier != Tier::host) plan.host.add("parameter update slots", weight_slots);
  if (config.optimizer_tier == Tier::host) {
    plan.host.add("optimizer records", records);
  } else {
    plan.host.add("optimizer slots", room.update_slots * chunks.record_bytes);
  }
  const std::int64_t resident = resident_bytes(layout, config, room.resident_chunks);
  plan.host.add("resident records", resident);
  if (room.spills_gradients) {
    plan.host.add("gradient staging", room.gradient_slots * (pieces.staged + pieces.sum));
    plan.host.add("gradient update slots", room.update_slots * pieces.read);
  } else if (!update_on_device) {
    plan.host.add("gradients", gradients);
    if (!sums_before_moving(config))
      plan.host.add("gradient staging", kStagingSlots * largest_sum * sizes.weight_bytes);
  }
  plan.host.add("norm sums", cpu_adam::norm_blocks(layout.largest_trainable()) * 8);
  plan.host.add("conversion", kConversionElements * 4);
  if (const std::int64_t bytes = checksum_bytes(layout, config, sizes, chunks, room); bytes > 0)
    plan.host.add("checksums", bytes);

  const ActivationBytes activations(layout);
  plan.host.add("activations", activations.host);
  plan.host.add("activation staging", room.activation_slots * activations.staging);

  if (config.parameter_tier == Tier::nvme) plan.nvme.add("parameters", weights_in_file);
  if (config.optimizer_tier == Tier::nvme) plan.nvme.add("optimizer records", records - resident);
  if (room.spills_gradients) plan.nvme.add("gradients", pieces.nvme);
  plan.nvme.add("activations", activations.nvme);
  return plan;
}

/// The largest value in [least, most] that fits, for something of which more takes more.
template <class Fits>
std::int64_t most_that_fits(std::int64_t least, std::int64_t most, const Fits& fits) {
  while (least < most) {
    const std::int64_t middle = least + (most - least + 1) / 2;
    if (fits(middle)) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least;
}

constexpr std::int64_t kUnderWay = std::int64_t{24} << 20;  ///< bytes that keep a drive busy in one direction

/// Chunks under way that keep a drive busy in both directions: about kUnderWay read ahead and as many being
/// written.
int wanted_update_slots(const Config& config, const Chunks& chunks) {
  if (config.update_slots > 0) return std::max(config.update_slots, kLeastUpdateSlots);
  const std::int64_t bytes = chunks.record_bytes + chunks.weight_bytes;
  return static_cast<int>(
      std::clamp<std::int64_t>(1 + 2 * ((kUnderWay + bytes - 1) / bytes), kLeastUpdateSlots, 64));
}

/// The same for gradients on their way to NVMe.
int wanted_gradient_slots(const GradientPieces& pieces) {
  return static_cast<int>(
      std::clamp<std::int64_t>(kUnderWay / std::max<std::int64_t>(pieces.staged, 1), kLeastGradientSlots, 16));
}

}  // namespace

Room Room::least(const Layout& layout, const Config& config) {
  const Room in_memory = least_in_memory(layout, config);
  if (config.optimizer_tier != Tier::nvme) return in_memory;
  const std::int64_t needed = plan_with(layout, config, in_memory).host.total();
  if (config.host_memory >= 0 && needed <= config.host_memory) return in_memory;
  Room spilled = in_memory;
  spilled.spills_gradients = true;
  spilled.gradient_slots = kLeastGradientSlots;
  return plan_with(layout, config, spilled).host.total() < needed ? spilled : in_memory;
}

Room Room::least_in_memory(const Layout& layout, const Config& config) {
  const StateSizes sizes(config);
  Room room;
  room.parameter_slots = layout.options().live_units;
  room.parameter_cache_slots = kStagingSlots;
  // What was asked for by name has its place before what may grow.
  if (config.optimizer_tier == Tier::nvme && config.resident_fraction) {
    const std::int64_t all = record_chunks(layout, Chunks(layout, sizes));
    room.resident_chunks = std::llround(*config.resident_fraction * static_cast<double>(all));
  }
  if (config.parameter_tier == Tier::nvme && config.parameter_cache) {
    const std::int64_t slot = round_up(layout.largest_unit() * sizes.weight_bytes, kBlockBytes);
    const std::int64_t most = std::max<std::int64_t>(kStagingSlots, std::ssize(layout.units()));
    room.parameter_cache_slots =
        static_cast<int>(std::clamp<std::int64_t>(*config.parameter_cache / slot, kStagingSlots, most));
  }
  room.activation_slots = ActivationBytes(layout).nvme_slots > 0 ? 1 : 0;
  return room;
}

Room::Room(const Layout& layout, const Config& config)
    : Room(config.host_memory < 0 ? least_in_memory(layout, config) : least(layout, config)) {
  const StateSizes sizes(config);
  const Chunks chunks(layout, sizes);
  const auto device_fits = [&] {
    return config.device_memory < 0 || plan_with(layout, config, *this).device.total() <= config.device_memory;
  };
  const auto host_fits = [&] {
    return config.host_memory < 0 || plan_with(layout, config, *this).host.total() <= config.host_memory;
  };
  /// Sets `value` to the most up to `most` that fits.
  const auto grow = [](auto& value, std::int64_t most, const auto& fits) {
    using Value = std::remove_reference_t<decltype(value)>;
    value =
        static_cast<Value>(most_that_fits(value, std::max<std::int64_t>(value, most), [&](std::int64_t tried) {
          const Value before = std::exchange(value, static_cast<Value>(tried));
          const bool does = fits();
          value = before;
          return does;
        }));
  };

  if (config.parameter_tier != Tier::device &&
      layout.units().size() > static_cast<std::size_t>(parameter_slots))
    grow(parameter_slots, parameter_slots + 1, device_fits);
  const std::int64_t moved = ActivationBytes(layout).nvme_slots;
  grow(activation_slots, std::min<std::int64_t>(moved, kActivationSlots), host_fits);
  grow(update_slots, std::min<std::int64_t>(wanted_update_slots(config, chunks), record_chunks(layout, chunks)),
       [&] { return host_fits() && device_fits(); });
  if (spills_gradients)
    grow(gradient_slots, wanted_gradient_slots(GradientPieces(layout, config, chunks)), host_fits);

  // A byte of a record that stays is neither read nor written; one of a parameter saves at most one read: so
  // records come first.
  if (config.host_memory < 0) return;  // nobody said how much may be used
  if (config.optimizer_tier == Tier::nvme && !config.resident_fraction)
    grow(resident_chunks, record_chunks(layout, chunks), host_fits);
  if (config.parameter_tier == Tier::nvme && !config.parameter_cache)
    grow(parameter_cache_slots, std::ssize(layout.units()), host_fits);
}

Plan make_plan(const Layout& layout, const Config& config) {
  return plan_with(layout, config, Room(layout, config));
}

Plan least_plan(const Layout& layout, const Config& config) {
  return plan_with(layout, config, Room::least(layout, config));
}

namespace {

std::string describe(const TierPlan& plan) {
  std::string text;
  for (const PlanEntry& entry : plan.entries) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", entry.name, format_size(entry.bytes));
  }
  return text;
}

/// The placement (words for it) that needs the least of a tier.
std::string smallest_placement(const Layout& layout, const Config& config, Tier tier) {
  std::int64_t smallest = -1;
  std::string words;
  for (const Tier parameters : kTiers) {
    for (const Tier optimizer : kTiers) {
      Config other = config;
      other.parameter_tier = parameters;
      other.optimizer_tier = optimizer;
      other.host_memory = -1;
      const std::int64_t bytes = least_plan(layout, other).of(tier).total();
      if (smallest >= 0 && bytes >= smallest) continue;
      smallest = bytes;
      words = fmt::format("{} ({} bytes) with --offload-parameters {} --offload-optimizer {}",
                          format_size(bytes), bytes, name_of(parameters), name_of(optimizer));
    }
  }
  return words;
}

std::string excess(const Layout& layout, std::string_view what, std::int64_t needed, std::int64_t limit,
                   const std::string& names) {
  const auto& units = layout.units();
  const auto largest = std::max_element(units.begin(), units.end(),
                                        [](const auto& a, const auto& b) { return a.elements < b.elements; });
  return fmt::format("{}: {} are needed and the budget is {}: {}; the largest unit is {} with {} parameters",
                     what, format_size(needed), format_size(limit), names, largest->name, largest->elements);
}

void check_tier(const Layout& layout, const Config& config, const Plan& plan, Tier tier, std::int64_t limit) {
  const std::int64_t needed = plan.of(tier).total();
  if (limit < 0 || needed <= limit) return;
  throw Error(
      ErrorKind::resources,
      excess(layout, fmt::format("{} memory", name_of(tier)), needed, limit, describe(plan.of(tier))),
      {.hint = fmt::format("with this placement --{}-memory {} works; the smallest of all placements is {}",
                           name_of(tier), needed, smallest_placement(layout, config, tier))});
}

}  // namespace

namespace {

/// Bytes in the directory for parameters, where it is another one than that for records: activations too then.
std::int64_t beside_parameters(const Plan& plan) {
  return plan.nvme.bytes_of("parameters") + plan.nvme.bytes_of("activations");
}

/// And in that for records.
std::int64_t beside_records(const Plan& plan) {
  return plan.nvme.bytes_of("optimizer records") + plan.nvme.bytes_of("gradients");
}

}  // namespace

bool fits(const Plan& plan, const Limits& limits) {
  const auto within = [](std::int64_t bytes, std::int64_t limit) { return limit < 0 || bytes <= limit; };
  return within(plan.device.total(), limits.device) && within(plan.host.total(), limits.host) &&
         within(plan.device.total() + plan.host.total(), limits.memory) &&
         (limits.is_one_drive ? within(plan.nvme.total(), limits.parameter_drive)
                              : within(beside_parameters(plan), limits.parameter_drive) &&
                                    within(beside_records(plan), limits.optimizer_drive));
}

void check_plan(const Layout& layout, const Config& given, const Limits& limits) {
  Config config = given;  // what is left open takes what the limits leave
  if (limits.device >= 0) config.device_memory = limits.device;
  if (limits.host >= 0) config.host_memory = limits.host;
  const Plan plan = make_plan(layout, config);
  check_tier(layout, config, plan, Tier::device, limits.device);
  check_tier(layout, config, plan, Tier::host, limits.host);
  const std::int64_t memory = plan.device.total() + plan.host.total();
  if (limits.memory >= 0 && memory > limits.memory) {
    throw Error(
        ErrorKind::resources,
        excess(layout, "device and host memory, which are one here", memory, limits.memory,
               describe(plan.device) + ", " + describe(plan.host)),
        {.hint = "place more of it on nvme, make the micro-batch or the sequence shorter, or free memory"});
  }
  const auto check_drive = [&](std::int64_t needed, std::int64_t limit) {
    if (limit < 0 || needed <= limit) return;
    throw Error(ErrorKind::resources, excess(layout, "nvme", needed, limit, describe(plan.nvme)),
                {.hint = "free space on the drive, or name another with --nvme-path"});
  };
  if (limits.is_one_drive) return check_drive(plan.nvme.total(), limits.parameter_drive);
  check_drive(beside_parameters(plan), limits.parameter_drive);
  check_drive(beside_records(plan), limits.optimizer_drive);
}

}  // namespace spillway
