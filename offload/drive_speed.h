#pragma once
// How fast the drives behind several directories are, against one another.
#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct SwapOptions;

struct DriveSpeeds {
  std::vector<double> bytes_per_s;  ///< of each directory, above 0; empty where they could not be measured
  std::vector<std::string> notes;   ///< and why, in one line
};

/// Reads and writes an anonymous file in each directory, by short slices in turn, so that a drive that changes
/// its speed does so for all: about 0.2 s each. The files have some MiB, at most `bytes` where that is more
/// than the least, and are gone afterwards. Throws Error (io) for a directory that cannot be used.
DriveSpeeds measure_drives(const std::vector<std::string>& directories, std::int64_t bytes,
                           const SwapOptions& options);

}  // namespace spillway
