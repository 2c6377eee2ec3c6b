#pragma once
// The configuration of a run, as read from DeepSpeed's JSON with our own keys under "spillway".
#include "dtype.h"
#include "tier.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

struct OptimizerConfig {
  bool decoupled = true;  ///< AdamW; false: Adam, whose weight decay is added to the gradient
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
};

/// Resolved values; the JSON key of each stands behind it.
struct Config {
  int stage = 3;                       ///< zero_optimization.stage: with one rank there is nothing to partition
  Tier optimizer_tier = Tier::device;  ///< zero_optimization.offload_optimizer.device
  Tier parameter_tier = Tier::device;  ///< zero_optimization.offload_param.device
  std::string optimizer_nvme_path;     ///< zero_optimization.offload_optimizer.nvme_path
  std::string parameter_nvme_path;     ///< zero_optimization.offload_param.nvme_path
  int micro_batch = 1;                 ///< train_micro_batch_size_per_gpu
  int accumulation = 1;                ///< gradient_accumulation_steps
  double gradient_clipping = 1.0;      ///< 0: off
  OptimizerConfig optimizer;           ///< optimizer.type, optimizer.params.{lr,betas,eps,weight_decay}

  std::string model;                 ///< spillway.model: the model's keys as JSON text, read where it is a path
  std::string model_source;          ///< where that text came from, for messages
  std::int64_t sequence_length = 0;  ///< 0: the model's number of positions
  std::uint64_t seed = 1234;
  std::string state_format = "fp32";
  DType precision = DType::bf16;  ///< bf16, or fp32 (the reference)
  std::int64_t steps = 100;
  std::int64_t device_memory = -1;  ///< bytes, -1: no limit
  std::int64_t host_memory = -1;    ///< bytes, -1: no limit
  int update_threads = 0;           ///< 0: the processors available
  int device_threads = 0;           ///< 0: the processors available
  bool check_finite = true;         ///< a step with a non-finite gradient is skipped

  std::vector<std::string> assumed;  ///< "key = value" for what nobody gave and matters to the result
};

/// A value from the command line that stands before the file's. The flag names it in messages.
struct ConfigOverride {
  std::string key;    ///< dotted, as in the file: "spillway.device_memory"
  std::string value;  ///< as typed
  std::string flag;   ///< "--device-memory"
};

/// `source` names the text in messages and is the path that a relative spillway.model starts from. Comments and
/// keys that begin with '_' or "//" are allowed; null is the same as absent, and so is "auto" in DeepSpeed's
/// keys. Throws Error (configuration) naming the key or flag for wrong types, values out of range, keys given
/// twice, unknown keys and values that contradict each other; (io) for a model file that can't be read.
Config parse_config(std::string_view json, std::string_view source,
                    std::span<const ConfigOverride> overrides = {});
Config read_config(const std::string& path, std::span<const ConfigOverride> overrides = {});

/// All values as they will be used, in the file's own structure: parse_config reads it back to an equal Config
/// (with nothing assumed).
std::string to_json(const Config& config);

/// "device", "host", "nvme", or DeepSpeed's "none", "cpu". Throws Error (usage) naming `what`.
Tier parse_tier(std::string_view word, std::string_view what);

}  // namespace spillway
