#include "faults.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace spillway::aio {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t border = 4096;
constexpr std::byte garbage{0xa5};

/// While completions are held back and others may come, the inner ring is asked this often.
constexpr std::chrono::microseconds look_every{100};

/// splitmix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() noexcept {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  /// In [0, 1).
  double unit() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// In [0, count).
  std::uint64_t below(std::uint64_t count) noexcept { return next() % count; }

 private:
  std::uint64_t state_;
};

class FaultyRing final : public Ring {
 public:
  FaultyRing(std::unique_ptr<Ring> inner, const Faults& faults)
      : inner_(std::move(inner)), faults_(faults), random_(faults.seed) {
    const std::size_t depth = inner_->depth();
    places_.resize(depth);
    for (std::size_t place = depth; place-- > 0;) free_.push_back(place);
    batch_.reserve(depth);
    held_.reserve(depth);
    arrived_.resize(depth);
  }

  unsigned depth() const noexcept override { return inner_->depth(); }

  void start(std::span<const Operation> operations) noexcept override {
    batch_.clear();
    for (const Operation& operation : operations) begin(operation);
    in_inner_ += batch_.size();
    inner_->start(batch_);
  }

  std::size_t reap(std::span<Completion> completions, bool wait) noexcept override {
    if (completions.empty()) return 0;
    collect(/*wait=*/false);
    for (;;) {
      const std::size_t count = hand_on(completions);
      if (count > 0 || !wait || (held_.empty() && in_inner_ == 0)) return count;
      if (!wait_for_more()) {
        collect(/*wait=*/false);
        return hand_on(completions);
      }
    }
  }

  void wake() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
    inner_->wake();
  }

  void cancel() noexcept override {
    for (Held& held : held_) held.due = {};
    hurried_ = true;
    inner_->cancel();
  }

  int register_file(int slot, int descriptor) noexcept override {
    return inner_->register_file(slot, descriptor);
  }
  int register_memory(int slot, std::span<std::byte> memory) noexcept override {
    return inner_->register_memory(slot, memory);
  }

  RingReport report() const override {
    RingReport report = inner_->report();
    report.notes.push_back(fmt::format("operations fail on purpose: {}", to_string(faults_)));
    return report;
  }

 private:
  struct Place {
    Operation operation = {};      ///< as the caller gave it
    std::int64_t most = 0;         ///< bytes that are reported moved, at most
    std::int64_t number = 0;       ///< of the operation
    Clock::duration late_by = {};  ///< of its completion
  };
  struct Held {
    Completion completion = {};
    Clock::time_point due = {};
  };

  bool chance(double share) noexcept { return random_.unit() < share; }

  void begin(const Operation& operation) noexcept {
    const std::int64_t number = ++count_;
    hurried_ = false;
    // The same numbers are drawn for each, so that one kind of fault does not move the others.
    const bool interrupted = chance(faults_.interrupted);
    const bool shortened = chance(faults_.short_transfers);
    const std::int64_t part = part_of(operation.bytes);
    const bool late = chance(faults_.delayed);
    const std::chrono::duration<double, std::micro> delay(random_.unit() * faults_.delay_us);
    const auto late_by = late ? std::chrono::duration_cast<Clock::duration>(delay) : Clock::duration{};

    const bool reads = operation.direction == Direction::read;
    const bool fails =
        faults_.fail_at > 0 && (number == faults_.fail_at || (faults_.fail_always && number > faults_.fail_at));
    if (fails) return hold({operation.tag, -faults_.error_number}, late_by);
    if (interrupted) {
      told_again_ = !told_again_;
      return hold({operation.tag, told_again_ ? -EINTR : -EAGAIN}, late_by);
    }
    if (reads && faults_.truncate_at > 0 && number >= faults_.truncate_at && !std::exchange(truncated_, true)) {
      return hold({operation.tag, 0}, late_by);
    }
    if (free_.empty()) return hold({operation.tag, -EBUSY}, {});  // more than depth()
    const std::size_t place = free_.back();
    free_.pop_back();
    places_[place] = {operation, shortened ? part : operation.bytes, number, late_by};
    batch_.push_back(operation);
    batch_.back().tag = place;
    // Direct I/O moves whole pieces: what is too much is undone for a read, and written again after a write.
    const std::int64_t whole = (places_[place].most + border - 1) / border * border;
    batch_.back().bytes = std::min(operation.bytes, whole);
  }

  /// 1 to bytes - 1 where there are several.
  std::int64_t part_of(std::int64_t bytes) noexcept {
    const bool at_border = random_.below(2) == 0;
    const std::uint64_t number = random_.next();
    const std::int64_t borders = (bytes - 1) / border;
    if (at_border && borders > 0) {
      return border * static_cast<std::int64_t>(1 + number % static_cast<std::uint64_t>(borders));
    }
    if (bytes < 2) return bytes;
    return static_cast<std::int64_t>(1 + number % static_cast<std::uint64_t>(bytes - 1));
  }

  void hold(const Completion& completion, Clock::duration late_by) noexcept {
    const bool late = late_by > Clock::duration{} && !hurried_;
    held_.push_back({completion, late ? Clock::now() + late_by : Clock::time_point{}});
  }

  /// Takes what the inner ring has. False where it waited for nothing.
  bool collect(bool wait) noexcept {
    if (in_inner_ == 0) return false;
    const std::size_t count = inner_->reap(arrived_, wait);
    in_inner_ -= count;
    for (std::size_t i = 0; i < count; ++i) {
      const auto place = static_cast<std::size_t>(arrived_[i].tag);
      settle(places_[place], arrived_[i].result);
      free_.push_back(place);
    }
    return count > 0;
  }

  void settle(const Place& place, std::int64_t result) noexcept {
    const Operation& operation = place.operation;
    const std::int64_t moved = std::min(result, place.most);
    if (operation.direction == Direction::read && moved >= 0) {
      std::fill(operation.memory + moved, operation.memory + std::max(moved, result), garbage);
    }
    const bool flips = operation.direction == Direction::read && moved > 0 && faults_.flip_at > 0 &&
                       place.number >= faults_.flip_at && !std::exchange(flipped_, true);
    if (flips) {
      const std::uint64_t bit = random_.below(static_cast<std::uint64_t>(moved) * 8);
      operation.memory[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    hold({operation.tag, moved}, place.late_by);
  }

  /// Of what is due; where the order is to be random, only when several are, or nothing else can come.
  std::size_t hand_on(std::span<Completion> completions) noexcept {
    const bool timed = std::any_of(held_.begin(), held_.end(),
                                   [](const Held& held) { return held.due != Clock::time_point{}; });
    const Clock::time_point now = timed ? Clock::now() : Clock::time_point{};
    const auto end_of_due =
        std::partition(held_.begin(), held_.end(), [&](const Held& held) { return held.due <= now; });
    auto due = static_cast<std::size_t>(end_of_due - held_.begin());
    if (faults_.reorder) {
      const std::size_t enough = std::max<std::size_t>(2, depth() / 2);
      if (due < enough && in_inner_ > 0 && !hurried_) return 0;
      for (std::size_t i = due; i > 1; --i) std::swap(held_[i - 1], held_[random_.below(i)]);
      if (in_inner_ > 0) due = (due + 1) / 2;  // the others mix with what comes next
    }
    const std::size_t count = std::min(due, completions.size());
    for (std::size_t i = 0; i < count; ++i) completions[i] = held_[i].completion;
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

  /// False when woken.
  bool wait_for_more() noexcept {
    const bool timed = std::any_of(held_.begin(), held_.end(),
                                   [](const Held& held) { return held.due != Clock::time_point{}; });
    if (!timed && in_inner_ > 0) {
      {
        const std::lock_guard lock(mutex_);
        if (std::exchange(woken_, false)) return false;
      }
      if (collect(/*wait=*/true)) return true;
      const std::lock_guard lock(mutex_);
      woken_ = false;
      return false;
    }
    Clock::time_point until = Clock::time_point::max();
    for (const Held& held : held_) until = std::min(until, held.due);
    if (in_inner_ > 0) until = std::min(until, Clock::now() + look_every);
    {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, until, [this] { return woken_; });
      if (std::exchange(woken_, false)) return false;
    }
    collect(/*wait=*/false);
    return true;
  }

  std::unique_ptr<Ring> inner_;
  Faults faults_;
  Random random_;
  std::int64_t count_ = 0;
  bool told_again_ = false;
  bool truncated_ = false;
  bool flipped_ = false;
  bool hurried_ = false;         ///< since cancel(): nothing is held back
  std::vector<Place> places_{};  ///< of what the inner ring has
  std::vector<std::size_t> free_{};
  std::vector<Operation> batch_{};
  std::vector<Held> held_{};
  std::vector<Completion> arrived_{};
  std::size_t in_inner_ = 0;

  std::mutex mutex_{};
  std::condition_variable changed_{};
  bool woken_ = false;  ///< under the mutex
};

}  // namespace

std::unique_ptr<Ring> make_faulty_ring(std::unique_ptr<Ring> inner, const Faults& faults) {
  return std::make_unique<FaultyRing>(std::move(inner), faults);
}

}  // namespace spillway::aio
