// The scalar formulas of core/update.h: the split master, the coefficients, one element's step of
// every optimizer.
#include "../../core/update.h"
#include "planes_fixture.h"

#include <cmath>
#include <stdexcept>

#include <gtest/gtest.h>

namespace spillway {
namespace {
using cpu_adam::testing::bits_of;
using cpu_adam::testing::Draw;

void expect_equal(const UpdateElement& actual, const UpdateElement& expected) {
  EXPECT_EQ(actual.master, expected.master);
  EXPECT_EQ(actual.m, expected.m);
  EXPECT_EQ(actual.v, expected.v);
}

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

TEST(UpdateCoefficients, AreTheFormulasOfTheStep) {
  const HyperParameters hyper{
      .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
  for (const std::int64_t step : {1, 2, 3, 7, 100, 12345, 10'000'000}) {
    const UpdateCoefficients c = update_coefficients(hyper, step, 0.125);
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
  EXPECT_EQ(update_coefficients(hyper, 10'000'000, 1.0).step_size, 1e-3f);
}

TEST(UpdateCoefficients, L2DecayGoesToTheGradientAndNotToTheWeight) {
  const UpdateCoefficients c = update_coefficients({.optimizer = Optimizer::adam, .weight_decay = 0.1}, 1, 1.0);
  EXPECT_EQ(c.coupled_decay, 0.1f);
  EXPECT_EQ(c.decay, 1.0f);
}

TEST(UpdateCoefficients, ZerosAreFine) {
  const UpdateCoefficients c =
      update_coefficients({.learning_rate = 0, .beta1 = 0, .beta2 = 0, .eps = 0}, 1, 0.0);
  EXPECT_EQ(c.step_size, 0.0f);
  EXPECT_EQ(c.inv_sqrt_bias_correction2, 1.0f);
  EXPECT_EQ(c.one_minus_beta1, 1.0f);
}

TEST(UpdateCoefficients, LionAndSgdHaveNoBiasCorrection) {
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::sgd}) {
    const UpdateCoefficients c = update_coefficients({.optimizer = optimizer, .learning_rate = 0.1}, 1, 1.0);
    EXPECT_EQ(c.step_size, 0.1f);
    EXPECT_EQ(c.inv_sqrt_bias_correction2, 1.0f);
  }
}

TEST(UpdateCoefficients, LionsDecayIsOffTheWeightAndSgdsInTheGradient) {
  const HyperParameters lion{.optimizer = Optimizer::lion, .learning_rate = 0.5, .weight_decay = 0.5};
  EXPECT_EQ(update_coefficients(lion, 1, 1.0).decay, 0.75f);
  EXPECT_EQ(update_coefficients(lion, 1, 1.0).coupled_decay, 0.0f);
  const HyperParameters sgd{.optimizer = Optimizer::sgd, .learning_rate = 0.5, .weight_decay = 0.5};
  EXPECT_EQ(update_coefficients(sgd, 1, 1.0).decay, 1.0f);
  EXPECT_EQ(update_coefficients(sgd, 1, 1.0).coupled_decay, 0.5f);
}

TEST(UpdateCoefficients, RefusesWhatTheFormulasCannotTake) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THROW(update_coefficients({}, 0, 1.0), std::logic_error);
  EXPECT_THROW(update_coefficients({.beta1 = 1.0}, 1, 1.0), std::logic_error);
  EXPECT_THROW(update_coefficients({.beta2 = -0.1}, 1, 1.0), std::logic_error);
  EXPECT_THROW(update_coefficients({.momentum = 1.0}, 1, 1.0), std::logic_error);
  EXPECT_THROW(update_coefficients({.eps = -1e-8}, 1, 1.0), std::logic_error);
  EXPECT_THROW(update_coefficients({.weight_decay = infinity}, 1, 1.0), std::logic_error);
  EXPECT_THROW(update_coefficients({.learning_rate = std::nan("")}, 1, 1.0), std::logic_error);
  EXPECT_THROW(update_coefficients({}, 1, infinity), std::logic_error);
}

TEST(AdamUpdate, WithoutAnyScaleOfTheGradientOnlyTheDecayActs) {
  HyperParameters hyper{.learning_rate = 0.5, .eps = 0.0, .weight_decay = 0.5};
  const UpdateElement at_rest = adam_update({2.0f, 0.0f, 0.0f}, 0.0f, update_coefficients(hyper, 1, 1.0));
  EXPECT_EQ(at_rest.master, 1.5f);
  const UpdateElement tiny = adam_update({2.0f, 0.0f, 0.0f}, 1e-30f, update_coefficients(hyper, 1, 1.0));
  EXPECT_EQ(tiny.v, 0.0f);  // the square underflows
  EXPECT_GT(tiny.m, 0.0f);
  EXPECT_EQ(tiny.master, 1.5f);
}

TEST(AdamUpdate, LearningRateZeroMovesTheMomentsAlone) {
  const UpdateCoefficients c = update_coefficients({.learning_rate = 0.0, .weight_decay = 0.1}, 3, 1.0);
  const UpdateElement e = adam_update({1.25f, 0.5f, 0.25f}, 2.0f, c);
  EXPECT_EQ(e.master, 1.25f);
  EXPECT_NE(e.m, 0.5f);
  EXPECT_NE(e.v, 0.25f);
}

TEST(AdamUpdate, TheFirstStepIsTheLearningRateInTheGradientsDirection) {
  const UpdateCoefficients c = update_coefficients({.learning_rate = 0.01, .eps = 0.0}, 1, 1.0);
  for (const float g : {1e-6f, 1.0f, 1e6f}) {
    EXPECT_NEAR(adam_update({1.0f, 0, 0}, g, c).master, 0.99f, 2e-7f) << g;
    EXPECT_NEAR(adam_update({1.0f, 0, 0}, -g, c).master, 1.01f, 2e-7f) << g;
  }
}

TEST(LionUpdate, StepsByTheLearningRateInTheDirectionsSignWhateverItsSize) {
  // 1.0 * (1 - 0.25 * 0.5) - 0.25 sign(0.5 m + 0.5 g), and m becomes 0.75 m + 0.25 g: all exact.
  const HyperParameters hyper{
      .optimizer = Optimizer::lion, .learning_rate = 0.25, .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.5};
  const UpdateCoefficients c = update_coefficients(hyper, 1, 1.0);
  expect_equal(lion_update({1.0f, -2.0f, 0}, 4.0f, c), {0.625f, -0.5f, 0});
  expect_equal(lion_update({1.0f, -8.0f, 0}, 4.0f, c), {1.125f, -5.0f, 0});
  expect_equal(lion_update({1.0f, -4.0f, 0}, 4.0f, c), {0.875f, -2.0f, 0});  // direction 0
  EXPECT_EQ(lion_update({1.0f, 0, 0}, std::numeric_limits<float>::denorm_min(), c).master,
            0.875f);  // underflows
  EXPECT_EQ(lion_update({1.0f, 0, 0}, 0x1p-140f, c).master, 0.625f);
}

TEST(LionUpdate, OfANanDirectionTakesNoStepAndKeepsTheNanInTheMoment) {
  const UpdateElement e = lion_update({1.0f, 0, 0}, std::numeric_limits<float>::quiet_NaN(),
                                      update_coefficients({.optimizer = Optimizer::lion}, 1, 1.0));
  EXPECT_EQ(e.master, 1.0f);
  EXPECT_TRUE(std::isnan(e.m));
}

TEST(SgdUpdate, FollowsMomentumOrNesterovsLookAhead) {
  // g = 4 + 0.5 * 2 = 5, m = 0.5 * 2 + 5 = 6; 2 - 0.25 * 6, or with Nesterov 2 - 0.25 * (5 + 0.5 * 6).
  HyperParameters hyper{
      .optimizer = Optimizer::sgd, .learning_rate = 0.25, .weight_decay = 0.5, .momentum = 0.5};
  expect_equal(sgd_update({2.0f, 2.0f, 0}, 8.0f, update_coefficients(hyper, 1, 0.5)), {0.5f, 6.0f, 0});
  hyper.nesterov = true;
  expect_equal(sgd_update({2.0f, 2.0f, 0}, 8.0f, update_coefficients(hyper, 1, 0.5)), {0.0f, 6.0f, 0});
}

TEST(SgdUpdate, WithoutMomentumIsPlainDescent) {
  const HyperParameters hyper{.optimizer = Optimizer::sgd, .learning_rate = 0.25, .momentum = 0.0};
  expect_equal(sgd_update({1.0f, 100.0f, 0}, 2.0f, update_coefficients(hyper, 1, 1.0)), {0.5f, 2.0f, 0});
}

TEST(UpdateElement, GoesByTheOptimizer) {
  const UpdateElement e{0.5f, 0.25f, 0.125f};
  for (const Optimizer optimizer : cpu_adam::testing::kOptimizers) {
    const UpdateCoefficients c =
        update_coefficients({.optimizer = optimizer, .weight_decay = 0.1, .momentum = 0.9}, 3, 1.0);
    const UpdateElement expected = optimizer == Optimizer::lion  ? lion_update(e, 1.0f, c)
                                   : optimizer == Optimizer::sgd ? sgd_update(e, 1.0f, c)
                                                                 : adam_update(e, 1.0f, c);
    expect_equal(update_element(e, 1.0f, c), expected);
  }
}

}  // namespace
}  // namespace spillway
