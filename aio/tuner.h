#pragma once
// Searches the settings that move an offloaded step's bytes fastest, on a drive whose speed changes from second
// to second: many short interleaved trials, intervals instead of maxima, and the cheapest setting of those that
// cannot be told from the best.
#include "measure.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace spillway::aio {

struct TuneSetting {
  std::int64_t block_bytes = 0;
  unsigned depth = 0;
  IoEngine engine = IoEngine::io_uring;
  bool overlap = true;  ///< reads and writes at the same time; else by turns
};

struct TuneOptions {
  std::vector<std::int64_t>
      block_sizes;  ///< empty: 64 KiB to 8 MiB in powers of two... whatever the search wants
  std::vector<unsigned> depths;
  std::vector<IoEngine> engines;
  double seconds = 60;      ///< for everything
  double tolerance = 0.02;  ///< of the best: settings within it count as equal, and the cheapest is chosen
  std::uint64_t seed = 1;   ///< of the order of trials and of the resampling
};

/// Bytes per second of a setting, as a share of a reference that was measured beside it.
struct TuneEstimate {
  TuneSetting setting;
  double bytes_per_s = 0;    ///< mean
  double low = 0, high = 0;  ///< 95% interval
  double cpu_s_per_gb = 0;
  int trials = 0;
};

}  // namespace spillway::aio
