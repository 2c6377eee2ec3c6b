#include "../../core/error.h"
#include "../../models/decoder.h"

#include <gtest/gtest.h>

namespace spillway::models {
namespace {

constexpr const char* kGood =
    R"({"model_type": "gpt2", "n_layer": 3, "n_head": 2, "n_embd": 8, "n_positions": 16, "vocab_size": 256})";

/// The good configuration with `key` replaced by JSON text, or left out where that is empty.
std::string with(const std::string& key, const std::string& value) {
  std::string json(kGood);
  const std::string quoted = "\"" + key + "\"";
  if (const auto begin = json.find(quoted); begin != std::string::npos) {
    auto end = json.find_first_of(",}", begin);
    if (json[end] == ',') end += 2;
    json.erase(begin, end - begin);
    if (json.ends_with(", }")) json.replace(json.size() - 3, 3, "}");
  }
  if (!value.empty()) json.insert(1, quoted + ": " + value + ", ");
  return json;
}

void expect_refusal(const std::string& json, const std::string& word) {
  try {
    parse_decoder_config(json, "model.json");
    FAIL() << "accepted: " << json;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::configuration);
    const std::string message = error.what();
    EXPECT_NE(message.find("model.json"), std::string::npos) << message;
    EXPECT_NE(message.find(word), std::string::npos) << message << " does not name " << word;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(DecoderConfig, ReadsHuggingFacesKeys) {
  const DecoderConfig config = parse_decoder_config(kGood, "model.json");
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.heads, 2);
  EXPECT_EQ(config.hidden, 8);
  EXPECT_EQ(config.positions, 16);
  EXPECT_EQ(config.vocabulary, 256);
  EXPECT_EQ(config.inner, 32);
  EXPECT_EQ(config.epsilon, 1e-5f);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_EQ(parse_decoder_config(with("n_inner", "20"), "").inner, 20);
  EXPECT_EQ(parse_decoder_config(with("n_inner", "null"), "").inner, 32);
  EXPECT_EQ(parse_decoder_config(with("layer_norm_epsilon", "1e-6"), "").epsilon, 1e-6f);
  EXPECT_EQ(parse_decoder_config(with("initializer_range", "0.1"), "").initializer_range, 0.1);
  std::string old_name(kGood);
  old_name.replace(old_name.find("n_positions"), 11, "n_ctx");
  EXPECT_EQ(parse_decoder_config(old_name, "").positions, 16);
}

// The file that the smallest GPT-2 is published with.
TEST(DecoderConfig, ReadsAPublishedFile) {
  const DecoderConfig config = parse_decoder_config(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})",
                                                    "config.json");
  EXPECT_EQ(config.hidden, 768);
  EXPECT_EQ(config.inner, 3072);
  EXPECT_EQ(decoder_layout(config, {.batch = {1, 16}}).parameter_count(), 124439808);  // "124M"
}

TEST(DecoderConfig, NamesTheKeyOfWhatItRefuses) {
  for (const char* key : {"model_type", "n_layer", "n_head", "n_embd", "n_positions", "vocab_size"}) {
    expect_refusal(with(key, ""), key);
    expect_refusal(with(key, "null"), key);
    expect_refusal(with(key, "[]"), key);
  }
  for (const char* key : {"n_layer", "n_head", "n_embd", "n_positions", "vocab_size"}) {
    for (const char* value : {"0", "-1", "1.5", "\"2\"", "true", "1e30", "9223372036854775808", "4294967296"}) {
      expect_refusal(with(key, value), key);
    }
  }
  expect_refusal(with("n_head", "3"), "n_head");
  expect_refusal(with("n_inner", "-4"), "n_inner");
  expect_refusal(with("n_inner", "\"x\""), "n_inner");
  expect_refusal(with("n_ctx", "8"), "n_ctx");
  expect_refusal(with("layer_norm_epsilon", "0"), "layer_norm_epsilon");
  expect_refusal(with("layer_norm_epsilon", "1e-60"), "layer_norm_epsilon");  // 0 in fp32
  expect_refusal(with("layer_norm_epsilon", "\"small\""), "layer_norm_epsilon");
  expect_refusal(with("initializer_range", "-0.02"), "initializer_range");
}

TEST(DecoderConfig, RefusesWhatItDoesNotCompute) {
  expect_refusal(with("model_type", "\"llama\""), "model_type");
  expect_refusal(with("activation_function", "\"relu\""), "activation_function");
  expect_refusal(with("tie_word_embeddings", "false"), "tie_word_embeddings");
  expect_refusal(with("scale_attn_weights", "false"), "scale_attn_weights");
  expect_refusal(with("scale_attn_by_inverse_layer_idx", "true"), "scale_attn_by_inverse_layer_idx");
  expect_refusal(with("add_cross_attention", "true"), "add_cross_attention");
  expect_refusal(with("n_layers", "12"), "n_layers");  // a slip, not to be ignored
}

TEST(DecoderConfig, RefusesWhatIsNotOneObject) {
  expect_refusal("", "JSON");
  expect_refusal("{\"n_layer\": ", "JSON");
  expect_refusal("[1]", "object");
  std::string twice(kGood);
  twice.insert(1, "\"n_layer\": 4, ");
  expect_refusal(twice, "n_layer is given twice");
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  expect_refusal(with("task_specific_params", deep), "64 deep");
}

TEST(DecoderConfig, SuggestsTheKeyThatWasMeant) {
  try {
    parse_decoder_config(with("n_layers", "12"), "model.json");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.detail().hint, "did you mean n_layer?");
  }
}

TEST(DecoderLayout, RefusesWhatOverflows) {
  const auto refusal = [](DecoderConfig config, Batch batch) -> std::string {
    try {
      decoder_layout(config, {.batch = batch});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::configuration);
      return error.what();
    }
    return "accepted";
  };
  const DecoderConfig small{
      .layers = 1, .heads = 1, .hidden = 8, .positions = 1 << 30, .vocabulary = 256, .inner = 8};
  constexpr std::int64_t kTokens = 1 << 24;
  EXPECT_EQ(refusal(small, {.sequences = 1 << 12, .length = 1 << 12}), "accepted");
  EXPECT_NE(refusal(small, {.sequences = 1, .length = kTokens + 1}).find("16777217 tokens"), std::string::npos);
  EXPECT_NE(refusal(small, {.sequences = (1 << 12) + 1, .length = 1 << 12}).find("16781312"),
            std::string::npos);
  EXPECT_NE(refusal(small, {.sequences = kTokens, .length = 1 << 30}).find("more than 16777216"),
            std::string::npos);
  EXPECT_NE(refusal(small, {.sequences = INT64_MAX, .length = 1}).find("sequences"), std::string::npos);

  DecoderConfig large = small;
  large.hidden = 1 << 20;
  large.inner = 4 << 20;
  large.positions = 64;
  EXPECT_EQ(refusal(large, {}), "accepted");
  large.layers = 3;
  EXPECT_NE(refusal(large, {}).find("parameters"), std::string::npos);
  large.layers = 1 << 16;
  EXPECT_NE(refusal(large, {}).find("35184372088832"), std::string::npos);
  large.layers = 1;
  large.vocabulary = INT32_MAX;
  EXPECT_NE(refusal(large, {}).find("parameters"), std::string::npos);
}

}  // namespace
}  // namespace spillway::models
