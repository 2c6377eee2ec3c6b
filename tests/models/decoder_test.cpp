#include "../../models/decoder.h"

#include "../../core/random.h"
#include "../../models/decoder_memory.h"
#include "decoder_rig.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>

namespace spillway::models {
namespace {

struct Outcome {
  std::vector<double> losses;
  std::vector<std::vector<float>> weights;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome train_with(DType precision, int threads) {
  Rig rig({.precision = precision, .threads = threads});
  rig.decoder().initialize(11);
  Outcome outcome;
  for (int step = 0; step < 4; ++step) rig.step(step, outcome.losses);
  for (int p = 0; p < rig.parameters(); ++p) outcome.weights.push_back(rig.weights(p));
  return outcome;
}

TEST(Decoder, EveryNumberOfThreadsGivesTheSameBits) {
  for (const DType precision : {DType::bf16, DType::fp32}) {
    const Outcome one = train_with(precision, 1);
    EXPECT_NE(one.losses.front(), one.losses.back());
    EXPECT_TRUE(one == train_with(precision, 2)) << name_of(precision);
    EXPECT_TRUE(one == train_with(precision, 3)) << name_of(precision);
  }
}

TEST(Decoder, OccupiesWhatTheLayoutSays) {
  for (const DType precision : {DType::bf16, DType::fp32}) {
    for (const int threads : {1, 3}) {
      Rig rig({.precision = precision, .threads = threads});
      rig.decoder().initialize(1);
      std::vector<double> losses;
      rig.step(0, losses);
      rig.decoder().sample(rig.tokens(kTokenStream), 5, 1.0, 1);
      const auto peaks = rig.device().budget().peaks_by_name();
      for (const PlanEntry& entry : rig.layout().options().model_memory) {
        ASSERT_TRUE(peaks.contains(entry.name)) << entry.name;
        EXPECT_EQ(peaks.at(entry.name), entry.bytes) << entry.name;
      }
      EXPECT_EQ(rig.device().budget().peak(), rig.engine().plan().device.total());
    }
  }
}

TEST(Decoder, MemoryFollowsTheFormula) {
  const DecoderConfig config{
      .layers = 14, .heads = 6, .hidden = 384, .positions = 256, .vocabulary = 256, .inner = 1536};
  const Batch batch{.sequences = 4, .length = 256};
  const std::int64_t tokens = batch.tokens();
  const DecoderMemory memory(config, {.batch = batch});
  EXPECT_EQ(memory.bytes, 2 * (config.layers + 14) * tokens * config.hidden + 4 * tokens * (config.heads + 5));
  EXPECT_EQ(memory.head.count, 1);

  // A large vocabulary: logits stay within the workspace, and every row is in a chunk.
  DecoderConfig large = config;
  large.vocabulary = 50257;
  const DecoderMemory chunked(large, {.batch = batch});
  EXPECT_EQ(chunked.bytes, memory.bytes);
  EXPECT_GT(chunked.head.count, 1);
  EXPECT_EQ((chunked.head.count - 1) * chunked.head.rows + chunked.head.last, tokens);
  EXPECT_GT(chunked.head.last, 0);
  EXPECT_LE(chunked.head.last, chunked.head.rows);
  EXPECT_LE(chunked.logits + chunked.head.rows * large.vocabulary * 2, chunked.mean);

  // One row of logits larger than the workspace: it grows to hold one.
  const DecoderMemory one_row(large, {.batch = {.sequences = 1, .length = 2}, .precision = DType::fp32});
  EXPECT_EQ(one_row.head.count, 2);
  EXPECT_LE(one_row.logits + large.vocabulary * 4, one_row.mean);
}

TEST(Decoder, LayoutNamesParametersAndGroups) {
  const Layout layout = decoder_layout(kTiny, {.batch = kTinyBatch});
  EXPECT_EQ(layout.units().size(), 5u);
  EXPECT_EQ(layout.parameters().size(), 2u + 2u * 12u + 2u);
  EXPECT_EQ(layout.units()[static_cast<std::size_t>(layout.unit("embedding"))].uses, 2);
  for (const auto& parameter : layout.parameters()) {
    EXPECT_EQ(parameter.group, parameter.shape.size() == 2 ? 0 : 1) << parameter.name;
  }
  const auto& fc = layout.parameters()[static_cast<std::size_t>(layout.parameter("h.1.mlp.c_fc.weight"))];
  EXPECT_EQ(fc.shape, (std::vector<std::int64_t>{96, 32}));
}

TEST(Decoder, InitialWeightsFollowFromTheSeed) {
  Rig rig, again, other;
  rig.decoder().initialize(5);
  again.decoder().initialize(5);
  other.decoder().initialize(6);
  for (int p = 0; p < rig.parameters(); ++p) {
    const Layout::Parameter& parameter = rig.parameter(p);
    const std::vector<float> weights = rig.weights(p);
    EXPECT_EQ(weights, again.weights(p)) << parameter.name;
    if (parameter.group == 1) {
      EXPECT_EQ(weights, std::vector<float>(weights.size(), is_norm_weight(parameter) ? 1.0f : 0.0f));
      continue;
    }
    EXPECT_NE(weights, other.weights(p)) << parameter.name;
    double squares = 0;
    for (const float w : weights) squares += static_cast<double>(w) * static_cast<double>(w);
    const double expected = parameter.name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(4.0) : 0.02;
    const auto count = static_cast<double>(weights.size());
    // Five standard errors of a deviation estimated from so many values.
    EXPECT_NEAR(std::sqrt(squares / count), expected, expected * 5 / std::sqrt(2 * count)) << parameter.name;
  }
}

TEST(Decoder, LossIsThatOfTraining) {
  Rig rig;
  rig.decoder().initialize(1);
  const auto tokens = rig.tokens(1), targets = rig.tokens(2);
  const double loss = rig.decoder().loss(tokens, targets);
  EXPECT_NEAR(loss, std::log(40.0), 0.05);  // near nothing is known at first
  rig.engine().begin_step({.groups = Rig::groups(), .micro_batches = 1});
  EXPECT_EQ(rig.decoder().train(tokens, targets), loss);
  rig.engine().step().wait();
  EXPECT_LT(rig.decoder().loss(tokens, targets), loss);
}

TEST(Decoder, RefusesTokensOutsideTheVocabulary) {
  Rig rig;
  rig.decoder().initialize(1);
  const auto good = rig.tokens(1);
  for (const std::int32_t token : {-1, 40}) {
    auto bad = good;
    bad[7] = token;
    EXPECT_THROW(rig.decoder().loss(bad, good), Error);
    EXPECT_THROW(rig.decoder().loss(good, bad), Error);
    try {
      rig.decoder().sample(bad, 1, 1.0, 1);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::configuration);
      EXPECT_NE(std::string(error.what()).find(std::to_string(token)), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(rig.decoder().loss(good, good), 0.0);  // and works on
  EXPECT_THROW(rig.decoder().loss(std::span(good).first(12), good), std::logic_error);
}

TEST(Decoder, RefusesSequencesThatDoNotFit) {
  for (const Batch batch : {Batch{1, 17}, Batch{1, 0}, Batch{0, 4}, Batch{-1, 4}}) {
    EXPECT_THROW(decoder_layout(kTiny, {.batch = batch}), Error) << batch.sequences << " " << batch.length;
  }
}

TEST(DecoderSample, RepeatsWithTheSeed) {
  Rig rig({.precision = DType::bf16}), more_threads({.precision = DType::bf16, .threads = 3});
  rig.decoder().initialize(3);
  more_threads.decoder().initialize(3);
  const std::vector<std::int32_t> prompt{1, 2, 3};
  std::vector<std::int64_t> progress;
  const auto text =
      rig.decoder().sample(prompt, 30, 1.0, 9, [&](std::int64_t drawn) { progress.push_back(drawn); });
  ASSERT_EQ(text.size(), 30u);
  EXPECT_EQ(progress.size(), 30u);
  EXPECT_EQ(progress.back(), 30);
  for (const std::int32_t token : text) {
    EXPECT_GE(token, 0);
    EXPECT_LT(token, 40);
  }
  EXPECT_EQ(rig.decoder().sample(prompt, 30, 1.0, 9), text);
  EXPECT_EQ(more_threads.decoder().sample(prompt, 30, 1.0, 9), text);
  EXPECT_NE(rig.decoder().sample(prompt, 30, 1.0, 10), text);

  // By (seed, position): what was drawn continues as it would have.
  std::vector<std::int32_t> longer(prompt);
  longer.insert(longer.end(), text.begin(), text.begin() + 20);
  EXPECT_EQ(rig.decoder().sample(longer, 10, 1.0, 9), std::vector<std::int32_t>(text.begin() + 20, text.end()));
  EXPECT_TRUE(rig.decoder().sample(prompt, 0, 1.0, 9).empty());
  EXPECT_THROW(rig.decoder().sample({}, 1, 1.0, 9), std::logic_error);
  EXPECT_THROW(rig.decoder().sample(prompt, 1, -1.0, 9), std::logic_error);
}

// A model that has learnt to count must go on counting, also beyond its positions, from every rounded length.
TEST(DecoderSample, ContinuesWhatWasLearnt) {
  Rig rig({.clip = 0});
  rig.decoder().initialize(3);
  const auto batch = static_cast<std::size_t>(kTinyBatch.tokens()),
             length = static_cast<std::size_t>(kTinyBatch.length);
  std::vector<std::int32_t> tokens(batch), targets(batch);
  double loss = 0;
  for (std::uint32_t step = 0; step < 150; ++step) {
    for (std::size_t i = 0; i < batch; ++i) {
      const auto begin = static_cast<std::size_t>(hash32(step, static_cast<std::uint32_t>(i / length)));
      tokens[i] = static_cast<std::int32_t>((begin + i) % 40);
      targets[i] = static_cast<std::int32_t>((begin + i + 1) % 40);
    }
    rig.engine().begin_step({.groups = Rig::groups(1e-2, 0), .micro_batches = 1});
    loss = rig.decoder().train(tokens, targets);
    rig.engine().step().wait();
  }
  ASSERT_LT(loss, 0.1);
  const auto text = rig.decoder().sample(std::vector<std::int32_t>{35, 36}, 30, 0, 1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_EQ(text[i], static_cast<std::int32_t>((37 + i) % 40)) << "at " << i;
  }
}

// The share of each token at temperature 1 is that of the softmax: after training on one target alone, a
// temperature that is high flattens it.
TEST(DecoderSample, TemperatureFlattens) {
  Rig rig;
  rig.load_reference_weights();
  const std::vector<std::int32_t> prompt{4, 8, 15, 16};
  const auto distinct = [&](double temperature) {
    std::vector<std::int32_t> seen;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      seen.push_back(rig.decoder().sample(prompt, 1, temperature, seed).front());
    }
    std::sort(seen.begin(), seen.end());
    return std::unique(seen.begin(), seen.end()) - seen.begin();
  };
  EXPECT_EQ(distinct(0), 1);
  EXPECT_LE(distinct(0.02), 2);
  EXPECT_GT(distinct(100), 20);
}

TEST(DecoderSample, RefusesOutputThatIsNotFinite) {
  Rig rig;
  rig.decoder().initialize(3);
  const int p = rig.layout().parameter("ln_f.bias");
  std::vector<float> values(32, 0.0f);
  values[3] = std::numeric_limits<float>::infinity();
  rig.load(p, values);
  try {
    rig.decoder().sample(std::vector<std::int32_t>{1}, 1, 1.0, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::numerics);
  }
}

}  // namespace
}  // namespace spillway::models
