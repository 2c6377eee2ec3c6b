#pragma once
// What the tests of the queue share: volumes, queues over a fake ring, and queues over each engine.
#include "../../aio/queue.h"
#include "fake_ring.h"
#include "scratch.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::aio {

inline std::unique_ptr<Queue> queue_over(FakeDrive& drive, unsigned depth, const QueueOptions& options) {
  return std::make_unique<Queue>([&drive, depth] { return std::make_unique<FakeRing>(drive, depth); }, options);
}

/// One path, or several in one directory with unequal shares.
inline Volume volume_in(const std::string& directory, std::int64_t bytes, int paths = 1,
                        const VolumeOptions& options = {}) {
  std::vector<VolumePath> all;
  for (int path = 0; path < paths; ++path) all.push_back({directory, 1.0 + path});
  return Volume::create(all, bytes, options);
}

/// A volume of one path, a pattern of its size in memory, and queues of 64 KiB blocks over rings that the test
/// decides.
class OverFakeRing : public OnDrive {
 protected:
  static constexpr std::int64_t volume_bytes = 4 * MiB;
  static constexpr std::int64_t block = 64 * KiB;

  void SetUp() override {
    OnDrive::SetUp();
    if (IsSkipped()) return;
    volume.emplace(volume_in(scratch.path(), volume_bytes));
    write_pattern(memory.get(), volume_bytes, 1, 0);
  }

  static std::unique_ptr<Queue> queue_of(FakeDrive& drive, unsigned depth) {
    return queue_over(drive, depth, {.block_bytes = block});
  }
  Ticket write(Queue& queue, std::int64_t offset, std::int64_t bytes) {
    return queue.write(*volume, offset, memory.get() + offset, bytes);
  }
  Ticket read(Queue& queue, std::int64_t offset, std::int64_t bytes) {
    return queue.read(*volume, offset, memory.get() + offset, bytes);
  }
  void expect_written(FakeDrive& drive, std::int64_t offset, std::int64_t bytes) {
    const auto& contents = drive.contents(volume->file(0).descriptor());
    ASSERT_GE(static_cast<std::int64_t>(contents.size()), offset + bytes);
    EXPECT_EQ(first_difference(contents.data() + offset, bytes, 1, offset), -1);
  }
  static void expect_aligned(const FakeDrive& drive) {
    for (const Operation& operation : drive.started()) {
      EXPECT_EQ(operation.offset % 4096, 0);
      EXPECT_EQ(operation.bytes % 4096, 0);
      EXPECT_GT(operation.bytes, 0);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(operation.memory) % 4096, 0u);
    }
  }

  std::optional<Volume> volume;
  AlignedBytes memory = aligned_bytes(volume_bytes);
};

/// Each test runs over io_uring, where that is allowed, and over threads.
class OverEngine : public OnDrive, public ::testing::WithParamInterface<IoEngine> {
 protected:
  void SetUp() override {
    OnDrive::SetUp();
    if (IsSkipped() || GetParam() != IoEngine::io_uring) return;
    try {
      make_io_uring({.depth = 2});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  static QueueOptions options(unsigned depth, std::int64_t block_bytes = 64 * KiB, const Faults& faults = {}) {
    return {.ring = {.depth = depth, .engine = GetParam()}, .block_bytes = block_bytes, .faults = faults};
  }
};

inline std::string engine_name(const ::testing::TestParamInfo<IoEngine>& info) {
  return info.param == IoEngine::io_uring ? "IoUring" : "Posix";
}

inline std::vector<std::byte> random_bytes(std::int64_t bytes, std::uint64_t seed) {
  std::vector<std::byte> all(static_cast<std::size_t>(bytes));
  std::mt19937_64 random(seed);
  std::size_t place = 0;
  for (; place + 8 <= all.size(); place += 8) {
    const std::uint64_t word = random();
    std::copy_n(reinterpret_cast<const std::byte*>(&word), 8, all.data() + place);
  }
  for (; place < all.size(); ++place) all[place] = static_cast<std::byte>(random());
  return all;
}

}  // namespace spillway::aio
