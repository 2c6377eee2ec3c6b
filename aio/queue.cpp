#include "queue.h"

#include "../core/error.h"
#include "checksums.h"
#include "mover.h"
#include "signals_blocked.h"

#include <algorithm>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace spillway::aio {
namespace {

/// What a read that has landed is held against.
struct Check {
  Volume volume;
  std::int64_t offset = 0;
  const std::byte* memory = nullptr;
  std::vector<Checksums::Extent> extents = {};
};

/// Calls visit(first byte, bytes) for each part of an extent that lies on one path.
template <class Visit>
void for_each_part(const Volume& volume, std::int64_t offset, std::int64_t bytes, Visit visit) {
  while (bytes > 0) {
    const std::int64_t part = std::min(bytes, volume.locate(offset).bytes);
    visit(offset, part);
    offset += part;
    bytes -= part;
  }
}

/// What is wrong with the bytes, or with the attempt to find out; null: nothing.
std::exception_ptr failure_of(const Check& check) noexcept try {
  const auto mismatch = Checksums::verify(check.extents, check.offset, check.memory);
  if (!mismatch) return {};
  const Volume::Place place = check.volume.locate(mismatch->extent.offset);
  throw Error(
      ErrorKind::io,
      fmt::format("what was read is not what was written: its XXH3 is {:016x} instead of {:016x}",
                  mismatch->found, mismatch->extent.hash),
      {.operation = "read",
       .path = check.volume.file(place.path).directory(),
       .offset = place.offset,
       .length = mismatch->extent.bytes,
       .hint = "the drive, its connection or the memory damages data; test them before trusting a result"});
} catch (...) {
  return std::current_exception();
}

void check_block(std::int64_t bytes) {
  if (bytes > 0 && bytes <= maximum_operation_bytes && bytes % direct_io_alignment == 0) return;
  throw std::logic_error(fmt::format("Queue: block of {} bytes is not a multiple of {} up to {}", bytes,
                                     direct_io_alignment, maximum_operation_bytes));
}

}  // namespace

/// The thread, and what it and the callers share.
class Queue::Worker {
 public:
  Worker(std::function<std::unique_ptr<Ring>()> make, const QueueOptions& options) {
    check_block(options.block_bytes);
    std::promise<unsigned> made;
    std::future<unsigned> depth = made.get_future();
    {
      const SignalsBlocked blocked;
      thread_ = std::thread([this, make = std::move(make), options, made = std::move(made)]() mutable {
        run(make, options, made);
      });
    }
    try {
      depth_ = depth.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }

  ~Worker() {
    {
      const Lock lock(mutex_);
      stopping_ = true;
      rouse();
    }
    thread_.join();
  }

  Ticket begin(Direction direction, const Volume& volume, std::int64_t offset, std::byte* memory,
               std::int64_t bytes, std::uint64_t label);
  void wait(std::uint64_t number);
  bool done(std::uint64_t number);
  void drain();

  /// Runs `action` on the thread, between transfers, and returns what it returns.
  template <class Result>
  Result call(std::function<Result(Mover&)> action) {
    auto task = std::make_shared<std::packaged_task<Result(Mover&)>>(std::move(action));
    std::future<Result> result = task->get_future();
    {
      const Lock lock(mutex_);
      if (broken_) std::rethrow_exception(broken_);
      errands_.emplace_back([task](Mover& mover) { (*task)(mover); });
      rouse();
    }
    try {
      return result.get();
    } catch (const std::future_error&) {  // the thread ended before it came to this
      const Lock lock(mutex_);
      if (broken_) std::rethrow_exception(broken_);
      throw;
    }
  }

  QueueCounters counters() const {
    const Lock lock(mutex_);
    QueueCounters counters = counters_;
    counters.reads += empty_reads_;
    counters.writes += empty_writes_;
    return counters;
  }
  unsigned depth() const { return depth_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Errand = std::function<void(Mover&)>;

  void run(const std::function<std::unique_ptr<Ring>()>& make, const QueueOptions& options,
           std::promise<unsigned>& made);
  void serve(Mover& mover);
  bool exchange(Mover& mover);
  void publish(Mover& mover);
  void drop_incoming();
  void rouse();
  void check(std::uint64_t number) const;
  void wait_until(Lock& lock, const std::function<bool()>& landed);
  void verify(Lock& lock, std::uint64_t number);
  void report_failure(std::uint64_t number);

  unsigned depth_ = 0;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable work_;    ///< for the thread
  std::condition_variable landed_;  ///< for callers
  // All that follows under the mutex.
  Ring* sleeps_in_ = nullptr;  ///< where the thread waits, or is about to; null: for work_
  bool asleep_ = false;        ///< it waits, and nobody has roused it
  bool stopping_ = false;
  int waiters_ = 0;
  std::uint64_t last_number_ = 0;
  std::vector<std::unique_ptr<Transfer>> incoming_;
  std::vector<Errand> errands_;
  std::set<std::uint64_t> under_way_;
  std::map<std::uint64_t, Check> checks_;               ///< of reads that are under way, or not waited for
  std::map<std::uint64_t, std::exception_ptr> failed_;  ///< not reported yet
  std::exception_ptr broken_;                           ///< what ended the thread
  QueueCounters counters_;
  std::int64_t empty_reads_ = 0, empty_writes_ = 0;
};

// ---- on the queue's thread

void Queue::Worker::run(const std::function<std::unique_ptr<Ring>()>& make, const QueueOptions& options,
                        std::promise<unsigned>& made) {
  std::optional<Mover> mover;
  try {
    mover.emplace(make(), options);
    made.set_value(mover->ring().depth());
  } catch (...) {
    made.set_exception(std::current_exception());
    return;
  }
  try {
    serve(*mover);
    return;
  } catch (...) {  // no memory: what is under way fails, and nothing begins any more
    const Lock lock(mutex_);
    broken_ = std::current_exception();
    asleep_ = false;
  }
  mover.reset();  // only now is no transfer's memory in use
  const Lock lock(mutex_);
  for (const std::uint64_t number : under_way_) failed_[number] = broken_;
  under_way_.clear();
  checks_.clear();
  drop_incoming();
  errands_.clear();  // their callers find `broken_`
  landed_.notify_all();
}

void Queue::Worker::serve(Mover& mover) {
  while (exchange(mover)) {
    mover.start();
    mover.settle(/*wait=*/true);
  }
}

/// Hands over what has landed and takes what is new; waits for that where there is nothing else to do. False
/// when the queue ends.
bool Queue::Worker::exchange(Mover& mover) {
  std::vector<Errand> errands;
  {
    Lock lock(mutex_);
    publish(mover);
    while (mover.is_idle() && incoming_.empty() && errands_.empty() && !stopping_) {
      sleeps_in_ = nullptr;
      asleep_ = true;
      work_.wait(lock);
    }
    asleep_ = false;
    if (stopping_) {
      drop_incoming();
      return false;
    }
    for (auto& transfer : incoming_) mover.add(std::move(transfer));
    incoming_.clear();
    errands.swap(errands_);
    // What comes from now on wakes the ring, also before the thread waits there.
    sleeps_in_ = &mover.ring();
    asleep_ = true;
  }
  for (const Errand& errand : errands) errand(mover);
  return true;
}

/// Under the lock.
void Queue::Worker::publish(Mover& mover) {
  counters_ = mover.counters();
  const auto finished = mover.take_finished();
  if (finished.empty()) return;
  for (const auto& transfer : finished) {
    if (transfer->error) {
      checks_.erase(transfer->number);
      failed_.emplace(transfer->number, std::move(transfer->error));
    }
    under_way_.erase(transfer->number);
  }
  if (waiters_ > 0) landed_.notify_all();
  // The transfers go under the lock: who has waited for the last one of a volume finds its space given back.
}

/// Under the lock.
void Queue::Worker::drop_incoming() {
  for (const auto& transfer : incoming_) {
    if (transfer) forget_checksums(*transfer);
  }
  incoming_.clear();
}

// ---- on callers' threads

/// Under the lock. The thread looks at what is new before it waits again.
void Queue::Worker::rouse() {
  if (!asleep_) return;
  asleep_ = false;
  if (sleeps_in_ != nullptr) {
    sleeps_in_->wake();
  } else {
    work_.notify_one();
  }
}

Ticket Queue::Worker::begin(Direction direction, const Volume& volume, std::int64_t offset, std::byte* memory,
                            std::int64_t bytes, std::uint64_t label) {
  const char* const verb = direction == Direction::read ? "read" : "write";
  if (offset < 0 || bytes < 0 || offset > volume.size() || bytes > volume.size() - offset) {
    throw std::logic_error(fmt::format("Queue::{}: {} bytes at offset {} are outside a volume of {} bytes",
                                       verb, bytes, offset, volume.size()));
  }
  if (bytes > 0 && memory == nullptr) throw std::logic_error(fmt::format("Queue::{}: no memory", verb));

  std::unique_ptr<Transfer> transfer;
  std::optional<Check> to_check;
  if (bytes > 0) {
    transfer.reset(new Transfer{.volume = volume,
                                .direction = direction,
                                .offset = offset,
                                .memory = memory,
                                .bytes = bytes,
                                .first_offset = offset,
                                .all_bytes = bytes,
                                .label = label,
                                .called = std::chrono::steady_clock::now()});
    if (Checksums* const sums = volume.checksums(); sums && direction == Direction::write) {
      for_each_part(volume, offset, bytes, [&](std::int64_t first, std::int64_t part) {
        sums->note(first, memory + (first - offset), part);
      });
    } else if (sums) {
      to_check = Check{volume, offset, memory, sums->within(offset, bytes)};
    }
  }

  const Lock lock(mutex_);
  const std::uint64_t number = ++last_number_;
  if (!transfer) {
    ++(direction == Direction::read ? empty_reads_ : empty_writes_);
  } else if (broken_) {
    forget_checksums(*transfer);
    failed_.emplace(number, broken_);
  } else {
    transfer->number = number;
    if (to_check) checks_.emplace(number, std::move(*to_check));
    under_way_.insert(number);
    incoming_.push_back(std::move(transfer));
    rouse();
  }
  return {number};
}

void Queue::Worker::check(std::uint64_t number) const {
  if (number >= 1 && number <= last_number_) return;
  throw std::logic_error(fmt::format("Queue: ticket {} is not of this queue", number));
}

void Queue::Worker::wait_until(Lock& lock, const std::function<bool()>& landed) {
  ++waiters_;
  landed_.wait(lock, landed);
  --waiters_;
}

/// Holds a read that has landed against its checksums, without the lock meanwhile: for other threads it is
/// under way again until its bytes are known to be right or wrong.
void Queue::Worker::verify(Lock& lock, std::uint64_t number) {
  const auto found = checks_.find(number);
  if (found == checks_.end()) return;
  under_way_.insert(number);
  const Check to_check = std::move(found->second);
  checks_.erase(found);
  lock.unlock();
  std::exception_ptr failure = failure_of(to_check);
  lock.lock();
  if (failure) failed_.emplace(number, std::move(failure));
  under_way_.erase(number);
  if (waiters_ > 0) landed_.notify_all();
}

/// Under the lock.
void Queue::Worker::report_failure(std::uint64_t number) {
  const auto found = failed_.find(number);
  if (found == failed_.end()) return;
  const std::exception_ptr error = std::move(found->second);
  failed_.erase(found);
  std::rethrow_exception(error);
}

void Queue::Worker::wait(std::uint64_t number) {
  Lock lock(mutex_);
  check(number);
  wait_until(lock, [&] { return !under_way_.contains(number); });
  verify(lock, number);
  report_failure(number);
}

bool Queue::Worker::done(std::uint64_t number) {
  Lock lock(mutex_);
  check(number);
  if (under_way_.contains(number)) return false;
  verify(lock, number);
  return true;
}

void Queue::Worker::drain() {
  Lock lock(mutex_);
  const std::uint64_t last = last_number_;
  for (;;) {
    wait_until(lock, [&] { return under_way_.empty() || *under_way_.begin() > last; });
    if (checks_.empty() || checks_.begin()->first > last) break;
    verify(lock, checks_.begin()->first);
  }
  if (!failed_.empty() && failed_.begin()->first <= last) report_failure(failed_.begin()->first);
}

// ---- the face

namespace {

std::function<std::unique_ptr<Ring>()> ring_maker(const QueueOptions& options) {
  return [ring = options.ring, faults = options.faults] {
    std::unique_ptr<Ring> made = make_ring(ring);
    return faults.any() ? make_faulty_ring(std::move(made), faults) : std::move(made);
  };
}

}  // namespace

Queue::Queue(const QueueOptions& options) : Queue(ring_maker(options), options) {}

Queue::Queue(std::function<std::unique_ptr<Ring>()> make, const QueueOptions& options)
    : worker_(std::make_unique<Worker>(std::move(make), options)) {}

Queue::~Queue() = default;

Ticket Queue::read(const Volume& volume, std::int64_t offset, std::byte* destination, std::int64_t bytes,
                   std::uint64_t label) {
  return worker_->begin(Direction::read, volume, offset, destination, bytes, label);
}

Ticket Queue::write(const Volume& volume, std::int64_t offset, const std::byte* source, std::int64_t bytes,
                    std::uint64_t label) {
  // Operations of both directions share a type; one that writes only reads the memory.
  return worker_->begin(Direction::write, volume, offset, const_cast<std::byte*>(source), bytes, label);
}

void Queue::wait(Ticket ticket) {
  worker_->wait(ticket.number);
}
bool Queue::done(Ticket ticket) {
  return worker_->done(ticket.number);
}
void Queue::drain() {
  worker_->drain();
}

bool Queue::register_volume(const Volume& volume) {
  return worker_->call<bool>([&](Mover& mover) { return mover.register_volume(volume); });
}
void Queue::unregister_volume(const Volume& volume) {
  worker_->call<void>([&](Mover& mover) { mover.unregister_volume(volume); });
}
bool Queue::register_memory(std::span<std::byte> memory) {
  return worker_->call<bool>([&](Mover& mover) { return mover.register_memory(memory); });
}
void Queue::unregister_memory(std::span<std::byte> memory) {
  worker_->call<void>([&](Mover& mover) { mover.unregister_memory(memory); });
}

QueueCounters Queue::counters() const {
  return worker_->counters();
}
RingReport Queue::report() const {
  return worker_->call<RingReport>([](Mover& mover) { return mover.ring().report(); });
}
unsigned Queue::depth() const {
  return worker_->depth();
}

}  // namespace spillway::aio
