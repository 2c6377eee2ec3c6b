// The scalar formulas of core/update.h: the split master, the coefficients, one element's step.
#include "../../core/update.h"
#include "planes_fixture.h"

#include <cmath>
#include <stdexcept>

#include <gtest/gtest.h>

namespace spillway {
namespace {
using cpu_adam::testing::bits_of;
using cpu_adam::testing::Draw;

void expect_reassembles(std::uint32_t bits) {
  const auto master = std::bit_cast<float>(bits);
  ASSERT_EQ(bits_of(join_master(split_master(master))), bits) << std::hex << bits;
}

TEST(SplitMaster, EveryBitPatternNearEveryBorderReassembles) {
  for (std::uint32_t top = 0; top < 0x10000u; ++top) {
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      expect_reassembles((top << 16) |
                         low);  // zeros, subnormals, largest values, infinities, NaNs are among them
    }
  }
}

TEST(SplitMaster, MillionsOfDrawnBitPatternsReassemble) {
  Draw draw(1);
  for (int i = 0; i < 4'000'000; ++i) expect_reassembles(static_cast<std::uint32_t>(draw.bits()));
}

TEST(SplitMaster, HighIsTheNearestBFloat16TiesAwayFromZero) {
  EXPECT_EQ(split_master(1.0f + 0x1p-8f).high,
            to_bf16(1.0f + 0x1p-7f));  // halfway: to_bf16 would keep the even 1
  EXPECT_EQ(split_master(-1.0f - 0x1p-8f).high, to_bf16(-1.0f - 0x1p-7f));
  EXPECT_EQ(split_master(1.0f + 0x1p-8f).low, -0x8000);
  Draw draw(2);
  for (int i = 0; i < 1'000'000; ++i) {
    const float master = draw.finite();
    const SplitMaster halves = split_master(master);
    if ((bits_of(master) & 0xffffu) != 0x8000u) {
      ASSERT_EQ(halves.high, to_bf16(master)) << master;
    }
    ASSERT_EQ(has_finite_weight(master), is_finite(to_float(halves.high))) << master;
  }
}

TEST(SplitMaster, AMasterThatRoundsToInfinityReassemblesAndIsReported) {
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(to_float(split_master(largest).high), std::numeric_limits<float>::infinity());
  EXPECT_EQ(join_master(split_master(largest)), largest);
  EXPECT_FALSE(has_finite_weight(largest));
  EXPECT_TRUE(has_finite_weight(std::bit_cast<float>(kInfiniteHighBits - 1)));
  EXPECT_FALSE(has_finite_weight(std::numeric_limits<float>::quiet_NaN()));
}

TEST(AdamCoefficients, AreTheFormulasOfTheStep) {
  const AdamHyper hyper{.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
  for (const std::int64_t step : {1, 2, 3, 7, 100, 12345, 10'000'000}) {
    const AdamCoefficients c = adam_coefficients(hyper, step, 0.125);
    const auto t = static_cast<long double>(step);
    const long double correction1 = 1.0L - std::pow(static_cast<long double>(hyper.beta1), t);
    const long double correction2 = 1.0L - std::pow(static_cast<long double>(hyper.beta2), t);
    EXPECT_FLOAT_EQ(c.step_size, static_cast<float>(hyper.learning_rate / correction1)) << step;
    EXPECT_FLOAT_EQ(c.inv_sqrt_bias_correction2, static_cast<float>(1.0L / std::sqrt(correction2))) << step;
    EXPECT_EQ(c.gradient_factor, 0.125f);
    EXPECT_EQ(c.one_minus_beta2, static_cast<float>(1.0 - 0.999));
    EXPECT_EQ(c.decay, static_cast<float>(1.0 - 1e-3 * 0.1));
    EXPECT_EQ(c.coupled_decay, 0.0f);
  }
  EXPECT_EQ(adam_coefficients(hyper, 10'000'000, 1.0).step_size, 1e-3f);
}

TEST(AdamCoefficients, L2DecayGoesToTheGradientAndNotToTheWeight) {
  const AdamCoefficients c = adam_coefficients({.weight_decay = 0.1, .decoupled = false}, 1, 1.0);
  EXPECT_EQ(c.coupled_decay, 0.1f);
  EXPECT_EQ(c.decay, 1.0f);
}

TEST(AdamCoefficients, ZerosAreFine) {
  const AdamCoefficients c = adam_coefficients({.learning_rate = 0, .beta1 = 0, .beta2 = 0, .eps = 0}, 1, 0.0);
  EXPECT_EQ(c.step_size, 0.0f);
  EXPECT_EQ(c.inv_sqrt_bias_correction2, 1.0f);
  EXPECT_EQ(c.one_minus_beta1, 1.0f);
}

TEST(AdamCoefficients, RefusesWhatTheFormulasCannotTake) {
  EXPECT_THROW(adam_coefficients({}, 0, 1.0), std::logic_error);
  EXPECT_THROW(adam_coefficients({.beta1 = 1.0}, 1, 1.0), std::logic_error);
  EXPECT_THROW(adam_coefficients({.beta2 = -0.1}, 1, 1.0), std::logic_error);
  EXPECT_THROW(adam_coefficients({.eps = -1e-8}, 1, 1.0), std::logic_error);
  EXPECT_THROW(adam_coefficients({.learning_rate = std::nan("")}, 1, 1.0), std::logic_error);
  EXPECT_THROW(adam_coefficients({}, 1, std::numeric_limits<double>::infinity()), std::logic_error);
}

TEST(AdamUpdate, WithoutAnyScaleOfTheGradientOnlyTheDecayActs) {
  AdamHyper hyper{.learning_rate = 0.5, .eps = 0.0, .weight_decay = 0.5};
  const AdamElement at_rest = adam_update({2.0f, 0.0f, 0.0f}, 0.0f, adam_coefficients(hyper, 1, 1.0));
  EXPECT_EQ(at_rest.master, 1.5f);
  const AdamElement tiny = adam_update({2.0f, 0.0f, 0.0f}, 1e-30f, adam_coefficients(hyper, 1, 1.0));
  EXPECT_EQ(tiny.v, 0.0f);  // the square underflows
  EXPECT_GT(tiny.m, 0.0f);
  EXPECT_EQ(tiny.master, 1.5f);
}

TEST(AdamUpdate, LearningRateZeroMovesTheMomentsAlone) {
  const AdamCoefficients c = adam_coefficients({.learning_rate = 0.0, .weight_decay = 0.1}, 3, 1.0);
  const AdamElement e = adam_update({1.25f, 0.5f, 0.25f}, 2.0f, c);
  EXPECT_EQ(e.master, 1.25f);
  EXPECT_NE(e.m, 0.5f);
  EXPECT_NE(e.v, 0.25f);
}

TEST(AdamUpdate, TheFirstStepIsTheLearningRateInTheGradientsDirection) {
  const AdamCoefficients c = adam_coefficients({.learning_rate = 0.01, .eps = 0.0}, 1, 1.0);
  for (const float g : {1e-6f, 1.0f, 1e6f}) {
    EXPECT_NEAR(adam_update({1.0f, 0, 0}, g, c).master, 0.99f, 2e-7f) << g;
    EXPECT_NEAR(adam_update({1.0f, 0, 0}, -g, c).master, 1.01f, 2e-7f) << g;
  }
}

}  // namespace
}  // namespace spillway
