#include "train.h"

#include "../core/communicator.h"
#include "../core/error.h"
#include "../core/host_device.h"
#include "../core/learning_rate.h"
#include "../core/size.h"
#include "../core/topology.h"
#include "../core/trace.h"
#include "../models/decoder.h"
#include "../models/token_data.h"
#include "../offload/engine.h"
#include "../offload/weights_hash.h"
#include "dry_run.h"
#include "metrics.h"
#include "output_file.h"
#include "progress.h"
#include "report.h"
#include "setup.h"
#include "text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include <fmt/format.h>

namespace spillway::cli {
namespace {

constexpr std::int64_t kSampleTokens = 200;
constexpr double kSampleTemperature = 0.8;

void check_options(const TrainOptions& options) {
  if (options.config.empty() && options.overrides.empty()) {
    throw Error(
        ErrorKind::usage, "train needs a model and data",
        {.hint = "spillway train --model decoder-tiny --data README.md (spillway train --help explains all "
                 "flags)"});
  }
  if (options.device != "host") {
    const bool planned = options.device == "cuda";
    throw Error(ErrorKind::usage,
                planned ? "--device cuda is not built yet"
                        : fmt::format("--device: there is no device '{}'", options.device),
                {.hint = "--device host computes with this machine's own processors"});
  }
}

/// Checked before anything is read or trained: whether they can be written.
struct Outputs {
  explicit Outputs(const TrainOptions& options)
      : json(options.json, "--json"), metrics(options.metrics, "--metrics"), trace(options.trace, "--trace") {
    metrics.check_apart_from(json);
    trace.check_apart_from(json);
    trace.check_apart_from(metrics);
  }
  void check_apart_from(std::string_view what, const std::string& input) const {
    for (const OutputFile* output : {&json, &metrics, &trace}) output->check_apart_from(what, input);
  }
  OutputFile json, metrics, trace;
};

/// Reads a data set once, and says on a terminal how far it is.
models::TokenData read_data(const std::vector<std::string>& names, const Setup& setup, std::string_view what) {
  TerminalLine line;
  const auto progress = [&](std::int64_t done, std::int64_t all) {
    line.show_sometimes(fmt::format("checking {}: {} of {}", what, format_size(done), format_size(all)));
  };
  models::TokenData data(names, {.length = setup.config.sequence_length,
                                 .vocabulary = setup.model.vocabulary,
                                 .format = models::token_format(setup.config.tokens),
                                 .progress = progress});
  line.clear();
  return data;
}

/// The mean loss over every sequence of the data, in order.
double evaluate(models::Decoder& decoder, const models::TokenData& data, const models::Batch& batch,
                Progress& progress) {
  const auto length = static_cast<std::size_t>(batch.length);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch.tokens())), targets(tokens.size());
  double sum = 0;
  const std::int64_t count = data.sequences();
  for (std::int64_t first = 0; first < count; first += batch.sequences) {
    const std::int64_t counted = std::min(batch.sequences, count - first);
    for (std::int64_t i = 0; i < batch.sequences; ++i) {
      const auto at = static_cast<std::size_t>(i) * length;
      // What fills a batch that is not full does not count.
      data.sequence(first + std::min(i, counted - 1), std::span(tokens).subspan(at, length),
                    std::span(targets).subspan(at, length));
    }
    sum += decoder.loss(tokens, targets, counted) * static_cast<double>(counted);
    progress.line().show_sometimes(
        fmt::format("validation: {} of {}", grouped(first + counted), grouped(count)));
  }
  return sum / static_cast<double>(count);
}

/// What a run is made of once everything is there.
struct Run {
  const RunSetting& setting;
  Engine& engine;
  models::Decoder& decoder;
  Trace& trace;
  Metrics& metrics;
  Progress& progress;
};

/// Makes all steps. Returns what is known when the last update is done.
RunResult run_steps(const Run& run) {
  const Config& config = run.setting.setup.config;
  const models::TokenData& data = run.setting.data;
  HyperParameters decayed = config.optimizer;

  // All micro-batches of a step: the model says in which order they pass through it.
  const auto tokens_at_once = static_cast<std::size_t>(run.setting.setup.batch.tokens());
  std::vector<std::int32_t> tokens(tokens_at_once * static_cast<std::size_t>(config.accumulation)),
      targets(tokens.size());
  std::vector<models::MicroBatch> micro_batches;
  const bool waits = updates_wait(config);
  RunResult result;
  LaneTimes steady;  // of all steps but the first
  std::int64_t sequence = 0;
  run.trace.take_lane_times();
  for (std::int64_t step = 1; step <= config.steps; ++step) {
    // A skipped step leaves the schedule where it is.
    decayed.learning_rate =
        learning_rate(config.schedule, config.optimizer.learning_rate, run.engine.counters().steps);
    HyperParameters plain = decayed;  // what the weight decay leaves alone
    plain.weight_decay = 0;
    StepMetrics metrics{.step = step, .epoch = data.epoch_of(sequence), .learning_rate = decayed.learning_rate};

    run.engine.begin_step({.groups = {decayed, plain}, .micro_batches = config.accumulation});
    micro_batches.clear();
    for (std::size_t first = 0; first < tokens.size(); first += tokens_at_once) {
      const auto its_tokens = std::span(tokens).subspan(first, tokens_at_once);
      const auto its_targets = std::span(targets).subspan(first, tokens_at_once);
      data.batch(config.seed, sequence, its_tokens, its_targets);
      sequence += config.micro_batch;
      micro_batches.push_back({its_tokens, its_targets});
    }
    for (const double loss : run.decoder.train(micro_batches)) metrics.loss += loss;
    metrics.loss /= config.accumulation;
    const StepResult made = run.engine.step().wait();

    metrics.gradient_norm = made.gradient_norm;
    metrics.skipped = made.skipped;
    metrics.tokens = run.setting.setup.tokens_a_step();
    // What goes on under the next step counts there, as what went on under this one does here.
    metrics.lanes = run.trace.take_lane_times();
    metrics.seconds = metrics.lanes.seconds;
    metrics.floor = step_floor(metrics.lanes, waits);
    if (step == 2) steady = {};
    result.lanes = (steady += metrics.lanes) / static_cast<double>(std::max<std::int64_t>(1, step - 1));
    result.floor = step_floor(result.lanes, waits);
    if (step == 1) result.loss_first = metrics.loss;
    result.loss_last = metrics.loss;
    StepStatus status{.step = step,
                      .loss = metrics.loss,
                      .gradient_norm = made.gradient_norm,
                      .skipped = made.skipped,
                      .of_floor = result.floor.seconds / std::max(result.lanes.seconds, 1e-9),
                      .bound = result.floor.bound};
    for (std::size_t i = 0; i < status.used.size(); ++i) status.used[i] = run.engine.budget(kTiers[i]).used();
    run.progress.show(status);

    const bool due = step == config.steps || (config.eval_every > 0 && step % config.eval_every == 0);
    if (run.setting.eval_data != nullptr && due) {
      const Progress::Pause pause(run.progress);
      metrics.eval_loss = result.eval_loss =
          evaluate(run.decoder, *run.setting.eval_data, run.setting.setup.batch, run.progress);
      run.progress.note(fmt::format("{:>7} {:>9} validation", step, fixed(*result.eval_loss, 4)));
      run.trace.take_lane_times();  // is no part of a step
    }
    run.metrics.add(metrics);
  }
  run.engine.drain();
  result.seconds = run.progress.seconds();
  result.counters = run.engine.counters();
  return result;
}

void draw_sample(const Run& run, RunResult& result) {
  if (!run.setting.data.is_text()) {
    result.no_sample = "the data are tokens, and what they stand for is not known";
    return;
  }
  const std::array<std::int32_t, 1> prompt{'\n'};
  result.sample = printable(run.decoder.sample(
      prompt, kSampleTokens, kSampleTemperature, run.setting.setup.config.seed, [&](std::int64_t drawn) {
        run.progress.line().show_sometimes(fmt::format("sampling: {} of {}", drawn, kSampleTokens));
      }));
}

}  // namespace

void train(const TrainOptions& options) {
  check_options(options);
  const Setup setup = prepare(options);
  const Config& config = setup.config;
  const Outputs output(options);
  output.check_apart_from("the file of --config", options.config);
  output.check_apart_from("the model's configuration", config.model_source);
  for (const auto& name : models::matching_files(config.data))
    output.check_apart_from("a file of --data", name);
  for (const auto& name : models::matching_files(config.eval_data)) {
    output.check_apart_from("a file of --eval-data", name);
  }
  if (config.eval_every > 0 && config.eval_data.empty()) {
    throw Error(ErrorKind::usage, "spillway.eval_every (--eval-every) without data to measure the loss on",
                {.hint = "give --eval-data FILE"});
  }
  if (options.dry_run) return dry_run(setup, output.json);
  if (config.data.empty()) {
    throw Error(ErrorKind::usage, "train needs --data FILE: there is nothing to train on",
                {.hint = "text or token files; --dry-run shows the plan without any"});
  }
  check_fits(setup);
  const models::TokenData data = read_data(config.data, setup, "the data");
  std::optional<models::TokenData> eval_data;
  if (!config.eval_data.empty()) eval_data = read_data(config.eval_data, setup, "the validation data");
  if (eval_data && eval_data->is_text() != data.is_text()) {
    throw Error(ErrorKind::configuration,
                fmt::format("--data holds {} and --eval-data {}", data.is_text() ? "text" : "tokens",
                            eval_data->is_text() ? "text" : "tokens"),
                {.hint = "measure the loss on what is trained on"});
  }
  const models::TokenData* const eval_or_null = eval_data ? &*eval_data : nullptr;

  Trace trace(0, output.trace.wanted() ? Trace::Keep::events : Trace::Keep::lane_times);
  HostDevice device({.memory = config.device_memory,
                     .threads = config.device_threads,
                     .processors = pool_processors(config.pin_threads, config.device_threads, config.io_cores)},
                    &trace);
  SingleRankCommunicator communicator;
  Engine engine(config, setup.layout, device, communicator, &trace);
  models::Decoder decoder(setup.model, setup.run, device, engine);
  Metrics metrics(output.metrics.path());

  const RunSetting setting{.setup = setup, .engine = engine, .data = data, .eval_data = eval_or_null};
  say(description(setup, &data, eval_or_null, engine.io()) + plan_block(setup, engine.plan()));
  flush();
  decoder.initialize(config.seed);

  RunResult result;
  bool not_finite = false;
  {
    Progress progress(config.steps, setup.tokens_a_step(),
                      models::flops_per_token(setup.model, config.sequence_length),
                      {setup.limits.device, setup.limits.host, -1});
    const Run run{setting, engine, decoder, trace, metrics, progress};
    result = run_steps(run);
    progress.line().end();
    result.weights_xxh3 = weights_xxh3(engine);
    try {
      draw_sample(run, result);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::numerics) throw;
      result.no_sample = error.what();  // what was trained is reported all the same
      not_finite = true;
    }
    progress.line().clear();
  }
  say(end_block(setting, result));
  flush();
  if (output.json.wanted()) output.json.replace_with(json_report(setting, result));
  if (output.trace.wanted()) output.trace.replace([&](const std::string& name) { trace.write(name); });
  if (not_finite) {
    throw Error(
        ErrorKind::numerics, result.no_sample,
        {.hint = "a lower learning rate, or a smaller initializer_range of the model, may keep it finite"});
  }
}

}  // namespace spillway::cli
