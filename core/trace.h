#pragma once
// What happened when, and which bytes lived where: spans of the lanes and events of the buffers.
#include "lane_times.h"
#include "tier.h"

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

enum class BufferAction : std::uint8_t { allocate, free, move, own };

/// One thing that happened to a buffer. Times in nanoseconds of the trace's clock.
struct BufferEvent {
  std::int64_t time_ns = 0;
  BufferAction action = BufferAction::allocate;
  std::uint64_t id = 0;    ///< of this buffer, for as long as it lives; never reused
  int unit = -1;           ///< index of the unit it belongs to, -1 for none
  std::string kind = {};   ///< "high", "record", "gradient", "activation", "staging", ...
  Tier tier = Tier::host;  ///< where it lies after the event
  std::int64_t bytes = 0;
  int owner = 0;           ///< rank
  std::string cause = {};  ///< the engine's call or stream that did it
};

struct Span {
  Lane lane = Lane::compute;
  std::string name = {};
  int unit = -1;
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t bytes = 0;
};

/// A time in which somebody could not go on before a lane had done something.
struct Wait {
  Waiter waiter = Waiter::compute;
  Lane lane = Lane::read;  ///< that was waited for; adam stands for a unit's update as a whole
  int unit = -1;
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// A moment that divides a step.
struct Mark {
  std::string name = {};  ///< "step": one ends and the next begins; "backward": the first gradient begins
  std::int64_t time_ns = 0;
};

/// Collects events of one rank. Thread-safe. Whoever records holds a `Trace*` that may be null: recording costs
/// nothing then.
class Trace {
 public:
  /// What is remembered: everything, or only for how long each lane was busy, which needs no memory over a long
  /// run.
  enum class Keep : std::uint8_t { events, lane_times };

  explicit Trace(int rank = 0, Keep keep = Keep::events);

  std::int64_t now_ns() const;  ///< since this trace was made
  std::uint64_t next_buffer_id();
  void add(Span span);
  void add(BufferEvent event);  ///< its time is set to now where it is 0
  void add(const Wait& wait);

  /// The first gradient of a step begins now: to be called in the compute stream's order.
  void mark_backward();
  /// What the lanes did since the last call (or the begin). What has begun and not ended counts up to now,
  /// where a TraceSpan or TraceWait records it; add() counts once it is called. A step ends here, and the next
  /// begins.
  LaneTimes take_lane_times();

  std::vector<Span> spans() const;
  std::vector<BufferEvent> buffer_events() const;
  std::vector<Wait> waits() const;
  std::vector<Mark> marks() const;

  /// One JSON file: Chrome's trace format (which Perfetto opens) under "traceEvents", and under "spillway" the
  /// format version, rank, clock offset (nanoseconds of this trace's zero since the Unix epoch) and all events
  /// as recorded. Throws Error (io).
  void write(const std::string& path) const;

 private:
  friend class TraceSpan;
  friend class TraceWait;
  std::int64_t begin_span(Lane lane);  ///< returns the time
  void end_span(Span&& span);
  std::int64_t begin_wait(Waiter waiter, Lane lane);
  void end_wait(const Wait& wait);

  int rank_;
  Keep keep_;
  std::chrono::steady_clock::time_point begin_;
  std::int64_t clock_offset_ns_;
  mutable std::mutex mutex_;
  std::uint64_t buffers_ = 0;
  std::vector<Span> spans_;
  std::vector<BufferEvent> events_;
  std::vector<Wait> waits_;
  std::vector<Mark> marks_;
  LaneClock clock_;
};

/// Records a span from its construction to its destruction.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, Lane lane, std::string_view name, int unit = -1, std::int64_t bytes = 0)
      : trace_(trace) {
    if (trace_ != nullptr) span_ = {lane, std::string(name), unit, trace_->begin_span(lane), 0, bytes};
  }
  ~TraceSpan() {
    if (trace_ == nullptr) return;
    trace_->end_span(std::move(span_));
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* trace_;
  Span span_;
};

/// Records a wait from its construction to its destruction.
class TraceWait {
 public:
  TraceWait(Trace* trace, Waiter waiter, Lane lane, int unit = -1) : trace_(trace) {
    if (trace_ != nullptr) wait_ = {waiter, lane, unit, trace_->begin_wait(waiter, lane), 0};
  }
  ~TraceWait() {
    if (trace_ == nullptr) return;
    trace_->end_wait(wait_);
  }
  TraceWait(const TraceWait&) = delete;
  TraceWait& operator=(const TraceWait&) = delete;

 private:
  Trace* trace_;
  Wait wait_;
};

}  // namespace spillway
