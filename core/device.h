#pragma once
// The interface of a device: memory with a budget, streams that work in order, events that order streams.
// HostDevice is one, so that everything runs on a machine without a GPU; CudaDevice will be another.
#include "budget.h"
#include "tier.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace spillway {

class Trace;

/// A moment in a stream's order. Copies refer to the same moment. A default-made event has passed.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool passed() const = 0;
    virtual void wait()
        const = 0;  ///< blocks the calling thread; returns too when the work before it was dropped
  };

  Event() = default;
  explicit Event(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  bool passed() const { return state_ == nullptr || state_->passed(); }
  void wait() const {
    if (state_ != nullptr) state_->wait();
  }
  const State* state() const { return state_.get(); }
  const std::shared_ptr<const State>& shared_state() const { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

/// Work in the order in which it was given, apart from the calling thread. The calls return at once; memory
/// they name must live until the work has been done. They throw the device's first error, if there is one,
/// instead of taking more work. Any thread may call; the order is that of the calls.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Lane lane() const = 0;

  /// Passes when all work given so far has been done.
  virtual Event record() = 0;
  /// Work given from now on begins only after the event has passed. The event may be another stream's.
  virtual void wait(const Event& event) = 0;

  /// Between host and device in either direction, or within one of them. `name` and `unit` are for the trace.
  virtual void copy(void* destination, const void* source, std::int64_t bytes, std::string_view name,
                    int unit = -1) = 0;
  virtual void zero(void* destination, std::int64_t bytes, std::string_view name, int unit = -1) = 0;

  /// Calls a function of the host in the stream's order, on a thread of the stream. What it throws becomes the
  /// device's error.
  virtual void call(std::string_view name, std::function<void()> function, int unit = -1) = 0;

  /// Blocks until all work given so far has been done; throws the device's first error.
  virtual void synchronize() = 0;
};

/// One device of one rank. Owns a stream for each lane that needs one: compute, communicate, copy_down,
/// copy_up, and a second one for the last two.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;

  /// The bytes of its memory; the limit is what it may use.
  virtual Budget& budget() = 0;

  /// Device memory, zeroed. Its address is for the device: only where host_addressable() may the host touch it.
  virtual Memory allocate(std::string_view name, std::int64_t bytes) = 0;
  virtual bool host_addressable() const = 0;

  /// lane: compute, communicate, copy_down or copy_up; std::logic_error for another.
  virtual Stream& stream(Lane lane) = 0;

  /// A second stream of the lane copy_down or copy_up, for what goes on beside the passes: a copy there does
  /// not queue behind those that wait for the compute stream. std::logic_error for another lane.
  virtual Stream& side_stream(Lane lane) = 0;

  /// Throws the first error of any stream, again and again.
  virtual void check() = 0;
  /// Blocks until every stream is idle, then check().
  virtual void synchronize() = 0;
};

}  // namespace spillway
