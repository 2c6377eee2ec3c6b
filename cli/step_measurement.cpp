#include "step_measurement.h"

#include "../core/communicator.h"
#include "../core/error.h"
#include "../core/host_device.h"
#include "../core/machine.h"
#include "../core/topology.h"
#include "../core/trace.h"
#include "../offload/plan.h"
#include "../offload/traffic.h"
#include "../offload/weights_hash.h"
#include "output_file.h"
#include "text.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <sys/resource.h>

namespace spillway::cli {
namespace {

constexpr int kVerifiedSteps = 5;  ///< of a smaller model

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Bytes that have gone to and from the drives, by the engine's and the kernel's account.
struct Account {
  explicit Account(const Engine& engine) {
    const EngineCounters counters = engine.counters();
    read = counters.nvme_read_bytes;
    written = counters.nvme_written_bytes;
    std::ifstream file("/proc/self/io");
    std::string key;
    for (std::int64_t bytes = 0; file >> key >> bytes;) {
      if (key == "read_bytes:") kernel_read = bytes;
      if (key == "write_bytes:") kernel_written = bytes;
    }
  }
  std::int64_t read = 0, written = 0, kernel_read = 0, kernel_written = 0;
};

/// An engine with its model, and what it needs.
class Rig {
 public:
  Rig(const Config& config, const StepModelShape& shape, double copy_bandwidth, Trace* trace)
      : device_({.memory = config.device_memory,
                 .threads = config.device_threads,
                 .processors = pool_processors(config.pin_threads, config.device_threads, config.io_cores),
                 .copy_bandwidth = copy_bandwidth},
                trace),
        engine(config, step_layout(shape), device_, communicator_, trace),
        model(engine, device_, shape) {}

 private:
  SingleRankCommunicator communicator_;
  HostDevice device_;

 public:
  Engine engine;
  StepModel model;
};

Config on_the_device(Config config) {
  config.optimizer_tier = config.parameter_tier = Tier::device;
  config.resident_fraction.reset();
  config.parameter_cache.reset();
  config.io_faults.clear();
  const std::int64_t available = machine_memory().available;
  config.host_memory = config.device_memory = available > 0 ? memory_without_margin(available) : -1;
  return config;
}

bool fits_on_the_device(const Config& config, const StepModelShape& shape) {
  return fits(make_plan(step_layout(shape), config),
              {.device = config.device_memory, .host = config.host_memory, .memory = config.host_memory});
}

/// The hash of the weights after so many steps that take no time to compute. `drains`: after which of them
/// everything lands, which matters where updates are delayed.
std::string weights_after(const Config& config, StepModelShape shape, std::int64_t steps,
                          const std::vector<std::int64_t>& drains,
                          const std::function<void(const std::string&)>& say_progress) {
  shape.compute_seconds = 0;
  Rig rig(config, shape, 0, nullptr);
  rig.model.load();
  while (rig.model.steps() < steps) {
    say_progress(fmt::format("verifying: step {} of {}", rig.model.steps() + 1, steps));
    rig.model.step().wait();
    if (std::binary_search(drains.begin(), drains.end(), rig.model.steps())) rig.engine.drain();
  }
  return weights_xxh3(rig.engine);
}

/// The steps of one engine, in blocks.
class Steps {
 public:
  Steps(const StepTask& task, Rig& rig, Trace& trace) : task_(task), rig_(rig), trace_(trace) {}

  /// Alone, with its update: everything has landed before and after.
  double first() {
    const auto begin = Clock::now();
    rig_.model.step().wait();
    rig_.engine.drain();
    drains_.push_back(rig_.model.steps());
    return seconds_since(begin);
  }

  /// Seconds of a step in a block. The pipeline is full when it begins and when it ends: the update of the step
  /// before goes on under the first one, and that of the last one under whatever follows.
  double block() {
    if (drained_) {
      from_ = Account(rig_.engine);
      first_of_run_ = rig_.model.steps();
      drained_ = false;
      rig_.model.step().wait();
    }
    trace_.take_lane_times();
    const double cpu = cpu_seconds();
    const auto begin = Clock::now();
    for (int i = 0; i < task_.block; ++i) {
      rig_.model.step().wait();
      lanes_ += trace_.take_lane_times();
    }
    const double seconds = seconds_since(begin);
    cpu_ += cpu_seconds() - cpu;
    timed_ += task_.block;
    return seconds / task_.block;
  }

  /// The update of the last step ends here.
  void drain() {
    if (drained_) return;
    rig_.engine.drain();
    drains_.push_back(rig_.model.steps());
    drained_ = true;
    const Account now(rig_.engine);
    bytes_.steps += rig_.model.steps() - first_of_run_;
    bytes_.read += now.read - from_.read;
    bytes_.written += now.written - from_.written;
    bytes_.kernel_read += now.kernel_read - from_.kernel_read;
    bytes_.kernel_written += now.kernel_written - from_.kernel_written;
  }

  LaneTimes mean_lanes() const { return lanes_ / static_cast<double>(timed_); }
  double mean_cpu() const { return cpu_ / static_cast<double>(timed_); }
  const StepBytes& bytes() const { return bytes_; }
  const std::vector<std::int64_t>& drains() const { return drains_; }

 private:
  const StepTask& task_;
  Rig& rig_;
  Trace& trace_;
  bool drained_ = true;
  Account from_{rig_.engine};
  std::int64_t first_of_run_ = 0, timed_ = 0;
  LaneTimes lanes_;
  double cpu_ = 0;
  StepBytes bytes_;
  std::vector<std::int64_t> drains_;
};

/// The parts of a step, alone. `reversed`: in the other order, so that the transfers are always next to the
/// steps.
void rehearse(Rig& rig, bool reversed, StepSample& sample, std::int64_t& moved) {
  if (reversed) sample.adam = rig.engine.rehearse(Rehearsal::updates);
  const Account before(rig.engine);
  sample.transfers = rig.engine.rehearse(Rehearsal::transfers);
  const Account after(rig.engine);
  moved = after.read + after.written - before.read - before.written;
  if (!reversed) sample.adam = rig.engine.rehearse(Rehearsal::updates);
}

double share(double step_bytes, std::int64_t transfer_bytes) {
  return transfer_bytes == 0 ? 0 : step_bytes / static_cast<double>(transfer_bytes);
}

void check_bytes(const StepFigures& f, const Config& config) {
  const auto check = [&](std::string_view what, double counted, double expected, bool at_most) {
    if (bytes_agree(counted, expected, f.bytes.steps) || (at_most && counted < expected)) return;
    throw Error(ErrorKind::io,
                fmt::format("a step {} {} bytes on NVMe, and the format has {}", what,
                            grouped(std::llround(counted)), grouped(std::llround(expected))),
                {.hint = "no figure of this run counts; please report it with the command"});
  };
  // What is gathered may have been kept since it was last there.
  const bool may_be_kept = config.parameter_tier == Tier::nvme;
  check("reads", f.bytes.read_per_step(), f.expected_read, may_be_kept);
  check("writes", f.bytes.written_per_step(), f.expected_written, false);
  if (!f.kernel_counts) return;
  const auto steps = static_cast<double>(f.bytes.steps);
  check("reads, by the kernel's count,", static_cast<double>(f.bytes.kernel_read) / steps,
        f.bytes.read_per_step(), false);
  check("writes, by the kernel's count,", static_cast<double>(f.bytes.kernel_written) / steps,
        f.bytes.written_per_step(), false);
}

void check_weights(const std::string& weights, const std::string& expected, const StepModelShape& shape,
                   std::int64_t steps) {
  if (weights == expected) return;
  throw Error(
      ErrorKind::numerics,
      fmt::format("the weights of {} parameters after {} steps are {}, and {} with everything on the device",
                  grouped(shape.parameters), steps, weights, expected),
      {.hint = "no figure of this run counts; please report it with the command"});
}

/// What is known once the engine has made its steps.
void describe(StepFigures& f, const Rig& rig, const StepTask& task) {
  const Engine& engine = rig.engine;
  f.io = engine.io();
  f.host_peak = engine.budget(Tier::host).peak();
  f.host_plan = engine.plan().host.total();
  f.device_peak = engine.budget(Tier::device).peak();
  f.device_plan = engine.plan().device.total();
  const StepTraffic traffic = step_traffic(engine.layout(), task.config);
  f.expected_read = static_cast<double>(traffic.nvme_read);
  f.expected_written = static_cast<double>(traffic.nvme_written);
  f.kernel_counts = f.bytes.kernel_written > 0;
  f.compute = task.shape.step_seconds(task.config.accumulation);
  f.forward = task.shape.forward_seconds(task.config.accumulation, task.config.accumulation_order);
}

}  // namespace

double StepBytes::read_per_step() const {
  return static_cast<double>(read) / static_cast<double>(std::max<std::int64_t>(steps, 1));
}
double StepBytes::written_per_step() const {
  return static_cast<double>(written) / static_cast<double>(std::max<std::int64_t>(steps, 1));
}

bool bytes_agree(double counted, double expected, std::int64_t steps) {
  constexpr double kShare = 0.02, kElsewhere = 4 << 20;  // pages of the program itself are read too
  return std::abs(counted - expected) <= kShare * expected + kElsewhere / static_cast<double>(steps);
}

void summarize(StepFigures& f, const Config& config, const std::vector<StepSample>& samples, double moved) {
  const bool waits = updates_wait(config);
  // On the device Adam is work of the compute lane, and nothing hides it.
  const bool on_device = config.optimizer_tier == Tier::device;
  const auto floor_of = [&](double adam, double drive) {
    const double in_compute = on_device ? adam : 0;
    const LaneWork beside[] = {{"adam", on_device ? 0 : adam}, {"drive", drive}};
    StepFloor floor = step_floor(f.compute + in_compute, f.forward + in_compute, waits, beside);
    if (on_device && floor.bound == "compute" && adam > f.compute) floor.bound = "adam";
    return floor;
  };
  std::vector<double> steps, drives, adams, floors, ratios, controls;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const StepSample& s = samples[i];
    steps.push_back(s.step);
    drives.push_back(s.transfers * moved);
    adams.push_back(s.adam);
    floors.push_back(floor_of(s.adam, drives.back()).seconds);
    ratios.push_back(floors.back() / s.step);
    if (i % 2 == 1) controls.push_back(floors[i - 1] / floors[i]);  // these two stood side by side
  }
  f.step = quantile(steps, 0.5);
  f.drive = quantile(drives, 0.5);
  f.adam = quantile(adams, 0.5);
  f.floor = quantile(floors, 0.5);
  f.bound = floor_of(f.adam, f.drive).bound;
  f.of_floor = ratio_of(ratios);
  if (!controls.empty()) f.control = ratio_of(controls);
  f.pairs = static_cast<std::int64_t>(samples.size());
}

StepFigures measure_steps(const StepTask& task, const OutputFile& trace_file,
                          const std::function<void(const Engine&)>& say_start,
                          const std::function<void(const std::string&)>& say_progress) {
  Trace trace(0, trace_file.wanted() ? Trace::Keep::events : Trace::Keep::lane_times);
  StepFigures figures;
  std::string weights;
  std::int64_t made = 0;
  std::vector<std::int64_t> drains;
  {
    Rig rig(task.config, task.shape, task.copy_bandwidth, &trace);
    say_start(rig.engine);
    say_progress("first weights");
    rig.model.load();
    Steps steps(task, rig, trace);
    say_progress("first step");
    figures.first_step = steps.first();

    std::vector<StepSample> samples;
    std::int64_t transferred = 0;
    const auto begin = Clock::now();
    do {
      // A B, B A, A B, ...: neither a drift nor what one leaves behind for the next favours a side.
      const bool reversed = samples.size() % 2 == 1;
      StepSample sample;
      if (!reversed) sample.step = steps.block();
      if (!reversed) steps.drain();
      rehearse(rig, reversed, sample, transferred);
      if (reversed) sample.step = steps.block();
      samples.push_back(sample);
      describe(figures, rig, task);
      summarize(figures, task.config, samples,
                share((figures.bytes = steps.bytes()).read_per_step() + figures.bytes.written_per_step(),
                      transferred));
      say_progress(fmt::format("pair {} of {}: a step {:.3f} s, its floor {:.3f} s ({:.1f}%)", samples.size(),
                               std::max<std::size_t>(samples.size(), static_cast<std::size_t>(task.pairs)),
                               figures.step, figures.floor, 100 * figures.of_floor.median));
    } while (static_cast<int>(samples.size()) < task.pairs || seconds_since(begin) < task.seconds);
    steps.drain();
    figures.bytes = steps.bytes();
    describe(figures, rig, task);
    summarize(figures, task.config, samples,
              share(figures.bytes.read_per_step() + figures.bytes.written_per_step(), transferred));
    figures.lanes = steps.mean_lanes();
    figures.cpu_seconds = steps.mean_cpu();
    check_bytes(figures, task.config);
    say_progress("verifying: reading the weights");
    weights = weights_xxh3(rig.engine);
    made = rig.model.steps();
    drains = steps.drains();
  }
  if (trace_file.wanted()) trace_file.replace([&](const std::string& name) { trace.write(name); });

  // The same steps with everything on the device, now that there is room; or those of a smaller model, twice.
  const Config reference = on_the_device(task.config);
  StepModelShape shape = task.shape;
  while (!fits_on_the_device(reference, shape) && shape.parameters / 2 >= shape.units) shape.parameters /= 2;
  const bool is_smaller = shape.parameters != task.shape.parameters;
  const std::int64_t verified_steps = is_smaller ? kVerifiedSteps : made;
  if (is_smaller) {
    drains.clear();
    weights = weights_after(task.config, shape, verified_steps, drains, say_progress);
  }
  check_weights(weights, weights_after(reference, shape, verified_steps, drains, say_progress), shape,
                verified_steps);
  figures.weights_xxh3 = weights;
  figures.verified_parameters = shape.parameters;
  figures.verified_steps = verified_steps;
  return figures;
}

}  // namespace spillway::cli
