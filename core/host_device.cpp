#include "host_device.h"

#include "trace.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace spillway {
namespace {

class HostEvent final : public Event::State {
 public:
  explicit HostEvent(Lane lane) : lane_(lane) {}
  Lane lane() const { return lane_; }  ///< of the stream that lets it pass

  bool passed() const override {
    std::lock_guard lock(mutex_);
    return passed_;
  }
  void wait() const override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return passed_; });
  }
  void pass() {
    {
      std::lock_guard lock(mutex_);
      passed_ = true;
    }
    changed_.notify_all();
  }

 private:
  Lane lane_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool passed_ = false;
};

/// The first error of a device; once there, work is dropped.
class FirstError {
 public:
  void keep(std::exception_ptr error) noexcept {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    failed_ = true;
  }
  bool failed() const noexcept { return failed_; }
  void check() const {
    if (!failed_) return;
    std::lock_guard lock(mutex_);
    std::rethrow_exception(error_);
  }

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
};

/// Copies in pieces no faster than a bus of the given bandwidth would.
void paced_copy(void* destination, const void* source, std::int64_t bytes, double bandwidth) {
  constexpr std::int64_t kPiece = 1 << 20;
  const auto begin = std::chrono::steady_clock::now();
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  for (std::int64_t done = 0; done < bytes;) {
    const std::int64_t piece = bandwidth > 0 ? std::min(kPiece, bytes - done) : bytes - done;
    std::memcpy(to + done, from + done, static_cast<std::size_t>(piece));
    done += piece;
    if (bandwidth > 0) {
      std::this_thread::sleep_until(begin +
                                    std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::duration<double>(static_cast<double>(done) / bandwidth)));
    }
  }
}

class QueueStream final : public HostStream {
 public:
  QueueStream(Lane lane, Workers& workers, FirstError& error, Trace* trace, double bandwidth)
      : lane_(lane), workers_(workers), error_(error), trace_(trace), bandwidth_(bandwidth), thread_([this] {
          run();
        }) {}

  ~QueueStream() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    given_.notify_all();
    thread_.join();
  }

  /// From now on what has not begun is dropped (its events pass).
  void drop() { dropping_ = true; }

  Lane lane() const override { return lane_; }

  Event record() override {
    auto event = std::make_shared<HostEvent>(lane_);
    push({.event = event});
    return Event(event);
  }

  void wait(const Event& event) override {
    if (event.passed()) return;
    push({.before = event});
  }

  void copy(void* destination, const void* source, std::int64_t bytes, std::string_view name,
            int unit) override {
    if (bytes == 0) return;
    error_.check();
    push({.work = [=, this] { paced_copy(destination, source, bytes, bandwidth_); },
          .name = std::string(name),
          .unit = unit,
          .bytes = bytes});
  }

  void zero(void* destination, std::int64_t bytes, std::string_view name, int unit) override {
    if (bytes == 0) return;
    error_.check();
    push({.work = [=] { std::memset(destination, 0, static_cast<std::size_t>(bytes)); },
          .name = std::string(name),
          .unit = unit,
          .bytes = bytes});
  }

  void call(std::string_view name, std::function<void()> function, int unit) override {
    error_.check();
    push({.work = std::move(function), .name = std::string(name), .unit = unit});
  }

  void launch(std::string_view name, std::int64_t tiles, std::function<void(std::int64_t, int)> body,
              int unit) override {
    error_.check();
    push({.work = [this, tiles, body = std::move(body)] { workers_.for_blocks(tiles, body); },
          .name = std::string(name),
          .unit = unit});
  }

  void synchronize() override {
    record().wait();
    error_.check();
  }

 private:
  struct Item {
    std::function<void()> work = {};
    std::string name = {};
    int unit = -1;
    std::int64_t bytes = 0;
    Event before = {};                           // wait for it
    std::shared_ptr<HostEvent> event = nullptr;  // let it pass
  };

  void push(Item item) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(item));
    }
    given_.notify_one();
  }

  /// Work of the compute stream that another stream's must precede: the trace has who kept it waiting.
  void wait_before(const Item& item) {
    if (item.before.passed()) return;
    const auto* event = dynamic_cast<const HostEvent*>(item.before.state());
    if (trace_ == nullptr || lane_ != Lane::compute || event == nullptr) {
      return item.before.wait();
    }
    TraceWait wait(trace_, Waiter::compute, event->lane());
    item.before.wait();
  }

  void run() {
    for (;;) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        given_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        item = std::move(queue_.front());
        queue_.pop_front();
      }
      wait_before(item);
      if (item.work && !dropping_ && !error_.failed()) {
        try {
          FloatEnvironment exact;
          TraceSpan span(trace_, lane_, item.name, item.unit, item.bytes);
          item.work();
        } catch (...) {
          error_.keep(std::current_exception());
        }
      }
      item.work = nullptr;  // what it holds is released before the event says that it is done
      if (item.event) item.event->pass();
    }
  }

  Lane lane_;
  Workers& workers_;
  FirstError& error_;
  Trace* trace_;
  double bandwidth_;
  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<Item> queue_;
  bool stop_ = false;
  std::atomic<bool> dropping_{false};
  std::thread thread_;  // last: it uses all the others
};

}  // namespace

struct HostDevice::State {
  State(const HostDeviceOptions& options, Trace* trace)
      : budget(Tier::device, options.memory), workers(options.threads, options.processors) {
    budget.set_trace(trace);
    // One by one: where a thread is refused, the streams that are there end theirs.
    constexpr std::array kQueues{Lane::compute, Lane::communicate, Lane::copy_down,
                                 Lane::copy_up, Lane::copy_down,   Lane::copy_up};
    try {
      for (std::size_t i = 0; i < streams.size(); ++i) {
        const bool copies = kQueues[i] == Lane::copy_down || kQueues[i] == Lane::copy_up;
        streams[i] = std::make_unique<QueueStream>(kQueues[i], workers, error, trace,
                                                   copies ? options.copy_bandwidth : 0);
      }
    } catch (const std::system_error& refused) {
      throw_threads_refused("the streams of the host device", refused.code().value());
    }
  }
  ~State() {
    for (auto& stream : streams) stream->drop();
  }

  Budget budget;
  Workers workers;
  FirstError error;
  std::array<std::unique_ptr<QueueStream>, 6> streams;  ///< the last two: side streams
};

HostDevice::HostDevice(const HostDeviceOptions& options, Trace* trace)
    : state_(std::make_unique<State>(options, trace)) {}
HostDevice::~HostDevice() = default;

Budget& HostDevice::budget() {
  return state_->budget;
}

Memory HostDevice::allocate(std::string_view name, std::int64_t bytes) {
  return Memory(state_->budget, name, bytes);
}

HostStream& HostDevice::stream(Lane lane) {
  for (auto& stream : state_->streams) {
    if (stream->lane() == lane) return *stream;
  }
  throw std::logic_error("HostDevice: this lane is not a stream of a device");
}

HostStream& HostDevice::side_stream(Lane lane) {
  if (lane != Lane::copy_down && lane != Lane::copy_up)
    throw std::logic_error("HostDevice: only copies have a side stream");
  return *state_->streams[lane == Lane::copy_down ? 4 : 5];
}

void HostDevice::check() {
  state_->error.check();
}

void HostDevice::synchronize() {
  for (auto& stream : state_->streams) stream->record().wait();
  check();
}

int HostDevice::threads() const {
  return state_->workers.threads();
}
Workers& HostDevice::workers() {
  return state_->workers;
}

}  // namespace spillway
