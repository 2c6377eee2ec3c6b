// Whatever is kept, computed again or moved out for the backward pass, and in whichever order the micro-batches
// pass through the units: the same bits (D9), and no more memory than the plan says.
#include "../../core/communicator.h"
#include "../../core/host_device.h"
#include "../../core/trace.h"
#include "../../models/decoder.h"
#include "../../models/decoder_memory.h"
#include "../../offload/engine.h"
#include "../../offload/plan.h"
#include "../../offload/traffic.h"
#include "../../offload/weights_hash.h"
#include "decoder_rig.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::models {
namespace {

constexpr DecoderConfig kChain{
    .layers = 4, .heads = 2, .hidden = 32, .positions = 16, .vocabulary = 80, .inner = 128};
constexpr Batch kSmall{.sequences = 2, .length = 16};

Config base_config(int micro_batches) {
  Config config;
  const char* directory = std::getenv("SPILLWAY_TEST_DIR");
  config.parameter_nvme_paths = config.optimizer_nvme_paths = {directory != nullptr ? directory : "."};
  config.accumulation = micro_batches;
  config.gradient_clipping = 0.25;
  config.update_threads = 1;
  config.device_threads = 1;
  config.activations = ActivationPolicy::recompute;
  return config;
}

struct Outcome {
  std::string hash;
  std::vector<double> losses;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// A training of a few steps on an engine of its own.
struct Training {
  Training(const Config& config_, const std::optional<ActivationChoice>& choice = {}, Trace* trace = nullptr)
      : config(config_),
        run(make_run(config_, choice)),
        device({.memory = config_.device_memory, .threads = config_.device_threads}, trace),
        engine(config_, decoder_layout(kChain, run), device, communicator, trace),
        decoder(kChain, run, device, engine) {
    decoder.initialize(7);
  }
  static DecoderRun make_run(const Config& config, const std::optional<ActivationChoice>& choice) {
    DecoderRun run = decoder_run(kChain, kSmall, config);
    if (choice) run.activations = *choice;
    return run;
  }

  void step(Outcome& outcome) {
    engine.begin_step({Rig::groups(), config.accumulation});
    std::vector<std::vector<std::int32_t>> tokens;
    for (int i = 0; i < 2 * config.accumulation; ++i)
      tokens.push_back(tokens_of(stream++, kSmall.tokens(), kChain.vocabulary));
    std::vector<MicroBatch> micro_batches;
    for (std::size_t i = 0; i < tokens.size(); i += 2) micro_batches.push_back({tokens[i], tokens[i + 1]});
    for (const double loss : decoder.train(micro_batches)) outcome.losses.push_back(loss);
    EXPECT_FALSE(engine.step().wait().skipped);
  }
  Outcome outcome(int steps = 3) {
    Outcome result;
    for (int i = 0; i < steps; ++i) step(result);
    result.hash = weights_xxh3(engine);
    return result;
  }

  Config config;
  DecoderRun run;
  HostDevice device;
  SingleRankCommunicator communicator;
  Engine engine;
  Decoder decoder;
  std::uint32_t stream = 0;
};

Outcome train(const Config& config, const std::optional<ActivationChoice>& choice = {}) {
  return Training(config, choice).outcome();
}

std::string words(const Config& config, const std::optional<ActivationChoice>& choice = {}) {
  const DecoderRun run = Training::make_run(config, choice);
  return "parameters " + std::string(name_of(config.parameter_tier)) + ", optimizer " +
         std::string(name_of(config.optimizer_tier)) + ", micro-batches " +
         std::to_string(config.accumulation) + " at once " + std::to_string(run.at_once) + ", device threads " +
         std::to_string(config.device_threads) + ": " + describe(decoder_chain(kChain, run), run.activations);
}

bool is_full() {
  return std::getenv("SPILLWAY_FULL_GRID") != nullptr;
}

/// Every number of kept and moved layers, by turns to host memory and NVMe; with the full grid both.
std::vector<ActivationChoice> all_choices(bool with_between) {
  std::vector<ActivationChoice> choices;
  int turn = 0;
  for (std::int64_t kept = 0; kept <= kChain.layers; ++kept) {
    for (std::int64_t moved = 0; kept + moved <= kChain.layers; ++moved) {
      for (const bool between : {false, true}) {
        if (between && !with_between) continue;
        ++turn;
        for (const Tier tier : {Tier::host, Tier::nvme}) {
          if (is_full() || (tier == Tier::nvme) == (turn / 2 % 2 == 0))
            choices.push_back({kept, moved, tier, between});
        }
      }
    }
  }
  return choices;
}

TEST(DecoderActivations, EveryChoiceInEitherOrderGivesOneHash) {
  const bool full = is_full();
  std::vector<std::string> hashes;
  int run = 0;
  for (const int micro_batches : {1, 3, 6}) {
    Config config = base_config(micro_batches);
    const Outcome expected = train(config);
    hashes.push_back(expected.hash);
    for (const AccumulationOrder order : {AccumulationOrder::micro_batch, AccumulationOrder::layer}) {
      // Of one micro-batch both orders are one, and one after another six are like three.
      const bool is_layer = order == AccumulationOrder::layer;
      if (!full && (is_layer ? micro_batches == 1 : micro_batches == 6)) continue;
      config.accumulation_order = order;
      for (const ActivationChoice& choice : all_choices(is_layer)) {
        for (int variant = 0; variant < (full ? 9 : 1); ++variant, ++run) {
          config.parameter_tier = kTiers[full ? variant % 3 : run % 3];
          config.optimizer_tier = kTiers[full ? variant / 3 : run / 3 % 3];
          config.device_threads = 1 + (run + run / 9) % 3;
          ASSERT_TRUE(train(config, choice) == expected) << words(config, choice);
        }
      }
    }
  }
  EXPECT_NE(hashes[0], hashes[1]);
  EXPECT_NE(hashes[1], hashes[2]);
}

TEST(DecoderActivations, EveryPolicyAndBudgetGivesOneHashWithinIt) {
  for (const int micro_batches : {1, 3}) {
    Config config = base_config(micro_batches);
    const Outcome expected = train(config);
    for (const AccumulationOrder order : {AccumulationOrder::micro_batch, AccumulationOrder::layer}) {
      config.accumulation_order = order;
      config.device_memory = -1;
      for (const auto policy : {ActivationPolicy::keep, ActivationPolicy::recompute, ActivationPolicy::host,
                                ActivationPolicy::nvme, ActivationPolicy::automatic}) {
        config.activations = policy;
        ASSERT_TRUE(train(config) == expected) << words(config);
      }
      // From the least that works to all that can be used.
      config.device_memory = 0;
      const Layout smallest = decoder_layout(kChain, decoder_run(kChain, kSmall, config));
      const std::int64_t least = make_plan(smallest, config).device.total();
      config.device_memory = -1;
      const Layout largest = decoder_layout(kChain, decoder_run(kChain, kSmall, config));
      const std::int64_t most = make_plan(largest, config).device.total();
      ASSERT_LT(least, most);
      std::vector<ActivationChoice> seen;
      for (int i = 0; i <= 6; ++i) {
        config.device_memory = least + (most - least) * i / 6;
        Training training(config);
        ASSERT_TRUE(training.outcome() == expected) << words(config);
        EXPECT_LE(training.device.budget().peak(), config.device_memory);
        if (seen.empty() || !(seen.back() == training.run.activations))
          seen.push_back(training.run.activations);
      }
      EXPECT_GE(seen.size(), 4u);
      EXPECT_GT(seen.front().moved, 0);
      EXPECT_EQ(seen.back(), (ActivationChoice{.kept = kChain.layers}));
      config.device_memory = least - 1;
      EXPECT_THROW(train(config), Error);
    }
  }
}

TEST(DecoderActivations, OnABadDriveGiveTheSameHash) {
  for (const AccumulationOrder order : {AccumulationOrder::micro_batch, AccumulationOrder::layer}) {
    Config config = base_config(4);
    const Outcome expected = train(config);
    config.accumulation_order = order;
    config.parameter_tier = config.optimizer_tier = Tier::nvme;
    for (const char* faults : {"delay=0.5,delay_us=300,reorder", "short=0.3,interrupt=0.2,reorder"}) {
      config.io_faults = faults;
      for (const bool between : {false, true}) {
        if (between && order == AccumulationOrder::micro_batch) continue;
        const ActivationChoice choice{.moved = 4, .tier = Tier::nvme, .moves_between = between};
        ASSERT_TRUE(train(config, choice) == expected) << words(config, choice);
      }
    }
  }
}

TEST(DecoderActivations, OccupyWhatThePlanSays) {
  int run = 0;
  for (const AccumulationOrder order : {AccumulationOrder::micro_batch, AccumulationOrder::layer}) {
    for (const ActivationChoice& choice : all_choices(order == AccumulationOrder::layer)) {
      Config config = base_config(2);
      config.accumulation_order = order;
      config.parameter_tier = kTiers[run++ % 3];
      config.checksums = true;
      Training training(config, choice);
      training.outcome(1);
      training.decoder.sample(std::vector<std::int32_t>{1, 2}, 2, 1.0, 1);
      for (const Tier tier : kTiers) {
        const auto peaks = training.engine.budget(tier).peaks_by_name();
        const TierPlan& plan = training.engine.plan().of(tier);
        EXPECT_EQ(peaks.size(), plan.entries.size()) << name_of(tier) << words(config, choice);
        for (const auto& [name, bytes] : peaks) EXPECT_EQ(bytes, plan.bytes_of(name)) << name;
        EXPECT_EQ(training.engine.budget(tier).peak(), plan.total());
      }
    }
  }
}

std::int64_t count(const std::vector<Span>& spans, Lane lane, std::string_view name) {
  return std::ranges::count_if(spans, [&](const Span& span) { return span.lane == lane && span.name == name; });
}

// By layer, what a step copies of the parameters does not grow with the micro-batches.
TEST(DecoderActivations, ByLayerParametersMoveTwiceAStep) {
  for (const Tier parameters : {Tier::host, Tier::nvme}) {
    std::int64_t copies[2][2] = {};
    for (const int by_layer : {0, 1}) {
      for (const int more : {0, 1}) {
        const int micro_batches = more == 1 ? 5 : 1;
        Config config = base_config(micro_batches);
        config.parameter_tier = parameters;
        config.accumulation_order = by_layer == 1 ? AccumulationOrder::layer : AccumulationOrder::micro_batch;
        Trace trace;
        Training training(config, {}, &trace);
        Outcome ignored;
        training.step(ignored);
        training.engine.drain();
        copies[by_layer][more] = count(trace.spans(), Lane::copy_up, "parameters");
      }
    }
    const auto units = static_cast<std::int64_t>(kChain.layers + 3);
    EXPECT_LE(copies[1][1], 2 * units) << name_of(parameters);
    EXPECT_EQ(copies[1][1], copies[1][0]);
    EXPECT_EQ(copies[0][0], copies[1][0]);
    EXPECT_GT(copies[0][1], 4 * copies[0][0]);  // one after another, they do
  }
}

// What the choice says is moved is what the copy streams move; and nothing without a backward pass to come.
TEST(DecoderActivations, MoveWhatTheChoiceSaysAndNothingToEvaluateOrSample) {
  for (const AccumulationOrder order : {AccumulationOrder::micro_batch, AccumulationOrder::layer}) {
    for (const ActivationChoice& choice : all_choices(order == AccumulationOrder::layer)) {
      Config config = base_config(3);
      config.accumulation_order = order;
      Trace trace;
      Training training(config, choice, &trace);
      Outcome ignored;
      training.step(ignored);
      training.engine.drain();
      const ActivationChain chain = decoder_chain(kChain, training.run);
      const ActivationTraffic traffic = activation_traffic(chain, choice);
      const auto down = count(trace.spans(), Lane::copy_down, "activation");
      const auto up = count(trace.spans(), Lane::copy_up, "activation");
      EXPECT_EQ(down, 3 * traffic.down / chain.input_bytes) << words(config, choice);
      EXPECT_EQ(up, 3 * traffic.up / chain.input_bytes) << words(config, choice);
      const StepTraffic step = step_traffic(training.engine.layout(), config);
      EXPECT_EQ(step.nvme_written, training.engine.counters().nvme_written_bytes);
      EXPECT_EQ(step.copied, (down + up) * chain.input_bytes);

      const auto tokens = tokens_of(1, kSmall.tokens(), kChain.vocabulary);
      training.decoder.loss(tokens, tokens);
      training.decoder.sample(tokens, 2, 1.0, 1);
      training.engine.drain();
      EXPECT_EQ(count(trace.spans(), Lane::copy_down, "activation"), down);
      EXPECT_EQ(count(trace.spans(), Lane::copy_up, "activation"), up);
    }
  }
}

// Kept layers are not computed again: a layer has 4 products forward, 3 of which its backward pass repeats.
TEST(DecoderActivations, ComputeAgainWhatTheChoiceSays) {
  for (const ActivationChoice& choice : all_choices(false)) {
    Trace trace;
    Training training(base_config(1), choice, &trace);
    Outcome ignored;
    training.step(ignored);
    training.engine.drain();
    const std::int64_t recomputed = kChain.layers - choice.kept;
    const std::int64_t head = DecoderMemory(kChain, training.run).head.count;
    EXPECT_EQ(count(trace.spans(), Lane::compute, "linear"), 4 * kChain.layers + 3 * recomputed + head)
        << words(base_config(1), choice);
    EXPECT_EQ(count(trace.spans(), Lane::compute, "attention"), kChain.layers + recomputed);
  }
}

TEST(DecoderActivations, EvaluationAndSamplesAreTheSameInEveryMode) {
  std::optional<double> expected_loss;
  std::vector<std::int32_t> expected_text;
  const auto tokens = tokens_of(50, kSmall.tokens(), kChain.vocabulary);
  const auto targets = tokens_of(51, kSmall.tokens(), kChain.vocabulary);
  for (const AccumulationOrder order : {AccumulationOrder::micro_batch, AccumulationOrder::layer}) {
    for (const ActivationChoice& choice : all_choices(order == AccumulationOrder::layer)) {
      Config config = base_config(3);
      config.accumulation_order = order;
      Training training(config, choice);
      Outcome ignored;
      training.step(ignored);
      const double loss = training.decoder.loss(tokens, targets);
      const auto text = training.decoder.sample(std::vector<std::int32_t>{3, 4}, 10, 1.0, 5);
      training.step(ignored);
      EXPECT_NE(training.decoder.loss(tokens, targets), loss);
      if (!expected_loss) {
        expected_loss = loss;
        expected_text = text;
      }
      ASSERT_EQ(loss, *expected_loss) << words(config, choice);
      ASSERT_EQ(text, expected_text) << words(config, choice);
    }
  }
}

// A step may hand over its micro-batches in several calls, and a call fewer of them than pass at once.
TEST(DecoderActivations, MicroBatchesMayComeInParts) {
  Config config = base_config(5);
  const auto in_parts = [](const Config& its, const std::vector<std::size_t>& parts) {
    Training training(its);
    std::vector<std::vector<std::int32_t>> tokens;
    std::vector<MicroBatch> micro_batches;
    for (std::uint32_t i = 0; i < 10; ++i) tokens.push_back(tokens_of(i, kSmall.tokens(), kChain.vocabulary));
    for (std::size_t i = 0; i < tokens.size(); i += 2) micro_batches.push_back({tokens[i], tokens[i + 1]});
    training.engine.begin_step({Rig::groups(), 5});
    std::size_t first = 0;
    for (const std::size_t part : parts) {
      training.decoder.train(std::span(micro_batches).subspan(first, part));
      first += part;
    }
    training.engine.step().wait();
    return weights_xxh3(training.engine);
  };
  const std::string expected = in_parts(config, {5});
  EXPECT_EQ(in_parts(config, {1, 1, 3}), expected);
  config.accumulation_order = AccumulationOrder::layer;
  EXPECT_EQ(in_parts(config, {5}), expected);
}

TEST(DecoderActivations, AreRefusedWhereThePolicyDoesNotFit) {
  Config config = base_config(2);
  config.accumulation_order = AccumulationOrder::layer;
  const auto plan_with = [&](ActivationPolicy policy) {
    config.activations = policy;
    return make_plan(decoder_layout(kChain, decoder_run(kChain, kSmall, config)), config);
  };
  for (const auto policy : {ActivationPolicy::keep, ActivationPolicy::recompute, ActivationPolicy::host}) {
    config.device_memory = -1;
    config.device_memory = plan_with(policy).device.total() - 1;
    const DecoderRun run = decoder_run(kChain, kSmall, config);
    HostDevice device({.memory = config.device_memory, .threads = 1});
    SingleRankCommunicator communicator;
    try {
      Engine engine(config, decoder_layout(kChain, run), device, communicator);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::resources);
      EXPECT_NE(std::string(error.what()).find("activations"), std::string::npos) << error.what();
    }
  }
}

TEST(DecoderActivations, GoToHostMemoryUntilThatIsFullAndThenToTheDrive) {
  Config config = base_config(2);
  config.accumulation_order = AccumulationOrder::layer;
  config.host_memory = 0;
  const Outcome expected = train(base_config(2));
  const std::int64_t without =
      make_plan(decoder_layout(kChain, decoder_run(kChain, kSmall, config)), config).host.total();
  config.activations = ActivationPolicy::automatic;
  config.host_memory = -1;
  config.device_memory = 0;
  const Layout least = decoder_layout(kChain, decoder_run(kChain, kSmall, config));
  config.device_memory = make_plan(least, config).device.total();
  EXPECT_EQ(decoder_run(kChain, kSmall, config).activations.tier, Tier::host);
  EXPECT_TRUE(train(config) == expected);
  config.host_memory = without + 4096;  // on the way to the drive, no more
  EXPECT_EQ(decoder_run(kChain, kSmall, config).activations.tier, Tier::nvme);
  EXPECT_TRUE(train(config) == expected);
  config.parameter_nvme_paths = config.optimizer_nvme_paths = {};
  EXPECT_THROW(train(config), Error);
}

}  // namespace
}  // namespace spillway::models
