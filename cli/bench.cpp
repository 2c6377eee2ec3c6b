#include "bench.h"

#include "machine.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {
constexpr int kBenchFormatVersion = 1;
}

CLI::App* add_bench(CLI::App& program, BenchOptions& options) {
  CLI::App* bench = program.add_subcommand(
      "bench", "Measure a part of the engine beside the best that this machine could do");
  bench->require_subcommand(0, 1);
  bench->footer(
      "Every benchmark verifies its results outside the time that it takes, and says how much its figures "
      "vary.\n"
      "spillway bench io --help explains one, with examples.");
  add_bench_adam(*bench, options.adam)->callback([&options] {
    options.chosen = [&options] { bench_adam(options.adam); };
  });
  add_bench_io(*bench, options.io)->callback([&options] {
    options.chosen = [&options] { bench_io(options.io); };
  });
  add_bench_step(*bench, options.step)->callback([&options] {
    options.chosen = [&options] { bench_step(options.step); };
  });
  return bench;
}

nlohmann::json bench_row(std::string_view command) {
  return {{"version", SPILLWAY_VERSION},
          {"format_version", kBenchFormatVersion},
          {"command", command},
          {"machine", machine_json()}};
}

}  // namespace spillway::cli
