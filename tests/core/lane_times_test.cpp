// Who kept the compute lane waiting, and for how long: made-up spans and waits, and the sums that follow.
#include "../../core/lane_times.h"

#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

/// The times in units of the test's clock.
struct Taken {
  explicit Taken(const LaneTimes& times) : times_(times) {}
  static int whole(double seconds) { return static_cast<int>(seconds * 1e9 + 0.5); }
  int busy(Lane lane) const { return whole(times_.busy[static_cast<std::size_t>(lane)]); }
  int exposed(Lane lane) const { return whole(times_.exposed[static_cast<std::size_t>(lane)]); }
  int other() const { return whole(times_.other); }
  int seconds() const { return whole(times_.seconds); }
  int forward(Lane lane) const { return whole(times_.forward[static_cast<std::size_t>(lane)]); }
  int exposed_in_all() const {
    int sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += exposed(static_cast<Lane>(lane));
    return sum;
  }

 private:
  LaneTimes times_;
};

class Lanes : public testing::Test {
 protected:
  Taken take(std::int64_t now) { return Taken(clock_.take(now)); }
  void span(Lane lane, std::int64_t begin, std::int64_t end) { clock_.add_span(lane, begin, end); }
  void wait(Waiter waiter, Lane lane, std::int64_t begin, std::int64_t end) {
    clock_.add_wait(waiter, lane, begin, end);
  }
  LaneClock clock_;
};

TEST_F(Lanes, ALaneIsBusyWhileAnySpanOfItRuns) {
  span(Lane::read, 100, 200);
  span(Lane::read, 300, 400);
  span(Lane::read, 350, 420);  // overlaps
  span(Lane::read, 500, 600);
  span(Lane::read, 150, 650);  // covers two gaps
  span(Lane::read, 10, 20);    // came late
  span(Lane::adam, 0, 7);
  const Taken taken = take(1000);
  EXPECT_EQ(taken.busy(Lane::read), 560);
  EXPECT_EQ(taken.busy(Lane::adam), 7);
  EXPECT_EQ(taken.busy(Lane::write), 0);
  EXPECT_EQ(taken.seconds(), 1000);
}

TEST_F(Lanes, WhatCrossesTheTakingIsDividedByIt) {
  clock_.begin_span(Lane::compute, 100);
  clock_.begin_span(Lane::compute, 150);
  clock_.begin_wait(Waiter::compute, Lane::read, 0);
  Taken taken = take(200);
  EXPECT_EQ(taken.busy(Lane::compute), 100);
  EXPECT_EQ(taken.exposed(Lane::read), 100);
  clock_.end_span(Lane::compute, 100, 230);
  clock_.end_wait(Waiter::compute, Lane::read, 0, 250);
  clock_.end_span(Lane::compute, 150, 220);
  taken = take(300);
  EXPECT_EQ(taken.busy(Lane::compute), 30);
  EXPECT_EQ(taken.exposed(Lane::read), 20);
  EXPECT_EQ(taken.other(), 50);
  EXPECT_EQ(taken.seconds(), 100);
  // What nobody has told of before it was over is lost where it lies before the last call.
  span(Lane::adam, 250, 310);
  EXPECT_EQ(take(400).busy(Lane::adam), 10);
  EXPECT_EQ(take(500).busy(Lane::adam), 0);
}

TEST_F(Lanes, OnlyAWaitWhileComputeStandsStillIsExposed) {
  span(Lane::compute, 100, 200);
  span(Lane::compute, 300, 400);
  wait(Waiter::compute, Lane::copy_up, 150, 350);  // 200 to 300
  wait(Waiter::compute, Lane::read, 0, 100);
  const Taken taken = take(500);
  EXPECT_EQ(taken.exposed(Lane::copy_up), 100);
  EXPECT_EQ(taken.exposed(Lane::read), 100);
  EXPECT_EQ(taken.other(), 100);  // 400 to 500
  EXPECT_EQ(taken.exposed_in_all() + taken.other() + taken.busy(Lane::compute), taken.seconds());
}

TEST_F(Lanes, EachMomentIsChargedOnceToWhatIsNearestToTheDevice) {
  wait(Waiter::compute, Lane::adam, 0, 100);
  wait(Waiter::compute, Lane::copy_up, 20, 40);
  wait(Waiter::compute, Lane::read, 30, 60);
  wait(Waiter::compute, Lane::read, 50, 70);
  const Taken taken = take(100);
  EXPECT_EQ(taken.exposed(Lane::copy_up), 20);
  EXPECT_EQ(taken.exposed(Lane::read), 30);
  EXPECT_EQ(taken.exposed(Lane::adam), 50);
  EXPECT_EQ(taken.other(), 0);
}

TEST_F(Lanes, WhoWaitsForAnUpdateWaitsForWhatTheUpdateWaitsFor) {
  span(Lane::compute, 0, 100);
  wait(Waiter::compute, Lane::adam, 100, 200);
  wait(Waiter::update, Lane::read, 50, 130);    // 30 of it exposed
  wait(Waiter::update, Lane::write, 120, 150);  // 20 beside the read
  wait(Waiter::update, Lane::copy_down, 180, 260);
  const Taken taken = take(300);
  EXPECT_EQ(taken.exposed(Lane::read), 30);
  EXPECT_EQ(taken.exposed(Lane::write), 20);
  EXPECT_EQ(taken.exposed(Lane::copy_down), 20);
  EXPECT_EQ(taken.exposed(Lane::adam), 30);
  EXPECT_EQ(taken.other(), 100);  // compute does not wait for the update there
}

TEST_F(Lanes, ForwardIsWhatComesBeforeTheFirstGradient) {
  span(Lane::compute, 10, 30);
  span(Lane::compute, 40, 80);
  span(Lane::read, 20, 55);
  span(Lane::write, 60, 70);
  clock_.mark_backward(50);
  clock_.mark_backward(70);  // a later unit
  Taken taken = take(100);
  EXPECT_EQ(taken.forward(Lane::compute), 30);
  EXPECT_EQ(taken.busy(Lane::compute), 60);
  EXPECT_EQ(taken.forward(Lane::read), 30);
  EXPECT_EQ(taken.forward(Lane::write), 0);
  span(Lane::compute, 110, 120);
  EXPECT_EQ(take(200).forward(Lane::compute), 10);  // no gradient: an evaluation
  span(Lane::compute, 210, 220);
  clock_.mark_backward(230);
  span(Lane::compute, 240, 260);
  EXPECT_EQ(take(300).forward(Lane::compute), 10);
}

/// The same by looking at each unit of time.
struct Slow {
  std::vector<std::uint8_t> compute = std::vector<std::uint8_t>(20'000);
  std::vector<std::uint8_t> waits[kWaiters][kLanes];
  Slow() {
    for (auto& of_waiter : waits)
      for (auto& track : of_waiter) track.resize(compute.size());
  }
};

TEST_F(Lanes, LongRunsAndWildOrdersAddUp) {
  std::mt19937 random(7);
  Slow slow;
  const auto end = static_cast<std::int64_t>(slow.compute.size());
  for (std::int64_t at = 0; at + 60 < end; at += 1 + static_cast<std::int64_t>(random() % 3)) {
    const std::int64_t until = at + 1 + static_cast<std::int64_t>(random() % 3);
    const auto mark = [&](std::vector<std::uint8_t>& track) {
      for (std::int64_t i = at; i < until; ++i) track[static_cast<std::size_t>(i)] = 1;
    };
    const auto lane = static_cast<Lane>(random() % kLanes);
    const auto waiter = static_cast<Waiter>(random() % kWaiters);
    if (random() % 3 == 0) {
      span(Lane::compute, at, until);
      mark(slow.compute);
    } else {
      wait(waiter, lane, at, until);
      mark(slow.waits[static_cast<int>(waiter)][static_cast<int>(lane)]);
    }
  }
  int expected[kLanes] = {}, other = 0, busy = 0;
  const Lane order[] = {Lane::communicate, Lane::copy_up, Lane::copy_down, Lane::read, Lane::write, Lane::adam};
  for (std::size_t i = 0; i < slow.compute.size(); ++i) {
    if (slow.compute[i] != 0) {
      ++busy;
      continue;
    }
    const auto first = [&](Waiter waiter) {
      for (const Lane lane : order) {
        if (slow.waits[static_cast<int>(waiter)][static_cast<int>(lane)][i] != 0) return static_cast<int>(lane);
      }
      return -1;
    };
    int lane = first(Waiter::compute);
    if (lane == static_cast<int>(Lane::adam) && first(Waiter::update) >= 0) lane = first(Waiter::update);
    ++(lane < 0 ? other : expected[lane]);
  }
  const Taken taken = take(end);
  EXPECT_EQ(taken.busy(Lane::compute), busy);
  for (int lane = 0; lane < kLanes; ++lane)
    EXPECT_EQ(taken.exposed(static_cast<Lane>(lane)), expected[lane]) << lane;
  EXPECT_EQ(taken.other(), other);
}

TEST_F(Lanes, WhatIsNeverTakenStillAddsUp) {
  constexpr int kMany = 100'000;  // far more than are kept apart
  clock_.mark_backward(3 * 5'000);
  clock_.begin_wait(Waiter::compute, Lane::adam, 0);
  clock_.begin_wait(Waiter::update, Lane::write, 0);
  for (int i = 0; i < kMany; ++i) span(Lane::compute, 3 * i, 3 * i + 1);
  const Taken taken = take(3 * kMany);
  EXPECT_EQ(taken.busy(Lane::compute), kMany);
  EXPECT_EQ(taken.forward(Lane::compute), 5'000);
  EXPECT_EQ(taken.exposed(Lane::write), 2 * kMany);
  EXPECT_EQ(taken.exposed(Lane::adam), 0);
  EXPECT_EQ(taken.other(), 0);
  EXPECT_EQ(taken.seconds(), 3 * kMany);
}

}  // namespace
}  // namespace spillway
