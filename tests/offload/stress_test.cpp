// Configurations and orders of calls that are drawn at random: each trains to the bits of the plain run with
// everything on the device, or, where something fails on purpose, ends with that error and in no deadlock.
//   SPILLWAY_STRESS=N        draws N of each kind (12 and 8)
//   SPILLWAY_STRESS_SEED=N   from this seed on: what a failure prints, with SPILLWAY_STRESS=1, is drawn again
#include "../../aio/ring.h"
#include "../../core/error.h"
#include "../../offload/weights_hash.h"
#include "engine_rig.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

/// Draws from one seed, the same everywhere (the standard's distributions are not).
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : bits_(seed) {}
  /// From least to most, both included.
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(bits_() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool chance(double p) { return static_cast<double>(bits_() >> 11) * 0x1p-53 < p; }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[between(0, static_cast<std::int64_t>(list.size()) - 1)];
  }
  template <class T>
  void shuffle(std::vector<T>& list) {
    for (std::size_t i = list.size(); i > 1; --i)
      std::swap(list[i - 1], list[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(i) - 1))]);
  }

 private:
  std::mt19937_64 bits_;
};

/// Ends the process, with the words of what was under way, when nothing has happened for a minute.
class Watchdog {
 public:
  Watchdog() : thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void begin(std::string what) {
    std::lock_guard lock(mutex_);
    what_ = std::move(what);
    call_ = "begins";
    ++calls_;
  }
  /// Each call of the engine, before it is made.
  void calls(const char* name) {
    std::lock_guard lock(mutex_);
    call_ = name;
    ++calls_;
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    for (std::uint64_t seen = calls_; !over_; seen = calls_) {
      const auto happened = [&] { return over_ || calls_ != seen; };
      if (changed_.wait_for(lock, std::chrono::seconds(60), happened)) continue;
      if (calls_ != seen) continue;
      std::fprintf(stderr, "deadlock: nothing for 60 s since %s\n%s\n", call_, what_.c_str());
      std::abort();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_;
  const char* call_ = "the begin";
  std::uint64_t calls_ = 0;
  bool over_ = false;
  std::thread thread_;
};

/// Tied, frozen, tiny and unused units between some of several chunks.
Layout shape(int live_units, int live_gradients) {
  return Layout(
      {
          {"embedding", {{"table", {61, 129}, 0}, {"scale", {129}, 1}}, /*uses=*/2},
          {"frozen", {{"constant", {300}, 0, false}}},
          {"large.0", {{"weight.0", {600, 901}, 0}}},
          {"tiny", {{"weight.t", {1}, 0}}},
          {"large.1", {{"bias.1", {7}, 1}, {"lookup.1", {50}, 0, false}, {"weight.1", {300, 801}, 0}}},
          {"unused", {{"never", {1000}, 0}}},
          {"small", {{"weight.s", {3, 1000}, 0}, {"bias.s", {1000}, 1}}},
          {"large.2", {{"weight.2", {250, 1000}, 0}}},
      },
      {.live_units = live_units, .live_gradients = live_gradients});
}

struct Use {
  int unit = 0, use = 0;
};

/// What a model does in one step, and around it.
struct StepProgram {
  int micro_batches = 1;
  std::vector<Use> uses;
  bool in_a_row = false;  ///< all micro-batches of a use before the next use
  int poison = -1;        ///< in this use a gradient is not a number
  bool waits = false, drains = false, counts = false;
  std::vector<int> evaluated;  ///< units gathered after the step
};

struct Drawn {
  toy::Run run;
  int live_units = 2, live_gradients = 1;
  std::vector<StepProgram> steps;
  double holds = 0;  ///< the chance that a view is kept for longer than it is needed
  std::uint64_t seed = 0;
  std::string words;  ///< for who has to find out
};

bool has_io_uring() {
  static const bool has = [] {
    try {
      aio::make_io_uring({});
      return true;
    } catch (const Error&) {
      return false;
    }
  }();
  return has;
}

void draw_numbers(Dice& dice, Config& c) {
  do {
    c.state_format = dice.one_of({StateFormat::fp32, StateFormat::bf16, StateFormat::compact8});
    c.optimizer.optimizer = dice.one_of({Optimizer::adamw, Optimizer::adam, Optimizer::lion, Optimizer::sgd});
    c.precision = dice.chance(0.8) ? DType::bf16 : DType::fp32;
  } while (!cpu_adam::RecordFormat::refusal(c.state_format, c.optimizer.optimizer, c.precision).empty());
  c.accumulation = static_cast<int>(dice.between(1, 3));
  c.gradient_clipping = dice.one_of({0.0, 0.5});
  c.check_finite = dice.chance(0.5);
  c.delayed_update = dice.chance(0.15);
  c.seed = static_cast<std::uint64_t>(dice.between(0, 1 << 20));
}

void draw_placement(Dice& dice, Config& c, const Directory& directory) {
  c.parameter_tier = dice.one_of({Tier::device, Tier::host, Tier::nvme, Tier::nvme});
  c.optimizer_tier = dice.one_of({Tier::device, Tier::host, Tier::nvme, Tier::nvme});
  const auto paths = [&] {
    std::vector<std::string> list;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(c.nvme_bandwidth.size()); ++i)
      list.push_back(directory.path() + "/" + std::to_string(i));
    dice.shuffle(list);
    return list;
  };
  for (std::int64_t i = dice.one_of({1, 1, 2, 3}); i > 0; --i)
    c.nvme_bandwidth.push_back(static_cast<double>(dice.between(1, 4)));
  c.parameter_nvme_paths = paths();
  c.optimizer_nvme_paths = paths();
  c.update_threads = static_cast<int>(dice.between(1, 3));
  c.update_slots = dice.one_of({0, kLeastUpdateSlots, kLeastUpdateSlots, 4, 6, 9});
  if (dice.chance(0.5)) c.resident_fraction = dice.one_of({0.0, 0.2, 0.6, 1.0});
  if (dice.chance(0.5)) c.parameter_cache = dice.between(0, 6 << 20);
  c.accumulation_order = dice.one_of({AccumulationOrder::micro_batch, AccumulationOrder::layer});
  c.checksums = dice.chance(0.3);
  c.direct_io = dice.chance(0.8);
  c.queue_depth = dice.one_of({1, 2, 8, 32});
  c.block_bytes = dice.one_of({16 << 10, 64 << 10, 256 << 10, 1 << 20});
  c.io_engine = has_io_uring() && dice.chance(0.6) ? "io_uring" : "posix";
}

std::string draw_faults(Dice& dice) {
  std::string list = "seed=" + std::to_string(dice.between(1, 1000));
  if (dice.chance(0.4)) list += ",short=0.2";
  if (dice.chance(0.4)) list += ",interrupt=0.2";
  if (dice.chance(0.6)) list += ",delay=0.3,delay_us=" + std::to_string(dice.between(50, 2000));
  if (dice.chance(0.6)) list += ",reorder";
  return list;
}

StepProgram draw_step(Dice& dice, const Config& c, const Layout& layout, bool departs) {
  StepProgram step;
  step.micro_batches = dice.chance(0.8) ? c.accumulation : static_cast<int>(dice.between(1, c.accumulation));
  const auto& units = layout.units();
  for (int unit = static_cast<int>(units.size()) - 1; unit >= 0; --unit) {
    const Layout::Unit& one = units[static_cast<std::size_t>(unit)];
    if (one.name == "unused") continue;
    for (int use = one.uses - 1; use >= 0; --use) step.uses.push_back({unit, use});
  }
  if (departs) {
    if (dice.chance(0.5)) dice.shuffle(step.uses);
    if (dice.chance(0.5))
      step.uses.resize(static_cast<std::size_t>(dice.between(1, static_cast<std::int64_t>(step.uses.size()))));
  }
  step.in_a_row = c.accumulation_order == AccumulationOrder::layer || dice.chance(0.2);
  if (c.check_finite && dice.chance(0.1))
    step.poison = static_cast<int>(dice.between(0, static_cast<std::int64_t>(step.uses.size()) - 1));
  if (step.poison >= 0) {
    const auto unit = static_cast<std::size_t>(step.uses[static_cast<std::size_t>(step.poison)].unit);
    if (units[unit].trainable == 0) step.poison = -1;  // which has no gradient
  }
  step.waits = dice.chance(0.4);
  step.drains = !c.delayed_update && dice.chance(0.2);  // it would apply what is to come a step later
  step.counts = dice.chance(0.2);
  if (dice.chance(0.25)) {
    for (std::int64_t i = dice.between(1, 8); i > 0; --i)
      step.evaluated.push_back(static_cast<int>(dice.between(0, static_cast<std::int64_t>(units.size()) - 1)));
  }
  return step;
}

Drawn draw(std::uint64_t seed, const Directory& directory) {
  Dice dice(seed);
  Drawn d;
  d.seed = seed;
  Config& c = d.run.config;
  draw_numbers(dice, c);
  draw_placement(dice, c, directory);
  d.run.device_threads = static_cast<int>(dice.between(1, 3));
  d.live_units = static_cast<int>(dice.between(1, 3));
  d.live_gradients = static_cast<int>(dice.between(1, 2));
  d.holds = dice.one_of({0.0, 0.3, 1.0});
  const bool on_nvme = c.parameter_tier == Tier::nvme || c.optimizer_tier == Tier::nvme;
  if (on_nvme && dice.chance(0.6)) c.io_faults = draw_faults(dice);
  const Layout layout = shape(d.live_units, d.live_gradients);
  // Whatever was not asked for by name is the least where there is no room for more.
  Config tight = c;
  tight.host_memory = tight.device_memory = 0;
  const Plan least = make_plan(layout, tight);
  if (dice.chance(0.7))
    c.host_memory =
        least.host.total() + dice.one_of({std::int64_t{0}, std::int64_t{0}, dice.between(0, 16 << 20)});
  if (dice.chance(0.5)) {
    c.device_memory = least.device.total() + dice.one_of({std::int64_t{0}, dice.between(0, 4 << 20)});
    d.run.device_memory = c.device_memory;
  }
  const bool departs = dice.chance(0.4);
  d.run.steps = static_cast<int>(dice.between(3, 5));
  for (int i = 0; i < d.run.steps; ++i)
    d.steps.push_back(draw_step(dice, c, layout, departs && dice.chance(0.5)));
  std::ostringstream words;
  words << "SPILLWAY_STRESS=1 SPILLWAY_STRESS_SEED=" << seed << "\n"
        << d.run.device_threads << " device threads, " << d.live_units << " live units, " << d.live_gradients
        << " live gradients, held " << d.holds << (departs ? ", departs" : "") << ", steps of";
  for (const StepProgram& step : d.steps)
    words << " " << step.micro_batches << "x" << step.uses.size() << (step.in_a_row ? "r" : "")
          << (step.waits ? "w" : "") << (step.drains ? "d" : "") << (step.poison >= 0 ? "p" : "");
  d.words = words.str() + "\n" + to_json(c);
  return d;
}

/// Trains as the program says. Every call is told to the watchdog.
class Model {
 public:
  Model(const Drawn& drawn, Watchdog& watchdog)
      : drawn_(drawn),
        config_(drawn.run.config),
        watchdog_(watchdog),
        dice_(drawn.seed ^ 0x5eed),
        device_(std::make_unique<HostDevice>(
            HostDeviceOptions{drawn.run.device_memory, drawn.run.device_threads})) {
    watchdog_.calls("Engine()");
    engine_ = std::make_unique<Engine>(config_, shape(drawn.live_units, drawn.live_gradients), *device_,
                                       communicator_);
  }
  ~Model() {
    views_.clear();
    watchdog_.calls("~Engine()");
    engine_.reset();
    watchdog_.calls("~HostDevice()");
    device_.reset();
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  /// Called before each call of a run, with their count so far.
  std::function<void(Model&, std::int64_t)> meanwhile;

  template <class Call>
  auto call(const char* name, Call&& engine_call) {
    if (meanwhile) meanwhile(*this, calls_++);
    watchdog_.calls(name);
    return engine_call();
  }

  void load() {
    for (int p = 0; p < static_cast<int>(layout().parameters().size()); ++p) {
      call("load()", [&] {
        engine_->load(p, [p](std::int64_t first, std::span<float> values) {
          for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = toy::initial(p, first + static_cast<std::int64_t>(i));
        });
      });
    }
  }

  /// Returns the hash of the weights.
  std::string train() {
    load();
    for (const StepProgram& step : drawn_.steps) train_step(step);
    views_.clear();
    call("drain()", [&] { engine_->drain(); });
    watchdog_.calls("read()");
    return weights_xxh3(*engine_);
  }

  Engine& engine() { return *engine_; }
  Device& device() { return *device_; }
  const std::vector<std::uint64_t>& evaluations() const { return evaluations_; }
  void clear_views() { views_.clear(); }

 private:
  const Layout& layout() const { return engine_->layout(); }

  void train_step(const StepProgram& step) {
    call("begin_step()", [&] {
      engine_->begin_step({toy::groups(step_, config_.optimizer.optimizer), step.micro_batches});
    });
    if (step.in_a_row) {
      for (int use = 0; use < static_cast<int>(step.uses.size()); ++use) {
        for (int i = 0; i < step.micro_batches; ++i) work(step, use, i);
      }
    } else {
      for (int i = 0; i < step.micro_batches; ++i) {
        for (int use = 0; use < static_cast<int>(step.uses.size()); ++use) work(step, use, i);
      }
    }
    micro_batch_ += step.micro_batches;
    views_.clear();
    const StepTicket ticket = call("step()", [&] { return engine_->step(); });
    ++step_;
    if (step.waits) {
      EXPECT_EQ(call("wait()", [&] { return ticket.wait(); }).skipped, step.poison >= 0) << "step " << step_;
    }
    if (step.drains) call("drain()", [&] { engine_->drain(); });
    if (step.counts) call("counters()", [&] { engine_->counters(); });
    for (const int unit : step.evaluated) evaluate(unit);
  }

  /// Its view, among those that are held: one of them has to go where they are as many as may be.
  const UnitView& gather(int unit) {
    for (const UnitView& held : views_) {
      if (held.unit() == unit && dice_.chance(0.5)) return held;
    }
    while (!views_.empty() &&
           (static_cast<int>(views_.size()) >= drawn_.live_units || !dice_.chance(drawn_.holds)))
      views_.pop_front();
    views_.push_back(call("gather()", [&] { return engine_->gather(unit); }));
    return views_.back();
  }

  void work(const StepProgram& step, int index, int micro_batch) {
    const auto [unit, use] = step.uses[static_cast<std::size_t>(index)];
    const Layout::Unit& one = layout().units()[static_cast<std::size_t>(unit)];
    const UnitView& view = gather(unit);
    if (one.trainable == 0) return;
    UnitGradient gradient = call("gradient()", [&] { return engine_->gradient(unit, use); });
    for (const int p : one.parameters) {
      const Layout::Parameter& parameter = layout().parameters()[static_cast<std::size_t>(p)];
      if (!parameter.trainable) continue;
      const void* weights = view.parameter(p);
      float* sums = gradient.parameter(p);
      const std::int64_t n = parameter.elements;
      const bool is_poisoned = index == step.poison && micro_batch == 0;
      device_->stream(Lane::compute)
          .launch(
              "toy", (n + 4999) / 5000,
              [=, mb = micro_batch_ + micro_batch, fp32 = config_.precision == DType::fp32](std::int64_t tile,
                                                                                            int) {
                for (std::int64_t i = tile * 5000; i < std::min(n, (tile + 1) * 5000); ++i) {
                  const float w = fp32 ? static_cast<const float*>(weights)[i]
                                       : to_float(static_cast<const BFloat16*>(weights)[i]);
                  sums[i] += toy::gradient_of(w, p, i, mb, use);
                }
                if (is_poisoned && tile == 0) sums[0] = std::numeric_limits<float>::quiet_NaN();
              },
              unit);
    }
    call("reduce()", [&] { engine_->reduce(unit, use); });
  }

  /// What lies in a unit that is gathered between two steps: all of it is current.
  void evaluate(int unit) {
    const UnitView& view = gather(unit);
    const auto sum = std::make_shared<std::uint64_t>(0);
    for (const int p : layout().units()[static_cast<std::size_t>(unit)].parameters) {
      const std::int64_t n = layout().parameters()[static_cast<std::size_t>(p)].elements;
      const auto bytes = n * (config_.precision == DType::fp32 ? 4 : 2);
      device_->stream(Lane::compute)
          .call("sum", [sum, bytes, data = static_cast<const std::uint8_t*>(view.parameter(p))] {
            for (std::int64_t i = 0; i < bytes; ++i) *sum = *sum * 0x100000001b3u + data[i];
          });
    }
    device_->stream(Lane::compute).synchronize();
    evaluations_.push_back(*sum);
  }

  const Drawn& drawn_;
  const Config config_;
  Watchdog& watchdog_;
  Dice dice_;
  SingleRankCommunicator communicator_;
  std::unique_ptr<HostDevice> device_;
  std::unique_ptr<Engine> engine_;
  std::deque<UnitView> views_;
  std::vector<std::uint64_t> evaluations_;
  std::int64_t step_ = 0, micro_batch_ = 0, calls_ = 0;
};

/// The same training with everything on the device, one thread each and nothing at the same time.
Drawn plain(Drawn d) {
  Config c;
  const Config& drawn = d.run.config;
  c.state_format = drawn.state_format;
  c.optimizer = drawn.optimizer;
  c.precision = drawn.precision;
  c.accumulation = drawn.accumulation;
  c.gradient_clipping = drawn.gradient_clipping;
  c.check_finite = true;
  c.delayed_update = drawn.delayed_update;
  c.seed = drawn.seed;
  c.update_threads = 1;
  d.run.config = c;
  d.run.device_threads = 1;
  d.run.device_memory = -1;
  d.holds = 0;
  for (StepProgram& step : d.steps) {
    step.waits = true;
    step.drains = !c.delayed_update;
    step.in_a_row = false;
  }
  return d;
}

std::int64_t count_from(const char* variable, std::int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

/// Always the same few where nobody asks for others: what lands must not depend on a draw.
std::uint64_t first_seed() {
  return static_cast<std::uint64_t>(count_from("SPILLWAY_STRESS_SEED", 1));
}

class Stress : public testing::Test {
 protected:
  Stress() {
    for (const char* name : {"/0", "/1", "/2"}) std::filesystem::create_directory(directory_.path() + name);
  }
  /// Calls `test` for as many as are wanted, each drawn from a seed of its own; the first that fails is the
  /// last.
  void for_each(std::int64_t otherwise, const std::function<void(Drawn&)>& test) {
    const std::int64_t count = count_from("SPILLWAY_STRESS", otherwise);
    const std::uint64_t seed = first_seed();
    std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(seed + static_cast<std::uint64_t>(count) - 1));
    for (std::int64_t i = 0; i < count && !HasFailure(); ++i) {
      Drawn drawn = draw(seed + static_cast<std::uint64_t>(i), directory_);
      SCOPED_TRACE(drawn.words);
      watchdog_.begin(drawn.words);
      test(drawn);
    }
  }
  /// Of the plain run.
  std::pair<std::string, std::vector<std::uint64_t>> expected(const Drawn& drawn) {
    const Drawn reference = plain(drawn);
    Model model(reference, watchdog_);
    const std::string hash = model.train();
    return {hash, model.evaluations()};
  }
  static void expect_planned_peaks(const Engine& engine) {
    for (const Tier tier : kTiers) {
      std::map<std::string, std::int64_t> planned;
      for (const PlanEntry& entry : engine.plan().of(tier).entries) planned[entry.name] += entry.bytes;
      EXPECT_EQ(engine.budget(tier).peaks_by_name(), planned) << name_of(tier);
      EXPECT_EQ(engine.budget(tier).peak(), engine.plan().of(tier).total()) << name_of(tier);
    }
  }

  Directory directory_;
  Watchdog watchdog_;
};

TEST_F(Stress, WhateverIsDrawnTrainsToTheBitsOfThePlainRun) {
  for_each(12, [&](Drawn& drawn) {
    const auto [hash, evaluations] = expected(drawn);
    try {
      Model model(drawn, watchdog_);
      EXPECT_EQ(model.train(), hash);
      EXPECT_EQ(model.evaluations(), evaluations);
      expect_planned_peaks(model.engine());
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  });
}

/// Something that goes wrong at a moment that is drawn.
std::string draw_failure(Dice& dice, Drawn& drawn, std::function<void(Model&, std::int64_t)>& meanwhile) {
  Config& c = drawn.run.config;
  const bool on_nvme = c.parameter_tier == Tier::nvme || c.optimizer_tier == Tier::nvme;
  const auto kind = on_nvme ? dice.between(0, 5) : dice.between(4, 5);
  const std::string at = std::to_string(dice.one_of({dice.between(1, 100), dice.between(1, 1500)}));
  if (!c.io_faults.empty() && kind <= 3) c.io_faults += ",";
  switch (kind) {
    case 0:
      c.io_faults += "fail=" + at + ":EIO";
      return "";
    case 1:
      c.io_faults += "fail_from=" + at + ":ENOSPC";
      return "";
    case 2:
      c.io_faults += "eof=" + at;
      return "";
    case 3:
      c.checksums = true;
      c.host_memory = -1;  // they are memory that was not drawn for
      c.io_faults += "flip=" + at;
      return "";
    default: {
      const Lane lane = dice.one_of({Lane::compute, Lane::compute, Lane::copy_down, Lane::copy_up});
      const std::int64_t when = dice.between(0, 150);
      meanwhile = [lane, when](Model& model, std::int64_t call) {
        if (call != when) return;
        model.device().stream(lane).call(
            "fails", [] { throw Error(ErrorKind::io, "injected", {.operation = "a test's work"}); });
      };
      return "injected";
    }
  }
}

TEST_F(Stress, WhateverFailsIsThrownByEveryLaterCallAndNothingHangs) {
  std::int64_t failed = 0;
  for_each(8, [&](Drawn& drawn) {
    Dice dice(drawn.seed ^ 0xfa11);
    std::function<void(Model&, std::int64_t)> meanwhile;
    const std::string injected = draw_failure(dice, drawn, meanwhile);
    SCOPED_TRACE("faults: " + drawn.run.config.io_faults + injected);
    watchdog_.begin(drawn.words + "\nfaults: " + drawn.run.config.io_faults + injected);
    std::optional<Model> model;
    std::optional<std::string> first, hash;
    try {
      model.emplace(drawn, watchdog_);
      model->meanwhile = meanwhile;
      hash = model->train();
    } catch (const Error& error) {
      first = error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not as an Error: " << error.what();
    }
    if (!first) {  // the moment never came
      EXPECT_EQ(hash.value_or("none"), expected(drawn).first);
      return;
    }
    ++failed;
    EXPECT_NE(first->find(injected), std::string::npos) << *first;
    if (!model) return;
    model->meanwhile = {};
    if (dice.chance(0.5)) model->clear_views();
    Engine& engine = model->engine();
    const std::vector<std::pair<const char*, std::function<void()>>> calls = {
        {"begin_step()",
         [&] {
           engine.begin_step({toy::groups(1), 1});
         }},
        {"gather()", [&] { engine.gather(0); }},
        {"gradient()", [&] { engine.gradient(0); }},
        {"reduce()", [&] { engine.reduce(0); }},
        {"step()", [&] { engine.step(); }},
        {"drain()", [&] { engine.drain(); }},
        {"load()", [&] { engine.load(0, [](std::int64_t, std::span<float>) {}); }},
        {"read()", [&] { engine.read(0, [](std::int64_t, std::span<const float>) {}); }}};
    for (const auto& [name, call] : calls) {
      watchdog_.calls(name);
      try {
        call();
        ADD_FAILURE() << name << " works after the failure";
      } catch (const std::exception& error) {
        EXPECT_EQ(error.what(), *first) << name;
      }
    }
  });
  EXPECT_TRUE(failed > 0 || std::getenv("SPILLWAY_STRESS_SEED") != nullptr) << "nothing has failed";
}

}  // namespace
}  // namespace spillway
