#include "bench_step.h"

#include "../core/error.h"
#include "../core/size.h"
#include "../offload/plan.h"
#include "bench_step_report.h"
#include "bench_support.h"
#include "options.h"
#include "output_file.h"
#include "setup.h"
#include "step_measurement.h"
#include "terminal_line.h"
#include "text.h"

#include <algorithm>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

constexpr int kMostLayers = 100'000, kMostPairs = 100'000, kMostSteps = 10'000;
constexpr double kMostMilliseconds = 60'000;

void check_between(std::string_view flag, int value, int least, int most, std::string hint) {
  if (value >= least && value <= most) return;
  throw usage(fmt::format("{}: {} is not between {} and {}", flag, value, least, grouped(most)),
              std::move(hint));
}

/// The configuration with what this sub-command adds to it.
Config read_settings(const StepBenchOptions& options) {
  std::vector<ConfigOverride> overrides = options.overrides;
  const auto is_given = [&](std::string_view flag) {
    return std::any_of(overrides.begin(), overrides.end(), [&](const auto& o) { return o.flag == flag; });
  };
  if (!options.clip.empty()) {
    if (options.clip != "0" && options.clip != "1") {
      throw usage(
          fmt::format("--clip: '{}' is neither 0 nor 1", options.clip),
          "1: clipped to a norm of 1, so that updates wait for all gradients; 0: they wait for nothing");
    }
    overrides.push_back({"gradient_clipping", options.clip, "--clip"});
    if (options.clip == "0") overrides.push_back({"spillway.check_finite", "false", "--clip"});
  }
  std::string assumed;
  if (options.config.empty() && !is_given("--offload-optimizer")) {
    const std::string tier = is_given("--nvme-path") ? "nvme" : "host";
    overrides.push_back({"zero_optimization.offload_optimizer.device", tier, "--offload-optimizer"});
    assumed = fmt::format("--offload-optimizer {} ({})", tier,
                          tier == "nvme" ? "there is an --nvme-path" : "there is no --nvme-path");
  }
  const ConfigOptions reading{.overrides = overrides};
  Config config = options.config.empty() ? parse_config("{}", "the command line", reading)
                                         : read_config(options.config, reading);
  if (!assumed.empty()) config.assumed.push_back(std::move(assumed));
  return config;
}

/// The fewest parameters that fit are not searched for: half of them, and so on, is near enough for a hint.
std::string what_fits(const StepTask& task, const Limits& limits) {
  StepModelShape shape = task.shape;
  while (shape.parameters / 2 >= shape.units) {
    shape.parameters /= 2;
    if (fits(make_plan(step_layout(shape), task.config), limits))
      return fmt::format("--params {} fits", shape.parameters);
  }
  return "";
}

StepTask settle(const StepBenchOptions& options) {
  StepTask task;
  task.shape.parameters = parse_parameters(options.params);
  check_between("--layers", options.layers, 1, kMostLayers, "units of one size, such as 16");
  task.shape.units = options.layers;
  if (task.shape.parameters < task.shape.units) {
    throw usage(
        fmt::format("--params: {} are fewer than the {} layers", task.shape.parameters, task.shape.units),
        "each layer needs a parameter");
  }
  if (!(options.compute_ms >= 0 && options.compute_ms <= kMostMilliseconds)) {
    throw usage(fmt::format("--compute-ms: {} is not between 0 and {}", options.compute_ms, kMostMilliseconds),
                "the milliseconds that a layer computes in a micro-batch, forward and backward together");
  }
  task.shape.compute_seconds = 1e-3 * options.compute_ms;
  check_between("--pairs", options.pairs, 1, kMostPairs, "7 say something, more say more");
  check_between("--steps", options.steps, 1, kMostSteps, "steps in a row that are timed together, such as 2");
  check_seconds(options.seconds, true, "the time for all pairs together, at least");
  task.pairs = options.pairs;
  task.block = options.steps;
  task.seconds = options.seconds;
  if (!options.device_bandwidth.empty()) {
    task.copy_bandwidth = static_cast<double>(parse_size(options.device_bandwidth, "--device-bandwidth"));
    if (task.copy_bandwidth == 0)
      throw usage("--device-bandwidth: nothing would ever arrive", "bytes a second, such as 12GB");
  }
  task.config = read_settings(options);
  Limits limits;
  settle_machine(task.config, limits);
  try {
    check_plan(step_layout(task.shape), task.config, limits);
  } catch (const Error& error) {
    ErrorDetail detail = error.detail();
    if (const std::string other = what_fits(task, limits); !other.empty())
      detail.hint = detail.hint.empty() ? other : fmt::format("{}; or {}", other, detail.hint);
    throw Error(error.kind(), error.what(), detail);
  }
  return task;
}

constexpr const char* kFooter =
    "The engine trains a model whose computing is a time: on the device's compute stream somebody sleeps for\n"
    "--compute-ms, a third of it in the forward pass, and no processor is used for it. So it shows on a small\n"
    "machine what the engine hides behind computing, and what not. docs/step.md has the definitions, and a\n"
    "picture of a step.\n\n"
    "The floor of a step\n"
    "  --clip 0   max(compute, Adam alone, drive): an update may begin as soon as its gradient has landed\n"
    "  --clip 1   backward + max(forward, Adam alone, drive): it waits for the norm of all gradients, and "
    "only\n"
    "             the next forward pass can hide it\n"
    "  Adam alone and the drive's time are measured by turns with the steps, in this engine: Adam on memory "
    "that\n"
    "  is there, and the transfers of an update through the same files, with nothing in between.\n\n"
    "Afterwards the weights must be those of the same steps with everything on the device, bit by bit, and "
    "the\n"
    "bytes those of the format, by the kernel's count.\n\n"
    "Examples\n"
    "  spillway bench step --nvme-path /mnt/nvme\n"
    "      the optimizer's state on NVMe: is a step as fast as the drive?\n"
    "  spillway bench step --nvme-path /mnt/nvme --state-format compact8 --clip 0 --json step.json\n"
    "      the narrowest state, and nothing that updates wait for\n"
    "  spillway bench step --nvme-path /mnt/nvme --offload-parameters nvme --compute-ms 200 --layers 24\n"
    "      computing that is long enough to hide everything: is it all that a step takes?\n"
    "  spillway bench step --config tuned.json --offload-optimizer nvme --host-memory 4G --trace step.trace\n"
    "      what spillway tune has found, with a timeline for Perfetto or scripts/plot_step.py";

}  // namespace

CLI::App* add_bench_step(CLI::App& bench, StepBenchOptions& options) {
  constexpr const char* kModel = "The model";
  constexpr const char* kMeasuring = "Measuring";
  CLI::App* step = bench.add_subcommand("step", "A whole step, beside the floor of its slowest lane");
  step->get_formatter()->column_width(30);
  const auto add = [&](const char* flag, auto& value, const char* help, const char* type, const char* group) {
    step->add_option(flag, value, help)->option_text(type)->group(group);
  };
  add("--params", options.params, "Its parameters, such as 1000000, 64M (64 x 2^20) or 1G", "N (200M)", kModel);
  add("--layers", options.layers, "Units of one size that they lie in", "N (16)", kModel);
  add("--compute-ms", options.compute_ms,
      "Milliseconds that a layer computes in a micro-batch, forward (a third) and backward together", "X (10)",
      kModel);
  add("--clip", options.clip,
      "1: clipped to a norm of 1, and updates wait for all gradients; 0: neither that nor the check for finite "
      "ones",
      "0|1 (1)", kModel);
  add("--config", options.config, "Settings of a run, as spillway train reads them; its model does not count",
      "FILE", kModel);
  step->add_option_function<std::string>(
          "--micro-batches",
          [&options](const std::string& value) {
            options.overrides.push_back({"gradient_accumulation_steps", value, "--micro-batches"});
          },
          "Micro-batches of a step")
      ->option_text("N (1)")
      ->group(kModel);
  add_config_flags(
      *step, options.overrides,
      {"--state-format", "--accumulation-order", "--delayed-update", "--offload-optimizer",
       "--offload-parameters", "--nvme-path", "--device-memory", "--host-memory", "--resident-fraction",
       "--parameter-cache", "--block-size", "--queue-depth", "--update-slots", "--io-engine",
       "--update-threads", "--device-threads", "--pin-threads", "--io-cores"});
  add("--device-bandwidth", options.device_bandwidth,
      "Bytes a second that are copied to the device, and from it, as a bus would (as fast as memory)", "S",
      "Where state lives");
  add("--pairs", options.pairs, "Pairs of a block of steps and its parts alone, at least", "N (7)", kMeasuring);
  add("--steps", options.steps, "Steps of a block, one after another", "N (2)", kMeasuring);
  add("--seconds", options.seconds, "Time for all pairs, at least", "S (0)", kMeasuring);
  add("--json", options.json, "The row with all settings, as JSON", "FILE", kMeasuring);
  add("--trace", options.trace, "What happened when (opens in Perfetto; scripts/plot_step.py draws a step)",
      "FILE", kMeasuring);
  finish_options(*step, {"--params", "--clip", "--config", "--device-bandwidth", "--json", "--trace"});
  step->footer(kFooter);
  return step;
}

void bench_step(const StepBenchOptions& options) {
  const StepTask task = settle(options);
  const OutputFile output(options.json, "--json"), trace(options.trace, "--trace");
  trace.check_apart_from(output);
  output.check_apart_from("the file of --config", options.config);
  trace.check_apart_from("the file of --config", options.config);
  TerminalLine line;
  const StepFigures figures = measure_steps(
      task, trace,
      [&](const Engine& engine) {  // not before everything is reserved, so that a refusal stands alone
        say(step_heading(task, engine));
        flush();
      },
      [&](const std::string& progress) { line.show(progress); });
  line.clear();
  say(step_text(task, figures));
  flush();
  write_rows(output, nlohmann::json::array({step_row(task, figures)}));
}

}  // namespace spillway::cli
