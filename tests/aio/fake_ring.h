#pragma once
// A ring whose outcomes and whose order the test decides, over files that are memory. The test looks on, and
// lets completions happen, from its own thread.
#include "../../aio/ring.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::aio {

/// What a FakeRing does, and what has happened in it; it outlives the ring, which a Queue owns. The variables
/// are set before there is a queue; the functions may be called at any time.
class FakeDrive {
 public:
  /// The result of an operation: bytes to move, or -errno. Called once for each attempt, on the queue's thread.
  /// Default: all of it.
  std::function<std::int64_t(const Operation&)> outcome = [](const Operation& operation) {
    return operation.bytes;
  };
  /// Which of the `count` operations in flight completes next. Default: the oldest.
  std::function<std::size_t(std::size_t count)> next = [](std::size_t) { return std::size_t{0}; };
  std::size_t completions_at_once = 1;  ///< what one reap() returns at most
  bool moves_bytes = true;              ///< else only results are made
  /// What registering a slot gives: 0, or an errno.
  std::function<int(int slot)> register_file = [](int) { return 0; };
  std::function<int(int slot)> register_memory = [](int) { return 0; };

  /// From now on nothing completes that is not allowed.
  void hold() { set_allowed(0); }
  void release() { set_allowed(unlimited); }
  /// So many more may complete.
  void allow(std::size_t count) {
    const Lock lock(mutex_);
    allowed_ += count;
    changed_.notify_all();
  }

  /// Waits until so many attempts have been started in all. False, and a failure of the test, after a minute.
  bool await_started(std::size_t count) {
    return await([&] { return started_.size() >= count; }, "operations to be started");
  }
  /// Waits until the queue has nothing left to do but to wait for what is held. At least one operation has to
  /// be.
  bool await_rest() {
    return await([&] { return reaping_ && !woken_ && allowed_ == 0 && !operations_.empty(); },
                 "the queue's thread to rest");
  }
  /// Every attempt, in order.
  std::vector<Operation> started() const {
    const Lock lock(mutex_);
    return started_;
  }
  std::size_t started_count() const {
    const Lock lock(mutex_);
    return started_.size();
  }
  void forget_started() {
    const Lock lock(mutex_);
    started_.clear();
  }
  std::size_t in_flight() const {
    const Lock lock(mutex_);
    return operations_.size();
  }
  std::size_t most_in_flight() const {
    const Lock lock(mutex_);
    return most_in_flight_;
  }
  bool cancelled() const {
    const Lock lock(mutex_);
    return cancelled_;
  }
  /// The threads that have used the ring, but for wake(): one.
  std::thread::id thread() const {
    const Lock lock(mutex_);
    return thread_;
  }
  /// Of the file with this descriptor, as far as it was written. Only while nothing is in flight.
  const std::vector<std::byte>& contents(int descriptor) { return contents_[descriptor]; }
  /// Descriptors and memory by slot, of those in use.
  std::map<int, int> files() const {
    const Lock lock(mutex_);
    return files_;
  }
  std::map<int, std::span<std::byte>> memory() const {
    const Lock lock(mutex_);
    return memory_;
  }

 private:
  friend class FakeRing;
  using Lock = std::unique_lock<std::mutex>;
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max() / 2;
  static constexpr auto deadline = std::chrono::minutes(1);

  void set_allowed(std::size_t allowed) {
    const Lock lock(mutex_);
    allowed_ = allowed;
    changed_.notify_all();
  }
  template <class Condition>
  bool await(const Condition& condition, const char* what) {
    Lock lock(mutex_);
    const bool met = changed_.wait_for(lock, deadline, condition);
    EXPECT_TRUE(met) << "waited for a minute for " << what;
    return met;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Operation> operations_;  ///< in flight
  std::vector<Operation> started_;
  std::size_t most_in_flight_ = 0;
  std::size_t allowed_ = unlimited;
  bool reaping_ = false, woken_ = false, cancelled_ = false;
  std::thread::id thread_;
  std::map<int, std::vector<std::byte>> contents_;
  std::map<int, int> files_;
  std::map<int, std::span<std::byte>> memory_;
};

class FakeRing final : public Ring {
 public:
  FakeRing(FakeDrive& drive, unsigned depth) : drive_(drive), depth_(depth) {
    const Lock lock(drive_.mutex_);
    drive_.thread_ = std::this_thread::get_id();
  }
  ~FakeRing() override {
    const Lock lock(drive_.mutex_);
    expect_thread();
    EXPECT_TRUE(drive_.operations_.empty()) << "the ring was destroyed with operations in flight";
  }
  FakeRing(const FakeRing&) = delete;
  FakeRing& operator=(const FakeRing&) = delete;

  unsigned depth() const noexcept override { return depth_; }

  void start(std::span<const Operation> operations) noexcept override {
    const Lock lock(drive_.mutex_);
    expect_thread();
    EXPECT_FALSE(drive_.cancelled_) << "started after cancel()";
    for (const Operation& operation : operations) {
      EXPECT_GT(operation.bytes, 0);
      EXPECT_LE(operation.bytes, maximum_operation_bytes);
      expect_slots(operation);
      for (const Operation& other : drive_.operations_) EXPECT_NE(operation.tag, other.tag);
      drive_.started_.push_back(operation);
      drive_.operations_.push_back(operation);
    }
    drive_.most_in_flight_ = std::max(drive_.most_in_flight_, drive_.operations_.size());
    EXPECT_LE(drive_.operations_.size(), depth_);
    drive_.changed_.notify_all();
  }

  std::size_t reap(std::span<Completion> completions, bool wait) noexcept override {
    Lock lock(drive_.mutex_);
    expect_thread();
    if (wait && !drive_.operations_.empty() && !may_complete()) {
      drive_.reaping_ = true;
      drive_.changed_.notify_all();
      if (!drive_.changed_.wait_for(lock, FakeDrive::deadline,
                                    [&] { return may_complete() || drive_.woken_; })) {
        ADD_FAILURE() << "the test has held operations for a minute";
        drive_.allowed_ = FakeDrive::unlimited;
      }
      drive_.reaping_ = false;
    }
    if (wait) drive_.woken_ = false;
    std::size_t count = 0;
    while (count < std::min(completions.size(), drive_.completions_at_once) && may_complete()) {
      completions[count++] = complete_next();
    }
    drive_.changed_.notify_all();
    return count;
  }

  void wake() noexcept override {
    const Lock lock(drive_.mutex_);
    drive_.woken_ = true;
    drive_.changed_.notify_all();
  }

  void cancel() noexcept override {
    const Lock lock(drive_.mutex_);
    expect_thread();
    drive_.cancelled_ = true;
  }

  int register_file(int slot, int descriptor) noexcept override {
    const Lock lock(drive_.mutex_);
    expect_registration(slot);
    for (const Operation& operation : drive_.operations_) EXPECT_NE(operation.file_slot, slot) << "is in use";
    if (descriptor < 0) {
      EXPECT_EQ(drive_.files_.erase(slot), 1u) << "an empty slot was emptied";
      return 0;
    }
    const int error_number = drive_.register_file(slot);
    if (error_number == 0) drive_.files_[slot] = descriptor;
    return error_number;
  }

  int register_memory(int slot, std::span<std::byte> memory) noexcept override {
    const Lock lock(drive_.mutex_);
    expect_registration(slot);
    for (const Operation& operation : drive_.operations_) EXPECT_NE(operation.memory_slot, slot) << "is in use";
    if (memory.empty()) {
      EXPECT_EQ(drive_.memory_.erase(slot), 1u) << "an empty slot was emptied";
      return 0;
    }
    EXPECT_LE(static_cast<std::int64_t>(memory.size()), maximum_operation_bytes);
    const int error_number = drive_.register_memory(slot);
    if (error_number == 0) drive_.memory_[slot] = memory;
    return error_number;
  }

  RingReport report() const override {
    RingReport report;
    report.notes = {"a fake"};
    return report;
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool may_complete() const {
    return !drive_.operations_.empty() && (drive_.allowed_ > 0 || drive_.cancelled_);
  }

  Completion complete_next() {
    if (drive_.allowed_ > 0 && drive_.allowed_ < FakeDrive::unlimited) --drive_.allowed_;
    std::vector<Operation>& operations = drive_.operations_;
    const auto chosen = operations.begin() + static_cast<std::ptrdiff_t>(drive_.next(operations.size()));
    const Operation operation = *chosen;
    operations.erase(chosen);
    if (drive_.cancelled_) return {operation.tag, -ECANCELED};
    const std::int64_t result = drive_.outcome(operation);
    if (result > 0 && drive_.moves_bytes) move(operation, std::min(result, operation.bytes));
    return {operation.tag, result};
  }

  void move(const Operation& operation, std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    const auto end = static_cast<std::size_t>(operation.offset) + size;
    std::vector<std::byte>& contents = drive_.contents_[operation.descriptor];
    if (contents.size() < end) contents.resize(end);
    std::byte* const place = contents.data() + operation.offset;
    if (operation.direction == Direction::read) {
      std::memcpy(operation.memory, place, size);
    } else {
      std::memcpy(place, operation.memory, size);
    }
  }

  void expect_thread() const {
    EXPECT_EQ(drive_.thread_, std::this_thread::get_id()) << "a ring belongs to one thread";
  }
  void expect_registration(int slot) const {
    expect_thread();
    EXPECT_GE(slot, 0);
    EXPECT_LT(slot, maximum_slots);
  }
  void expect_slots(const Operation& operation) const {
    if (operation.file_slot >= 0) {
      const auto found = drive_.files_.find(operation.file_slot);
      EXPECT_TRUE(found != drive_.files_.end() && found->second == operation.descriptor);
    }
    if (operation.memory_slot >= 0) {
      const auto found = drive_.memory_.find(operation.memory_slot);
      ASSERT_NE(found, drive_.memory_.end());
      EXPECT_GE(operation.memory, found->second.data());
      EXPECT_LE(operation.memory + operation.bytes, found->second.data() + found->second.size());
    }
  }

  FakeDrive& drive_;
  unsigned depth_;
};

}  // namespace spillway::aio
