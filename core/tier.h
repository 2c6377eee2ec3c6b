#pragma once
#include <cstdint>
#include <string_view>

namespace spillway {

/// Where bytes live. `host` is pinned where the device has something to pin for.
enum class Tier : std::uint8_t { device, host, nvme };
constexpr Tier kTiers[] = {Tier::device, Tier::host, Tier::nvme};
constexpr std::string_view name_of(Tier tier) {
  return tier == Tier::device ? "device" : tier == Tier::host ? "host" : "nvme";
}

/// A resource that works in order.
enum class Lane : std::uint8_t { compute, communicate, copy_down, copy_up, adam, read, write };
constexpr int kLanes = 7;
constexpr std::string_view name_of(Lane lane) {
  constexpr std::string_view names[kLanes] = {"compute", "communicate", "copy_down", "copy_up",
                                              "adam",    "read",        "write"};
  return names[static_cast<int>(lane)];
}

}  // namespace spillway
