#pragma once
// spillway bench: the group of sub-commands that measure a part of the engine beside the floor it is held
// against.
#include "bench_adam.h"
#include "bench_io.h"
#include "bench_step.h"

#include <functional>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace CLI {
class App;
}

namespace spillway::cli {

struct BenchOptions {
  AdamBenchOptions adam;
  IoBenchOptions io;
  StepBenchOptions step;
  std::function<void()> chosen;  ///< runs the sub-command that was named; empty where none was
};

/// Adds the group; `options` is filled when the command line is parsed.
CLI::App* add_bench(CLI::App& program, BenchOptions& options);

/// What every row of a benchmark begins with: version, format version, command, the machine.
nlohmann::json bench_row(std::string_view command);

}  // namespace spillway::cli
