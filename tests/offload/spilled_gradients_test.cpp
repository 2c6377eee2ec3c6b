// Gradients on NVMe, where host memory cannot hold them: the same bits, the bytes that are stated, no error
// lost.
#include "../../core/error.h"
#include "../../offload/traffic.h"
#include "../../offload/weights_hash.h"
#include "engine_rig.h"

#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

constexpr int kSteps = 3;

/// As the toy model, but of so many elements that the slots take less than what lies on NVMe instead.
Layout large(bool tied) {
  return Layout({
      {"table", {{"table", {500, 1000}, 0}, {"scale", {129}, 1}}, /*uses=*/tied ? 2 : 1},
      {"frozen", {{"constant", {300}, 0, false}}},
      {"layer.0", {{"bias", {7}, 1}, {"lookup", {50}, 0, false}, {"weight", {400, 1601}, 0}}},
      {"layer.1", {{"weight.1", {1}, 0}}},
      {"unused", {{"never", {300000}, 0}}},
      {"layer.2", {{"weight.2", {600, 1000}, 0}, {"bias.2", {1000}, 1}}},
  });
}

class SpilledGradients : public testing::Test {
 protected:
  toy::Run make(bool tied, int micro_batches, Tier parameters = Tier::host) const {
    toy::Run run = make_run(parameters, Tier::nvme, directory);
    run.model = large(tied);
    run.config.accumulation = micro_batches;
    run.config.update_threads = 2;
    run.config.state_format = StateFormat::compact8;  // the least to move
    return run;
  }
  /// The same with no byte more of host memory than there must be.
  static toy::Run spilled(toy::Run run) {
    run.config.host_memory = least_plan(run.model, run.config).host.total();
    EXPECT_TRUE(Room(run.model, run.config).spills_gradients);
    return run;
  }
  static toy::Run in_memory(toy::Run run) {
    run.config.host_memory = -1;
    run.config.io_faults.clear();
    run.config.optimizer_tier = Tier::host;
    return run;
  }

  static void micro_batches(toy::Trainer& trainer, AccumulationOrder order, int count) {
    const auto& units = trainer.engine->layout().units();
    if (order == AccumulationOrder::micro_batch) {
      for (int i = 0; i < count; ++i) trainer.run_micro_batch();
      return;
    }
    const std::int64_t first = trainer.micro_batch;
    for (int unit = static_cast<int>(units.size()) - 1; unit >= 0; --unit) {
      const Layout::Unit& shape = units[static_cast<std::size_t>(unit)];
      if (!toy::is_used(shape)) continue;
      for (int use = shape.uses - 1; use >= 0; --use) {
        for (trainer.micro_batch = first; trainer.micro_batch < first + count; ++trainer.micro_batch)
          trainer.use_unit(unit, use);
      }
    }
    trainer.micro_batch = first + count;
  }
  /// Steps that nobody waits for, the second one of one micro-batch only.
  static std::string train(toy::Trainer& trainer, const toy::Run& run) {
    for (int step = 0; step < kSteps; ++step) {
      const int count = step == 1 ? 1 : run.config.accumulation;
      trainer.engine->begin_step({toy::groups(step), count});
      micro_batches(trainer, run.config.accumulation_order, count);
      trainer.engine->step();
    }
    return weights_xxh3(*trainer.engine);
  }
  static std::string train(const toy::Run& run) {
    toy::Trainer trainer(run);
    return train(trainer, run);
  }
  static void expect_peaks_of_the_plan(const Engine& engine) {
    for (const Tier tier : kTiers) {
      std::map<std::string, std::int64_t> planned;
      for (const PlanEntry& entry : engine.plan().of(tier).entries) planned[entry.name] += entry.bytes;
      EXPECT_EQ(engine.budget(tier).peaks_by_name(), planned) << name_of(tier);
      EXPECT_EQ(engine.budget(tier).peak(), engine.plan().of(tier).total()) << name_of(tier);
    }
  }

  /// Half of the operations start late: what does not wait for them is early.
  static constexpr const char* kLate = "delay=0.5,delay_us=20000,reorder,seed=3";
  Directory directory;
};

TEST_F(SpilledGradients, OnlyWhereHostMemoryCannotHoldThem) {
  for (const bool tied : {false, true}) {
    for (const int count : {1, 3}) {
      toy::Run run = make(tied, count);
      const Plan held = make_plan(run.model, run.config);
      EXPECT_FALSE(Room(run.model, run.config).spills_gradients) << "without a limit";
      EXPECT_EQ(held.nvme.bytes_of("gradients"), 0);
      // The least with gradients in memory: that many bytes more than the three update slots' there are.
      run.config.update_slots = 1;
      run.config.host_memory = std::numeric_limits<std::int64_t>::max();
      run.config.resident_fraction = 0;
      const std::int64_t enough = make_plan(run.model, run.config).host.total();
      run.config.host_memory = enough;
      EXPECT_FALSE(Room(run.model, run.config).spills_gradients);
      EXPECT_EQ(make_plan(run.model, run.config).host.total(), enough);
      run.config.host_memory = enough - 1;
      const Room room(run.model, run.config);
      const Plan spilled = make_plan(run.model, run.config);
      EXPECT_TRUE(room.spills_gradients);
      EXPECT_LT(spilled.host.total(), enough);
      EXPECT_EQ(spilled.host.bytes_of("gradients"), 0);
      EXPECT_GT(spilled.host.bytes_of("gradient staging"), 0);
      EXPECT_GT(spilled.host.bytes_of("gradient update slots"), 0);
      EXPECT_GE(spilled.nvme.bytes_of("gradients"), held.host.bytes_of("gradients"));
      EXPECT_EQ(least_plan(run.model, run.config).host.bytes_of("gradients"), 0);
      for (const Tier optimizer : {Tier::device, Tier::host}) {
        toy::Run other = run;
        other.config.optimizer_tier = optimizer;
        other.config.host_memory = 1;
        EXPECT_FALSE(Room(other.model, other.config).spills_gradients);
      }
    }
  }
}

TEST_F(SpilledGradients, AreCountedBeforeAPlacementIsRefused) {
  toy::Run run = make(true, 1);
  const std::int64_t needed = least_plan(run.model, run.config).host.total();
  run.config.host_memory = needed - 1;
  HostDevice device({-1, 1});
  SingleRankCommunicator communicator;
  try {
    Engine engine(run.config, run.model, device, communicator);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(error.detail().hint.find("--host-memory " + std::to_string(needed) + " works"), std::string::npos)
        << error.detail().hint;
  }
  run.config.host_memory = -1;
  run.config.parameter_nvme_paths.clear();
  run.config.parameter_tier = Tier::host;
  const Limits limits{.device = least_plan(run.model, run.config).device.total(), .host = needed};
  const auto best = cheapest_placement(run.model, run.config, limits);
  ASSERT_TRUE(best);
  EXPECT_EQ(best->optimizer_tier, Tier::nvme);
  EXPECT_EQ(best->host_memory, -1);
  Config config = run.config;
  config.host_memory = needed;
  const Plan plan = make_plan(run.model, config);
  Limits drive = limits;
  drive.is_one_drive = false;
  drive.device = -1;
  drive.optimizer_drive = plan.nvme.bytes_of("optimizer records") + plan.nvme.bytes_of("gradients");
  EXPECT_TRUE(fits(plan, drive));
  EXPECT_NO_THROW(check_plan(run.model, config, drive));
  --drive.optimizer_drive;
  EXPECT_FALSE(fits(plan, drive));
  EXPECT_THROW(check_plan(run.model, config, drive), Error);
}

TEST_F(SpilledGradients, FollowThePlainReference) {
  for (const DType precision : {DType::bf16, DType::fp32}) {
    for (const int count : {1, 3}) {
      toy::Run run = make(true, count);
      run.config.precision = precision;
      run.config.state_format = StateFormat::fp32;
      run = spilled(run);
      toy::Trainer trainer(run);
      toy::Reference reference(run);
      for (int step = 0; step < 2; ++step) {
        const StepResult result = trainer.step();
        const double norm = reference.step();
        ASSERT_NEAR(result.gradient_norm, norm, 1e-12 * norm);
        reference.update(result.gradient_norm);
      }
      expect_same(trainer.weights(), reference.weights, trainer.engine->layout());
    }
  }
}

TEST_F(SpilledGradients, GiveTheBitsOfThoseInMemoryInWhatThePlanSays) {
  struct Variant {
    const char* name;
    bool tied = true;
    int count = 1;
    AccumulationOrder order = AccumulationOrder::micro_batch;
    bool conditional = true, delayed = false, checksums = false;
    StateFormat format = StateFormat::compact8;
    Tier parameters = Tier::host;
  };
  const auto layer = AccumulationOrder::layer;
  for (const Variant& variant : {
           Variant{.name = "one micro-batch", .format = StateFormat::fp32},
           Variant{.name = "one micro-batch, nothing tied", .tied = false, .checksums = true},
           Variant{.name = "three micro-batches", .count = 3, .parameters = Tier::nvme},
           Variant{.name = "three, nothing tied", .tied = false, .count = 3, .format = StateFormat::bf16},
           Variant{.name = "in rows", .count = 3, .order = layer, .parameters = Tier::device},
           Variant{.name = "in rows, nothing tied", .tied = false, .count = 3, .order = layer},
           Variant{.name = "no condition", .conditional = false, .format = StateFormat::fp32},
           Variant{.name = "no condition, three", .count = 3, .conditional = false, .checksums = true},
           Variant{.name = "no condition, in rows", .count = 3, .order = layer, .conditional = false},
           Variant{.name = "delayed", .delayed = true},
           Variant{.name = "delayed, three", .count = 3, .delayed = true, .format = StateFormat::bf16},
           Variant{.name = "delayed, no condition, in rows",
           .tied = false,
           .count = 3,
           .order = layer,
           .conditional = false,
           .delayed = true,
           .parameters = Tier::nvme},
           Variant{.name = "delayed, no condition", .conditional = false, .delayed = true},
       }) {
    SCOPED_TRACE(variant.name);
    toy::Run run = make(variant.tied, variant.count, variant.parameters);
    run.config.accumulation_order = variant.order;
    run.config.delayed_update = variant.delayed;
    run.config.checksums = variant.checksums;
    run.config.state_format = variant.format;
    if (!variant.conditional) {
      run.config.gradient_clipping = 0;
      run.config.check_finite = false;
    }
    const std::string expected = train(in_memory(run));
    run = spilled(run);
    toy::Trainer trainer(run);
    EXPECT_EQ(train(trainer, run), expected);
    expect_peaks_of_the_plan(*trainer.engine);
    EXPECT_EQ(trainer.engine->counters().nvme_copied_bytes, 0);
    const auto checksums = trainer.engine->io()->checksums;
    EXPECT_EQ(checksums > 0, variant.checksums);
    EXPECT_LE(checksums * kChecksumBytes, trainer.engine->plan().host.bytes_of("checksums"));
  }
}

TEST_F(SpilledGradients, TakeMoreSlotsWhereThereIsRoom) {
  const toy::Run least = spilled(make(true, 3));
  const std::string expected = train(in_memory(least));
  toy::Run run = least;
  run.config.host_memory += 2 << 20;
  ASSERT_TRUE(Room(run.model, run.config).spills_gradients);
  run.config.update_slots = 3;
  EXPECT_GT(Room(run.model, run.config).gradient_slots, Room(least.model, least.config).gradient_slots);
  toy::Trainer trainer(run);
  EXPECT_EQ(train(trainer, run), expected);
  expect_peaks_of_the_plan(*trainer.engine);
}

TEST_F(SpilledGradients, AreWrittenOnceAndReadOnce) {
  for (const auto& [count, order] :
       {std::pair{1, AccumulationOrder::micro_batch}, {3, AccumulationOrder::layer}}) {
    toy::Run run = make(false, count);
    run.config.accumulation_order = order;
    run = spilled(run);
    toy::Trainer trainer(run);
    const Plan& plan = trainer.engine->plan();
    const std::int64_t expected = plan.nvme.bytes_of("optimizer records") + plan.nvme.bytes_of("gradients");
    std::int64_t elements = 0, units = 0;
    for (const Layout::Unit& unit : run.model.units()) {
      elements += unit.trainable;
      ++units;
    }
    EXPECT_GE(plan.nvme.bytes_of("gradients"), elements * (count == 1 ? 2 : 4));
    EXPECT_LT(plan.nvme.bytes_of("gradients"), elements * (count == 1 ? 2 : 4) + units * kBlockBytes);
    trainer.engine->drain();
    for (int step = 0; step < 2; ++step) {
      const EngineCounters before = trainer.engine->counters();
      trainer.engine->begin_step({toy::groups(step), count});
      micro_batches(trainer, order, count);
      trainer.engine->step();
      trainer.engine->drain();
      const EngineCounters after = trainer.engine->counters();
      EXPECT_EQ(after.nvme_read_bytes - before.nvme_read_bytes, expected);
      EXPECT_EQ(after.nvme_written_bytes - before.nvme_written_bytes, expected);
      const StepTraffic traffic = step_traffic(run.model, run.config);
      EXPECT_EQ(traffic.nvme_read, expected);
      EXPECT_EQ(traffic.nvme_written, expected);
      trainer.engine->rehearse(Rehearsal::transfers);
      const EngineCounters rehearsed = trainer.engine->counters();
      EXPECT_EQ(rehearsed.nvme_read_bytes - after.nvme_read_bytes, expected);
      EXPECT_EQ(rehearsed.nvme_written_bytes - after.nvme_written_bytes, expected);
    }
  }
}

/// What is added up on NVMe is read and written for it: a unit that is never used has zeros written alone.
TEST_F(SpilledGradients, CostWhatTheTrafficSaysWhereTheyAreAddedUp) {
  for (const auto& [count, order] : {std::pair{1, AccumulationOrder::micro_batch},
                                     {3, AccumulationOrder::micro_batch},
                                     {3, AccumulationOrder::layer}}) {
    toy::Run run = make(true, count);
    run.config.accumulation_order = order;
    run.model = Layout({{"table", {{"table", {900, 1000}, 0}}, 2}, {"layer", {{"weight", {900, 1000}, 0}}}});
    run = spilled(run);
    toy::Trainer trainer(run);
    trainer.engine->drain();
    const EngineCounters before = trainer.engine->counters();
    trainer.engine->begin_step({toy::groups(0), count});
    micro_batches(trainer, order, count);
    trainer.engine->step();
    trainer.engine->drain();
    const EngineCounters after = trainer.engine->counters();
    const StepTraffic traffic = step_traffic(run.model, run.config);
    EXPECT_EQ(after.nvme_read_bytes - before.nvme_read_bytes, traffic.nvme_read);
    EXPECT_EQ(after.nvme_written_bytes - before.nvme_written_bytes, traffic.nvme_written);
  }
}

TEST_F(SpilledGradients, AreReadAsThoseInMemory) {
  for (const auto& [count, order] : {std::pair{1, AccumulationOrder::micro_batch},
                                     {3, AccumulationOrder::micro_batch},
                                     {3, AccumulationOrder::layer}}) {
    toy::Run run = make(true, count);
    run.config.accumulation_order = order;
    std::vector<std::vector<float>> values[2];
    for (const bool spills : {false, true}) {
      run.config.io_faults = kLate;
      toy::Trainer trainer(spills ? spilled(run) : in_memory(run));
      trainer.engine->begin_step({toy::groups(0), count});
      micro_batches(trainer, order, count);
      const auto& parameters = trainer.engine->layout().parameters();
      for (int p = 0; p < static_cast<int>(parameters.size()); ++p) {
        auto& all = values[spills ? 1 : 0].emplace_back();
        // Of what has never come this step, only what has been completed is defined.
        if (!parameters[static_cast<std::size_t>(p)].trainable) continue;
        trainer.engine->read_gradient(p, [&](std::int64_t first, std::span<const float> piece) {
          EXPECT_EQ(first, static_cast<std::int64_t>(all.size()));
          all.insert(all.end(), piece.begin(), piece.end());
        });
      }
      trainer.engine->step();
    }
    expect_same(values[1], values[0], run.model);
  }
}

TEST_F(SpilledGradients, OfAStepThatIsSkippedAreOverwrittenByTheNext) {
  for (const bool delayed : {false, true}) {
    std::set<std::string> hashes;
    for (const bool spills : {false, true}) {
      toy::Run run = make(false, 1);
      run.config.delayed_update = delayed;
      toy::Trainer trainer(spills ? spilled(run) : in_memory(run));
      for (int step = 0; step < 4; ++step) {
        trainer.engine->begin_step({toy::groups(step), 1});
        if (step == 1) {
          const Layout& layout = trainer.engine->layout();
          const int unit = layout.unit("layer.1");
          const UnitView view = trainer.engine->gather(unit);
          float* const value = trainer.engine->gradient(unit).parameter(layout.parameter("weight.1"));
          trainer.device->stream(Lane::compute).call("overflow", [value] {
            *value = std::numeric_limits<float>::infinity();
          });
          trainer.engine->reduce(unit);
        } else {
          trainer.run_micro_batch();
        }
        trainer.engine->step();
      }
      hashes.insert(weights_xxh3(*trainer.engine));
      EXPECT_EQ(trainer.engine->counters().skipped_steps, 1);
    }
    EXPECT_EQ(hashes.size(), 1U) << delayed;
  }
}

TEST_F(SpilledGradients, DoNotDependOnHowTheDriveAnswers) {
  for (const int count : {1, 3}) {
    for (const bool delayed : {false, true}) {
      toy::Run run = make(true, count);
      run.config.delayed_update = delayed;
      run.config.gradient_clipping = delayed ? 0 : 1;
      run.config.check_finite = !delayed;
      run = spilled(run);
      run.config.block_bytes = 64 << 10;
      const std::string expected = train(in_memory(run));
      for (const char* faults : {"delay=0.3,delay_us=2000,reorder,seed=7",
                                 "short=0.3,interrupt=0.2,delay=0.2,delay_us=500,reorder"}) {
        run.config.io_faults = faults;
        EXPECT_EQ(train(run), expected) << faults;
      }
    }
  }
}

/// Without a condition a unit is updated as soon as its gradient has landed, whose writes may not have.
TEST_F(SpilledGradients, AreNotReadBeforeTheyHaveBeenWritten) {
  toy::Run run = make(false, 1);
  run.config.gradient_clipping = 0;
  run.config.check_finite = false;
  const std::string expected = train(in_memory(run));
  run = spilled(run);
  run.config.io_faults = kLate;
  EXPECT_EQ(train(run), expected);
}

TEST_F(SpilledGradients, RehearsalsLeaveThemAsTheyAre) {
  toy::Run run = make(false, 1);
  run.config.delayed_update = true;
  std::string hashes[2];
  for (const bool rehearses : {false, true}) {
    if (rehearses) {
      run = spilled(run);
      run.config.io_faults = kLate;
    }
    toy::Trainer trainer(rehearses ? run : in_memory(run));
    for (int step = 0; step < 6; ++step) {
      trainer.engine->begin_step({toy::groups(step), 1});
      trainer.run_micro_batch();
      trainer.engine->step();
      if (!rehearses) continue;
      EXPECT_GT(trainer.engine->rehearse(Rehearsal::transfers), 0);
      EXPECT_GT(trainer.engine->rehearse(Rehearsal::updates), 0);
    }
    hashes[rehearses ? 1 : 0] = weights_xxh3(*trainer.engine);
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

/// Fails one operation after another of two steps. Each is the first error of the engine, and thrown by all
/// later calls; gradients are among what failed, both ways.
TEST_F(SpilledGradients, AFailedTransferIsTheFirstErrorOfTheEngine) {
  for (const int count : {1, 3}) {
    toy::Run run = make(true, count);
    run.config.block_bytes = 8 << 20;  // each transfer is one operation
    run = spilled(run);
    std::int64_t loaded = 0;
    {
      Trace trace;
      toy::Run traced = run;
      traced.trace = &trace;
      toy::Trainer trainer(traced);
      trainer.engine->drain();
      for (const Span& span : trace.spans())
        loaded += span.lane == Lane::read || span.lane == Lane::write ? 1 : 0;
    }
    const std::int64_t records = make_plan(run.model, run.config).nvme.bytes_of("optimizer records");
    std::set<std::string> seen;
    for (std::int64_t number = loaded + 1; number <= loaded + 48; number += 4) {
      run.config.io_faults = "fail=" + std::to_string(number) + ":EIO";
      SCOPED_TRACE(run.config.io_faults);
      toy::Trainer trainer(run);
      std::optional<Error> first;
      try {
        for (int step = 0; step < 2; ++step) {
          trainer.engine->begin_step({toy::groups(step), count});
          micro_batches(trainer, AccumulationOrder::micro_batch, count);
          trainer.engine->step();
        }
        trainer.engine->drain();
      } catch (const Error& error) {
        first = error;
      }
      ASSERT_TRUE(first) << "nothing has failed";
      EXPECT_EQ(first->kind(), ErrorKind::io);
      seen.insert(first->detail().operation + (first->detail().offset >= records ? " gradient" : " record"));
      try {
        trainer.engine->drain();
        ADD_FAILURE() << "a call after the failure works";
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), first->what());
      }
    }
    EXPECT_TRUE(seen.contains("write gradient") && seen.contains("read gradient"))
        << testing::PrintToString(seen);
  }
}

}  // namespace
}  // namespace spillway
