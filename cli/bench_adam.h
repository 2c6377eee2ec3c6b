#pragma once
// spillway bench adam: the speed of the optimizer's update, by state format.
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace spillway::cli {

/// As they were typed.
struct AdamBenchOptions {
  std::string params = "64M";
  std::vector<std::string> state_formats;  ///< empty: all that exist with the optimizer
  std::string optimizer = "adamw";
  std::string gradient = "bf16";
  std::optional<int> threads;  ///< nothing: all available processors
  std::string isa;             ///< empty: what SPILLWAY_ISA says, else the fastest
  double seconds = 3;          ///< for each format
  std::string json;            ///< path, empty for none
};

/// Adds the sub-command; `options` is filled when the command line is parsed.
CLI::App* add_bench_adam(CLI::App& bench, AdamBenchOptions& options);

/// Prints a row for each format, and writes them to options.json where that is given. Throws Error for
/// everything that the user or the machine causes, and where the update is not that of the scalar reference.
void bench_adam(const AdamBenchOptions& options);

}  // namespace spillway::cli
