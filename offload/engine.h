#pragma once
// The engine: parameters come to the device when they are needed, gradients leave it when they are there, the
// optimizer's state never has to be on it.
#include "../core/budget.h"
#include "../core/config.h"
#include "../core/plan.h"
#include "../core/update.h"
#include "layout.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace spillway {

class Communicator;
class Device;
class Event;
class Trace;
class Engine;
struct Step;

/// What the caller sets for one step.
struct StepOptions {
  std::vector<HyperParameters> groups;  ///< for each parameter group of the layout
  int micro_batches = 1;                ///< at most the configuration's accumulation
};

struct StepResult {
  double gradient_norm = 0;  ///< of the averaged gradient of all parameters, before clipping
  bool skipped = false;      ///< a gradient was not finite: no weight, no state and no counter has changed
};

/// Of one step; must not outlive its engine. Copies refer to the same step.
class StepTicket {
 public:
  /// Blocks until the step's gradients have landed and been judged, while its updates go on; throws the
  /// engine's first error.
  StepResult wait() const;

 private:
  friend class Engine;
  StepTicket(Engine& engine, std::shared_ptr<const Step> step) : engine_(&engine), step_(std::move(step)) {}
  Engine* engine_;
  std::shared_ptr<const Step> step_;
};

/// A unit's parameters on the device, for as long as it lives, or until the unit's last reduce() of a step. The
/// device may read them in its compute stream's order until then; the memory is given back when the stream has
/// passed the destruction. Move-only; must not outlive the engine.
class UnitView {
 public:
  UnitView() = default;
  UnitView(UnitView&& other) noexcept { swap(other); }
  UnitView& operator=(UnitView&& other) noexcept {
    UnitView(std::move(other)).swap(*this);
    return *this;
  }
  ~UnitView() { release(); }

  int unit() const { return unit_; }
  /// Device address of a parameter (its index in the layout) of this unit, in the type of the precision.
  const void* parameter(int parameter) const;
  void release() noexcept;

 private:
  friend class Engine;
  void swap(UnitView& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(unit_, other.unit_);
    std::swap(data_, other.data_);
    std::swap(slot_, other.slot_);
  }
  Engine* engine_ = nullptr;
  int unit_ = -1;
  const std::byte* data_ = nullptr;
  int slot_ = -1;
};

/// A unit's gradient on the device: fp32, zeroed, to be added into on the compute stream. Valid until reduce().
class UnitGradient {
 public:
  int unit() const { return unit_; }
  /// Device address of a trainable parameter's gradient; null for a frozen one.
  float* parameter(int parameter) const;

 private:
  friend class Engine;
  const Layout* layout_ = nullptr;
  int unit_ = -1;
  float* data_ = nullptr;
};

struct EngineCounters {
  std::int64_t steps = 0;  ///< updates made; what bias correction counts
  std::int64_t skipped_steps = 0;
  std::int64_t nvme_read_bytes = 0, nvme_written_bytes = 0;
  std::int64_t nvme_copied_bytes = 0;   ///< of those, what was not aligned and passed through a copy: none
  std::int64_t nvme_resubmissions = 0;  ///< operations that were repeated, having moved nothing or a part
  std::int64_t parameter_reads = 0;     ///< units read from NVMe for gather()
  std::int64_t parameter_copies = 0;    ///< units copied to the device for gather()
  std::int64_t departures = 0;          ///< calls of gather() that were not those of the recorded order
};

/// One part of a step's work, without the others: what a step is held against.
enum class Rehearsal {
  transfers,  ///< what the update reads and writes on NVMe, in the same pieces, as fast as the drive does it
  updates,    ///< Adam on every chunk, on what lies in the slots
};

/// How what lies on NVMe is read and written, after all that was tried.
struct IoReport {
  std::string engine;             ///< "io_uring", or "posix": a pool of threads
  bool registered_files = false;  ///< with the kernel, which makes each operation cheaper
  bool registered_memory = false;
  bool single_issuer = false, deferred_task_run = false;  ///< of the ring
  bool sqpoll = false, iopoll = false;
  bool direct = true;            ///< by the page cache's side
  int depth = 0;                 ///< operations in flight at most
  std::int64_t block_bytes = 0;  ///< into which transfers are cut
  struct Place {
    std::string directory;
    std::int64_t bytes = 0;  ///< reserved there
  };
  std::vector<Place> places;       ///< each directory once
  std::int64_t checksums = 0;      ///< extents of which one is kept at the moment
  std::vector<std::string> notes;  ///< what is not as it was asked for or could be, one line each
};

/// One calling thread; several engines may live in a process. Errors of asynchronous work are thrown by the
/// next call and by every later one. Device, communicator and trace must outlive the engine.
class Engine {
 public:
  /// Reserves everything that the plan says and nothing later. Throws Error (resources) with the numbers,
  /// before anything is allocated, where it does not fit; Error (io) for an unusable NVMe directory.
  Engine(const Config& config, const Layout& layout, Device& device, Communicator& communicator,
         Trace* trace = nullptr);
  ~Engine();  ///< cancels what has not begun, waits for what has, never throws
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Fills a trainable or frozen parameter: source(first, values) writes elements [first, first + size) of it,
  /// and is called in ascending pieces. Moments become zero. Outside a step only. What it throws passes through
  /// and ends the engine, as the engine's own errors do: the parameter is half filled then. Neither a source
  /// nor a sink may call the engine (std::logic_error).
  using Source = std::function<void(std::int64_t first, std::span<float> values)>;
  void load(int parameter, const Source& source);
  /// Reads the fp32 master weights: sink(first, values) in ascending pieces.
  using Sink = std::function<void(std::int64_t first, std::span<const float> values)>;
  void read(int parameter, const Sink& sink);

  /// Between the last reduce() and step(): the gradient summed over micro-batches and uses (G of D5, not yet
  /// divided by their number), in ascending pieces.
  void read_gradient(int parameter, const Sink& sink);

  void begin_step(const StepOptions& options);
  /// Waits for the unit's last update, and for no other. Views may be held at once up to the layout's
  /// live_units (one unit gathered twice counts once); more is std::logic_error naming those held. Works
  /// outside a step too.
  UnitView gather(int unit);
  /// For use 0 .. uses-1 of a unit, once a micro-batch. Up to live_gradients at once.
  UnitGradient gradient(int unit, int use = 0);
  /// The gradient of this use and micro-batch is complete in the compute stream's order. Asynchronous.
  void reduce(int unit, int use = 0);
  /// Ends the step, and returns at once: norm, clipping and updates go on while the next step's calls are made.
  /// What was not reduced counts as zero. Without clipping and check_finite, a unit's update has begun when its
  /// last gradient of the step had landed: gathering it between that reduce() and step() is std::logic_error.
  StepTicket step();
  /// Blocks until everything has landed: all updates, with delayed_update that of the last step too.
  void drain();

  /// Copies `source` into slot `slot` of the layout's activations, once the compute stream's work so far has
  /// been done. Asynchronous: the source may be overwritten when the event has passed, for which a stream can
  /// wait.
  Event save_activation(int slot, const void* source);
  /// Copies it back, once the event `free` has passed: the destination is not needed any more. It is there when
  /// the event that is returned has passed. A slot may be loaded several times, and then saved again. One that
  /// has never been saved is std::logic_error.
  Event load_activation(int slot, void* destination, const Event& free);
  /// Says that this slot will be loaded soon: its way from NVMe begins, if there is a place for it now.
  void prefetch_activation(int slot);

  /// Does one part of a step's work alone, waits for it, and returns the seconds it took. Nothing that the
  /// engine holds changes. Outside a step only.
  double rehearse(Rehearsal what);

  const Layout& layout() const;
  const Config& config() const;
  const Plan& plan() const;
  const Budget& budget(Tier tier) const;  ///< what is in use, by name
  EngineCounters counters() const;        ///< waits until it is known whether the last step counts
  std::optional<IoReport> io() const;     ///< nothing where nothing lies on NVMe

 private:
  friend class StepTicket;
  friend class UnitView;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway
