#pragma once
// The configuration of a run, as read from DeepSpeed's JSON with our own keys under "spillway".
#include <cstdint>
#include <string>
#include <string_view>

#include "dtype.h"
#include "tier.h"

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
  Tier optimizer_tier = Tier::device;   ///< zero_optimization.offload_optimizer.device
  Tier parameter_tier = Tier::device;   ///< zero_optimization.offload_param.device
  std::string optimizer_nvme_path;      ///< zero_optimization.offload_optimizer.nvme_path
  std::string parameter_nvme_path;      ///< zero_optimization.offload_param.nvme_path
  int micro_batch = 1;                  ///< train_micro_batch_size_per_gpu
  int accumulation = 1;                 ///< gradient_accumulation_steps
  double gradient_clipping = 1.0;       ///< 0: off
  OptimizerConfig optimizer;            ///< optimizer.type, optimizer.params.{lr,betas,eps,weight_decay}

  std::string model;                    ///< spillway.model: a path, or the model's keys as JSON text
  std::int64_t sequence_length = 0;     ///< 0: the model's number of positions
  std::uint64_t seed = 1234;
  std::string state_format = "fp32";
  DType precision = DType::bf16;        ///< bf16, or fp32 (the reference)
  std::int64_t steps = 100;             ///< the command line's --steps
  std::int64_t device_memory = -1;      ///< bytes, -1: no limit
  std::int64_t host_memory = -1;        ///< bytes, -1: no limit
  int update_threads = 0;               ///< 0: the processors available
  int device_threads = 0;               ///< 0: the processors available
  bool check_finite = true;             ///< a step with a non-finite gradient is skipped
};

/// `source` names the text in messages (a file's path). Comments and keys that begin with '_' or "//" are allowed.
/// Throws Error (configuration) naming the key for wrong types, values out of range, keys given twice and unknown
/// keys.
Config parse_config(std::string_view json, std::string_view source);
Config read_config(const std::string& path);

/// All values as they will be used, in the file's own structure: parse_config reads it back to an equal Config.
std::string to_json(const Config& config);

/// "device", "host", "nvme", or DeepSpeed's "none", "cpu". Throws Error (usage) naming `what`.
Tier parse_tier(std::string_view word, std::string_view what);

}  // namespace spillway
