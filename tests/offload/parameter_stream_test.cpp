// Parameters come to the device with as few reads and copies as the known future allows, and are the right
// ones.
#include "../../offload/parameter_stream.h"

#include "../../core/error.h"
#include "../../core/host_device.h"
#include "../../offload/context.h"
#include "engine_rig.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

constexpr std::int64_t kElements = 2304;  // a file holds them with some padding

struct Shape {
  Tier tier = Tier::nvme;
  int units = 12;
  int frozen = 0;  ///< the first ones
  int live_units = 2;
  int device_slots = 2, host_slots = 2;
  std::string faults = {};
  bool checksums = false;
  Trace* trace = nullptr;
};

/// gather (unit), or release (-1 - unit)
using Program = std::vector<int>;
int release_of(int unit) {
  return -1 - unit;
}

/// A parameter stream over a real store and device, and what an engine does with it.
class Rig {
 public:
  explicit Rig(const Shape& shape)
      : shape_(shape),
        config_(make_config(shape, directory_)),
        layout_(make_layout(shape)),
        device_(HostDeviceOptions{}, shape.trace),
        versions_(static_cast<std::size_t>(shape.units)),
        views_(static_cast<std::size_t>(shape.units)) {
    Room room(layout_, config_);
    room.parameter_slots = shape.device_slots;
    room.parameter_cache_slots = shape.host_slots;
    const StateSizes sizes(config_);
    const cpu_adam::Isa isa = cpu_adam::chosen_isa();
    context_.emplace(Context{config_, layout_, sizes, Chunks(layout_, sizes), room, device_, host_, workers_,
                             isa, DeviceState(device_, workers_, isa), shape.trace});
    const std::int64_t in_file = round_up(kElements * 2, kBlockBytes);
    if (shape.tier == Tier::nvme) {
      swap_.emplace(
          nvme_, host_,
          std::vector<Swap::Request>{{"parameters", config_.parameter_nvme_paths, shape.units * in_file}},
          swap_options(config_), 0, shape.trace);
    }
    stream_.emplace(*context_, swap_ ? &*swap_ : nullptr, swap_ ? swap_->region(0) : Swap::Region{});
    buffer_ = Memory(host_, "test", in_file);
    for (int unit = 0; unit < shape.units; ++unit) write(unit);
  }
  ~Rig() {
    for (int unit = 0; unit < shape_.units; ++unit) release_all(unit);
    device_.stream(Lane::compute).record().wait();
  }

  ParameterStream& stream() { return *stream_; }
  HostDevice& device() { return device_; }
  aio::Queue& queue() { return swap_->queue(); }
  void end() { stream_.reset(); }
  const std::atomic<std::int64_t>& wrong() const { return wrong_; }

  /// Work of the compute stream takes this long.
  std::chrono::microseconds compute{0};
  /// Updates of these units have not ended: whoever gathers one ends its update first.
  std::set<int> pending;

  auto is_current() {
    return [this](int unit) { return !pending.contains(unit); };
  }

  void gather(int unit, bool in_step = true) {
    if (pending.contains(unit)) end_update(unit);
    const ParameterStream::View view = stream_->gather(unit, in_step, is_current());
    views_[static_cast<std::size_t>(unit)].push_back(view.slot);
    device_.stream(Lane::compute)
        .call("check", [this, unit, data = view.data, version = versions_[static_cast<std::size_t>(unit)]] {
          if (compute.count() > 0) std::this_thread::sleep_for(compute);
          const auto* values = reinterpret_cast<const std::uint16_t*>(data);
          for (std::int64_t i = 0; i < kElements; ++i) {
            if (values[i] != value(unit, version, i)) ++wrong_;
          }
        });
  }
  void release(int unit) {
    auto& slots = views_[static_cast<std::size_t>(unit)];
    stream_->release(unit, slots.back());
    slots.pop_back();
  }
  void release_all(int unit) {
    while (!views_[static_cast<std::size_t>(unit)].empty()) release(unit);
  }
  void use(int unit, bool in_step = true) {
    gather(unit, in_step);
    release(unit);
  }
  void run(const Program& program) {
    for (const int op : program) {
      if (op >= 0) {
        gather(op);
      } else {
        release(-1 - op);
      }
    }
  }

  void begin_update(int unit) {
    stream_->invalidate(unit);
    pending.insert(unit);
  }
  void end_update(int unit) {
    device().synchronize();  // a gradient has landed, and so the compute stream is through with the unit
    write(unit);
    pending.erase(unit);
  }
  /// Begins the updates of all units that have one, in the order of their next use; ends the first `landed`.
  void step(int landed = 1000) {
    stream_->end_iteration();
    for (const int unit : stream_->next_use_order()) {
      if (unit >= shape_.frozen) begin_update(unit);
    }
    for (const int unit : stream_->next_use_order()) {
      stream_->prefetch(is_current());
      if (pending.contains(unit) && landed-- > 0) end_update(unit);
    }
    stream_->prefetch(is_current());
  }
  struct Moved {
    std::int64_t reads = 0, copies = 0;
    bool operator==(const Moved&) const = default;
  };
  Moved moved() const { return {stream_->reads(), stream_->copies()}; }

  /// One iteration and its update; what was moved for it, since the last one's update began.
  Moved iteration(const Program& program, int landed = 1000) {
    stream_->prefetch(is_current());
    run(program);
    const Moved now = moved();
    const Moved result{now.reads - seen_.reads, now.copies - seen_.copies};
    seen_ = now;
    step(landed);
    return result;
  }

 private:
  static Config make_config(const Shape& shape, const Directory& directory) {
    Config config;
    config.parameter_tier = shape.tier;
    config.parameter_nvme_paths = {directory.path()};
    config.io_faults = shape.faults;
    config.checksums = shape.checksums;
    return config;
  }
  static Layout make_layout(const Shape& shape) {
    std::vector<UnitSpec> units;
    for (int unit = 0; unit < shape.units; ++unit) {
      const std::string number = std::to_string(unit);
      units.push_back({"unit " + number, {{"weight " + number, {kElements}, 0, unit >= shape.frozen}}});
    }
    return Layout(units, {.live_units = shape.live_units});
  }
  static std::uint16_t value(int unit, int version, std::int64_t i) {
    return static_cast<std::uint16_t>(unit * 4099 + version * 257 + i * 31);
  }
  void write(int unit) {
    const int version = ++versions_[static_cast<std::size_t>(unit)];
    Store& store = stream_->store();
    const bool in_file = store.tier() == Tier::nvme;
    auto* values = in_file ? buffer_.as<std::uint16_t>()
                           : reinterpret_cast<std::uint16_t*>(store.at(stream_->offset(unit)));
    for (std::int64_t i = 0; i < kElements; ++i) values[i] = value(unit, version, i);
    if (in_file) swap_->queue().wait(store.write(stream_->offset(unit), buffer_.data(), buffer_.bytes()));
  }

  Shape shape_;
  Directory directory_;
  Config config_;
  Layout layout_;
  HostDevice device_;
  Budget host_{Tier::host}, nvme_{Tier::nvme};
  Workers workers_{1};
  std::optional<Context> context_;
  std::optional<Swap> swap_;
  std::optional<ParameterStream> stream_;
  Memory buffer_;
  std::vector<int> versions_;
  std::vector<std::vector<int>> views_;  ///< the slots of each unit's views
  std::atomic<std::int64_t> wrong_{0};
  Moved seen_;
};

// --- what the rule gives, written apart from the code: every use of every iteration in one row
// -----------------

struct Use {
  int item = 0;  ///< a unit's parameters between two updates
  int iteration = 0;
  std::set<int> held = {};  ///< items that cannot leave for it
};

/// The uses that are misses where the farthest next use leaves first.
std::vector<Use> misses(const std::vector<Use>& uses, int slots) {
  std::vector<int> contents;
  std::vector<Use> missed;
  for (std::size_t at = 0; at < uses.size(); ++at) {
    if (std::count(contents.begin(), contents.end(), uses[at].item) > 0) continue;
    missed.push_back({uses[at].item, uses[at].iteration});
    if (static_cast<int>(contents.size()) < slots) {
      contents.push_back(uses[at].item);
      continue;
    }
    std::size_t farthest = 0, leaves = contents.size();
    for (std::size_t i = 0; i < contents.size(); ++i) {
      if (uses[at].held.contains(contents[i])) continue;
      std::size_t next = at + 1;
      while (next < uses.size() && uses[next].item != contents[i]) ++next;
      if (next < farthest) continue;
      farthest = next;
      leaves = i;
    }
    contents.at(leaves) = uses[at].item;
  }
  return missed;
}

std::vector<Rig::Moved> by_the_rule(const Shape& shape, const Program& program, int iterations) {
  std::vector<Use> uses;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    std::multiset<int> held;
    for (const int op : program) {
      const int unit = op >= 0 ? op : -1 - op;
      const int item = unit < shape.frozen ? unit : unit + shape.units * (1 + iteration);
      if (op >= 0) {
        uses.push_back({item, iteration, {held.begin(), held.end()}});
        held.insert(item);
      } else {
        held.erase(held.find(item));
      }
    }
  }
  std::vector<Rig::Moved> moved(static_cast<std::size_t>(iterations));
  const std::vector<Use> copies = misses(uses, shape.device_slots);
  for (const Use& use : copies) ++moved[static_cast<std::size_t>(use.iteration)].copies;
  if (shape.tier == Tier::nvme) {
    for (const Use& use : misses(copies, shape.host_slots))
      ++moved[static_cast<std::size_t>(use.iteration)].reads;
  }
  return moved;
}

/// Forward, then backward; of two neighbours both are held for a moment.
Program there_and_back(int units, int live_units) {
  std::vector<int> order;
  for (int unit = 0; unit < units; ++unit) order.push_back(unit);
  for (int unit = units - 1; unit >= 0; --unit) order.push_back(unit);
  Program program;
  for (std::size_t i = 0; i < order.size(); ++i) {
    program.push_back(order[i]);
    if (live_units == 1) {
      program.push_back(release_of(order[i]));
    } else if (i > 0) {
      program.push_back(release_of(order[i - 1]));
    }
  }
  if (live_units > 1) program.push_back(release_of(order.back()));
  return program;
}

/// Anything that holds at most `live_units` units at once.
Program any_order(int units, int live_units, int length, std::mt19937& random) {
  const auto draw = [&](std::size_t n) { return static_cast<int>(random() % n); };
  Program program;
  std::vector<int> held;
  const auto release_any = [&] {
    const int i = draw(held.size());
    program.push_back(release_of(held[static_cast<std::size_t>(i)]));
    held.erase(held.begin() + i);
  };
  for (int i = 0; i < length; ++i) {
    while (static_cast<int>(held.size()) == live_units || (!held.empty() && draw(2) == 0)) release_any();
    held.push_back(draw(static_cast<std::size_t>(units)));
    program.push_back(held.back());
  }
  while (!held.empty()) release_any();
  return program;
}

/// What is used is right in every iteration, and what moves is what the rule gives from the second one on.
void expect_the_rule(const Shape& shape, const Program& program, std::chrono::microseconds compute = {}) {
  constexpr int kIterations = 4;
  const auto expected = by_the_rule(shape, program, kIterations);
  Rig rig(shape);
  rig.compute = compute;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    // Updates end before the coming iteration, or one by one when it needs them.
    const Rig::Moved moved = rig.iteration(program, iteration % 2 == 0 ? 1000 : 0);
    if (iteration == 0) continue;
    EXPECT_EQ(moved.copies, expected[static_cast<std::size_t>(iteration)].copies) << "iteration " << iteration;
    EXPECT_EQ(moved.reads, expected[static_cast<std::size_t>(iteration)].reads) << "iteration " << iteration;
  }
  EXPECT_EQ(rig.stream().departures(), 0);
  rig.device().synchronize();
  EXPECT_EQ(rig.wrong(), 0);
}

TEST(ParameterStream, MovesWhatTheRuleGivesThereAndBack) {
  for (int device_slots = 1; device_slots <= 4; ++device_slots) {
    for (int host_slots = 2; host_slots <= 12; ++host_slots) {
      SCOPED_TRACE(testing::Message() << device_slots << " device slots, " << host_slots << " host slots");
      const Shape shape{
          .live_units = std::min(device_slots, 2), .device_slots = device_slots, .host_slots = host_slots};
      const Program program = there_and_back(shape.units, shape.live_units);
      for (const Rig::Moved& moved : by_the_rule(shape, program, 3)) {
        EXPECT_LE(moved.reads, 2 * shape.units);
        if (host_slots == shape.units) {
          EXPECT_EQ(moved.reads, shape.units);
        }
      }
      expect_the_rule(shape, program);
    }
  }
}

TEST(ParameterStream, MovesWhatTheRuleGivesForAnyOrder) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Shape shape{.units = 5 + static_cast<int>(random() % 8), .live_units = 1 + static_cast<int>(random() % 3)};
    shape.device_slots = shape.live_units + static_cast<int>(random() % 3);
    shape.host_slots = 2 + static_cast<int>(random() % 6);
    expect_the_rule(shape, any_order(shape.units, shape.live_units, 40, random),
                    std::chrono::microseconds(random() % 2 * 100));
  }
}

TEST(ParameterStream, MovesWhatTheRuleGivesForRepeatedScans) {
  for (const int host_slots : {2, 4, 7}) {
    SCOPED_TRACE(host_slots);
    const Shape shape{.units = 8, .live_units = 1, .device_slots = 2, .host_slots = host_slots};
    Program program;
    for (int scan = 0; scan < 4; ++scan) {
      for (int unit = 0; unit < shape.units; ++unit) program.insert(program.end(), {unit, release_of(unit)});
    }
    expect_the_rule(shape, program);
  }
}

TEST(ParameterStream, CopiesFromHostMemoryWhatTheRuleGives) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Shape shape{.tier = Tier::host, .units = 8};
    shape.device_slots = 2 + static_cast<int>(random() % 4);
    expect_the_rule(shape, any_order(shape.units, shape.live_units, 40, random));
  }
}

TEST(ParameterStream, MovesWhatTheRuleGivesWhateverTheDriveDoes) {
  for (const std::string faults : {"delay=0.5,delay_us=300,reorder,seed=3", "short=0.3,interrupt=0.3,seed=4"}) {
    for (const bool checksums : {false, true}) {
      SCOPED_TRACE(faults);
      const Shape shape{.device_slots = 3, .host_slots = 5, .faults = faults, .checksums = checksums};
      expect_the_rule(shape, there_and_back(shape.units, 2), std::chrono::microseconds(50));
      std::mt19937 random(1);
      expect_the_rule(shape, any_order(shape.units, 2, 40, random));
    }
  }
}

TEST(ParameterStream, FrozenUnitsAreReadOnceWhereTheyFit) {
  for (const int host_slots : {6, 8}) {
    SCOPED_TRACE(host_slots);
    // Four of the host's slots are theirs, and the other eight units pass through the rest.
    const Shape shape{.frozen = 4, .device_slots = 2, .host_slots = host_slots};
    Rig rig(shape);
    const Program program = there_and_back(shape.units, 2);
    const auto expected = by_the_rule(shape, program, 6);
    rig.iteration(program);
    for (std::size_t i = 1; i < 5; ++i) EXPECT_EQ(rig.iteration(program, i % 2 ? 0 : 1000), expected[i]) << i;
    rig.device().synchronize();
    EXPECT_EQ(rig.wrong(), 0);
  }
  // On the device they move once, and are not read for the host's slots either.
  for (const int device_slots : {5, 8}) {
    Rig rig({.units = 5, .frozen = 5, .live_units = 1, .device_slots = device_slots});
    for (int i = 0; i < 4; ++i) rig.iteration(there_and_back(5, 1));
    EXPECT_EQ(rig.moved(), (Rig::Moved{.reads = 5, .copies = 5}));
  }
}

TEST(ParameterStream, FrozenUnitsOnTheDeviceBesideOthersAreReadOnce) {
  const Shape shape{.units = 6, .frozen = 2, .live_units = 1, .device_slots = 4};
  Rig rig(shape);
  const Program program = there_and_back(6, 1);
  const auto expected = by_the_rule(shape, program, 6);
  rig.iteration(program);
  for (std::size_t i = 1; i < 5; ++i) EXPECT_EQ(rig.iteration(program), expected[i]) << i;
  rig.device().synchronize();
  EXPECT_EQ(rig.wrong(), 0);
}

TEST(ParameterStream, WhatAnUpdateMakesStaleLeavesBeforeWhatStays) {
  Rig rig({.tier = Tier::host, .units = 5, .frozen = 1, .live_units = 1, .device_slots = 3});
  const Program program{1, release_of(1), 2, release_of(2), 0, release_of(0),
                        3, release_of(3), 4, release_of(4)};
  rig.iteration(program);
  rig.iteration(program);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(rig.iteration(program).copies, 4);
}

TEST(ParameterStream, ReadsAheadIntoWhatIsFree) {
  Rig rig({.units = 8, .device_slots = 3, .host_slots = 4});
  const Program program = there_and_back(8, 2);
  rig.iteration(program, 0);
  const std::int64_t before = rig.stream().reads();
  rig.stream().prefetch(rig.is_current());
  EXPECT_EQ(rig.stream().reads(), before) << "no update has ended";
  for (const int unit : {0, 2}) rig.end_update(unit);
  rig.stream().prefetch(rig.is_current());
  EXPECT_EQ(rig.stream().reads(), before + 2) << "two have";
  for (const int unit : {1, 3, 4, 5, 6, 7}) rig.end_update(unit);
  rig.stream().prefetch(rig.is_current());
  rig.stream().prefetch(rig.is_current());
  EXPECT_EQ(rig.stream().reads(), before + 4) << "there are four slots";
  rig.gather(0);
  rig.device().synchronize();
  EXPECT_EQ(rig.stream().reads(), before + 4);
  rig.release(0);
  rig.gather(1);
  EXPECT_EQ(rig.stream().reads(), before + 5) << "the slot of unit 0, which is in use last";
  rig.device().synchronize();
  EXPECT_EQ(rig.wrong(), 0);
}

TEST(ParameterStream, GoesOnReadingAheadBehindADeparture) {
  Rig rig({.units = 12, .device_slots = 3, .host_slots = 4});
  rig.iteration(there_and_back(12, 1));
  rig.stream().prefetch(rig.is_current());
  rig.use(0);
  rig.use(11);  // and the rest of the forward pass is left out
  for (const int unit : {10, 9, 8}) {
    rig.device().synchronize();
    rig.stream().prefetch(rig.is_current());
    const std::int64_t reads = rig.stream().reads();
    rig.use(unit);
    EXPECT_EQ(rig.stream().reads(), reads) << "unit " << unit << " had not been begun";
  }
  rig.device().synchronize();
  EXPECT_EQ(rig.wrong(), 0);
}

TEST(ParameterStream, LeavesNoReadBehind) {
  // Completions come late, and at random: whoever does not wait for one is seen.
  Rig rig({.units = 8, .device_slots = 3, .host_slots = 4, .faults = "delay=1,delay_us=20000,reorder"});
  const auto landed = [&] { return rig.queue().counters().reads; };
  rig.iteration(there_and_back(8, 1), 0);
  for (int unit = 0; unit < 8; ++unit) rig.end_update(unit);
  for (int round = 0; round < 3; ++round) {
    const std::int64_t before = rig.stream().reads();
    rig.stream().prefetch(rig.is_current());
    EXPECT_EQ(rig.stream().reads(), before + 4);
    for (const int unit : {0, 1, 2, 3}) rig.begin_update(unit);
    EXPECT_EQ(rig.stream().reads(), landed());
    for (const int unit : {0, 1, 2, 3}) rig.end_update(unit);
  }
  rig.stream().prefetch(rig.is_current());
  const std::int64_t reads = rig.stream().reads();
  rig.end();
  EXPECT_EQ(reads, landed());
}

TEST(ParameterStream, ANewOrderIsRightAndBecomesTheRecord) {
  const Shape shape{.units = 8, .device_slots = 3, .host_slots = 3};
  Rig rig(shape);
  std::mt19937 random(5);
  const Program first = any_order(8, 2, 30, random), second = any_order(8, 2, 30, random);
  for (int i = 0; i < 2; ++i) rig.iteration(first);
  rig.iteration(second);
  const std::int64_t departures = rig.stream().departures();
  EXPECT_GT(departures, 0);
  EXPECT_LE(departures, 30);
  EXPECT_EQ(rig.iteration(second), by_the_rule(shape, second, 2)[1]);
  EXPECT_EQ(rig.stream().departures(), departures);
  EXPECT_EQ(rig.wrong(), 0);
}

TEST(ParameterStream, EveryIterationAnotherOrderIsRight) {
  std::mt19937 random(11);
  for (const int host_slots : {2, 3, 6}) {
    Rig rig({.units = 9,
             .frozen = 2,
             .device_slots = 3,
             .host_slots = host_slots,
             .faults = "delay=0.5,delay_us=200,reorder"});
    for (int iteration = 0; iteration < 12; ++iteration)
      rig.iteration(any_order(9, 2, 25, random), static_cast<int>(random() % 10));
    rig.device().synchronize();
    EXPECT_EQ(rig.wrong(), 0);
    EXPECT_GT(rig.stream().departures(), 0);
  }
}

TEST(ParameterStream, EvaluationInBetweenIsCountedAndForgotten) {
  for (const int host_slots : {2, 5}) {
    const Shape shape{.units = 8, .device_slots = 3, .host_slots = host_slots};
    Rig rig(shape);
    const Program program = there_and_back(8, 2);
    for (int i = 0; i < 2; ++i) rig.iteration(program);
    const std::int64_t rule = by_the_rule(shape, program, 3)[2].reads;
    for (int i = 0; i < 2; ++i) {
      for (int unit = 7; unit >= 0; --unit) rig.use(unit, false);
      EXPECT_EQ(rig.stream().departures(), 8 * (i + 1));
      const std::int64_t before = rig.moved().reads;
      rig.run(program);
      EXPECT_LE(rig.moved().reads - before, rule) << "after it no more is missing than without";
      rig.step();
      EXPECT_EQ(rig.stream().departures(), 8 * (i + 1)) << "the iteration is as recorded";
    }
    rig.device().synchronize();
    EXPECT_EQ(rig.wrong(), 0);
  }
}

TEST(ParameterStream, EvaluationReadsNothingAhead) {
  Rig rig({.units = 8, .device_slots = 3, .host_slots = 5});
  rig.iteration(there_and_back(7, 2));
  const std::int64_t reads = rig.stream().reads();
  rig.use(7, false);  // in the place of unit 4, which could come back now
  rig.device().synchronize();
  rig.use(3, false);  // is there
  EXPECT_EQ(rig.stream().reads(), reads + 1);
}

TEST(ParameterStream, AnUpdateUnderTheBackwardPassIsSeen) {
  // Units are updated as soon as they have been used for the last time, with others being read ahead.
  Rig rig({.units = 8, .device_slots = 3, .host_slots = 4, .faults = "delay=1,delay_us=300,reorder"});
  for (int iteration = 0; iteration < 4; ++iteration) {
    for (int unit = 0; unit < 8; ++unit) rig.use(unit);
    for (int unit = 7; unit >= 0; --unit) {
      rig.use(unit);
      rig.begin_update(unit);
      if (unit % 2 == 0) rig.end_update(unit);
    }
    rig.stream().end_iteration();
    rig.stream().prefetch(rig.is_current());
  }
  // A unit whose read is under way is changed.
  for (int unit = 0; unit < 8; ++unit) {
    if (rig.pending.contains(unit)) rig.end_update(unit);
  }
  for (int unit = 0; unit < 8; ++unit) {
    rig.stream().prefetch(rig.is_current());
    rig.begin_update(unit);
    rig.end_update(unit);
    rig.use(unit);
  }
  rig.device().synchronize();
  EXPECT_EQ(rig.wrong(), 0);
}

TEST(ParameterStream, NoMoreUnitsAreHeldThanTheLayoutAllows) {
  for (const Tier tier : kTiers) {
    SCOPED_TRACE(name_of(tier));
    Rig rig({.tier = tier, .units = 6, .live_units = 2, .device_slots = 4, .host_slots = 3});
    rig.gather(3);
    rig.gather(1);
    rig.gather(3);
    const Rig::Moved moved = rig.moved();
    for (const int unit : {2, 5}) {
      try {
        rig.gather(unit);
        ADD_FAILURE() << "a third unit is held";
      } catch (const std::logic_error& error) {
        for (const char* part : {"gather(unit ", "2 live units", "unit 1, unit 3"})
          EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
    EXPECT_EQ(rig.moved(), moved);
    rig.release(3);
    EXPECT_THROW(rig.gather(2), std::logic_error) << "a view of unit 3 is left";
    rig.release(3);
    EXPECT_EQ(rig.stream().held(), "unit 1");
    rig.gather(2);
    rig.device().synchronize();
    EXPECT_EQ(rig.wrong(), 0);
  }
}

TEST(ParameterStream, ThrowsAFailedReadOnceAndEnds) {
  int failures = 0;
  for (int after = 1; after <= 60; ++after) {
    SCOPED_TRACE(after);
    Rig rig({.units = 6,
             .device_slots = 2,
             .host_slots = 4,
             .faults = "delay=0.5,delay_us=200,reorder,fail=" + std::to_string(6 + after)});
    int thrown = 0;
    for (int iteration = 0; iteration < 3; ++iteration) {
      try {
        for (int unit = 0; unit < 6; ++unit) rig.use(unit);
        for (int unit = 5; unit >= 0; --unit) rig.use(unit);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::io);
        ++thrown;
      }
      rig.stream().end_iteration();
      rig.stream().prefetch(rig.is_current());
    }
    EXPECT_LE(thrown, 1);
    failures += thrown;
    rig.device().synchronize();
    EXPECT_EQ(rig.wrong(), 0);
  }
  EXPECT_GT(failures, 10);
}

TEST(ParameterStream, WhatIsNeededWaitsForTheReadWhosePlaceItTakes) {
  std::int64_t operations = 0;
  for (const bool fails : {false, true}) {
    // Of units 0 and 1, which are being read, unit 1 is needed later: its read is waited for, and its error
    // seen.
    Rig rig({.units = 6,
             .faults = fails ? "delay=1,delay_us=5000,fail=" + std::to_string(operations + 2) : std::string()});
    rig.iteration(there_and_back(6, 2), 0);
    for (int unit = 0; unit < 6; ++unit) rig.end_update(unit);
    operations = rig.queue().counters().reads + rig.queue().counters().writes;
    rig.stream().prefetch(rig.is_current());
    EXPECT_EQ(rig.stream().reads() + 12, operations + 2) << "each unit has been written twice";
    if (fails) {
      EXPECT_THROW(rig.gather(5, false), Error);
    } else {
      rig.use(5, false);
    }
    rig.use(0);
    rig.device().synchronize();
    EXPECT_EQ(rig.wrong(), 0);
  }
}

TEST(ParameterStream, EndsWhenTheDriveIsGone) {
  for (const int after : {1, 2, 5, 9}) {
    SCOPED_TRACE(after);
    Rig rig({.units = 6,
             .device_slots = 2,
             .host_slots = 4,
             .faults = "delay=1,delay_us=500,fail_from=" + std::to_string(6 + after) + ":ENODEV"});
    int thrown = 0;
    for (int round = 0; round < 4; ++round) {
      for (int unit = 0; unit < 6; ++unit) {
        try {
          rig.use(unit);
        } catch (const Error&) {
          ++thrown;
        }
      }
      rig.stream().end_iteration();
      rig.stream().prefetch([](int) { return true; });
    }
    EXPECT_GT(thrown, 0);
    // Here reads are under way.
  }
}

TEST(ParameterStream, TellsTheOrderOfTheComingIteration) {
  Rig rig({.units = 5});
  EXPECT_EQ(rig.stream().next_use_order(), (std::vector<int>{0, 1, 2, 3, 4}));
  for (const int unit : {3, 1, 3, 4}) rig.use(unit);
  EXPECT_EQ(rig.stream().next_use_order(), (std::vector<int>{0, 1, 2, 3, 4}));
  rig.stream().end_iteration();
  EXPECT_EQ(rig.stream().next_use_order(), (std::vector<int>{3, 1, 4, 0, 2}));
}

TEST(ParameterStream, TracesEachReadAndWhoWaitsForIt) {
  Trace trace;
  std::int64_t reads = 0;
  {
    Rig rig(
        {.units = 8, .device_slots = 3, .host_slots = 4, .faults = "delay=1,delay_us=5000", .trace = &trace});
    rig.iteration(there_and_back(8, 2), 0);
    for (int unit = 0; unit < 8; ++unit) rig.end_update(unit);
    rig.iteration(there_and_back(8, 2), 0);
    reads = rig.stream().reads();
  }
  std::int64_t spans = 0;
  bool overlap = false;
  std::int64_t last_end = 0;
  for (const Span& span : trace.spans()) {
    if (span.lane != Lane::read) continue;
    ++spans;
    EXPECT_EQ(span.name, "parameters");
    EXPECT_GE(span.unit, 0);
    EXPECT_LT(span.begin_ns, span.end_ns);
    EXPECT_EQ(span.bytes, 8192);
    overlap = overlap || span.begin_ns < last_end;
    last_end = std::max(last_end, span.end_ns);
  }
  EXPECT_EQ(spans, reads);
  EXPECT_TRUE(overlap) << "several are under way at once";
  std::int64_t waits = 0;
  for (const Wait& wait : trace.waits()) {
    EXPECT_EQ(wait.waiter, Waiter::compute);
    if (wait.lane == Lane::read) ++waits;
    EXPECT_TRUE(wait.lane == Lane::read || wait.lane == Lane::copy_up);
    EXPECT_LE(wait.begin_ns, wait.end_ns);
  }
  EXPECT_GT(waits, 0);
}

/// Parameters on NVMe, and a tenth of them in host memory: what the whole engine moves, step by step.
TEST(ParameterStream, TheEngineMovesWhatTheRuleGives) {
  constexpr int kUnits = 40;
  Directory directory;
  std::vector<UnitSpec> units;
  for (int unit = 0; unit < kUnits; ++unit) {
    const std::string number = std::to_string(unit);
    units.push_back({"unit " + number, {{"weight " + number, {kElements}}}});
  }
  const Layout layout(units);
  for (const int clip : {0, 1}) {
    SCOPED_TRACE(clip);
    Config config;
    config.parameter_tier = config.optimizer_tier = Tier::nvme;
    config.parameter_nvme_paths = config.optimizer_nvme_paths = {directory.path()};
    config.gradient_clipping = clip;
    config.check_finite = clip > 0;
    config.update_threads = 1;
    config.parameter_cache = kUnits * round_up(kElements * 2, kBlockBytes) / 10;
    const Room room(layout, config);
    ASSERT_EQ(room.parameter_cache_slots, kUnits / 10);
    const Shape shape{
        .units = kUnits, .device_slots = room.parameter_slots, .host_slots = room.parameter_cache_slots};
    const Program program = there_and_back(kUnits, 2);
    const auto expected = by_the_rule(shape, program, 5);
    HostDevice device(HostDeviceOptions{});
    SingleRankCommunicator communicator;
    Engine engine(config, layout, device, communicator);
    Rig::Moved before;
    for (std::size_t step = 0; step < 4; ++step) {
      engine.begin_step({{HyperParameters{}}, 1});
      std::vector<std::vector<UnitView>> views(kUnits);
      int gathered = 0;
      for (const int op : program) {
        const int unit = op >= 0 ? op : -1 - op;
        if (op < 0) {
          views[static_cast<std::size_t>(unit)].pop_back();
          continue;
        }
        views[static_cast<std::size_t>(unit)].push_back(engine.gather(unit));
        if (++gathered <= kUnits) continue;
        engine.gradient(unit);
        engine.reduce(unit);
      }
      const EngineCounters counters = engine.counters();
      const Rig::Moved moved{counters.parameter_reads - before.reads,
                             counters.parameter_copies - before.copies};
      before = {counters.parameter_reads, counters.parameter_copies};
      EXPECT_LE(moved.reads, 2 * kUnits);
      if (step > 0) {
        EXPECT_EQ(moved, expected[step]) << step;
      }
      engine.step();
    }
    EXPECT_EQ(engine.counters().departures, 0);
  }
}

TEST(ParameterStream, TheEngineCountsWhatMoved) {
  Directory directory;
  for (const Tier tier : {Tier::host, Tier::nvme}) {
    toy::Trainer trainer(make_run(tier, Tier::host, directory));
    for (int step = 0; step < 3; ++step) trainer.step();
    const EngineCounters counters = trainer.engine->counters();
    EXPECT_EQ(counters.departures, 0);
    EXPECT_GT(counters.parameter_copies, 0);
    EXPECT_EQ(counters.parameter_reads > 0, tier == Tier::nvme);
    trainer.engine->gather(4).release();
    EXPECT_EQ(trainer.engine->counters().departures, 1);
  }
}

}  // namespace
}  // namespace spillway
