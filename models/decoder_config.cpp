// Reading a Hugging Face style configuration of GPT-2.
#include "../core/error.h"
#include "../core/json_document.h"
#include "decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

namespace spillway::models {
namespace {

using Json = nlohmann::json;

// Keys that say nothing about what is computed while training without dropout.
constexpr std::array kWithoutEffect = {
    "architectures",
    "attn_pdrop",
    "bos_token_id",
    "embd_pdrop",
    "eos_token_id",
    "pad_token_id",
    "resid_pdrop",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "reorder_and_upcast_attn",
    "output_past",
    "_name_or_path",
};

class Reader {
 public:
  Reader(const Json& object, std::string_view source) : object_(object), source_(source) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& what, std::string hint = {}) const {
    throw Error(ErrorKind::configuration, source_ + ": \"" + key + "\" " + what, {.hint = std::move(hint)});
  }

  /// Null where the key is absent or null.
  const Json* find(const std::string& key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<std::int64_t> integer(const std::string& key, std::int64_t least, std::int64_t most) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const std::string range =
        "must be an integer from " + std::to_string(least) + " to " + std::to_string(most);
    if (!value->is_number_integer()) refuse(key, range + ", not " + value->dump());
    const bool fits =
        !value->is_number_unsigned() || value->get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
    if (!fits || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most) {
      refuse(key, range + ", not " + value->dump());
    }
    return value->get<std::int64_t>();
  }

  std::int64_t required(const std::string& key, std::int64_t least, std::int64_t most) {
    const auto value = integer(key, least, most);
    if (!value) refuse(key, "is missing");
    return *value;
  }

  double positive(const std::string& key, double otherwise) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    // As fp32, which is what is computed with.
    if (!value->is_number() || !(value->get<float>() > 0) || !std::isfinite(value->get<float>())) {
      refuse(key, "must be a positive number, not " + value->dump());
    }
    return value->get<double>();
  }

  /// The key may be absent or have one of the values: nothing else is implemented.
  void only(const std::string& key, std::initializer_list<Json> values) {
    const Json* value = find(key);
    if (value == nullptr || std::find(values.begin(), values.end(), *value) != values.end()) return;
    refuse(key, "must be " + values.begin()->dump() + " for this decoder, not " + value->dump());
  }

  void refuse_unknown() const {
    for (const auto& [key, value] : object_.items()) {
      const bool comment = key.starts_with('_') || key.starts_with("//");
      const bool accepted =
          std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key) != kWithoutEffect.end();
      if (comment || accepted || known_.contains(key)) continue;
      const std::string close = nearest(key, {known_.begin(), known_.end()});
      refuse(key, "is not a key of a GPT-2 model", close.empty() ? "" : "did you mean " + close + "?");
    }
  }

 private:
  const Json& object_;
  std::string source_;
  std::set<std::string> known_;
};

}  // namespace

DecoderConfig parse_decoder_config(std::string_view json, std::string_view source) {
  const Json object = parse_json(json, source);
  if (!object.is_object()) {
    throw Error(ErrorKind::configuration, std::string(source) + ": the model must be a JSON object");
  }
  Reader reader(object, source);
  if (reader.find("model_type") == nullptr) reader.refuse("model_type", "is missing");
  reader.only("model_type", {"gpt2"});

  DecoderConfig config;
  constexpr std::int64_t kMostTokens = (std::int64_t{1} << 31) - 1;
  constexpr std::int64_t kMostWidth = std::int64_t{1} << 20;
  config.layers = reader.required("n_layer", 1, 1 << 16);
  config.heads = reader.required("n_head", 1, kMostWidth);
  config.hidden = reader.required("n_embd", 1, kMostWidth);
  if (config.hidden % config.heads != 0) {
    reader.refuse("n_head", "is " + std::to_string(config.heads) + ", which does not divide n_embd (" +
                                std::to_string(config.hidden) + ")");
  }
  const auto positions = reader.integer("n_positions", 1, kMostTokens);
  const auto context = reader.integer("n_ctx", 1, kMostTokens);  // the name of old files
  if (!positions && !context) reader.refuse("n_positions", "is missing");
  if (positions && context && *positions != *context) {
    reader.refuse("n_ctx",
                  "is " + std::to_string(*context) + ", but n_positions is " + std::to_string(*positions));
  }
  config.positions = positions ? *positions : *context;
  config.vocabulary = reader.required("vocab_size", 2, kMostTokens);
  config.inner = reader.integer("n_inner", 0, 4 * kMostWidth).value_or(0);
  if (config.inner == 0) config.inner = 4 * config.hidden;
  config.epsilon = static_cast<float>(reader.positive("layer_norm_epsilon", 1e-5));
  config.initializer_range = reader.positive("initializer_range", 0.02);

  reader.only("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  reader.only("tie_word_embeddings", {true});
  reader.only("scale_attn_weights", {true});
  reader.only("scale_attn_by_inverse_layer_idx", {false});
  reader.only("add_cross_attention", {false});
  reader.refuse_unknown();
  return config;
}

}  // namespace spillway::models
