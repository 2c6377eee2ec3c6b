#pragma once
// The configuration of a run, as read from DeepSpeed's JSON with our own keys under "spillway".
// docs/configuration.md lists every key.
#include "dtype.h"
#include "state_format.h"
#include "tier.h"
#include "update.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

enum class ScheduleKind { constant, warmup, warmup_decay, warmup_cosine };

/// The learning rate over the steps, by DeepSpeed's schedulers. core/learning_rate.h has the formulas.
struct ScheduleConfig {
  ScheduleKind kind =
      ScheduleKind::constant;          ///< scheduler.type: none, WarmupLR, WarmupDecayLR, WarmupCosineLR
  bool logarithmic = true;             ///< scheduler.params.warmup_type: log or linear
  std::int64_t warmup_steps = 0;       ///< scheduler.params.warmup_num_steps
  std::int64_t total_steps = 0;        ///< scheduler.params.total_num_steps (WarmupDecayLR, WarmupCosineLR)
  double minimum = 0.0;                ///< scheduler.params.warmup_min_lr (WarmupLR, WarmupDecayLR)
  double maximum = 0.0;                ///< scheduler.params.warmup_max_lr (the same two)
  double warmup_minimum_ratio = 0.0;   ///< scheduler.params.warmup_min_ratio (WarmupCosineLR)
  double cosine_minimum_ratio = 1e-4;  ///< scheduler.params.cos_min_ratio (WarmupCosineLR)
};

/// In which order the micro-batches of a step pass through the units.
enum class AccumulationOrder : std::uint8_t {
  micro_batch,  ///< one after another through the whole model
  layer,        ///< all through one unit before the next: its parameters move twice a step
};
/// Where what the backward pass needs of a layer is kept.
enum class ActivationPolicy : std::uint8_t {
  automatic,  ///< layer by layer, from what the device's budget leaves
  keep,       ///< everything, on the device
  recompute,  ///< the layer's input on the device; the rest is computed again
  host,       ///< the layer's input in host memory; the rest is computed again
  nvme,       ///< the same on NVMe
};

/// Resolved values; the JSON key of each stands behind it.
struct Config {
  int stage = 3;                       ///< zero_optimization.stage: with one rank there is nothing to partition
  Tier optimizer_tier = Tier::device;  ///< zero_optimization.offload_optimizer.device
  Tier parameter_tier = Tier::device;  ///< zero_optimization.offload_param.device
  std::vector<std::string>
      optimizer_nvme_paths;  ///< zero_optimization.offload_optimizer.nvme_path: directories, striped over
  std::vector<std::string> parameter_nvme_paths;  ///< zero_optimization.offload_param.nvme_path
  int micro_batch = 1;                            ///< train_micro_batch_size_per_gpu
  int accumulation = 1;                           ///< gradient_accumulation_steps
  double gradient_clipping = 1.0;                 ///< 0: off
  HyperParameters optimizer;           ///< optimizer.type, optimizer.params: of the parameters that decay
  ScheduleConfig schedule;             ///< scheduler.type, scheduler.params
  int queue_depth = 32;                ///< aio.queue_depth: operations in flight for each directory
  std::int64_t block_bytes = 1 << 20;  ///< aio.block_size: into which transfers are cut

  std::string model;                 ///< spillway.model: the model's keys as JSON text, read where it is a path
  std::string model_source;          ///< where that text came from, for messages
  std::int64_t sequence_length = 0;  ///< 0: the model's number of positions
  std::int64_t vocabulary = 0;       ///< spillway.vocab: in the place of the model's vocab_size; 0: that
  std::uint64_t seed = 1234;
  StateFormat state_format = StateFormat::fp32;
  DType precision = DType::bf16;  ///< bf16, or fp32 (the reference)
  std::int64_t steps = 100;
  std::optional<std::vector<std::string>>
      no_decay;  ///< spillway.no_decay: name patterns; none: parameters of one dimension (biases and norms)
  std::vector<std::string> data;       ///< spillway.data: files or patterns; relative to the working directory
  std::vector<std::string> eval_data;  ///< spillway.eval_data: the same
  std::int64_t eval_every = 0;         ///< spillway.eval_every: steps; 0: after the last one only
  std::string tokens;                  ///< spillway.tokens: uint16, uint32, bytes; empty: by the file's header
  std::int64_t device_memory = -1;     ///< bytes, -1: no limit
  std::int64_t host_memory = -1;       ///< bytes, -1: no limit
  int update_threads = 0;              ///< 0: the processors available
  int device_threads = 0;              ///< 0: the processors available
  std::optional<bool> pin_threads;     ///< none: where the topology makes it worth it
  int io_cores = 0;                    ///< cores that update and device threads leave to the drive
  bool check_finite = true;            ///< a step with a non-finite gradient is skipped
  std::optional<double> resident_fraction;  ///< spillway.resident_fraction: share of the optimizer records of
                                            ///< NVMe that stays in host memory; none: what fits in host_memory
                                            ///< where that has a limit, else 0
  std::optional<std::int64_t> parameter_cache;  ///< spillway.parameter_cache: bytes of host memory in which
                                                ///< units of NVMe stay; none: what fits, as above
  int update_slots = 0;  ///< spillway.update_slots: chunks of records under way at once; 0: chosen by size
  AccumulationOrder accumulation_order = AccumulationOrder::micro_batch;  ///< spillway.accumulation_order
  ActivationPolicy activations = ActivationPolicy::automatic;             ///< spillway.activations
  bool delayed_update = false;         ///< spillway.delayed_update: a gradient is applied one step late
  std::vector<double> nvme_bandwidth;  ///< spillway.nvme_bandwidth: of each directory, in any unit; empty:
                                       ///< measured where there are several
  std::string io_engine = "auto";      ///< spillway.io_engine: auto, io_uring, posix
  bool io_sqpoll = false;              ///< spillway.io_sqpoll: a thread of the kernel takes submissions
  bool io_iopoll = false;              ///< spillway.io_iopoll: completions are polled for
  bool checksums = false;  ///< spillway.checksums: what is read from NVMe is held against what was written
  bool direct_io = true;   ///< spillway.direct_io: transfers pass by the page cache
  std::string io_faults;   ///< spillway.io_faults: as aio/faults.h reads them; empty: none

  std::vector<std::string> assumed;  ///< "key = value" for what nobody gave and matters to the result
  /// What is asked for and will not be as written ("fp16.enabled: the engine computes in bf16"), keys without
  /// an effect here, and unknown ones that were allowed: one line each.
  std::vector<std::string> notes;
};

/// A value from the command line that stands before the file's. The flag names it in messages.
struct ConfigOverride {
  std::string key;    ///< dotted, as in the file: "spillway.device_memory"
  std::string value;  ///< as typed
  std::string flag;   ///< "--device-memory"
};

/// A model that can be named instead of given.
struct NamedModel {
  std::string name;  ///< "decoder-tiny"
  std::string json;  ///< its keys
};

struct ConfigOptions {
  std::span<const ConfigOverride> overrides;
  std::span<const NamedModel> models;
  bool allow_unknown_keys = false;  ///< an unknown key becomes a note instead of an error
};

/// `source` names the text in messages and is the path that a relative spillway.model of the file starts from
/// (one of the command line starts from the working directory). Comments and keys that begin with '_' or "//"
/// are allowed; null is the same as absent, and so is "auto" in DeepSpeed's keys. Throws Error (configuration)
/// naming the key or flag for wrong types, values out of range, keys given twice, unknown keys, keys that ask
/// for what is not there, and values that contradict each other; (io) for a model file that can't be read.
Config parse_config(std::string_view json, std::string_view source, const ConfigOptions& options = {});
Config read_config(const std::string& path, const ConfigOptions& options = {});

/// All values as they will be used, in the file's own structure: parse_config reads it back to an equal Config
/// (with nothing assumed).
std::string to_json(const Config& config);

/// As optimizer.type is written: "AdamW", "Adam", "Lion", "SGD".
std::string_view optimizer_type(Optimizer optimizer);

/// "device", "host", "nvme", or DeepSpeed's "none", "cpu". Throws Error (usage) naming `what`.
Tier parse_tier(std::string_view word, std::string_view what);

/// What a key of the file does here.
enum class KeyEffect {
  used,     ///< has an effect
  later,    ///< has an effect on several ranks or devices, which are not built: accepted, checked, said
  ignored,  ///< a hint about speed, memory or logging of another engine
  refused,  ///< refused when switched on, since it would change results or need what is not there
};
struct KeyInfo {
  std::string path;  ///< dotted
  KeyEffect effect = KeyEffect::used;
  std::string values;  ///< what can be written, in words
  std::string help;    ///< what it does, or why it has no effect
};
/// Every key that is not unknown, in the order of docs/configuration.md.
std::vector<KeyInfo> config_keys();

}  // namespace spillway
