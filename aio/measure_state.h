#pragma once
// Inside of measure.cpp: the volume with the memory and the queue that move it, and the transfers of one slice.
#include "../core/error.h"
#include "measure.h"
#include "pattern.h"

#include <array>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <random>

namespace spillway::aio {

inline std::size_t index_of(Direction direction) {
  return direction == Direction::read ? 0 : 1;
}

inline double seconds_between(std::chrono::steady_clock::time_point begin,
                              std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

struct Extent {
  std::int64_t begin = 0, end = 0;
  std::int64_t bytes() const { return end - begin; }
  bool holds(std::int64_t place) const { return begin <= place && place < end; }
};

/// What the queue's thread notes of each block. The lock is for the queue's thread and the one that measures.
class Tally {
 public:
  void begin(double seconds) {
    const std::lock_guard lock(mutex_);
    latency_ = {};
    operations_ = 0;
    course_.assign(static_cast<std::size_t>(seconds / course_seconds) + 256, 0);
    used_ = 0;
    start_ = std::chrono::steady_clock::now();
  }
  void note(const BlockTiming& block) noexcept {
    const std::lock_guard lock(mutex_);
    latency_.add(block.seconds);
    ++operations_;
    const auto piece =
        static_cast<std::size_t>(seconds_between(start_, std::chrono::steady_clock::now()) / course_seconds);
    if (course_.empty()) return;
    const std::size_t place = std::min(piece, course_.size() - 1);
    course_[place] += block.bytes;
    used_ = std::max(used_, place + 1);
  }
  void end(Sample& sample) {
    const std::lock_guard lock(mutex_);
    sample.latency = latency_;
    sample.operations = operations_;
    sample.course.assign(course_.begin(), course_.begin() + static_cast<std::ptrdiff_t>(used_));
  }

 private:
  std::mutex mutex_;
  LatencyHistogram latency_;
  std::int64_t operations_ = 0;
  std::vector<std::int64_t> course_;  // long enough from the start: nothing is allocated while it is noted
  std::size_t used_ = 0;
  std::chrono::steady_clock::time_point start_{};
};

struct Measurement::State {
  State(Volume v, std::int64_t transfer) : volume(std::move(v)), transfer_bytes(transfer) {}

  Volume volume;
  std::int64_t transfer_bytes;
  std::int64_t page = direct_io_alignment;  ///< what is looked at outside the queue
  Pages page_memory;
  std::mt19937_64 random{1};

  std::int64_t unit = 0;      ///< bytes of a transfer: whole blocks
  std::size_t under_way = 0;  ///< transfers at once
  std::optional<Pattern> pattern;
  Pages slots;                           ///< `under_way` units: what is read goes there
  std::array<std::int64_t, 2> cursor{};  ///< where reads and writes go on
  std::vector<Extent> last_reads;        ///< by slot; empty: nothing
  std::vector<Extent> written;           ///< since the last verify()
  std::vector<std::int64_t> marks;       ///< likewise
  std::int64_t written_bytes = 0;

  Tally tally;
  MeasureSetting setting;
  std::unique_ptr<Queue> queue;  ///< ends before the memory that it moves

  void make_queue(const MeasureSetting& wanted);
  Extent region(Direction direction, Traffic traffic) const;
  void read_page(std::int64_t place);
  void write_page(std::int64_t place);
  std::int64_t page_bytes(std::int64_t place) const { return std::min(page, volume.size() - place); }
  Error wrong(std::int64_t place, const std::byte* found) const;
  void spoil_marks(const Extent& region, std::int64_t span);
  void restore_marks();
  bool sample_holds(const Extent& extent, bool any_contents);
};

/// Transfers of one slice: started in the order of the volume, landed first in, first out.
class Measurement::Flow {
 public:
  Flow(State& state, Traffic traffic)
      : state_(state),
        regions_{state.region(Direction::read, traffic), state.region(Direction::write, traffic)} {
    for (std::size_t slot = state.under_way; slot > 0; --slot) free_.push_back(slot - 1);
    for (std::size_t i = 0; i < 2; ++i) {
      if (!regions_[i].holds(state_.cursor[i])) state_.cursor[i] = regions_[i].begin;
      first_[i] = state_.cursor[i];
    }
  }

  /// Starts the next transfer of this direction, of at most so many bytes. False where one has to land first.
  bool start(Direction direction, std::int64_t most) {
    const std::size_t i = index_of(direction);
    const Extent& region = regions_[i];
    const std::int64_t place = state_.cursor[i];
    const std::int64_t bytes = std::min({state_.unit, region.end - place, most});
    if (free_.empty()) return false;
    // In a small region the walk meets itself: two writes of one place must not be under way at once.
    if (direction == Direction::write && started_[i] - landed_[i] + bytes > region.bytes()) return false;
    const std::size_t slot = free_.back();
    std::byte* const memory = state_.slots.data() + static_cast<std::int64_t>(slot) * state_.unit;
    const Ticket ticket = direction == Direction::read
                              ? state_.queue->read(state_.volume, place, memory, bytes)
                              : state_.queue->write(state_.volume, place, state_.pattern->at(place), bytes);
    free_.pop_back();
    transfers_.push_back({ticket, direction, slot, place, bytes});
    started_[i] += bytes;
    state_.cursor[i] = place + bytes == region.end ? region.begin : place + bytes;
    return true;
  }

  /// Waits for the oldest.
  void land() {
    const Transfer transfer = transfers_.front();
    state_.queue->wait(transfer.ticket);
    transfers_.pop_front();
    free_.push_back(transfer.slot);
    landed_[index_of(transfer.direction)] += transfer.bytes;
    if (transfer.direction == Direction::read) {
      state_.last_reads[transfer.slot] = {transfer.place, transfer.place + transfer.bytes};
    } else {
      state_.written_bytes += transfer.bytes;
    }
  }
  void land_all() {
    while (!transfers_.empty()) land();
  }
  bool idle() const { return transfers_.empty(); }

  std::int64_t started(Direction direction) const { return started_[index_of(direction)]; }
  std::int64_t landed(Direction direction) const { return landed_[index_of(direction)]; }
  const Extent& region(Direction direction) const { return regions_[index_of(direction)]; }
  /// What was landed in this direction: all of the region, or one or two pieces of it.
  std::vector<Extent> covered(Direction direction) const {
    const std::size_t i = index_of(direction);
    const Extent& region = regions_[i];
    if (landed_[i] == 0) return {};
    if (landed_[i] >= region.bytes()) return {region};
    const std::int64_t end = first_[i] + landed_[i];
    if (end <= region.end) return {{first_[i], end}};
    return {{first_[i], region.end}, {region.begin, region.begin + end - region.end}};
  }

 private:
  struct Transfer {
    Ticket ticket;
    Direction direction = Direction::read;
    std::size_t slot = 0;
    std::int64_t place = 0;
    std::int64_t bytes = 0;
  };

  State& state_;
  std::array<Extent, 2> regions_;
  std::array<std::int64_t, 2> first_{}, started_{}, landed_{};
  std::vector<std::size_t> free_;  // the last that was freed is taken first: its memory may still be in a cache
  std::deque<Transfer> transfers_;
};

}  // namespace spillway::aio
