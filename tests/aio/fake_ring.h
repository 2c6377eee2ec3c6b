#pragma once
// A ring whose outcomes and whose order the test decides, over a file that is memory.
#include "../../aio/ring.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::aio {

/// What has happened in a FakeRing; it outlives the ring, which a Queue owns.
struct FakeDrive {
  /// The result of an operation: bytes to move, or -errno. Called once for each attempt. Default: all of it.
  std::function<std::int64_t(const Operation&)> outcome = [](const Operation& operation) {
    return operation.bytes;
  };
  /// Which of the `count` operations in flight completes next. Default: the oldest.
  std::function<std::size_t(std::size_t count)> next = [](std::size_t) { return std::size_t{0}; };
  /// Nothing completes without waiting while this is set.
  bool hold = false;

  std::vector<std::byte> contents;  ///< of the one file
  std::vector<Operation> started;   ///< every attempt, in order
  std::size_t in_flight = 0;
  std::size_t most_in_flight = 0;
};

class FakeRing final : public Ring {
 public:
  FakeRing(FakeDrive& drive, unsigned depth) : drive_(drive), depth_(depth) {}
  ~FakeRing() override {
    EXPECT_TRUE(operations_.empty()) << "the ring was destroyed with operations in flight";
  }
  FakeRing(const FakeRing&) = delete;
  FakeRing& operator=(const FakeRing&) = delete;

  unsigned depth() const noexcept override { return depth_; }

  void start(std::span<const Operation> operations) noexcept override {
    for (const Operation& operation : operations) {
      drive_.started.push_back(operation);
      operations_.push_back(operation);
    }
    drive_.in_flight = operations_.size();
    drive_.most_in_flight = std::max(drive_.most_in_flight, operations_.size());
    EXPECT_LE(operations_.size(), depth_);
  }

  /// One at a time, so that what a caller does between two completions is seen.
  std::size_t reap(std::span<Completion> completions, bool wait) noexcept override {
    if (operations_.empty() || (drive_.hold && !wait)) return 0;
    const auto chosen = operations_.begin() + static_cast<std::ptrdiff_t>(drive_.next(operations_.size()));
    const Operation operation = *chosen;
    operations_.erase(chosen);
    drive_.in_flight = operations_.size();
    const std::int64_t result = drive_.outcome(operation);
    if (result > 0) move(operation, std::min(result, operation.bytes));
    completions[0] = {operation.tag, result};
    return 1;
  }

 private:
  void move(const Operation& operation, std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    const auto end = static_cast<std::size_t>(operation.offset) + size;
    if (drive_.contents.size() < end) drive_.contents.resize(end);
    std::byte* const place = drive_.contents.data() + operation.offset;
    if (operation.direction == Direction::read) {
      std::memcpy(operation.memory, place, size);
    } else {
      std::memcpy(place, operation.memory, size);
    }
  }

  FakeDrive& drive_;
  unsigned depth_;
  std::vector<Operation> operations_;
};

}  // namespace spillway::aio
