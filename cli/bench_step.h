#pragma once
// spillway bench step: a whole step of the engine, beside the floor of its slowest lane.
#include "../core/config.h"

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace spillway::cli {

/// As typed.
struct StepBenchOptions {
  std::string config;  ///< path, empty for none
  std::string params = "200M";
  int layers = 16;
  double compute_ms = 10;  ///< of a layer and micro-batch
  std::string clip;        ///< "0", "1"; empty: as the configuration says, else 1
  std::string device_bandwidth;
  int pairs = 7;
  int steps = 2;
  double seconds = 0;
  std::string json, trace;                ///< paths, empty for none
  std::vector<ConfigOverride> overrides;  ///< what was typed for keys of the configuration
};

/// Adds the sub-command; `options` is filled when the command line is parsed.
CLI::App* add_bench_step(CLI::App& bench, StepBenchOptions& options);

/// Prints what was measured, and writes a row to options.json where that is given. Throws Error for everything
/// that the user or the machine causes, and where the result is not that of the same steps on the device alone.
void bench_step(const StepBenchOptions& options);

}  // namespace spillway::cli
