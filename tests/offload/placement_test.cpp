// What holds for each of the nine placements of parameters and optimizer.
#include "../../core/error.h"
#include "../../offload/engine.h"
#include "../../offload/weights_hash.h"
#include "engine_rig.h"

#include <iomanip>
#include <limits>
#include <map>
#include <sstream>

#include <gtest/gtest.h>
#include <xxhash.h>

namespace spillway {
namespace {

/// Parameters and optimizer each in one of three tiers.
class Placements : public testing::TestWithParam<std::tuple<Tier, Tier>> {
 protected:
  Tier parameters() const { return std::get<0>(GetParam()); }
  Tier optimizer() const { return std::get<1>(GetParam()); }
  Directory directory;
};

void expect_the_bits_of_the_reference(const toy::Run& run) {
  toy::Trainer trainer(run);
  toy::Reference reference(run);
  bool clipped = false;
  for (int step = 0; step < run.steps; ++step) {
    const StepResult result = trainer.step();
    const double norm = reference.step();
    ASSERT_NEAR(result.gradient_norm, norm, 1e-12 * norm);
    ASSERT_FALSE(result.skipped);
    reference.update(result.gradient_norm);
    clipped = clipped || result.gradient_norm > run.config.gradient_clipping;
  }
  EXPECT_TRUE(clipped) << "the test does not reach the clip";
  expect_same(trainer.weights(), reference.weights, trainer.engine->layout());
  EXPECT_EQ(trainer.engine->counters().steps, run.steps);
}

TEST_P(Placements, TrainToTheBitsOfThePlainReference) {
  for (const DType precision : {DType::bf16, DType::fp32}) {
    for (const int micro_batches : {1, 3}) {
      for (const double clip : {0.0, 0.5}) {
        toy::Run run = make_run(parameters(), optimizer(), directory);
        run.config.precision = precision;
        run.config.accumulation = micro_batches;
        run.config.gradient_clipping = clip;
        expect_the_bits_of_the_reference(run);
      }
    }
  }
}

TEST_P(Placements, TrainToTheBitsOfThePlainReferenceInEveryStateFormatAndOptimizer) {
  for (const auto& [format, optimizer_kind] :
       {std::pair{StateFormat::bf16, Optimizer::adamw}, std::pair{StateFormat::compact8, Optimizer::adamw},
        std::pair{StateFormat::compact8, Optimizer::adam}, std::pair{StateFormat::fp32, Optimizer::lion},
        std::pair{StateFormat::bf16, Optimizer::lion}, std::pair{StateFormat::fp32, Optimizer::sgd},
        std::pair{StateFormat::bf16, Optimizer::sgd}}) {
    SCOPED_TRACE(std::string(name_of(format)) + " " + std::string(name_of(optimizer_kind)));
    toy::Run run = make_run(parameters(), optimizer(), directory);
    run.config.state_format = format;
    run.config.optimizer.optimizer = optimizer_kind;
    run.config.accumulation = 3;
    run.config.gradient_clipping = 0.5;
    expect_the_bits_of_the_reference(run);
  }
}

TEST_P(Placements, PeaksEqualThePlanByName) {
  for (const auto& [micro_batches, format] :
       {std::pair{1, StateFormat::fp32}, std::pair{3, StateFormat::fp32}, std::pair{1, StateFormat::bf16},
        std::pair{1, StateFormat::compact8}}) {
    toy::Run run = make_run(parameters(), optimizer(), directory);
    run.config.accumulation = micro_batches;
    run.config.state_format = format;
    run.device_memory = least_plan_total(run, Tier::device);
    run.config.host_memory = least_plan_total(run, Tier::host);
    toy::Trainer trainer(run);
    trainer.step();
    trainer.step();
    weights_xxh3(*trainer.engine);
    for (const Tier tier : kTiers) {
      std::map<std::string, std::int64_t> planned;
      for (const PlanEntry& entry : trainer.engine->plan().of(tier).entries) planned[entry.name] += entry.bytes;
      EXPECT_EQ(trainer.engine->budget(tier).peaks_by_name(), planned) << name_of(tier);
      EXPECT_EQ(trainer.engine->budget(tier).peak(), trainer.engine->plan().of(tier).total()) << name_of(tier);
    }
  }
}

TEST_P(Placements, RefuseOneByteLessThanThePlanBeforeAnythingIsAllocated) {
  toy::Run run = make_run(parameters(), optimizer(), directory);
  for (const Tier tier : {Tier::device, Tier::host}) {
    toy::Run small = run;
    const std::int64_t needed = least_plan_total(run, tier);
    (tier == Tier::device ? small.device_memory : small.config.host_memory) = needed - 1;
    HostDevice device({small.device_memory, 1});
    SingleRankCommunicator communicator;
    try {
      Engine engine(small.config, toy::layout(), device, communicator);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::resources);
      EXPECT_NE(std::string(error.what()).find("layer.0"), std::string::npos) << error.what();
      EXPECT_NE(error.detail().hint.find(std::to_string(needed)), std::string::npos) << error.detail().hint;
    }
    EXPECT_EQ(device.budget().peak(), 0);
    EXPECT_TRUE(directory.is_empty());
  }
}

TEST_P(Placements, AUnitGatheredLastInOneStepAndFirstInTheNextIsUpdated) {
  toy::Trainer trainer(make_run(parameters(), optimizer(), directory));
  Engine& engine = *trainer.engine;
  const int unit = engine.layout().unit("embedding"), p = engine.layout().parameter("table");
  const auto seen = [&] {
    const UnitView view = engine.gather(unit);
    const auto* weights = static_cast<const BFloat16*>(view.parameter(p));
    std::vector<float> values;
    trainer.device->stream(Lane::compute).call("see", [&] {
      for (int i = 0; i < 37 * 129; ++i) values.push_back(to_float(weights[i]));
    });
    trainer.device->stream(Lane::compute).synchronize();
    return values;
  };
  const auto expected = [&] {
    auto values = trainer.weights()[static_cast<std::size_t>(p)];
    for (float& value : values) value = to_float(split_master(value).high);
    return values;
  };
  const auto before = seen();
  EXPECT_EQ(before, expected());
  trainer.step();
  const auto after = seen();  // nothing else was gathered since the step's own last gather
  EXPECT_NE(before, after);
  EXPECT_EQ(after, expected());
  trainer.step();
  EXPECT_EQ(seen(), expected());
  engine.load(p, [](std::int64_t, std::span<float> values) { std::fill(values.begin(), values.end(), 0.75f); });
  EXPECT_EQ(seen(), std::vector<float>(37 * 129, 0.75f));
}

TEST_P(Placements, LoadingBetweenStepsBeginsWithoutMoments) {
  const toy::Run run = make_run(parameters(), optimizer(), directory);
  toy::Trainer trainer(run);
  toy::Reference reference(run);
  reference.step();
  reference.update(trainer.step().gradient_norm);
  trainer.load_initial();
  reference.weights = toy::Reference(run).weights;
  for (auto* planes : {&reference.m, &reference.v}) {
    for (auto& plane : *planes) std::fill(plane.begin(), plane.end(), 0.0f);
  }
  reference.step();
  reference.update(trainer.step().gradient_norm);
  expect_same(trainer.weights(), reference.weights, trainer.engine->layout());
}

TEST_P(Placements, FrozenParametersNeedNoRecords) {
  const toy::Run run = make_run(parameters(), optimizer(), directory);
  for (const bool all : {false, true}) {
    const Layout layout(
        {{"head", {{"a", {10}, 0, !all}}}, {"tail", {{"b", {1'000'000}, 0, false}, {"c", {10}, 0, !all}}}});
    HostDevice device({});
    SingleRankCommunicator communicator;
    Engine engine(run.config, layout, device, communicator);
    for (int p = 0; p < 3; ++p) {
      engine.load(p, [&](std::int64_t first, std::span<float> values) {
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<float>((first + static_cast<std::int64_t>(i)) % 128 + p);
      });
    }
    engine.begin_step({toy::groups(0), 1});
    EXPECT_FALSE(engine.step().wait().skipped);
    std::int64_t wrong = 0;
    engine.read(1, [&](std::int64_t first, std::span<const float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        wrong += values[i] != static_cast<float>((first + static_cast<std::int64_t>(i)) % 128 + 1);
      }
    });
    EXPECT_EQ(wrong, 0);
    for (const Tier tier : kTiers)
      EXPECT_EQ(engine.budget(tier).peak(), engine.plan().of(tier).total()) << name_of(tier);
  }
}

TEST_P(Placements, TheHashIsThatOfTheWeightsInDeclaredOrder) {
  toy::Trainer trainer(make_run(parameters(), optimizer(), directory));
  trainer.step();
  std::vector<float> all;
  for (const auto& weights : trainer.weights()) all.insert(all.end(), weights.begin(), weights.end());
  std::ostringstream expected;
  expected << std::hex << std::setw(16) << std::setfill('0')
           << XXH3_64bits(all.data(), all.size() * sizeof(float));
  EXPECT_EQ(weights_xxh3(*trainer.engine), expected.str());
}

TEST_P(Placements, ANonFiniteGradientSkipsTheStepAndChangesNothing) {
  const toy::Run run = make_run(parameters(), optimizer(), directory);
  toy::Trainer trainer(run), undisturbed(run);
  trainer.step();
  undisturbed.step();
  const auto before = trainer.weights();
  const auto& layout = trainer.engine->layout();
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const char* name : {"table", "weight", "bias.2"}) {  // of the first, a middle and the last unit
      trainer.engine->begin_step({toy::groups(1), 1});
      const int p = layout.parameter(name), unit = layout.parameters()[static_cast<std::size_t>(p)].unit;
      float* sums = trainer.engine->gradient(unit).parameter(p);
      trainer.device->stream(Lane::compute).call("poison", [=] { sums[999] = bad; });
      trainer.engine->reduce(unit);
      const StepResult result = trainer.engine->step().wait();
      EXPECT_TRUE(result.skipped) << name;
      EXPECT_FALSE(std::isfinite(result.gradient_norm)) << name;
    }
  }
  EXPECT_EQ(trainer.engine->counters().skipped_steps, 6);
  EXPECT_EQ(trainer.engine->counters().steps, 1);
  expect_same(trainer.weights(), before, trainer.engine->layout());
  trainer.step();
  undisturbed.step();
  expect_same(trainer.weights(), undisturbed.weights(), trainer.engine->layout());
}

TEST_P(Placements, LoadAndReadGiveBackEveryBit) {
  toy::Run run = make_run(parameters(), optimizer(), directory);
  toy::Trainer trainer(run);
  const int p = trainer.engine->layout().parameter("weight");  // spans several chunks
  const auto value = [](std::int64_t i) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(i) * 2654435761u &
                                0x7f7fffffu);  // finite, subnormals too
  };
  const auto neighbour = trainer.weights();
  trainer.engine->load(p, [&](std::int64_t first, std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(first + static_cast<std::int64_t>(i));
  });
  auto expected = neighbour;
  for (std::size_t i = 0; i < expected[static_cast<std::size_t>(p)].size(); ++i) {
    expected[static_cast<std::size_t>(p)][i] = value(static_cast<std::int64_t>(i));
  }
  expect_same(trainer.weights(), expected, trainer.engine->layout());
}

/// Of n elements, a multiple of 128, by the table of docs/adam.md.
std::int64_t bytes_of_record(StateFormat format, std::int64_t n) {
  return format == StateFormat::fp32 ? 10 * n : format == StateFormat::bf16 ? 6 * n : 25 * n / 8;
}

TEST_P(Placements, MoveTheBytesOfTheFormatAndNoMore) {
  for (const StateFormat format : {StateFormat::fp32, StateFormat::bf16, StateFormat::compact8}) {
    toy::Run run = make_run(parameters(), optimizer(), directory);
    run.config.state_format = format;
    toy::Trainer trainer(run);
    trainer.step();
    trainer.engine->drain();
    const EngineCounters before = trainer.engine->counters();
    trainer.step();
    trainer.engine->drain();
    const EngineCounters after = trainer.engine->counters();
    const Layout& layout = trainer.engine->layout();
    std::int64_t updated = 0, gathered = 0;
    const std::int64_t chunk = kChunkElements;
    const auto blocks = [](std::int64_t bytes) { return (bytes + 4095) / 4096 * 4096; };
    for (const auto& unit : layout.units()) {
      for (std::int64_t first = 0; first < unit.trainable; first += chunk) {
        if (optimizer() == Tier::nvme)
          updated += blocks(bytes_of_record(format, std::min(chunk, unit.trainable - first)));
        if (parameters() == Tier::nvme) updated += blocks(2 * std::min(chunk, unit.elements - first));
      }
      // The tied unit is used twice in a row and stays in its slot.
      if (parameters() == Tier::nvme && toy::is_used(unit)) gathered += blocks(2 * unit.elements);
    }
    EXPECT_EQ(after.nvme_written_bytes - before.nvme_written_bytes, updated);
    EXPECT_EQ(after.nvme_read_bytes - before.nvme_read_bytes, updated + gathered);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, Placements,
                         testing::Combine(testing::ValuesIn(kTiers), testing::ValuesIn(kTiers)),
                         [](const auto& tiers) {
                           return "Parameters_" + std::string(name_of(std::get<0>(tiers.param))) +
                                  "_Optimizer_" + std::string(name_of(std::get<1>(tiers.param)));
                         });

// Every placement with every number of micro-batches and either clip; thread counts and instruction sets change
// along so that each meets each. SPILLWAY_FULL_GRID=1 runs all combinations.

}  // namespace
}  // namespace spillway
