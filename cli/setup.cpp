#include "setup.h"

#include "../aio/faults.h"
#include "../aio/file.h"
#include "../core/error.h"
#include "../core/machine.h"
#include "../core/size.h"
#include "../core/topology.h"
#include "../cpu_adam/record.h"
#include "../models/named_models.h"
#include "../offload/traffic.h"
#include "text.h"

#include <cerrno>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/statvfs.h>

namespace spillway::cli {
namespace {

std::string model_names() {
  std::vector<std::string> names;
  for (const NamedModel& model : models::named_models()) names.push_back(model.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

models::DecoderConfig read_model(const Config& config) {
  models::DecoderConfig model = models::parse_decoder_config(config.model, config.model_source);
  if (config.vocabulary > 0) model.vocabulary = config.vocabulary;
  if (config.sequence_length > model.positions) {
    throw Error(ErrorKind::configuration,
                fmt::format("spillway.sequence_length {} is more than the {} positions of the model ({})",
                            config.sequence_length, model.positions, config.model_source),
                {.hint = "shorten the sequences (--sequence-length), or raise n_positions of the model"});
  }
  return model;
}

void settle_threads(Config& config) {
  const int processors = default_threads(config.io_cores);
  for (const auto& [key, threads] : {std::pair{"device_threads", &config.device_threads},
                                     std::pair{"update_threads", &config.update_threads}}) {
    if (*threads > 0) continue;
    *threads = processors;
    config.assumed.push_back(fmt::format("spillway.{} = {} (the processors of this process{})", key, processors,
                                         config.io_cores > 0 ? " but for io_cores" : ""));
  }
  if (!config.pin_threads) {
    config.pin_threads = should_pin_threads();
    config.assumed.push_back(
        fmt::format("spillway.pin_threads = {} ({})", *config.pin_threads,
                    *config.pin_threads ? "several NUMA nodes" : "one NUMA node, or a share of it"));
  }
}

/// Memory that merely happens to be free is not taken for what saves traffic: a run with a limit may use all of
/// it.
void assume_no_caches(Config& config) {
  std::vector<std::string_view> what;
  if (!config.resident_fraction) {
    config.resident_fraction = 0;
    if (config.optimizer_tier == Tier::nvme) what.push_back("spillway.resident_fraction");
  }
  if (!config.parameter_cache) {
    config.parameter_cache = 0;
    if (config.parameter_tier == Tier::nvme) what.push_back("spillway.parameter_cache");
  }
  for (const std::string_view key : what) {
    config.assumed.push_back(
        fmt::format("{} = 0 (with --host-memory SIZE, what that leaves saves reads and writes)", key));
  }
}

/// The host device's memory is the host's: both tiers take from what is free.
void settle_memory(Config& config, Limits& limits) {
  const MachineMemory memory = machine_memory();
  if (config.host_memory < 0) assume_no_caches(config);
  if (memory.available > 0) {
    limits.memory = memory_without_margin(memory.available);
    for (const auto& [key, bytes] :
         {std::pair{"device_memory", &config.device_memory}, std::pair{"host_memory", &config.host_memory}}) {
      if (*bytes >= 0) continue;
      *bytes = limits.memory;
      config.assumed.push_back(
          fmt::format("spillway.{} = {} ({}, less a margin)", key, format_size(limits.memory),
                      memory.is_limited ? "what the container's limit leaves" : "what is free"));
    }
  }
  limits.device = config.device_memory;
  limits.host = config.host_memory;
}

/// What the drives behind a list of directories have free, each tried as a run would use it, so that what it is
/// refused for is refused here.
struct Drives {
  Drives(const Config& config, const std::vector<std::string>& paths) {
    double sum = 0;
    std::map<dev_t, std::int64_t> free;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      aio::File::create(paths[i], aio::direct_io_alignment, {.direct = config.direct_io});
      struct stat status {};
      struct statvfs system {};
      if (stat(paths[i].c_str(), &status) != 0 || statvfs(paths[i].c_str(), &system) != 0) {
        throw Error(ErrorKind::io, "the directory for what lives on nvme cannot be used",
                    {.operation = "stat", .path = paths[i], .error_number = errno});
      }
      // Not measured here: drives of one speed share equally.
      const double bandwidth = i < config.nvme_bandwidth.size() ? config.nvme_bandwidth[i] : 1.0;
      shares[status.st_dev] += bandwidth;
      free[status.st_dev] = static_cast<std::int64_t>(system.f_bavail * system.f_frsize);
      sum += bandwidth;
    }
    double room = -1;
    for (auto& [number, share] : shares) {
      share /= sum;
      const double here = static_cast<double>(free[number]) / share;
      if (room < 0 || here < room) room = here;
    }
    limit = static_cast<std::int64_t>(room);
  }
  std::map<dev_t, double> shares;  ///< of the bytes, by drive
  std::int64_t limit = 0;          ///< bytes in all, where the drives share like that
};

void settle_drives(const Config& config, bool moves_activations, Limits& limits) {
  std::optional<Drives> parameters, optimizer;
  if (config.parameter_tier == Tier::nvme) {
    parameters.emplace(config, config.parameter_nvme_paths);
  } else if (moves_activations) {
    parameters.emplace(config, activation_directories(config));
  }
  if (config.optimizer_tier == Tier::nvme) optimizer.emplace(config, config.optimizer_nvme_paths);
  limits.is_one_drive = parameters && optimizer && parameters->shares == optimizer->shares;
  if (parameters) limits.parameter_drive = parameters->limit;
  if (optimizer) limits.optimizer_drive = optimizer->limit;
}

/// Whatever is wrong with them must show before anything starts.
void check_faults(Config& config) {
  if (config.io_faults.empty()) return;
  aio::parse_faults(config.io_faults, "spillway.io_faults (--io-faults)");
  if (config.optimizer_tier != Tier::nvme && config.parameter_tier != Tier::nvme &&
      config.activations != ActivationPolicy::nvme) {
    config.notes.push_back("spillway.io_faults: nothing lies on nvme, so there is nothing to fail");
  }
}

/// Published GPT-2 files train with dropout; this decoder has none.
void note_dropout(Config& config) {
  const auto model = nlohmann::json::parse(config.model);
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) {
    if (model.contains(key) && model.at(key).is_number() && model.at(key) != 0) {
      config.notes.push_back(
          fmt::format("the model's {} = {}: there is no dropout here", key, model.at(key).dump()));
    }
  }
}

}  // namespace

void settle_machine(Config& config, Limits& limits) {
  settle_threads(config);
  settle_memory(config, limits);
}

Setup prepare(const TrainOptions& options) {
  const ConfigOptions reading{.overrides = options.overrides,
                              .models = models::named_models(),
                              .allow_unknown_keys = options.allow_unknown_keys};
  Config config = options.config.empty() ? parse_config("{}", "the command line", reading)
                                         : read_config(options.config, reading);
  if (config.model.empty()) {
    throw Error(
        ErrorKind::configuration,
        options.config.empty()
            ? "there is no model to train"
            : fmt::format("{}: spillway.model is missing: there is nothing to train", options.config),
        {.hint = fmt::format("give --model NAME ({}), or a file with a model's configuration", model_names())});
  }
  const models::DecoderConfig model = read_model(config);
  note_dropout(config);
  check_faults(config);
  if (config.sequence_length == 0) {
    config.sequence_length = model.positions;
    config.assumed.push_back(
        fmt::format("spillway.sequence_length = {} (the model's positions)", model.positions));
  }
  const models::Batch batch{.sequences = config.micro_batch, .length = config.sequence_length};
  Limits limits;
  settle_machine(config, limits);
  const models::DecoderRun run = models::decoder_run(model, batch, config, limits.memory);
  Layout layout = models::decoder_layout(model, run);
  // A run reserves its space on the drive at once, and is refused there; a dry run reserves nothing.
  if (options.dry_run) settle_drives(config, ActivationBytes(layout).nvme > 0, limits);
  return {std::move(config), model, batch, run, std::move(layout), limits};
}

std::optional<Config> cheapest_that_fits(const Setup& setup) {
  Config with_drive = setup.config;
  for (auto* paths : {&with_drive.parameter_nvme_paths, &with_drive.optimizer_nvme_paths}) {
    if (paths->empty()) *paths = {"DIR"};
  }
  for (const StateFormat format : {StateFormat::fp32, StateFormat::bf16, StateFormat::compact8}) {
    const Config& chosen = setup.config;
    const bool exists =
        cpu_adam::RecordFormat::refusal(format, chosen.optimizer.optimizer, chosen.precision).empty();
    if (format < chosen.state_format || !exists) continue;  // wider, or not to be had
    for (Config config : {chosen, with_drive}) {
      config.state_format = format;
      if (const auto found = cheapest_placement(setup.layout, config, setup.limits)) return found;
    }
  }
  return std::nullopt;
}

std::string flags_of(const Setup& setup, const Config& placement) {
  const bool needs_path =
      (placement.optimizer_tier == Tier::nvme && setup.config.optimizer_nvme_paths.empty()) ||
      (placement.parameter_tier == Tier::nvme && setup.config.parameter_nvme_paths.empty());
  const bool other_format = placement.state_format != setup.config.state_format;
  return placement_flags(placement) + (needs_path ? " --nvme-path DIR" : "") +
         (other_format ? fmt::format(" --state-format {}", name_of(placement.state_format)) : "");
}

void check_fits(const Setup& setup) {
  try {
    check_plan(setup.layout, setup.config, setup.limits);
  } catch (const Error& error) {
    const auto other = cheapest_that_fits(setup);
    ErrorDetail detail = error.detail();
    detail.hint = other ? fmt::format("{} fits; or {}", flags_of(setup, *other), detail.hint)
                        : fmt::format("no placement fits, not even on nvme and in a narrower state format; {}",
                                      detail.hint);
    throw Error(error.kind(), error.what(), detail);
  }
}

}  // namespace spillway::cli
