#include "train.h"

#include "../core/communicator.h"
#include "../core/error.h"
#include "../core/host_device.h"
#include "../core/machine.h"
#include "../core/trace.h"
#include "../models/decoder.h"
#include "../models/text_data.h"
#include "../offload/engine.h"
#include "../offload/weights_hash.h"
#include "output_file.h"
#include "progress.h"
#include "report.h"
#include "text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace spillway::cli {
namespace {

constexpr std::int64_t kSampleTokens = 200;
constexpr double kSampleTemperature = 0.8;

/// A flag that overrides keys of the configuration.
struct Flag {
  const char* name;
  std::vector<std::string> keys;
  const char* type;
  const char* help;
};

const std::vector<Flag>& flags() {
  static const std::vector<Flag> all = {
      {"--steps", {"spillway.steps"}, "N", "Updates to make (100)"},
      {"--seed", {"spillway.seed"}, "N", "Of the first weights, the order of the data and the sample (1234)"},
      {"--device-memory",
       {"spillway.device_memory"},
       "SIZE",
       "What may be used of the device's memory, such as 40M or 1.5GiB (no limit)"},
      {"--host-memory", {"spillway.host_memory"}, "SIZE", "The same for host memory (no limit)"},
      {"--offload-optimizer",
       {"zero_optimization.offload_optimizer.device"},
       "TIER",
       "Where the optimizer's state lives: device, host or nvme (device)"},
      {"--offload-parameters",
       {"zero_optimization.offload_param.device"},
       "TIER",
       "Where parameters live while no layer needs them: device, host or nvme (device)"},
      {"--nvme-path",
       {"zero_optimization.offload_optimizer.nvme_path", "zero_optimization.offload_param.nvme_path"},
       "DIR",
       "A directory on the drive for what lives on nvme; nothing stays in it"},
      {"--update-threads", {"spillway.update_threads"}, "N", "Threads of the optimizer (all processors)"},
      {"--device-threads", {"spillway.device_threads"}, "N", "Threads of the host device (all processors)"},
  };
  return all;
}

models::DecoderConfig read_model(const Config& config, const std::string& file) {
  if (config.model.empty()) {
    throw Error(
        ErrorKind::configuration, fmt::format("{}: spillway.model is missing: there is nothing to train", file),
        {.hint = "give the path of a model's configuration, or its keys, as in examples/decoder-tiny.json"});
  }
  const auto model = models::parse_decoder_config(config.model, config.model_source);
  if (config.sequence_length > model.positions) {
    throw Error(ErrorKind::configuration,
                fmt::format("{}: spillway.sequence_length {} is more than the model's {} positions", file,
                            config.sequence_length, model.positions),
                {.hint = "shorten the sequences, or raise n_positions in the model's configuration"});
  }
  if (constexpr std::int64_t kBytes = 256; model.vocabulary < kBytes) {
    throw Error(ErrorKind::configuration,
                fmt::format("{}: vocab_size {} is less than 256, and text is read as bytes",
                            config.model_source, model.vocabulary));
  }
  return model;
}

/// Makes all steps. Returns what is known when the last update is done.
RunResult run_steps(const RunSetting& setting, const models::TextData& data, Engine& engine,
                    models::Decoder& decoder, Progress& progress) {
  const Config& config = setting.config;
  const AdamHyper decayed{.learning_rate = config.optimizer.learning_rate,
                          .beta1 = config.optimizer.beta1,
                          .beta2 = config.optimizer.beta2,
                          .eps = config.optimizer.eps,
                          .weight_decay = config.optimizer.weight_decay,
                          .decoupled = config.optimizer.decoupled};
  AdamHyper plain = decayed;  // biases and norms
  plain.weight_decay = 0;

  const auto tokens_at_once = static_cast<std::size_t>(config.micro_batch * config.sequence_length);
  std::vector<std::int32_t> tokens(tokens_at_once), targets(tokens_at_once);
  RunResult result;
  std::int64_t sequence = 0;
  for (std::int64_t step = 1; step <= config.steps; ++step) {
    engine.begin_step({.groups = {decayed, plain}, .micro_batches = config.accumulation});
    double loss = 0;
    for (int micro = 0; micro < config.accumulation; ++micro) {
      data.batch(config.seed, sequence, tokens, targets);
      sequence += config.micro_batch;
      loss += decoder.train(tokens, targets);
    }
    loss /= config.accumulation;
    const StepResult made = engine.step().wait();

    if (step == 1) result.loss_first = loss;
    result.loss_last = loss;
    StepStatus status{.step = step, .loss = loss, .gradient_norm = made.gradient_norm, .skipped = made.skipped};
    for (std::size_t i = 0; i < status.used.size(); ++i) status.used[i] = engine.budget(kTiers[i]).used();
    progress.show(status);
  }
  engine.drain();
  result.seconds = progress.seconds();
  result.counters = engine.counters();
  return result;
}

}  // namespace

CLI::App* add_train(CLI::App& program, TrainOptions& options) {
  CLI::App* train =
      program.add_subcommand("train", "Train a model, spilling what does not fit to host memory or NVMe");
  train
      ->add_option("--config", options.config,
                   "The configuration: DeepSpeed's JSON, our own keys under \"spillway\"")
      ->option_text("FILE (needed)");
  train->add_option("--data", options.data, "Text files to train on, read as bytes; may be given several times")
      ->option_text("FILE ... (needed)");
  train->add_option("--device", options.device, "The device that computes: host")->option_text("DEVICE (host)");
  for (const Flag& flag : flags()) {
    train
        ->add_option_function<std::string>(
            flag.name,
            [&options, &flag](const std::string& value) {
              for (const auto& key : flag.keys) options.overrides.push_back({key, value, flag.name});
            },
            flag.help)
        ->option_text(flag.type);
  }
  train
      ->add_option("--trace", options.trace,
                   "Write what happened when, and which buffer lived where (opens in Perfetto)")
      ->option_text("FILE");
  train->add_option("--json", options.json, "Write the result with all settings, as JSON")->option_text("FILE");
  train->footer(
      "Parameters are on the device only while a layer needs them; they and the optimizer's state live in the\n"
      "tier that you choose. That changes the speed, never the result: the weights are the same, bit by "
      "bit.\n\n"
      "A flag overrides the configuration file. Sizes: 40M and 40MiB are 40 x 2^20 bytes, 40MB 40 x 10^6.\n\n"
      "Examples\n"
      "  spillway train --config examples/decoder-tiny.json --data README.md --nvme-path .\n"
      "      a model of under a million parameters, its state on the drive that holds this directory\n"
      "  spillway train --config examples/decoder-25m.json --data /usr/share/games/fortunes/literature\n"
      "                 --nvme-path /mnt/nvme --device-memory 33M --json result.json\n"
      "      25 million parameters on a device that has no room for them\n"
      "  spillway train --config examples/decoder-tiny.json --data README.md\n"
      "                 --offload-optimizer host --offload-parameters device\n"
      "      the same weights again, from other places");
  return train;
}

void train(const TrainOptions& options) {
  if (options.config.empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("train needs --config FILE{}", options.data.empty() ? " and --data FILE" : ""),
                {.hint = "spillway train --config examples/decoder-tiny.json --data README.md --nvme-path . "
                         "(spillway train --help explains all flags)"});
  }
  if (options.data.empty()) {
    throw Error(ErrorKind::usage, "train needs --data FILE: there is nothing to train on",
                {.hint = "any text files; --data may be given several times"});
  }
  if (options.device != "host") {
    const bool planned = options.device == "cuda";
    throw Error(ErrorKind::usage,
                planned ? "--device cuda is not built yet"
                        : fmt::format("--device: there is no device '{}'", one_line(options.device)),
                {.hint = "--device host computes with this machine's own processors"});
  }

  Config config = read_config(options.config, {.overrides = options.overrides});
  if (config.device_threads == 0) config.device_threads = available_processors();
  if (config.update_threads == 0) config.update_threads = available_processors();
  const models::DecoderConfig model = read_model(config, options.config);
  if (config.sequence_length == 0) config.sequence_length = model.positions;
  const OutputFile json(options.json, "--json"), trace_file(options.trace, "--trace");
  for (const OutputFile* output : {&json, &trace_file}) {
    output->check_apart_from("the file of --config", options.config);
    output->check_apart_from("the model's configuration", config.model_source);
    for (const auto& name : options.data) output->check_apart_from("a file of --data", name);
  }
  trace_file.check_apart_from(json);
  const models::TextData data(options.data, config.sequence_length);

  std::optional<Trace> trace;
  if (trace_file.wanted()) trace.emplace();
  Trace* const tracing = trace ? &*trace : nullptr;
  const models::Batch batch{.sequences = config.micro_batch, .length = config.sequence_length};
  const Layout layout = models::decoder_layout(model, batch, config.precision, config.device_threads);
  HostDevice device({.memory = config.device_memory, .threads = config.device_threads}, tracing);
  SingleRankCommunicator communicator;
  Engine engine(config, layout, device, communicator, tracing);
  models::Decoder decoder(model, batch, config.precision, device, engine);

  const RunSetting setting{.config = config,
                           .model = model,
                           .engine = engine,
                           .data_files = options.data,
                           .data_bytes = data.size(),
                           .unigram_entropy = data.unigram_entropy()};
  say(start_block(setting));
  flush();
  decoder.initialize(config.seed);

  RunResult result;
  {
    std::array<std::int64_t, 3> limits{};
    for (std::size_t i = 0; i < limits.size(); ++i) limits[i] = limit_of(config, kTiers[i]);
    Progress progress(config.steps, setting.tokens_a_step(), limits);
    result = run_steps(setting, data, engine, decoder, progress);
    progress.end_line();
    result.weights_xxh3 = weights_xxh3(engine);
    const std::array<std::int32_t, 1> prompt{'\n'};
    try {
      result.sample = printable(
          decoder.sample(prompt, kSampleTokens, kSampleTemperature, config.seed, [&](std::int64_t drawn) {
            progress.remark(fmt::format("sampling: {} of {}", drawn, kSampleTokens));
          }));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::numerics) throw;
      result.no_sample = error.what();  // what was trained is reported all the same
    }
    progress.remark("");
  }
  say(end_block(setting, result));
  flush();
  if (json.wanted()) json.replace_with(json_report(setting, result));
  if (trace_file.wanted()) trace_file.replace([&](const std::string& name) { trace->write(name); });
  if (!result.no_sample.empty()) {
    throw Error(
        ErrorKind::numerics, result.no_sample,
        {.hint = "a lower learning rate, or a smaller initializer_range of the model, may keep it finite"});
  }
}

}  // namespace spillway::cli
