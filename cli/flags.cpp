// The flags of spillway train, and those of other sub-commands that stand before the configuration too.
#include "options.h"
#include "text.h"
#include "train.h"

#include <algorithm>
#include <stdexcept>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::cli {
namespace {

/// A flag that stands before keys of the configuration.
struct Flag {
  const char* names;
  std::vector<std::string> keys;
  const char* type;
  const char* help;
  const char* group;
  bool repeats = false;  ///< may be given several times, or with several values

  /// As it is called first: --offload-parameters, whatever its other names.
  std::string_view name() const {
    const std::string_view all = names;
    return all.substr(0, all.find(','));
  }
};

constexpr const char* kWhat = "What is trained";
constexpr const char* kHow = "How";
constexpr const char* kWhere = "Where state lives";
constexpr const char* kDrives = "How drives are used";
constexpr const char* kThreads = "Threads";
constexpr const char* kOutput = "What is written";

const std::vector<Flag>& flags() {
  static const std::vector<Flag> all = {
      {"--model",
       {"spillway.model"},
       "MODEL",
       "decoder-tiny, decoder-25m, gpt2, gpt2-medium, gpt2-large or gpt2-xl; the path of a model's "
       "configuration; or a directory that holds a config.json",
       kWhat},
      {"--data",
       {"spillway.data"},
       "FILE ...",
       "What to train on: text, read as bytes, or token files; patterns such as 'shard-*.bin' too",
       kWhat,
       true},
      {"--eval-data",
       {"spillway.eval_data"},
       "FILE ...",
       "What to measure the loss on, without training on it",
       kWhat,
       true},
      {"--eval-every",
       {"spillway.eval_every"},
       "N",
       "Measure it after every N steps (after the last one only)",
       kWhat},
      {"--tokens",
       {"spillway.tokens"},
       "TYPE",
       "What data files hold: uint16 or uint32 without a header, or bytes (by llm.c's header, else bytes)",
       kWhat},
      {"--vocab", {"spillway.vocab"}, "N", "The vocabulary, in the place of the model's vocab_size", kWhat},
      {"--sequence-length",
       {"spillway.sequence_length"},
       "N",
       "Tokens of a sequence (the model's positions)",
       kWhat},
      {"--seed",
       {"spillway.seed"},
       "N",
       "Of the first weights, the order of the data, the rounding of narrow state and the sample (1234)",
       kWhat},

      {"--steps", {"spillway.steps"}, "N", "Updates to make (100)", kHow},
      {"--lr", {"optimizer.params.lr"}, "X", "The learning rate (0.001)", kHow},
      {"--batch-size", {"train_micro_batch_size_per_gpu"}, "N", "Sequences computed at once (1)", kHow},
      {"--accumulation",
       {"gradient_accumulation_steps"},
       "N",
       "Micro-batches of that size that make a step (1)",
       kHow},
      {"--stage",
       {"zero_optimization.stage"},
       "N",
       "ZeRO stage, 0 to 3: what several ranks would partition (3)",
       kHow},
      {"--state-format",
       {"spillway.state_format"},
       "FORMAT",
       "How the optimizer's state is stored: fp32, bf16 or compact8, with 12, 8 or 5.125 bytes a parameter "
       "(fp32)",
       kHow},
      {"--accumulation-order",
       {"spillway.accumulation_order"},
       "ORDER",
       "micro_batch: each through the whole model; layer: all through one layer before the next, whose "
       "parameters "
       "then move twice a step (micro_batch)",
       kHow},
      {"--delayed-update",
       {"spillway.delayed_update"},
       "BOOL",
       "true: apply gradients one step late, which hides the update but changes the training (false)",
       kHow},

      {"--offload-optimizer",
       {"zero_optimization.offload_optimizer.device"},
       "TIER",
       "Where the optimizer's state lives: device, host or nvme (device). none and cpu mean device and host",
       kWhere},
      {"--offload-parameters,--offload-param",
       {"zero_optimization.offload_param.device"},
       "TIER",
       "Where parameters live while no layer needs them (device)",
       kWhere},
      {"--nvme-path",
       {"zero_optimization.offload_optimizer.nvme_path", "zero_optimization.offload_param.nvme_path"},
       "DIR ...",
       "A directory on the drive for what lives on nvme; nothing stays in it. Several, on drives of their own, "
       "are striped over",
       kWhere,
       true},
      {"--device-memory",
       {"spillway.device_memory"},
       "SIZE",
       "What may be used of the device's memory, such as 40M or 1.5GiB (what is free, less a margin)",
       kWhere},
      {"--host-memory",
       {"spillway.host_memory"},
       "SIZE",
       "The same for host memory. Where it is given, what it leaves keeps optimizer state and parameters back "
       "from "
       "nvme",
       kWhere},
      {"--resident-fraction",
       {"spillway.resident_fraction"},
       "X",
       "Share of the optimizer state of nvme that stays in host memory, 0 to 1: that share of reads and writes "
       "is "
       "saved (what fits in --host-memory, where that is given)",
       kWhere},
      {"--parameter-cache",
       {"spillway.parameter_cache"},
       "SIZE",
       "Host memory for parameters of nvme that are needed again soon (what fits, as above)",
       kWhere},
      {"--activations",
       {"spillway.activations"},
       "HOW",
       "What is kept of a layer for its backward pass: keep all; recompute from its input; or put that input "
       "on "
       "host or nvme (auto: layer by layer, as the device's memory allows)",
       kWhere},

      {"--nvme-bandwidth",
       {"spillway.nvme_bandwidth"},
       "X ...",
       "How fast the drive of each --nvme-path is, such as in GB/s: in this proportion they share (measured)",
       kDrives,
       true},
      {"--block-size",
       {"aio.block_size"},
       "N",
       "Bytes into which a transfer is cut, a multiple of 4096 (1048576)",
       kDrives},
      {"--queue-depth", {"aio.queue_depth"}, "N", "Operations at the same time for each path (32)", kDrives},
      {"--update-slots",
       {"spillway.update_slots"},
       "N",
       "Pieces of optimizer state that are read, updated and written at the same time, 3 to 64 (0: by their "
       "size)",
       kDrives},
      {"--io-engine",
       {"spillway.io_engine"},
       "ENGINE",
       "io_uring, or posix, a pool of threads (auto: io_uring where it is allowed)",
       kDrives},
      {"--io-sqpoll",
       {"spillway.io_sqpoll"},
       "BOOL",
       "A thread of the kernel takes operations over, and needs a processor (false)",
       kDrives},
      {"--io-iopoll",
       {"spillway.io_iopoll"},
       "BOOL",
       "Completions are polled for, on drives that can (false)",
       kDrives},
      {"--checksums",
       {"spillway.checksums"},
       "BOOL",
       "Hold what is read from nvme against an XXH3 of what was written (false)",
       kDrives},
      {"--direct-io",
       {"spillway.direct_io"},
       "BOOL",
       "false: through the page cache, for file systems without direct I/O (true)",
       kDrives},
      {"--io-faults",
       {"spillway.io_faults"},
       "LIST",
       "Make the drive fail on purpose, such as short=0.2,delay=0.1,fail=100:EIO (docs/configuration.md)",
       kDrives},

      {"--update-threads",
       {"spillway.update_threads"},
       "N",
       "Threads of the optimizer (all processors)",
       kThreads},
      {"--device-threads",
       {"spillway.device_threads"},
       "N",
       "Threads of the host device (all processors)",
       kThreads},
      {"--pin-threads",
       {"spillway.pin_threads"},
       "BOOL",
       "Bind each of them to a processor: true or false (true on a machine with several NUMA nodes)",
       kThreads},
      {"--io-cores",
       {"spillway.io_cores"},
       "N",
       "Cores that they leave to what waits for the drive (0)",
       kThreads},
  };
  return all;
}

constexpr const char* kFooter =
    "Parameters are on the device only while a layer needs them; they and the optimizer's state live in\n"
    "the tier that you choose. That changes the speed, never the result: the weights are the same, bit\n"
    "by bit.\n\n"
    "The configuration is DeepSpeed's JSON, with our own keys under \"spillway\"; docs/configuration.md\n"
    "lists them all. A flag overrides the configuration file. Sizes: 40M and 40MiB are 40 x 2^20 bytes,\n"
    "40MB are 40 x 10^6.\n\n"
    "Examples\n"
    "  spillway train --model decoder-tiny --data README.md --steps 20\n"
    "      a model of under a million parameters, all of it in memory; no configuration is needed\n"
    "  spillway train --config examples/decoder-25m.json --data /usr/share/games/fortunes/literature\n"
    "                 --nvme-path /mnt/nvme --device-memory 36M --json result.json\n"
    "      25 million parameters on a device that has no room for them\n"
    "  spillway train --config ds_config.json --model gpt2 --data 'train-*.bin' --lr 3e-4\n"
    "                 --eval-data val.bin --eval-every 50 --metrics run.jsonl\n"
    "      a DeepSpeed file with its \"auto\" values, and llm.c's token files\n"
    "  spillway train --model gpt2-xl --offload-optimizer nvme --offload-parameters cpu\n"
    "                 --nvme-path /mnt/nvme --dry-run\n"
    "      what that would occupy and write, and the placement that moves least; nothing is trained";

void add_flag(CLI::App& command, std::vector<ConfigOverride>& overrides, const Flag& flag) {
  const auto keep = [&overrides, &flag](const std::string& value) {
    for (const auto& key : flag.keys) overrides.push_back({key, value, std::string(flag.name())});
  };
  CLI::Option* option = flag.repeats ? command.add_option_function<std::vector<std::string>>(
                                           flag.names,
                                           [keep](const std::vector<std::string>& values) {
                                             for (const auto& value : values) keep(value);
                                           },
                                           flag.help)
                                     : command.add_option_function<std::string>(flag.names, keep, flag.help);
  option->option_text(flag.type)->group(flag.group);
}

}  // namespace

void add_config_flags(CLI::App& command, std::vector<ConfigOverride>& overrides,
                      std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const auto flag =
        std::find_if(flags().begin(), flags().end(), [&](const Flag& f) { return f.name() == name; });
    if (flag == flags().end()) throw std::logic_error("add_config_flags: there is no " + std::string(name));
    add_flag(command, overrides, *flag);
  }
}

CLI::App* add_train(CLI::App& program, TrainOptions& options) {
  CLI::App* train =
      program.add_subcommand("train", "Train a model, spilling what does not fit to host memory or NVMe");
  train->get_formatter()->column_width(30);
  train->set_version_flag("--version", "spillway " SPILLWAY_VERSION, "Print the version and end");
  train
      ->add_option("--config", options.config,
                   "The configuration: DeepSpeed's JSON, our own keys under \"spillway\"")
      ->option_text("FILE")
      ->group(kWhat);
  for (const Flag& flag : flags()) add_flag(*train, options.overrides, flag);
  train->add_option("--device", options.device, "The device that computes: host")
      ->option_text("DEVICE (host)")
      ->group(kWhere);
  train
      ->add_flag("--allow-unknown-keys", options.allow_unknown_keys,
                 "An unknown key of the file is noted, not refused")
      ->group(kHow);
  train
      ->add_flag("--dry-run", options.dry_run,
                 "Print what the run would occupy and write, and end: 0 where it fits, 3 where not")
      ->group(kOutput);
  train->add_option("--json", options.json, "The result with all settings, as JSON")
      ->option_text("FILE")
      ->group(kOutput);
  train
      ->add_option("--metrics", options.metrics,
                   "A line of JSON for every step, while it runs (scripts/plot_metrics.py draws it)")
      ->option_text("FILE.jsonl")
      ->group(kOutput);
  train
      ->add_option("--trace", options.trace,
                   "What happened when, and which buffer lived where (opens in Perfetto)")
      ->option_text("FILE")
      ->group(kOutput);
  finish_options(*train, {"--config", "--json", "--metrics", "--trace"});
  train->footer(kFooter);
  return train;
}

}  // namespace spillway::cli
