#include "../../core/learning_rate.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

// Values of DeepSpeed's formulas, worked out by hand with t = 0, 1, 2, ...

TEST(LearningRate, WithoutAScheduleIsTheOptimizers) {
  for (const std::int64_t t : {0, 1, 1000}) EXPECT_EQ(learning_rate({}, 3e-4, t), 3e-4);
}

TEST(LearningRate, WarmupIsLogarithmicUnlessItIsLinear) {
  ScheduleConfig s{.kind = ScheduleKind::warmup, .warmup_steps = 8, .minimum = 0.1, .maximum = 0.9};
  // log2(t + 1) / 3
  for (const auto& [t, rate] :
       {std::pair{0, 0.1}, {1, 0.1 + 0.8 / 3}, {3, 0.1 + 1.6 / 3}, {7, 0.9}, {8, 0.9}, {900, 0.9}}) {
    EXPECT_NEAR(learning_rate(s, 5.0, t), rate, 1e-15) << t;
  }
  s.logarithmic = false;
  for (const auto& [t, rate] : {std::pair{0, 0.1}, {1, 0.2}, {4, 0.5}, {7, 0.8}, {8, 0.9}, {900, 0.9}}) {
    EXPECT_NEAR(learning_rate(s, 5.0, t), rate, 1e-15) << t;
  }
}

TEST(LearningRate, TheFirstStepHasTheMinimum) {
  for (const auto kind : {ScheduleKind::warmup, ScheduleKind::warmup_decay}) {
    for (const bool logarithmic : {true, false}) {
      for (const std::int64_t warmup : {0, 1, 2, 1000}) {
        EXPECT_EQ(learning_rate({.kind = kind,
                                 .logarithmic = logarithmic,
                                 .warmup_steps = warmup,
                                 .total_steps = 2000,
                                 .minimum = 1e-5,
                                 .maximum = 1e-3},
                                1.0, 0),
                  1e-5);
      }
    }
  }
  EXPECT_EQ(learning_rate({.kind = ScheduleKind::warmup_cosine,
                           .warmup_steps = 10,
                           .total_steps = 20,
                           .warmup_minimum_ratio = 0.25},
                          0.5, 0),
            0.125);
}

TEST(LearningRate, DecaysLinearlyToTheMinimumAndStaysThere) {
  const ScheduleConfig s{.kind = ScheduleKind::warmup_decay,
                         .logarithmic = false,
                         .warmup_steps = 4,
                         .total_steps = 14,
                         .minimum = 0.0,
                         .maximum = 1.0};
  for (const auto& [t, rate] :
       {std::pair{0, 0.0}, {2, 0.5}, {4, 1.0}, {9, 0.5}, {13, 0.1}, {14, 0.0}, {15, 0.0}, {1000, 0.0}}) {
    EXPECT_NEAR(learning_rate(s, 7.0, t), rate, 1e-15) << t;
  }
}

TEST(LearningRate, CosineFallsFromTheBaseToItsShareAndStaysThere) {
  const ScheduleConfig s{.kind = ScheduleKind::warmup_cosine,
                         .logarithmic = false,
                         .warmup_steps = 4,
                         .total_steps = 14,
                         .warmup_minimum_ratio = 0.2,
                         .cosine_minimum_ratio = 0.1};
  const double base = 2.0;
  EXPECT_NEAR(learning_rate(s, base, 2), base * 0.6, 1e-15);
  // (t - 3) / 10 of the way: t = 8 is the middle, where the cosine is 0.
  EXPECT_NEAR(learning_rate(s, base, 8), base * 0.55, 1e-15);
  EXPECT_NEAR(learning_rate(s, base, 4), base * (0.1 + 0.9 * (1 + std::cos(M_PI / 10)) / 2), 1e-15);
  EXPECT_NEAR(learning_rate(s, base, 13), base * 0.1, 1e-15);
  for (std::int64_t t = 4; t < 40; ++t) {
    EXPECT_LE(learning_rate(s, base, t + 1), learning_rate(s, base, t)) << t;
    EXPECT_GE(learning_rate(s, base, t), base * 0.1 * (1 - 1e-15)) << t;
  }
}

TEST(LearningRate, IsFiniteWhereTheWarmupIsTheWholeRun) {
  for (const auto kind : {ScheduleKind::warmup, ScheduleKind::warmup_decay, ScheduleKind::warmup_cosine}) {
    for (const std::int64_t steps : {0, 1, 2, 5}) {
      const ScheduleConfig s{.kind = kind, .warmup_steps = steps, .total_steps = steps, .maximum = 1.0};
      for (std::int64_t t = 0; t < 10; ++t) {
        const double rate = learning_rate(s, 1.0, t);
        EXPECT_TRUE(rate >= 0 && rate <= 1) << t << " " << rate;
      }
    }
  }
}

}  // namespace
}  // namespace spillway
