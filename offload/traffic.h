#pragma once
// Which placement to choose: what a step moves in each, and what fits.
#include "../core/config.h"
#include "layout.h"
#include "plan.h"

#include <cstdint>
#include <optional>

namespace spillway {

/// Bytes that one step moves. What is written to NVMe follows from the plan alone; what is read and what
/// crosses between host and device depends on how often the model gathers its units.
struct StepTraffic {
  std::int64_t nvme_written = 0;
  std::int64_t nvme_read = 0;
  std::int64_t copied = 0;  ///< between host and device, both ways together
};

/// `gathers`: how often each unit is gathered in a micro-batch (forward and backward: 2).
StepTraffic step_traffic(const Layout& layout, const Config& config, int gathers = 2);

/// `config` with the tiers that fit the limits and move the least: first over NVMe, then between host and
/// device, then by host memory. A tier on NVMe is considered where its directory is given. Nothing where no
/// placement fits.
std::optional<Config> cheapest_placement(const Layout& layout, const Config& config, const Limits& limits);

/// "--offload-parameters nvme --offload-optimizer host".
std::string placement_flags(const Config& config);

}  // namespace spillway
