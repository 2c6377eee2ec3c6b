#pragma once
// The keys of the configuration, each with what reads, writes and explains it. Internal to core/config.cpp.
#include "config.h"
#include "config_value.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace spillway::config_detail {

/// What has been read so far: values that others complete are kept apart until all are known.
struct Draft {
  Config config;
  std::string source;
  std::span<const NamedModel> models;
  std::optional<Value> train_batch, micro_batch, accumulation;
  std::optional<bool> bf16, fp16, adam_w_mode, cpu_checkpointing;
  std::optional<Value> activations;
  std::optional<DType> precision;
  std::optional<std::string> optimizer_type;  ///< as written: "Adam" may mean AdamW
  std::optional<ScheduleKind> scheduler;
  std::optional<std::int64_t> warmup_steps, total_steps;
  std::optional<double> warmup_minimum, warmup_maximum, warmup_minimum_ratio, cosine_minimum_ratio;
  std::optional<std::string> warmup_type;
};

enum class ListOf { nothing, words, numbers };

struct Key {
  KeyInfo info;
  std::function<void(const Value&, Draft&)> read;
  std::function<nlohmann::json(const Config&)> write = {};  ///< empty: nothing to write; null: left out
  bool assumed = false;                                     ///< a default is worth telling
  ListOf list = ListOf::nothing;  ///< given several times on the command line, it is a list of these
};

/// Keys with an effect, and those that will have one.
const std::vector<Key>& used_keys();
/// Of them those of the optimizer and the learning rate's scheduler (config_training_keys.cpp).
std::vector<Key> training_keys();
/// And those under "spillway" (config_own_keys.cpp).
std::vector<Key> own_keys();
/// Keys that are ignored, or refused when they are switched on. With everything inside where they are sections.
const std::vector<KeyInfo>& other_keys();

/// Another name of a key, or of a section with all its keys.
struct Alias {
  std::string path;
  std::string stands_for;
};
const std::vector<Alias>& aliases();

/// Whether a value of a refused key asks for something: {"enabled": false}, "none", 0, 1, -1, false and null do
/// not.
bool is_switched_on(const nlohmann::json& value);

constexpr std::int64_t kMostSequences = 1 << 20;  ///< of a step
constexpr std::int64_t kMostSteps = 1'000'000'000;

/// As spillway.activations is written: "auto", "keep", "recompute", "host", "nvme".
std::string_view activations_word(ActivationPolicy policy);

}  // namespace spillway::config_detail
