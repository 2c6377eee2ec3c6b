// The asynchronous update: what it applies, when, in which order, and what it moves.
#include "../../core/error.h"
#include "../../offload/weights_hash.h"
#include "engine_rig.h"

#include <chrono>
#include <map>
#include <set>
#include <stdexcept>
#include <thread>
#include <tuple>

#include <gtest/gtest.h>

namespace spillway {
namespace {

class Update : public testing::TestWithParam<std::tuple<Tier, Tier>> {
 protected:
  toy::Run run() const { return make_run(std::get<0>(GetParam()), std::get<1>(GetParam()), directory); }
  static toy::Run unconditional(toy::Run run) {
    run.config.gradient_clipping = 0;
    run.config.check_finite = false;
    return run;
  }
  Directory directory;
};

/// Steps that nobody waits for, one after another.
void step_without_waiting(toy::Trainer& trainer, std::int64_t step, int micro_batches) {
  trainer.engine->begin_step({toy::groups(step), micro_batches});
  for (int i = 0; i < micro_batches; ++i) trainer.run_micro_batch();
  trainer.engine->step();
}

/// Every micro-batch of a use before the next use.
void step_in_layer_order(toy::Trainer& trainer, std::int64_t step, int micro_batches) {
  trainer.engine->begin_step({toy::groups(step), micro_batches});
  const auto& units = trainer.engine->layout().units();
  const std::int64_t first = trainer.micro_batch;
  for (int unit = static_cast<int>(units.size()) - 1; unit >= 0; --unit) {
    const Layout::Unit& shape = units[static_cast<std::size_t>(unit)];
    if (!toy::is_used(shape)) continue;
    for (int use = shape.uses - 1; use >= 0; --use) {
      for (trainer.micro_batch = first; trainer.micro_batch < first + micro_batches; ++trainer.micro_batch)
        trainer.use_unit(unit, use);
    }
  }
  trainer.micro_batch = first + micro_batches;
  trainer.engine->step();
}

TEST_P(Update, IsTheSameWithAndWithoutAGlobalConditionWhetherWaitedForOrNot) {
  std::set<std::string> hashes;
  for (const int micro_batches : {1, 2}) {
    hashes.clear();
    for (const bool conditional : {true, false}) {
      for (const bool waits : {true, false}) {
        toy::Run run = unconditional(this->run());
        run.config.check_finite = conditional;
        run.config.accumulation = micro_batches;
        run.config.update_threads = 1 + (waits ? 1 : 0);
        toy::Trainer trainer(run);
        for (int step = 0; step < 4; ++step) {
          step_without_waiting(trainer, step, micro_batches);
          if (waits) trainer.engine->drain();
        }
        hashes.insert(weights_xxh3(*trainer.engine));
      }
    }
    EXPECT_EQ(hashes.size(), 1U) << micro_batches;
  }
}

TEST_P(Update, WithoutAGlobalConditionFollowsThePlainReference) {
  toy::Run run = unconditional(this->run());
  run.config.accumulation = 2;
  toy::Trainer trainer(run);
  toy::Reference reference(run);
  for (int step = 0; step < 4; ++step) {
    step_without_waiting(trainer, step, 2);
    reference.update(reference.step());
  }
  trainer.engine->drain();
  expect_same(trainer.weights(), reference.weights, trainer.engine->layout());
}

TEST_P(Update, DelayedAppliesEachGradientOneStepLate) {
  for (const bool conditional : {true, false}) {
    toy::Run run = this->run();
    if (!conditional) run = unconditional(run);
    run.config.gradient_clipping = 0;  // the factor of a clip would be the norm's, whose order is the engine's
    run.config.delayed_update = true;
    toy::Trainer trainer(run);
    toy::Reference reference(run);
    std::vector<std::vector<float>> waiting;
    for (int step = 0; step < 4; ++step) {
      EXPECT_EQ(trainer.engine->counters().steps, step);
      step_without_waiting(trainer, step, 1);
      const double norm = reference.step();
      std::swap(waiting, reference.last_gradients);
      if (step > 0) reference.update(norm);
    }
    trainer.engine->drain();
    reference.last_gradients = waiting;
    reference.update(0);
    expect_same(trainer.weights(), reference.weights, trainer.engine->layout());
    step_without_waiting(trainer, 4, 1);  // and it goes on
    trainer.engine->drain();
    reference.update(reference.step());
    expect_same(trainer.weights(), reference.weights, trainer.engine->layout());
  }
}

TEST_P(Update, MicroBatchesInARowGiveTheSameBits) {
  for (const bool conditional : {true, false}) {
    toy::Run run = this->run();
    if (!conditional) run = unconditional(run);
    run.config.accumulation = 3;
    std::string expected;
    {
      toy::Trainer trainer(run);
      for (int step = 0; step < 3; ++step) step_without_waiting(trainer, step, 3);
      expected = weights_xxh3(*trainer.engine);
    }
    run.config.accumulation_order = AccumulationOrder::layer;
    run.config.host_memory = make_plan(toy::layout(), run.config).host.total();
    toy::Trainer trainer(run);
    for (int step = 0; step < 3; ++step) step_in_layer_order(trainer, step, 3);
    EXPECT_EQ(weights_xxh3(*trainer.engine), expected);
    for (const Tier tier : {Tier::device, Tier::host}) {
      for (const PlanEntry& entry : trainer.engine->plan().of(tier).entries)
        EXPECT_EQ(trainer.engine->budget(tier).peaks_by_name().at(entry.name), entry.bytes) << entry.name;
    }
  }
}

TEST_P(Update, AStepMayHaveFewerMicroBatchesThanThereIsRoomFor) {
  toy::Run run = this->run();
  run.config.accumulation = 3;
  std::set<std::string> hashes;
  for (const auto order : {AccumulationOrder::micro_batch, AccumulationOrder::layer}) {
    run.config.accumulation_order = order;
    toy::Trainer trainer(run);
    for (const int micro_batches : {3, 1, 2}) {
      const auto steps = trainer.engine->counters().steps;
      if (order == AccumulationOrder::layer) {
        step_in_layer_order(trainer, steps, micro_batches);
      } else {
        step_without_waiting(trainer, steps, micro_batches);
      }
    }
    hashes.insert(weights_xxh3(*trainer.engine));
  }
  EXPECT_EQ(hashes.size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Tiers, Update, testing::Combine(testing::ValuesIn(kTiers), testing::ValuesIn(kTiers)),
                         [](const auto& tiers) {
                           return "Parameters_" + std::string(name_of(std::get<0>(tiers.param))) +
                                  "_Optimizer_" + std::string(name_of(std::get<1>(tiers.param)));
                         });

TEST(UpdateOrder, LayerOrderRefusesUsesThatAlternate) {
  Directory directory;
  toy::Run run = make_run(Tier::host, Tier::host, directory);
  run.config.accumulation = 2;
  run.config.accumulation_order = AccumulationOrder::layer;
  toy::Trainer trainer(run);
  trainer.engine->begin_step({toy::groups(0), 2});
  trainer.use_unit(5, 0);
  try {
    trainer.use_unit(3, 0);
    FAIL() << "accepted";
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("layer.2 come first"), std::string::npos) << error.what();
  }
}

/// What is needed first is updated first, whatever lies first in the layout: the toy model begins at its end.
TEST(UpdateOrder, IsThatOfTheNextUses) {
  Directory directory;
  toy::Run run = make_run(Tier::host, Tier::nvme, directory);
  Trace trace;
  run.trace = &trace;
  toy::Trainer trainer(run);
  const Layout& layout = trainer.engine->layout();
  std::vector<int> expected;
  for (const char* name : {"layer.2", "layer.1", "layer.0", "embedding", "unused"})
    expected.push_back(layout.unit(name));
  std::size_t seen = 0;
  for (int step = 0; step < 3; ++step) {
    step_without_waiting(trainer, step, 1);
    trainer.engine->drain();
    std::vector<int> units;
    const auto spans = trace.spans();
    for (; seen < spans.size(); ++seen) {
      const Span& span = spans[seen];
      if (span.lane == Lane::adam && (units.empty() || units.back() != span.unit)) units.push_back(span.unit);
    }
    // In the first step reads began before anything was known.
    if (step == 0) continue;
    EXPECT_EQ(units, expected) << step;
  }
}

TEST(UpdateOrder, TheFirstReadsRunUnderTheBackwardPass) {
  for (const bool conditional : {true, false}) {
    Directory directory;
    toy::Run run = make_run(Tier::host, Tier::nvme, directory);
    run.config.gradient_clipping = conditional ? 1 : 0;
    run.config.check_finite = conditional;
    toy::Trainer trainer(run);
    step_without_waiting(trainer, 0, 1);
    trainer.engine->drain();
    const std::int64_t before = trainer.engine->counters().nvme_read_bytes;
    trainer.engine->begin_step({toy::groups(1), 1});
    for (int i = 0; i < 10000 && trainer.engine->counters().nvme_read_bytes == before; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_GT(trainer.engine->counters().nvme_read_bytes, before);
    trainer.run_micro_batch();
    trainer.engine->step();
    trainer.engine->drain();
    // And nothing is read twice for it.
    EXPECT_EQ(trainer.engine->counters().nvme_read_bytes - before,
              trainer.engine->plan().nvme.bytes_of("optimizer records"));
  }
}

TEST(UpdateOrder, AUnitThatIsUpdatedAlreadyIsNotGatheredInTheSameStep) {
  Directory directory;
  toy::Run run = make_run(Tier::host, Tier::host, directory);
  run.config.gradient_clipping = 0;
  run.config.check_finite = false;
  toy::Trainer trainer(run);
  for (int step = 0; step < 2; ++step) {
    trainer.engine->begin_step({toy::groups(step), 1});
    trainer.run_micro_batch();
    if (step == 0) trainer.engine->gather(0);  // nothing is known yet, and all updates wait for step()
    if (step == 1) trainer.engine->gather(0);  // known now: its update waits
    trainer.engine->step();
  }
  trainer.engine->begin_step({toy::groups(2), 1});
  trainer.run_micro_batch();
  try {
    trainer.engine->gather(5);
    FAIL() << "parameters of the next step were given out";
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("layer.2"), std::string::npos) << error.what();
  }
  trainer.engine->gather(0);
  trainer.engine->step();
  trainer.engine->drain();
}

TEST(ResidentRecords, SaveTheirShareOfTheTrafficBothWays) {
  Directory directory;
  std::string expected;
  for (const double fraction : {0.0, 0.3, 0.5, 1.0}) {
    toy::Run run = make_run(Tier::host, Tier::nvme, directory);
    run.config.resident_fraction = fraction;
    run.config.host_memory = make_plan(toy::layout(), run.config).host.total();
    toy::Trainer trainer(run);
    const Plan plan = trainer.engine->plan();
    trainer.step();
    trainer.engine->drain();
    const EngineCounters before = trainer.engine->counters();
    trainer.step();
    trainer.engine->drain();
    const EngineCounters after = trainer.engine->counters();
    const std::int64_t on_nvme = plan.nvme.bytes_of("optimizer records");
    EXPECT_EQ(after.nvme_read_bytes - before.nvme_read_bytes, on_nvme) << fraction;
    EXPECT_EQ(after.nvme_written_bytes - before.nvme_written_bytes, on_nvme) << fraction;
    const std::int64_t all = on_nvme + plan.host.bytes_of("resident records");
    EXPECT_NEAR(static_cast<double>(on_nvme) / static_cast<double>(all), 1 - fraction, 0.35) << fraction;
    EXPECT_EQ(plan.host.bytes_of("resident records") == 0, fraction == 0);
    EXPECT_EQ(on_nvme == 0, fraction == 1);
    EXPECT_EQ(trainer.engine->budget(Tier::host).peak(), plan.host.total());
    const std::string hash = weights_xxh3(*trainer.engine);
    if (expected.empty()) expected = hash;
    EXPECT_EQ(hash, expected) << fraction;
  }
}

TEST(ResidentRecords, AreAsManyAsFit) {
  Directory directory;
  toy::Run run = make_run(Tier::host, Tier::nvme, directory);
  const Plan none = make_plan(toy::layout(), run.config);
  const std::int64_t all = none.nvme.bytes_of("optimizer records");
  EXPECT_EQ(none.host.bytes_of("resident records"), 0) << "without a limit nobody said how much may be used";
  std::int64_t last = 0;
  for (const int percent : {0, 50, 100}) {
    run.config.host_memory = none.host.total() + all * percent / 100;
    const Plan plan = make_plan(toy::layout(), run.config);
    EXPECT_LE(plan.host.total(), run.config.host_memory);
    const std::int64_t resident = plan.host.bytes_of("resident records");
    EXPECT_EQ(resident + plan.nvme.bytes_of("optimizer records"), all);
    EXPECT_GE(resident, last);
    last = resident;
  }
  EXPECT_EQ(last, all);
}

TEST(Rehearsal, ChangesNothing) {
  for (const Tier parameters : kTiers) {
    for (const Tier optimizer : kTiers) {
      Directory directory;
      toy::Run run = make_run(parameters, optimizer, directory);
      std::string hashes[2];
      for (const bool rehearses : {false, true}) {
        toy::Trainer trainer(run);
        for (int step = 0; step < 3; ++step) {
          step_without_waiting(trainer, step, 1);
          if (!rehearses) continue;
          trainer.engine->drain();
          const EngineCounters before = trainer.engine->counters();
          const double seconds = trainer.engine->rehearse(Rehearsal::transfers);
          const EngineCounters after = trainer.engine->counters();
          const bool on_nvme = parameters == Tier::nvme || optimizer == Tier::nvme;
          EXPECT_EQ(seconds > 0, on_nvme);
          EXPECT_EQ(after.nvme_read_bytes - before.nvme_read_bytes,
                    after.nvme_written_bytes - before.nvme_written_bytes);
          EXPECT_EQ(after.nvme_read_bytes > before.nvme_read_bytes, on_nvme);
          EXPECT_GT(trainer.engine->rehearse(Rehearsal::updates), 0);
        }
        hashes[rehearses ? 1 : 0] = weights_xxh3(*trainer.engine);
      }
      EXPECT_EQ(hashes[0], hashes[1]) << name_of(parameters) << " " << name_of(optimizer);
    }
  }
}

}  // namespace
}  // namespace spillway
