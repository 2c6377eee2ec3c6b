#include "../../offload/engine.h"

#include "../../core/error.h"
#include "../../cpu_adam/isa.h"
#include "../../offload/weights_hash.h"
#include "engine_rig.h"

#include <limits>
#include <map>
#include <stdexcept>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace spillway {
namespace {

class Isa {
 public:
  explicit Isa(std::string_view name) { setenv("SPILLWAY_ISA", std::string(name).c_str(), 1); }
  ~Isa() { unsetenv("SPILLWAY_ISA"); }
};

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
      if (call == 0) {
        trainer.engine->step();
        trainer.engine->drain();
      }
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
  trainer.engine->drain();
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
