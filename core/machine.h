#pragma once
// What this process may use of the machine: a container's limits count.
#include <cstdint>
#include <string>

namespace spillway {

struct MachineMemory {
  std::int64_t total = 0;      ///< bytes installed, or the container's limit where that is less
  std::int64_t available = 0;  ///< bytes that can be taken now: page cache does not count as used
  bool is_limited = false;     ///< a container's limit leaves less than the machine would
};

/// From /proc/meminfo and the limits of the control groups (version 1 and 2) that this process is in. Unknown
/// numbers are 0. `root` stands before /proc and /sys.
MachineMemory machine_memory(const std::string& root = {});

/// The processors that this process may run on (its affinity mask), or as many as the control groups' quota is
/// worth, rounded up, where that is less; at least 1.
int available_processors(const std::string& root = {});

/// What a run may take of `available` bytes without a limit of its own: a sixteenth, and at least 128 MiB, are
/// left to the program itself, its libraries and everyone else. 0 where that is all.
std::int64_t memory_without_margin(std::int64_t available);

}  // namespace spillway
