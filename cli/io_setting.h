#pragma once
// What `spillway bench io` was asked for, checked and settled before anything is written.
#include "bench_io.h"
#include "io_jobs.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::cli {

struct IoSetting {
  IoTask task;
  int jobs = 1;
  std::vector<aio::Traffic> modes;
  double seconds = 0;              ///< for each mode
  std::string drive, file_system;  ///< of all paths, each once
  bool memory = false;             ///< no drive at all
  std::vector<std::string> notes;
};

/// "read", "write", "mixed".
std::string_view name_of_mode(aio::Traffic mode);

/// Throws Error (usage) for what cannot be measured so, and Error (resources), with numbers, for what does not
/// fit. Writes nothing.
IoSetting settle(const IoBenchOptions& options);

}  // namespace spillway::cli
