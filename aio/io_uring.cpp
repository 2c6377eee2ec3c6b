#include "../core/error.h"
#include "ring.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>
#include <liburing.h>

namespace spillway::aio {
namespace {

using namespace std::chrono_literals;

/// No single-issuer ring: it would refuse a queue that was made on one thread and is used on another.
class IoUring final : public Ring {
 public:
  explicit IoUring(unsigned depth) : depth_(depth) {
    const int result = ::io_uring_queue_init(depth, &ring_, 0);
    if (result < 0) throw cannot_set_up(-result, depth);
  }
  ~IoUring() override { ::io_uring_queue_exit(&ring_); }
  IoUring(const IoUring&) = delete;
  IoUring& operator=(const IoUring&) = delete;

  unsigned depth() const noexcept override { return depth_; }

  void start(std::span<const Operation> operations) noexcept override {
    for (const Operation& operation : operations) {
      if (broken_ != 0) {
        failed_.push_back({operation.tag, -broken_});
        continue;
      }
      // Never null: the ring has at least depth_ entries, and the caller keeps within them.
      io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
      const auto bytes = static_cast<unsigned>(operation.bytes);
      const auto offset = static_cast<std::uint64_t>(operation.offset);
      if (operation.direction == Direction::read) {
        ::io_uring_prep_read(entry, operation.descriptor, operation.memory, bytes, offset);
      } else {
        ::io_uring_prep_write(entry, operation.descriptor, operation.memory, bytes, offset);
      }
      entry->user_data = operation.tag;
      unsubmitted_.push_back(operation.tag);
    }
    submit();
  }

  std::size_t reap(std::span<Completion> completions, bool wait) noexcept override {
    for (int attempt = 0;; ++attempt) {
      const int refusal = submit();
      const std::size_t count = collect(completions);
      if (count > 0 || !wait || (in_kernel_ == 0 && unsubmitted_.empty())) return count;
      if (in_kernel_ > 0) {
        io_uring_cqe* entry = nullptr;
        const int result = ::io_uring_wait_cqe(&ring_, &entry);
        // Completions arrive in shared memory also where the kernel refuses to wait for them.
        if (result < 0 && result != -EINTR) std::this_thread::sleep_for(1ms);
      } else if (attempt < patience) {
        std::this_thread::sleep_for(1ms);  // a shortage of the kernel's, for the moment
      } else {
        give_up(refusal);
      }
    }
  }

 private:
  /// Attempts, a millisecond apart, to start something while nothing is in flight.
  static constexpr int patience = 1000;

  static Error cannot_set_up(int error_number, unsigned depth) {
    std::string hint;
    switch (error_number) {
      case ENOSYS:
      case EPERM:
      case EACCES:
        hint =
            "allow io_uring: sysctl kernel.io_uring_disabled=0, and a container's seccomp profile that permits "
            "io_uring_setup, io_uring_enter and io_uring_register";
        break;
      case ENOMEM:
        hint = "raise the limit on locked memory (ulimit -l), or use a smaller queue depth";
        break;
      case EMFILE:
      case ENFILE:
        hint = "raise the limit on open files (ulimit -n)";
        break;
      default:
        hint = "a Linux kernel of version 5.6 or later is needed";
    }
    return Error(ErrorKind::io, fmt::format("cannot set up an io_uring of depth {}", depth),
                 {.operation = "io_uring_setup", .error_number = error_number, .hint = std::move(hint)});
  }

  /// Returns 0, or the errno of a refusal that may pass: a completion must come, or memory be found, first.
  int submit() noexcept {
    while (!unsubmitted_.empty()) {
      const int result = ::io_uring_submit(&ring_);
      if (result > 0) {
        const auto count = std::min(static_cast<std::size_t>(result), unsubmitted_.size());
        unsubmitted_.erase(unsubmitted_.begin(), unsubmitted_.begin() + static_cast<std::ptrdiff_t>(count));
        in_kernel_ += count;
      } else if (result == 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY ||
                 result == -ENOMEM) {
        return result == 0 ? EAGAIN : -result;
      } else {
        give_up(-result);
      }
    }
    return 0;
  }

  /// Nothing is handed to the kernel after this: entries that it has not taken stay in the ring and are never
  /// looked at, because only io_uring_submit makes it look.
  void give_up(int error_number) noexcept {
    broken_ = error_number;
    for (const std::uint64_t tag : unsubmitted_) failed_.push_back({tag, -error_number});
    unsubmitted_.clear();
  }

  std::size_t collect(std::span<Completion> completions) noexcept {
    std::size_t count = 0;
    for (; count < completions.size() && !failed_.empty(); failed_.pop_front())
      completions[count++] = failed_.front();
    io_uring_cqe* entry = nullptr;
    while (count < completions.size() && in_kernel_ > 0 && ::io_uring_peek_cqe(&ring_, &entry) == 0) {
      completions[count++] = {entry->user_data, entry->res};
      ::io_uring_cqe_seen(&ring_, entry);
      --in_kernel_;
    }
    return count;
  }

  unsigned depth_;
  io_uring ring_{};
  int broken_ = 0;  ///< the errno that ended submission
  std::deque<std::uint64_t> unsubmitted_{};
  std::deque<Completion> failed_{};  ///< operations that the kernel never saw
  std::size_t in_kernel_ = 0;
};

}  // namespace

std::unique_ptr<Ring> make_io_uring(unsigned depth) {
  if (depth < 1 || depth > maximum_depth) {
    throw std::logic_error(fmt::format("make_io_uring: depth {} is not in [1, {}]", depth, maximum_depth));
  }
  return std::make_unique<IoUring>(depth);
}

}  // namespace spillway::aio
