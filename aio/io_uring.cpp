#include "io_uring_registrations.h"
#include "io_uring_setup.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace spillway::aio {
namespace {

using namespace std::chrono_literals;

/// What an entry's user_data says where it is none of the operations, which are named by their places.
constexpr std::uint64_t wake_mark = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t ignored_mark = wake_mark - 1;

/// start() only takes operations down: reap(), which follows, hands them over and waits in one system call.
class IoUring final : public Ring {
 public:
  IoUring(const RingOptions& options, std::size_t first_set)
      : depth_(options.depth), first_set_(first_set), sqpoll_(options.sqpoll) {
    places_.resize(depth_);
    free_.reserve(depth_);
    for (unsigned place = depth_; place-- > 0;) free_.push_back(place);
    backlog_.reserve(depth_);
    failed_.reserve(depth_);
    event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const int event_error = errno;
    if (event_ < 0) throw cannot_set_up(event_error, depth_);
    if (const int error = set_up(ring_, options.iopoll); error != 0) {
      ::close(event_);
      throw cannot_set_up(error, depth_);
    }
    ::io_uring_register_ring_fd(&ring_);  // a look-up less in each call, where the kernel has it
  }
  ~IoUring() override {
    ::io_uring_queue_exit(&ring_);
    ::close(event_);
  }
  IoUring(const IoUring&) = delete;
  IoUring& operator=(const IoUring&) = delete;

  unsigned depth() const noexcept override { return depth_; }

  void start(std::span<const Operation> operations) noexcept override {
    for (const Operation& operation : operations) {
      if (broken_ != 0 || free_.empty()) {
        failed_.push_back({operation.tag, broken_ != 0 ? -broken_ : -EBUSY});
        continue;
      }
      const unsigned place = free_.back();
      free_.pop_back();
      places_[place] = operation;
      backlog_.push_back(place);
    }
  }

  std::size_t reap(std::span<Completion> completions, bool wait) noexcept override {
    if (completions.empty()) return 0;
    for (int refusals = 0;;) {
      bool woken = false;
      if (leaving_poll_ && in_kernel() == 0) stop_polling();
      bool block = wait && failed_.empty() && in_flight() > 0 && ::io_uring_cq_ready(&ring_) == 0;
      prepare(block);
      if (block) {
        // With wake(): either it sees that this waits, or this sees that it was called.
        waiting_.store(true);
        woken = woken_.exchange(false);
        block = !woken;
      }
      const int refusal = enter(block);
      if (waiting_.load(std::memory_order_relaxed)) {
        waiting_.store(false);
        woken = woken_.exchange(false) || woken;
      }
      const std::size_t count = collect(completions, woken);
      if (count > 0 || woken || !wait || (in_flight() == 0 && failed_.empty())) return count;
      if (refusal == 0) continue;
      if (in_kernel() > 0) {
        // Completions may arrive in shared memory also where the kernel refuses to wait for them.
        if (refusal != EINTR) std::this_thread::sleep_for(1ms);
      } else if (++refusals < patience) {
        std::this_thread::sleep_for(1ms);  // a shortage of the kernel's, for the moment
      } else {
        give_up(refusal);
      }
    }
  }

  void wake() noexcept override {
    if (woken_.exchange(true) || !waiting_.load()) return;
    const std::uint64_t one = 1;
    // It can only fail where the event is set already.
    [[maybe_unused]] const auto written = ::write(event_, &one, sizeof one);
  }

  void cancel() noexcept override {
    for (const unsigned place : backlog_) fail(place, ECANCELED);
    backlog_.clear();
    cancel_wanted_ = true;
  }

  int register_file(int slot, int descriptor) noexcept override {
    if (slot < 0 || slot >= maximum_slots) return EINVAL;
    return registered_.set_file(ring_, slot, descriptor);
  }

  int register_memory(int slot, std::span<std::byte> memory) noexcept override {
    if (slot < 0 || slot >= maximum_slots) return EINVAL;
    return registered_.set_memory(ring_, slot, memory);
  }

  RingReport report() const override {
    RingReport report = report_;
    report.single_issuer = (ring_.flags & IORING_SETUP_SINGLE_ISSUER) != 0;
    report.deferred_task_run = (ring_.flags & IORING_SETUP_DEFER_TASKRUN) != 0;
    report.sqpoll = (ring_.flags & IORING_SETUP_SQPOLL) != 0;
    report.iopoll = polls() && !leaving_poll_;
    registered_.describe(report);
    return report;
  }

 private:
  /// Attempts, a millisecond apart, to start something while nothing is in flight.
  static constexpr int patience = 1000;

  bool polls() const noexcept { return (ring_.flags & IORING_SETUP_IOPOLL) != 0; }
  std::size_t in_flight() const noexcept { return depth_ - free_.size(); }

  int set_up(io_uring& ring, bool iopoll) {
    // Entries of its own: to be woken, and to cancel.
    const unsigned entries = std::min(depth_ + 2, maximum_depth);
    return set_up_ring(ring, {entries, sqpoll_, iopoll, first_set_}, report_.notes);
  }

  void fail(unsigned place, int error_number) noexcept {
    failed_.push_back({places_[place].tag, -error_number});
    free_.push_back(place);
  }

  void fill(io_uring_sqe* entry, unsigned place) noexcept {
    const Operation& operation = places_[place];
    const auto bytes = static_cast<unsigned>(operation.bytes);
    const auto offset = static_cast<std::uint64_t>(operation.offset);
    const bool file = registered_.has_file(operation);
    const int descriptor = file ? operation.file_slot : operation.descriptor;
    if (operation.direction == Direction::read) {
      ::io_uring_prep_read(entry, descriptor, operation.memory, bytes, offset);
    } else {
      ::io_uring_prep_write(entry, descriptor, operation.memory, bytes, offset);
    }
    if (registered_.has_memory(operation)) {
      entry->opcode = operation.direction == Direction::read ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED;
      entry->buf_index = static_cast<std::uint16_t>(operation.memory_slot);
    }
    if (file) entry->flags |= IOSQE_FIXED_FILE;
    entry->user_data = place;
  }

  /// Makes entries of what is to be handed over.
  void prepare(bool block) noexcept {
    if (broken_ != 0 || leaving_poll_) return;
    std::size_t taken = 0;
    for (; taken < backlog_.size(); ++taken) {
      io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
      if (entry == nullptr) break;
      fill(entry, backlog_[taken]);
    }
    backlog_.erase(backlog_.begin(), backlog_.begin() + static_cast<std::ptrdiff_t>(taken));
    if (polls()) return;  // such a ring can neither wait for the event nor cancel
    prepare_cancels();
    if (block && !event_armed_) {
      if (io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_)) {
        // Not a read: nothing of the kernel's may write into this object when it is gone.
        ::io_uring_prep_poll_add(entry, event_, POLLIN);
        entry->user_data = wake_mark;
        event_armed_ = true;
      }
    }
  }

  void prepare_cancels() noexcept {
    if (cancel_wanted_) {
      cancel_wanted_ = false;
      cancels_.clear();
      for (unsigned place = 0; place < depth_; ++place) cancels_.push_back(place);
      for (const unsigned place : free_) std::erase(cancels_, place);
    }
    while (!cancels_.empty()) {
      io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
      if (entry == nullptr) return;
      if (cancels_all()) {
        ::io_uring_prep_cancel64(entry, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
        cancels_.clear();
      } else {
        ::io_uring_prep_cancel64(entry, cancels_.back(), 0);
        cancels_.pop_back();
      }
      entry->user_data = ignored_mark;
    }
  }

  /// Since 5.19, which is also when the first of our flags came, one request cancels everything.
  bool cancels_all() const noexcept {
    return (ring_.flags & ~(IORING_SETUP_SQPOLL | IORING_SETUP_IOPOLL)) != 0;
  }

  /// One system call, or none where there is nothing to do. Returns 0 or the errno of a refusal that may pass.
  int enter(bool block) noexcept {
    for (;;) {
      const unsigned pending = broken_ != 0 ? 0 : ::io_uring_sq_ready(&ring_);
      const unsigned flags = IO_URING_READ_ONCE(*ring_.sq.kflags);
      int result = 0;
      if (broken_ != 0 && block) {
        result = ::io_uring_enter(static_cast<unsigned>(ring_.ring_fd), 0, 1, IORING_ENTER_GETEVENTS, nullptr);
      } else if (block) {
        result = ::io_uring_submit_and_wait(&ring_, 1);
      } else if (pending > 0) {
        // Deferred completions are run by a call that asks for them.
        const bool asks = polls() || (ring_.flags & IORING_SETUP_DEFER_TASKRUN) != 0;
        result = asks ? ::io_uring_submit_and_get_events(&ring_) : ::io_uring_submit(&ring_);
      } else if (polls() || (flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0) {
        result = ::io_uring_get_events(&ring_);
      }
      if (result < 0) {
        const bool passes = result == -EINTR || result == -EAGAIN || result == -EBUSY || result == -ENOMEM;
        // The kernel's own thread takes entries at any time unless it sleeps.
        const bool untouched = !sqpoll() || (flags & IORING_SQ_NEED_WAKEUP) != 0;
        if (passes || pending == 0 || !untouched) return -result;
        give_up(-result);
        return 0;
      }
      if (sqpoll() || static_cast<unsigned>(result) >= pending) return 0;
      if (result == 0) return EAGAIN;
    }
  }

  bool sqpoll() const noexcept { return (ring_.flags & IORING_SETUP_SQPOLL) != 0; }

  /// Calls `call` with each entry that is prepared and not taken by the kernel.
  template <class Call>
  void for_each_pending(const Call& call) noexcept {
    const unsigned count = ::io_uring_sq_ready(&ring_);
    const unsigned mask = *ring_.sq.kring_mask;
    for (unsigned i = ring_.sq.sqe_tail - count; i != ring_.sq.sqe_tail; ++i) call(ring_.sq.sqes[i & mask]);
  }

  std::size_t in_kernel() noexcept {
    std::size_t elsewhere = backlog_.size();
    for_each_pending([&](const io_uring_sqe& entry) { elsewhere += entry.user_data < depth_ ? 1u : 0u; });
    return in_flight() - elsewhere;
  }

  /// Nothing is handed to the kernel after this. Entries that it has not taken become empty ones, so that
  /// nothing can happen to memory that the caller may free now.
  void give_up(int error_number) noexcept {
    broken_ = error_number;
    for_each_pending([&](io_uring_sqe& entry) {
      if (entry.user_data < depth_) fail(static_cast<unsigned>(entry.user_data), error_number);
      if (entry.user_data == wake_mark) event_armed_ = false;
      ::io_uring_prep_nop(&entry);
      entry.user_data = ignored_mark;
    });
    for (const unsigned place : backlog_) fail(place, error_number);
    backlog_.clear();
  }

  std::size_t collect(std::span<Completion> completions, bool& woken) noexcept {
    std::size_t count = std::min(completions.size(), failed_.size());
    std::copy_n(failed_.begin(), count, completions.begin());
    failed_.erase(failed_.begin(), failed_.begin() + static_cast<std::ptrdiff_t>(count));
    unsigned head = 0;
    unsigned seen = 0;
    io_uring_cqe* entry = nullptr;
    io_uring_for_each_cqe(&ring_, head, entry) {
      if (count == completions.size()) break;
      ++seen;
      if (entry->user_data < depth_) {
        const auto place = static_cast<unsigned>(entry->user_data);
        if (polls() && is_refused_poll(entry->res)) {
          backlog_.push_back(place);
          continue;
        }
        completions[count++] = {places_[place].tag, entry->res};
        free_.push_back(place);
        if (!cancels_.empty()) std::erase(cancels_, place);
      } else if (entry->user_data == wake_mark) {
        std::uint64_t ignored = 0;
        [[maybe_unused]] const auto got = ::read(event_, &ignored, sizeof ignored);
        event_armed_ = false;
        woken = woken || entry->res >= 0;  // else it was cancelled with everything else
      }
    }
    ::io_uring_cq_advance(&ring_, seen);
    return count;
  }

  /// Whether an operation came back because its file cannot be polled, which ends polling for all.
  bool is_refused_poll(int result) noexcept {
    if (result > 0) polled_ = true;
    if (result == -EOPNOTSUPP || (result == -EINVAL && !polled_)) leaving_poll_ = true;
    return result == -EOPNOTSUPP || (result == -EINVAL && leaving_poll_);
  }

  /// Nothing is in the kernel: another ring takes over, and begins with what came back.
  void stop_polling() noexcept {
    std::vector<unsigned> pending;
    for_each_pending(
        [&](const io_uring_sqe& entry) { pending.push_back(static_cast<unsigned>(entry.user_data)); });
    backlog_.insert(backlog_.begin(), pending.begin(), pending.end());
    io_uring other{};
    const int error = set_up(other, /*iopoll=*/false);
    if (error == 0) {
      ::io_uring_queue_exit(&ring_);
      ring_ = other;
      ::io_uring_register_ring_fd(&ring_);
      registered_.move_to(ring_);
    }
    leaving_poll_ = false;
    report_.notes.push_back(
        "polling for completions (iopoll) was given up: a file, or its drive's queues (queue/io_poll), cannot "
        "be "
        "polled; completions come by interrupt");
    if (error != 0) give_up(error);
  }

  unsigned depth_;
  std::size_t first_set_;
  bool sqpoll_;
  io_uring ring_{};
  int event_ = -1;
  bool event_armed_ = false;
  bool cancel_wanted_ = false;
  bool polled_ = false;               ///< an operation succeeded by polling
  bool leaving_poll_ = false;         ///< polling was refused; the ring ends when nothing is in the kernel
  int broken_ = 0;                    ///< the errno that ended submission
  std::vector<Operation> places_{};   ///< of the operations in flight; the kernel knows them by their places
  std::vector<unsigned> free_{};      ///< places
  std::vector<unsigned> backlog_{};   ///< places of operations that no entry was made of yet, in order
  std::vector<Completion> failed_{};  ///< of operations that the kernel never saw
  std::vector<unsigned> cancels_{};   ///< places to be cancelled
  Registrations registered_{};
  RingReport report_{};
  std::atomic<bool> waiting_{false};
  std::atomic<bool> woken_{false};
};

}  // namespace

std::unique_ptr<Ring> make_io_uring_with(const RingOptions& options, std::size_t first_set) {
  if (options.depth < 1 || options.depth > maximum_depth) {
    throw std::logic_error(
        fmt::format("make_io_uring: depth {} is not in [1, {}]", options.depth, maximum_depth));
  }
  return std::make_unique<IoUring>(options, first_set);
}

std::unique_ptr<Ring> make_io_uring(const RingOptions& options) {
  return make_io_uring_with(options, 0);
}

}  // namespace spillway::aio
