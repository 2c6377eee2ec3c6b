#include "../../aio/checksums.h"

#include "scratch.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::aio {
namespace {

std::vector<std::byte> pattern(std::int64_t bytes, std::uint64_t key) {
  std::vector<std::byte> memory(static_cast<std::size_t>((bytes + 7) / 8 * 8));
  write_pattern(memory.data(), static_cast<std::int64_t>(memory.size()), key, 0);
  return memory;
}

/// The [offset, end) of what is known in a range.
std::vector<std::pair<std::int64_t, std::int64_t>> ranges(const Checksums& checksums, std::int64_t offset,
                                                          std::int64_t bytes) {
  std::vector<std::pair<std::int64_t, std::int64_t>> found;
  for (const auto& extent : checksums.within(offset, bytes)) {
    found.emplace_back(extent.offset, extent.offset + extent.bytes);
  }
  return found;
}

using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// [0, 100), [100, 200), [300, 400).
void note_three(Checksums& checksums) {
  const auto data = pattern(400, 1);
  checksums.note(0, data.data(), 100);
  checksums.note(300, data.data() + 300, 100);
  checksums.note(100, data.data() + 100, 100);
}

TEST(ChecksumsTest, AHashIsXxh3) {
  // As published with the algorithm.
  EXPECT_EQ(Checksums::hash(nullptr, 0), 0x2d06800538d394c2u);
}

TEST(ChecksumsTest, WhatLiesEntirelyInARangeIsFoundInOrder) {
  Checksums checksums;
  note_three(checksums);
  EXPECT_EQ(checksums.size(), 3u);
  EXPECT_EQ(ranges(checksums, 0, 400), (Ranges{{0, 100}, {100, 200}, {300, 400}}));
  EXPECT_EQ(ranges(checksums, 1, 399), (Ranges{{100, 200}, {300, 400}}));
  EXPECT_EQ(ranges(checksums, 0, 399), (Ranges{{0, 100}, {100, 200}}));
  EXPECT_EQ(ranges(checksums, 100, 100), (Ranges{{100, 200}}));
  EXPECT_EQ(ranges(checksums, 100, 99), Ranges{});
  EXPECT_EQ(ranges(checksums, 0, 0), Ranges{});
  EXPECT_EQ(ranges(checksums, 500, 100), Ranges{});
  EXPECT_EQ(ranges(Checksums(), 0, 100), Ranges{});
}

TEST(ChecksumsTest, WhatANewExtentOverlapsIsForgotten) {
  const auto data = pattern(400, 2);
  struct Case {
    std::int64_t offset, bytes;
    Ranges left;
  };
  for (const Case& one : std::vector<Case>{{0, 100, {{0, 100}, {100, 200}, {300, 400}}},
                                           {99, 1, {{99, 100}, {100, 200}, {300, 400}}},
                                           {100, 1, {{0, 100}, {100, 101}, {300, 400}}},
                                           {199, 1, {{0, 100}, {199, 200}, {300, 400}}},
                                           {200, 100, {{0, 100}, {100, 200}, {200, 300}, {300, 400}}},
                                           {200, 101, {{0, 100}, {100, 200}, {200, 301}}},
                                           {199, 101, {{0, 100}, {199, 300}, {300, 400}}},
                                           {50, 300, {{50, 350}}},
                                           {0, 400, {{0, 400}}}}) {
    Checksums checksums;
    note_three(checksums);
    checksums.note(one.offset, data.data(), one.bytes);
    EXPECT_EQ(ranges(checksums, 0, 1000), one.left) << one.offset << ", " << one.bytes;
    EXPECT_EQ(checksums.size(), one.left.size());
    // The hash is that of the new bytes.
    const auto found = checksums.within(one.offset, one.bytes);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found.front().hash, Checksums::hash(data.data(), one.bytes));
  }
}

TEST(ChecksumsTest, ForgettingTakesEverythingThatIsTouched) {
  struct Case {
    std::int64_t offset, bytes;
    Ranges left;
  };
  for (const Case& one : std::vector<Case>{{0, 1, {{100, 200}, {300, 400}}},
                                           {99, 2, {{300, 400}}},
                                           {200, 100, {{0, 100}, {100, 200}, {300, 400}}},
                                           {150, 0, {{0, 100}, {100, 200}, {300, 400}}},
                                           {150, 151, {{0, 100}}},
                                           {0, 1000, {}}}) {
    Checksums checksums;
    note_three(checksums);
    checksums.forget(one.offset, one.bytes);
    EXPECT_EQ(ranges(checksums, 0, 1000), one.left) << one.offset << ", " << one.bytes;
  }
}

TEST(ChecksumsTest, AnExtentWithoutBytesIsNotNoted) {
  Checksums checksums;
  note_three(checksums);
  checksums.note(50, nullptr, 0);
  EXPECT_EQ(ranges(checksums, 0, 1000), (Ranges{{0, 100}, {100, 200}, {300, 400}}));
}

TEST(ChecksumsTest, MisuseIsALogicError) {
  Checksums checksums;
  const std::byte byte{};
  EXPECT_THROW(checksums.note(-1, &byte, 1), std::logic_error);
  EXPECT_THROW(checksums.note(0, &byte, -1), std::logic_error);
  EXPECT_THROW(checksums.forget(-1, 1), std::logic_error);
  EXPECT_THROW(checksums.within(0, -1), std::logic_error);
}

TEST(ChecksumsTest, VerifyNamesTheFirstThatDiffers) {
  Checksums checksums;
  auto data = pattern(1000, 3);
  for (std::int64_t at = 0; at < 1000; at += 100) checksums.note(5000 + at, data.data() + at, 100);
  const auto extents = checksums.within(5000, 1000);
  ASSERT_EQ(extents.size(), 10u);
  EXPECT_FALSE(Checksums::verify(extents, 5000, data.data()));
  EXPECT_FALSE(Checksums::verify({}, 5000, data.data()));
  data[799] ^= std::byte{1};
  data[400] ^= std::byte{128};
  const auto mismatch = Checksums::verify(extents, 5000, data.data());
  ASSERT_TRUE(mismatch);
  EXPECT_EQ(mismatch->extent.offset, 5400);
  EXPECT_EQ(mismatch->extent.bytes, 100);
  EXPECT_NE(mismatch->found, mismatch->extent.hash);
  EXPECT_EQ(mismatch->found, Checksums::hash(data.data() + 400, 100));
}

TEST(ChecksumsTest, OneBitAnywhereIsNoticed) {
  for (const std::int64_t bytes : {1, 7, 16, 17, 128, 129, 240, 241, 1024, 4096, 5000}) {
    auto data = pattern(bytes, 4);
    Checksums checksums;
    checksums.note(0, data.data(), bytes);
    const auto extents = checksums.within(0, bytes);
    for (std::int64_t bit = 0; bit<8 * bytes; bit += bytes> 1000 ? 509 : 1) {
      std::byte& at = data[static_cast<std::size_t>(bit / 8)];
      const std::byte mask{static_cast<unsigned char>(1u << (bit % 8))};
      at ^= mask;
      ASSERT_TRUE(Checksums::verify(extents, 0, data.data())) << bit;
      at ^= mask;
    }
    EXPECT_FALSE(Checksums::verify(extents, 0, data.data()));
  }
}

TEST(ChecksumsTest, ServeSeveralThreads) {
  Checksums checksums;
  constexpr std::int64_t kBytes = 64;
  constexpr int kThreads = 4, kRounds = 2000;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const auto data = pattern(kBytes, static_cast<std::uint64_t>(thread));
      for (int round = 0; round < kRounds; ++round) {
        // Places of its own, whose extents nobody else may disturb, and one that all fight for.
        const std::int64_t own = (round % 10 * kThreads + thread) * kBytes;
        checksums.note(own, data.data(), kBytes);
        checksums.note(100000, data.data(), kBytes);
        const auto found = checksums.within(own, kBytes);
        ASSERT_EQ(found.size(), 1u);
        ASSERT_FALSE(Checksums::verify(found, own, data.data()));
        if (round % 3 == 0) checksums.forget(own, kBytes);
        if (round % 7 == 0) checksums.forget(100000, 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LE(checksums.size(), 10u * kThreads + 1);
}

}  // namespace
}  // namespace spillway::aio
