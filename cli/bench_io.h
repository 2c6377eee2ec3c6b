#pragma once
// spillway bench io: how fast the library moves bytes to and from the drives that a run would swap to.
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace spillway::cli {

/// As typed.
struct IoBenchOptions {
  std::vector<std::string> paths;
  std::string size;
  std::string block_size = "1M";
  std::string transfer_size = "4M";
  int queue_depth = 32;
  int jobs = 1;
  std::vector<std::string> modes;  ///< empty: all of them
  std::string engine = "auto";
  std::string direct;  ///< empty: on, and memory is no drive
  double seconds = 5;
  bool sqpoll = false;
  bool iopoll = false;
  bool overwrite = false;
  std::string json;
};

CLI::App* add_bench_io(CLI::App& bench, IoBenchOptions& options);

/// Throws Error; says its results on standard output.
void bench_io(const IoBenchOptions& options);

}  // namespace spillway::cli
