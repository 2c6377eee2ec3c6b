#pragma once
// What a run will occupy, by name and tier (D10).
#include "tier.h"

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct PlanEntry {
  std::string name;
  std::int64_t bytes = 0;
};

/// All that will be reserved in one tier. Entries of 0 bytes are left out.
struct TierPlan {
  std::vector<PlanEntry> entries;

  void add(std::string name, std::int64_t bytes) {
    if (bytes > 0) entries.push_back({std::move(name), bytes});
  }
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const auto& entry : entries) sum += entry.bytes;
    return sum;
  }
  std::int64_t bytes_of(const std::string& name) const {
    for (const auto& entry : entries) {
      if (entry.name == name) return entry.bytes;
    }
    return 0;
  }
};

struct Plan {
  TierPlan device, host, nvme;

  const TierPlan& of(Tier tier) const {
    return tier == Tier::device ? device : tier == Tier::host ? host : nvme;
  }
  TierPlan& of(Tier tier) { return tier == Tier::device ? device : tier == Tier::host ? host : nvme; }
};

}  // namespace spillway
