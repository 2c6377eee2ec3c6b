#include "traffic.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace spillway {

StepTraffic step_traffic(const Layout& layout, const Config& config, int gathers) {
  const StateSizes sizes(config);
  const Chunks chunks(layout, sizes);
  std::int64_t gathered = 0, updated = 0, gradients = 0;
  for (const Layout::Unit& unit : layout.units()) {
    gathered += unit.elements * sizes.weight_bytes;
    gradients += unit.uses * unit.trainable * sizes.weight_bytes;
    for (std::int64_t first = 0; first < unit.trainable; first += chunks.elements) {
      const std::int64_t elements = std::min(chunks.elements, unit.elements - first);
      updated += round_up(elements * sizes.weight_bytes, kBlockBytes);
    }
  }
  const bool spills = Room(layout, config).spills_gradients;
  // Unit by unit, all micro-batches of a step are one pass.
  const std::int64_t passes = config.accumulation_order == AccumulationOrder::layer ? 1 : config.accumulation;
  const std::int64_t times = gathers * passes;
  const bool update_on_device = config.optimizer_tier == Tier::device;
  StepTraffic traffic;
  for (const Layout::Unit& unit : layout.units()) {
    if (!spills || unit.trainable == 0) continue;
    const GradientPlanes form(unit, config);
    const std::int64_t plane = round_up(unit.trainable * size_of(form.type), kBlockBytes);
    // What is added up there is read and written again; so is what the uses of a tied unit come to.
    const int moves = sums_before_moving(config) ? 1 : config.accumulation;
    const int added = unit.uses > 1 ? 1 : 0;
    traffic.nvme_written += (unit.uses * moves + added) * plane;
    traffic.nvme_read += (unit.uses * (moves - 1) + unit.uses * added + 1) * plane;
  }
  if (config.optimizer_tier == Tier::nvme) {
    // What stays in host memory is not among them.
    const std::int64_t on_nvme = make_plan(layout, config).nvme.bytes_of("optimizer records");
    traffic.nvme_written += on_nvme;
    traffic.nvme_read += on_nvme;
  }
  if (config.parameter_tier == Tier::nvme) {
    traffic.nvme_written += updated;
    traffic.nvme_read += updated + times * gathered;
  }
  if (config.parameter_tier != Tier::device) traffic.copied += times * gathered;
  // The update has the weights where it is; gradients go there once for each micro-batch.
  if (update_on_device != (config.parameter_tier == Tier::device)) traffic.copied += 2 * updated;
  if (!update_on_device) traffic.copied += config.accumulation * gradients;
  for (const ActivationSlot& slot : layout.options().activations) {
    traffic.copied += passes * (slot.saves + slot.loads) * slot.bytes;
    if (slot.tier != Tier::nvme) continue;
    traffic.nvme_written += passes * slot.saves * round_up(slot.bytes, kBlockBytes);
    traffic.nvme_read += passes * slot.loads * round_up(slot.bytes, kBlockBytes);
  }
  return traffic;
}

std::optional<Config> cheapest_placement(const Layout& layout, const Config& config, const Limits& limits) {
  std::optional<Config> best;
  std::tuple<std::int64_t, std::int64_t, std::int64_t> smallest;
  for (const Tier optimizer : kTiers) {
    for (const Tier parameters : kTiers) {
      Config other = config;
      other.optimizer_tier = optimizer;
      other.parameter_tier = parameters;
      if (optimizer == Tier::nvme && other.optimizer_nvme_paths.empty()) continue;
      if (parameters == Tier::nvme && other.parameter_nvme_paths.empty()) continue;
      other.host_memory = limits.host;  // whether gradients find room there
      const Plan plan = least_plan(layout, other);
      if (!fits(plan, limits)) continue;
      const StepTraffic traffic = step_traffic(layout, other);
      other.host_memory = config.host_memory;
      const std::tuple cost(traffic.nvme_written + traffic.nvme_read, traffic.copied, plan.host.total());
      if (best && cost >= smallest) continue;
      best = std::move(other);
      smallest = cost;
    }
  }
  return best;
}

std::string placement_flags(const Config& config) {
  return fmt::format("--offload-parameters {} --offload-optimizer {}", name_of(config.parameter_tier),
                     name_of(config.optimizer_tier));
}

}  // namespace spillway
