#include "ring.h"
#include "signals_blocked.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

namespace spillway::aio {
namespace {

constexpr std::size_t most_threads = 64;

std::int64_t carry_out(const Operation& operation) noexcept {
  const auto bytes = static_cast<std::size_t>(operation.bytes);
  const ssize_t moved = operation.direction == Direction::read
                            ? ::pread(operation.descriptor, operation.memory, bytes, operation.offset)
                            : ::pwrite(operation.descriptor, operation.memory, bytes, operation.offset);
  return moved < 0 ? -errno : moved;
}

class PosixRing final : public Ring {
 public:
  PosixRing(unsigned depth, std::vector<std::string> notes)
      : depth_(depth), most_(std::min<std::size_t>(depth, most_threads)) {
    report_.engine = IoEngine::posix;
    report_.notes = std::move(notes);
    threads_.reserve(most_);
  }
  ~PosixRing() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  PosixRing(const PosixRing&) = delete;
  PosixRing& operator=(const PosixRing&) = delete;

  unsigned depth() const noexcept override { return depth_; }

  void start(std::span<const Operation> operations) noexcept override {
    std::size_t to_wake = 0;
    std::size_t to_add = 0;
    {
      const std::lock_guard lock(mutex_);
      waiting_.insert(waiting_.end(), operations.begin(), operations.end());
      in_flight_ += operations.size();
      to_wake = std::min(idle_, operations.size());
      const std::size_t short_of = waiting_.size() > idle_ ? waiting_.size() - idle_ : 0;
      to_add = std::min(short_of, most_ - threads_.size());
    }
    for (std::size_t i = 0; i < to_wake; ++i) work_.notify_one();
    for (std::size_t i = 0; i < to_add && add_thread(); ++i) {
    }
    if (threads_.empty()) carry_out_here();
  }

  std::size_t reap(std::span<Completion> completions, bool wait) noexcept override {
    std::unique_lock lock(mutex_);
    if (wait && in_flight_ > 0 && completed_.empty()) {
      owner_waits_ = true;
      done_.wait(lock, [this] { return !completed_.empty() || woken_; });
      owner_waits_ = false;
      woken_ = false;
    }
    const std::size_t count = std::min(completions.size(), completed_.size());
    std::copy_n(completed_.begin(), count, completions.begin());
    completed_.erase(completed_.begin(), completed_.begin() + static_cast<std::ptrdiff_t>(count));
    in_flight_ -= count;
    return count;
  }

  void wake() noexcept override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    if (owner_waits_) done_.notify_one();
  }

  void cancel() noexcept override {
    const std::lock_guard lock(mutex_);
    for (const Operation& operation : waiting_) completed_.push_back({operation.tag, -ECANCELED});
    waiting_.clear();
  }

  /// A thread has nothing that could be made cheaper.
  int register_file(int, int) noexcept override { return ENOTSUP; }
  int register_memory(int, std::span<std::byte>) noexcept override { return ENOTSUP; }

  RingReport report() const override { return report_; }

 private:
  bool add_thread() noexcept {
    const SignalsBlocked blocked;
    try {
      threads_.emplace_back([this] { work(); });
      ::pthread_setname_np(threads_.back().native_handle(), "spillway-io");
      return true;
    } catch (const std::system_error&) {
      return false;  // those that there are serve all
    }
  }

  void work() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (waiting_.empty()) {
        if (ending_) return;
        ++idle_;
        work_.wait(lock, [this] { return !waiting_.empty() || ending_; });
        --idle_;
        continue;
      }
      const Operation operation = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const std::int64_t result = carry_out(operation);
      lock.lock();
      completed_.push_back({operation.tag, result});
      if (owner_waits_) done_.notify_one();
    }
  }

  /// Where not even one thread is to be had.
  void carry_out_here() noexcept {
    const std::lock_guard lock(mutex_);
    for (; !waiting_.empty(); waiting_.pop_front()) {
      completed_.push_back({waiting_.front().tag, carry_out(waiting_.front())});
    }
  }

  unsigned depth_;
  std::size_t most_;
  RingReport report_{};
  std::vector<std::thread> threads_{};  ///< only touched by the owner

  std::mutex mutex_{};  ///< of all that follows
  std::condition_variable work_{};
  std::condition_variable done_{};
  std::deque<Operation> waiting_{};  ///< for a thread
  std::vector<Completion> completed_{};
  std::size_t in_flight_ = 0;
  std::size_t idle_ = 0;  ///< threads
  bool owner_waits_ = false;
  bool woken_ = false;
  bool ending_ = false;
};

}  // namespace

std::unique_ptr<Ring> make_posix_ring(unsigned depth, std::vector<std::string> notes) {
  if (depth < 1 || depth > maximum_depth) {
    throw std::logic_error(fmt::format("make_posix_ring: depth {} is not in [1, {}]", depth, maximum_depth));
  }
  return std::make_unique<PosixRing>(depth, std::move(notes));
}

}  // namespace spillway::aio
