#include "../../offload/engine.h"

#include "../../core/error.h"
#include "../../cpu_adam/isa.h"
#include "../../offload/plan.h"
#include "../../offload/weights_hash.h"
#include "toy_model.h"

#include <bit>
#include <filesystem>
#include <iomanip>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

namespace spillway {
namespace {

/// A directory on the build's own file system (a memory file system can't hold swap), empty again at the end.
class Directory {
 public:
  Directory() {
    const char* base = std::getenv("SPILLWAY_TEST_DIR");
    path_ = (base != nullptr ? std::filesystem::path(base) : std::filesystem::current_path()) /
            ("engine_test_" + std::to_string(getpid()));
    std::filesystem::create_directory(path_);
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }
  bool is_empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

toy::Run make_run(Tier parameters, Tier optimizer, const Directory& directory) {
  toy::Run run;
  run.config.parameter_tier = parameters;
  run.config.optimizer_tier = optimizer;
  run.config.parameter_nvme_path = run.config.optimizer_nvme_path = directory.path();
  run.config.update_threads = 1;
  run.config.gradient_clipping = 1.0;
  return run;
}

std::int64_t make_plan_total(const toy::Run& run, Tier tier) {
  return make_plan(toy::layout(), run.config).of(tier).total();
}

class Isa {
 public:
  explicit Isa(std::string_view name) { setenv("SPILLWAY_ISA", std::string(name).c_str(), 1); }
  ~Isa() { unsetenv("SPILLWAY_ISA"); }
};

void expect_same(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b,
                 const Layout& layout) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t p = 0; p < a.size(); ++p) {
    ASSERT_EQ(a[p].size(), b[p].size()) << layout.parameters()[p].name;
    for (std::size_t i = 0; i < a[p].size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(a[p][i]), std::bit_cast<std::uint32_t>(b[p][i]))
          << layout.parameters()[p].name << "[" << i << "] " << a[p][i] << " " << b[p][i];
    }
  }
}

/// Parameters and optimizer each in one of three tiers.
class Placements : public testing::TestWithParam<std::tuple<Tier, Tier>> {
 protected:
  Tier parameters() const { return std::get<0>(GetParam()); }
  Tier optimizer() const { return std::get<1>(GetParam()); }
  Directory directory;
};

TEST_P(Placements, TrainToTheBitsOfThePlainReference) {
  for (const DType precision : {DType::bf16, DType::fp32}) {
    for (const int micro_batches : {1, 3}) {
      for (const double clip : {0.0, 0.5}) {
        toy::Run run = make_run(parameters(), optimizer(), directory);
        run.config.precision = precision;
        run.config.accumulation = micro_batches;
        run.config.gradient_clipping = clip;
        toy::Trainer trainer(run);
        toy::Reference reference(run);
        bool clipped = false;
        for (int step = 0; step < run.steps; ++step) {
          const StepResult result = trainer.step();
          const double norm = reference.step();
          ASSERT_NEAR(result.gradient_norm, norm, 1e-12 * norm);
          ASSERT_FALSE(result.skipped);
          reference.update(result.gradient_norm);
          clipped = clipped || result.gradient_norm > clip;
        }
        EXPECT_TRUE(clipped) << "the test does not reach the clip";
        expect_same(trainer.weights(), reference.weights, trainer.engine->layout());
        EXPECT_EQ(trainer.engine->counters().steps, run.steps);
      }
    }
  }
}

TEST_P(Placements, PeaksEqualThePlanByName) {
  for (const int micro_batches : {1, 3}) {
    toy::Run run = make_run(parameters(), optimizer(), directory);
    run.config.accumulation = micro_batches;
    run.device_memory = make_plan_total(run, Tier::device);
    run.config.host_memory = make_plan_total(run, Tier::host);
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
    const std::int64_t needed = make_plan_total(run, tier);
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

TEST_P(Placements, MoveTheBytesOfTheFormatAndNoMore) {
  const toy::Run run = make_run(parameters(), optimizer(), directory);
  toy::Trainer trainer(run);
  trainer.step();
  const EngineCounters before = trainer.engine->counters();
  trainer.step();
  const EngineCounters after = trainer.engine->counters();
  const Layout& layout = trainer.engine->layout();
  std::int64_t updated = 0, gathered = 0;
  const std::int64_t chunk = 262144;
  const auto blocks = [](std::int64_t bytes) { return (bytes + 4095) / 4096 * 4096; };
  for (const auto& unit : layout.units()) {
    for (std::int64_t first = 0; first < unit.trainable; first += chunk) {
      if (optimizer() == Tier::nvme) updated += blocks(10 * std::min(chunk, unit.trainable - first));
      if (parameters() == Tier::nvme) updated += blocks(2 * std::min(chunk, unit.elements - first));
    }
    // The tied unit is used twice in a row and stays in its slot.
    if (parameters() == Tier::nvme && toy::is_used(unit)) gathered += blocks(2 * unit.elements);
  }
  EXPECT_EQ(after.nvme_written_bytes - before.nvme_written_bytes, updated);
  EXPECT_EQ(after.nvme_read_bytes - before.nvme_read_bytes, updated + gathered);
}

INSTANTIATE_TEST_SUITE_P(Tiers, Placements,
                         testing::Combine(testing::ValuesIn(kTiers), testing::ValuesIn(kTiers)),
                         [](const auto& tiers) {
                           return "Parameters_" + std::string(name_of(std::get<0>(tiers.param))) +
                                  "_Optimizer_" + std::string(name_of(std::get<1>(tiers.param)));
                         });

// Every placement with every number of micro-batches and either clip; thread counts and instruction sets change
// along so that each meets each. SPILLWAY_FULL_GRID=1 runs all combinations.
TEST(Engine, OneHashForEveryPlacementThreadCountAndInstructionSet) {
  const bool full = std::getenv("SPILLWAY_FULL_GRID") != nullptr;
  const auto isas = cpu_adam::supported_isas();
  const int isa_count = static_cast<int>(isas.size());
  Directory directory;
  for (const int micro_batches : {1, 3}) {
    for (const double clip : {0.0, 0.5}) {
      std::string expected;
      int place = 0;
      for (const Tier parameters : kTiers) {
        for (const Tier optimizer : kTiers) {
          for (int variant = 0; variant < (full ? 3 * isa_count : 1); ++variant) {
            const int threads = 1 + (full ? variant / isa_count : place + place / 3) % 3;
            const cpu_adam::Isa isa = isas[static_cast<std::size_t>((full ? variant : place / 3) % isa_count)];
            const Isa chosen(cpu_adam::name_of(isa));
            toy::Run run = make_run(parameters, optimizer, directory);
            run.config.accumulation = micro_batches;
            run.config.gradient_clipping = clip;
            run.config.update_threads = threads;
            run.device_threads = 1 + (threads + micro_batches) % 3;
            toy::Trainer trainer(run);
            trainer.step();
            trainer.step();
            const std::string hash = weights_xxh3(*trainer.engine);
            if (expected.empty()) expected = hash;
            ASSERT_EQ(hash, expected) << name_of(parameters) << " " << name_of(optimizer) << " " << threads
                                      << " " << cpu_adam::name_of(isa);
          }
          ++place;
        }
      }
    }
  }
}

TEST(Engine, TheGradientCanBeRead) {
  Directory directory;
  for (const Tier optimizer : {Tier::device, Tier::host}) {
    for (const int micro_batches : {1, 3}) {
      toy::Run run = make_run(Tier::host, optimizer, directory);
      run.config.accumulation = micro_batches;
      toy::Trainer trainer(run);
      toy::Reference reference(run);
      reference.step();
      trainer.engine->begin_step({toy::groups(0), micro_batches});
      for (int i = 0; i < micro_batches; ++i) trainer.run_micro_batch();
      for (const char* name : {"table", "scale", "weight", "bias.2"}) {
        const int p = trainer.engine->layout().parameter(name);
        std::vector<float> values;
        trainer.engine->read_gradient(p, [&](std::int64_t, std::span<const float> piece) {
          values.insert(values.end(), piece.begin(), piece.end());
        });
        EXPECT_EQ(values, reference.last_gradients[static_cast<std::size_t>(p)]) << name;
      }
      trainer.engine->step();
    }
  }
}

TEST(Engine, FewerMicroBatchesThanReservedGiveTheSameBits) {
  Directory directory;
  toy::Run one = make_run(Tier::host, Tier::host, directory);
  toy::Run three = one;
  three.config.accumulation = 3;
  toy::Trainer a(one), b(three);
  for (toy::Trainer* trainer : {&a, &b}) {
    trainer->engine->begin_step({toy::groups(0), 1});
    trainer->run_micro_batch();
    trainer->engine->step();
  }
  EXPECT_EQ(weights_xxh3(*a.engine), weights_xxh3(*b.engine));
}

TEST(Engine, EvaluationBetweenStepsLeavesNoTrace) {
  Directory directory;
  const toy::Run run = make_run(Tier::nvme, Tier::nvme, directory);
  toy::Trainer a(run), b(run);
  for (int step = 0; step < 3; ++step) {
    a.step();
    b.step();
    for (int unit = 0; unit < static_cast<int>(b.engine->layout().units().size()); ++unit)
      b.engine->gather(unit);
  }
  EXPECT_EQ(weights_xxh3(*a.engine), weights_xxh3(*b.engine));
}

TEST(Engine, TwoEnginesInOneDirectoryDoNotMeet) {
  Directory directory;
  const toy::Run run = make_run(Tier::nvme, Tier::nvme, directory);
  toy::Trainer a(run), b(run), alone(run);
  for (int step = 0; step < 3; ++step) {
    a.step();
    b.step();
  }
  for (int step = 0; step < 3; ++step) alone.step();
  EXPECT_EQ(weights_xxh3(*a.engine), weights_xxh3(*alone.engine));
  EXPECT_EQ(weights_xxh3(*b.engine), weights_xxh3(*alone.engine));
  EXPECT_TRUE(directory.is_empty());
}

TEST(Engine, MisuseIsALogicErrorThatNamesTheUnitAndBreaksNothing) {
  Directory directory;
  toy::Trainer trainer(make_run(Tier::host, Tier::host, directory));
  Engine& engine = *trainer.engine;
  const auto message_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const std::logic_error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  {
    UnitView a = engine.gather(0), b = engine.gather(2), again = engine.gather(0);
    EXPECT_PRED2(has, message_of([&] { engine.gather(3); }), "embedding, layer.0");
    EXPECT_PRED2(has, message_of([&] { engine.load(0, [](std::int64_t, std::span<float>) {}); }),
                 "views of embedding");
    EXPECT_PRED2(has, message_of([&] { a.parameter(engine.layout().parameter("weight")); }), "weight");
  }
  EXPECT_PRED2(has, message_of([&] { engine.gradient(0); }), "begin_step");
  EXPECT_PRED2(has, message_of([&] { engine.step(); }), "begin_step");
  EXPECT_PRED2(has, message_of([&] { engine.begin_step({{}, 1}); }), "groups");
  EXPECT_PRED2(has, message_of([&] { engine.begin_step({toy::groups(0), 2}); }), "micro-batches");
  EXPECT_PRED2(has, message_of([&] { engine.gather(17); }), "17");
  EXPECT_PRED2(has, message_of([&] { engine.begin_step({{{}, {.learning_rate = -1}}, 1}); }), "out of range");
  EXPECT_PRED2(has, message_of([&] {
                 engine.read(0, [&](std::int64_t, std::span<const float>) {
                   engine.read(1, [](std::int64_t, std::span<const float>) {});
                 });
               }),
               "inside");
  engine.begin_step({toy::groups(0), 1});
  EXPECT_PRED2(has, message_of([&] { engine.reduce(2); }), "layer.0");
  engine.gradient(2);
  EXPECT_PRED2(has, message_of([&] { engine.gradient(5); }), "held by layer.0");
  EXPECT_PRED2(has, message_of([&] { engine.step(); }), "layer.0");
  EXPECT_PRED2(has, message_of([&] { engine.begin_step({toy::groups(0), 1}); }), "outside");
  EXPECT_PRED2(has, message_of([&] { engine.load(0, [](std::int64_t, std::span<float>) {}); }), "outside");
  engine.reduce(2);
  EXPECT_PRED2(has, message_of([&] { engine.gradient(2); }), "has been reduced");
  EXPECT_PRED2(has, message_of([&] { engine.gradient(0, 2); }), "use 2");
  {
    UnitView view = engine.gather(0);
    EXPECT_PRED2(has, message_of([&] { engine.step(); }), "views of embedding");
  }
  EXPECT_FALSE(engine.step().wait().skipped);
  EXPECT_FALSE(trainer.step().skipped);
}

TEST(Engine, AWeightThatIsNoLongerFiniteEndsTheRun) {
  Directory directory;
  toy::Run run = make_run(Tier::host, Tier::nvme, directory);
  run.config.check_finite = false;
  run.config.gradient_clipping = 0;
  toy::Trainer trainer(run);
  trainer.engine->begin_step({toy::groups(0), 1});
  const int unit = trainer.engine->layout().unit("layer.2");
  float* sums = trainer.engine->gradient(unit).parameter(trainer.engine->layout().parameter("bias.2"));
  trainer.device->stream(Lane::compute).call("poison", [=] {
    sums[0] = std::numeric_limits<float>::quiet_NaN();
  });
  trainer.engine->reduce(unit);
  for (int call = 0; call < 2; ++call) {  // the first error is thrown by every later call
    try {
      if (call == 0) trainer.engine->step();
      if (call == 1) trainer.engine->gather(0);
      FAIL() << "call " << call;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::numerics);
    }
  }
}

TEST(Engine, AnErrorOfTheModelsOwnWorkSurfacesAndTheEngineEnds) {
  Directory directory;
  toy::Trainer trainer(make_run(Tier::nvme, Tier::nvme, directory));
  trainer.step();
  trainer.device->stream(Lane::compute).call("fails", [] {
    throw Error(ErrorKind::numerics, "the model failed");
  });
  trainer.device->stream(Lane::compute).record().wait();
  EXPECT_THROW(trainer.engine->gather(0), Error);
  EXPECT_THROW(trainer.engine->begin_step({toy::groups(1), 1}), Error);
}

TEST(Engine, AnExceptionOfASourceEndsTheEngine) {
  Directory directory;
  toy::Trainer trainer(make_run(Tier::nvme, Tier::nvme, directory));
  const auto load = [&](auto exception) {
    trainer.engine->load(trainer.engine->layout().parameter("weight"),
                         [&](std::int64_t first, std::span<float>) {
                           if (first > 20000) throw exception;
                         });
  };
  EXPECT_THROW(load(std::out_of_range("the file ended")), std::out_of_range);
  EXPECT_THROW(trainer.step(), std::out_of_range) << "half a parameter is not trained on";
}

TEST(Engine, ComputesInBf16OrFp32Only) {
  Directory directory;
  toy::Run run = make_run(Tier::host, Tier::host, directory);
  run.config.precision = DType::fp16;
  EXPECT_THROW(toy::Trainer trainer(run), Error);
}

TEST(Engine, TheTraceHoldsSpansOfEveryLaneAndBuffersThatSumToTheUse) {
  Directory directory;
  Trace trace;
  toy::Run run = make_run(Tier::nvme, Tier::nvme, directory);
  run.trace = &trace;
  toy::Trainer trainer(run);
  trainer.step();
  std::map<Lane, int> spans;
  for (const Span& span : trace.spans()) {
    ++spans[span.lane];
    EXPECT_LE(span.begin_ns, span.end_ns);
  }
  for (const Lane lane : {Lane::compute, Lane::copy_down, Lane::copy_up, Lane::adam, Lane::read, Lane::write}) {
    EXPECT_GT(spans[lane], 0) << name_of(lane);
  }
  std::map<Tier, std::int64_t> live;
  std::map<std::string, int> causes;
  for (const BufferEvent& event : trace.buffer_events()) {
    if (event.action == BufferAction::allocate) live[event.tier] += event.bytes;
    if (event.action == BufferAction::free) live[event.tier] -= event.bytes;
    ++causes[event.cause];
  }
  for (const Tier tier : kTiers) EXPECT_EQ(live[tier], trainer.engine->budget(tier).used()) << name_of(tier);
  for (const char* cause : {"gather", "release", "gradient", "reduce", "read chunk", "write chunk"}) {
    EXPECT_GT(causes[cause], 0) << cause;
  }
}

TEST(Engine, KilledInTheMiddleOfAStepItLeavesNoFile) {
  Directory directory;
  for (int attempt = 0; attempt < 5; ++attempt) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      toy::Trainer trainer(make_run(Tier::nvme, Tier::nvme, directory));
      trainer.step();
      const bool told = write(ready[1], "x", 1) == 1;
      while (told) trainer.step();
      _exit(1);
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    usleep(static_cast<useconds_t>(3000 * attempt));
    EXPECT_TRUE(directory.is_empty());
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_TRUE(directory.is_empty());
    close(ready[0]);
    close(ready[1]);
  }
}

}  // namespace
}  // namespace spillway
