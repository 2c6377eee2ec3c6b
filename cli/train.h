#pragma once
// spillway train
#include "../core/config.h"

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace spillway::cli {

struct TrainOptions {
  std::string config;  ///< path, empty for none
  std::string device = "host";
  bool dry_run = false;
  bool allow_unknown_keys = false;
  std::string trace, metrics, json;       ///< paths, empty for none
  std::vector<ConfigOverride> overrides;  ///< what was typed for keys of the configuration
};

/// Adds the sub-command; `options` is filled when the command line is parsed.
CLI::App* add_train(CLI::App& program, TrainOptions& options);

/// Throws Error for everything that the user or the machine causes.
void train(const TrainOptions& options);

}  // namespace spillway::cli
