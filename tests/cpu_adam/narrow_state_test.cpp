// Stochastic rounding, and what becomes of moments and weights in the narrow state formats over many steps.
#include "../../core/state_format.h"
#include "../../cpu_adam/update.h"
#include "planes_fixture.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::cpu_adam {
namespace {
using testing::bits_of;
using testing::Draw;
using testing::Form;
using testing::Gradients;
using testing::OwnedPlanes;

TEST(StochasticRounding, KeepsEveryBFloat16ThatIsFiniteOrInfiniteWhateverIsDrawn) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const BFloat16 x{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(x))) continue;
    for (const std::uint32_t random : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
      ASSERT_EQ(to_bf16_stochastic(to_float(x), random), x) << std::hex << bits << " " << random;
    }
  }
}

TEST(StochasticRounding, GivesOneOfTheNeighboursAndTheirMeanIsExactlyTheValue) {
  // With f the lower 16 bits of x, its distance from the neighbour towards zero is f / 2^16 of their spacing:
  // of the 2^16 draws as many as f have to give the other one.
  Draw draw(41);
  for (int i = 0; i < 48; ++i) {
    const float x = draw.finite();
    const std::uint32_t towards_zero = bits_of(x) >> 16, fraction = bits_of(x) & 0xffffu;
    std::uint32_t away = 0;
    for (std::uint32_t random = 0; random < 0x10000u; ++random) {
      const std::uint32_t rounded = to_bf16_stochastic(x, random).bits;
      ASSERT_LE(rounded - towards_zero, 1u) << x << " " << random;  // a bit pattern further is the next value
      away += rounded - towards_zero;
    }
    ASSERT_EQ(away, fraction) << x;
  }
}

TEST(StochasticRounding, IsOffByLessThanOneSpacing) {
  Draw draw(42);
  for (int i = 0; i < 200'000; ++i) {
    const float x = draw.finite();
    if (magnitude_bits(x) >= kInfiniteBf16Bits) continue;
    const double spacing = std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7);
    const double rounded = to_float(to_bf16_stochastic(x, draw.below(0x10000u)));
    ASSERT_LT(std::abs(rounded - x), spacing) << x;
  }
}

TEST(StochasticRounding, GivesInfinityFromTheStatedBitsOnAndNotBefore) {
  const auto last = std::bit_cast<float>(kInfiniteBf16Bits - 1),
             first = std::bit_cast<float>(kInfiniteBf16Bits);
  EXPECT_TRUE(is_finite(to_float(to_bf16_stochastic(last, 0xffffu))));
  EXPECT_TRUE(is_finite(to_float(to_bf16_stochastic(first, 0xfffeu))));
  EXPECT_FALSE(is_finite(to_float(to_bf16_stochastic(first, 0xffffu))));
}

// At beta2 = 0.999 and a gradient of 1, v approaches 1 by 0.001 (1 - v) a step. bf16's spacing below 1/4 is
// 2^-10: rounded to nearest, v stops where a step is less than half of that. Stochastically rounded its mean is
// exact.
TEST(Bf16State, TheSecondMomentFollowsWhereRoundingToNearestStalls) {
  constexpr int kSteps = 2000, kElements = 512;
  const double exact = 1.0 - std::pow(0.999, kSteps);  // 0.865
  BFloat16 nearest;
  for (int step = 1; step <= kSteps; ++step) nearest = to_bf16(std::fma(0.999f, to_float(nearest), 0.001f));
  EXPECT_LT(to_float(nearest), 0.3f);

  Gradients gradients(kElements);
  for (std::int64_t i = 0; i < kElements; ++i) gradients.set(i, 1.0f);
  for (const Isa isa : supported_isas()) {
    OwnedPlanes planes(Form::bf16, Optimizer::adamw, kElements);
    for (int step = 1; step <= kSteps; ++step) {
      ASSERT_FALSE(update(isa, planes.view(), gradients.of(DType::bf16), kElements,
                          update_coefficients({.learning_rate = 0.0}, step, 1.0),
                          {.seed = 7, .step = static_cast<std::uint32_t>(step), .parameter = 1, .element = 0}));
    }
    double sum = 0.0, squares = 0.0, m_sum = 0.0;
    for (std::int64_t i = 0; i < kElements; ++i) {
      const double v = to_float(planes.v16[i]);
      sum += v;
      squares += (v - exact) * (v - exact);
      m_sum += to_float(planes.m16[i]);
    }
    const double standard_error = std::sqrt(squares) / kElements;
    EXPECT_LT(standard_error, 0.003);
    EXPECT_NEAR(sum / kElements, exact, 5 * standard_error) << name_of(isa);
    EXPECT_NEAR(m_sum / kElements, 1.0, 0.001) << name_of(isa);
  }
}

class NarrowState : public ::testing::TestWithParam<Form> {
 protected:
  /// Runs `steps` steps on both, with settings that follow from the step and gradients that follow from both.
  template <class Settings, class Value>
  void run(OwnedPlanes& narrow, OwnedPlanes& fp32, int steps, const Settings& settings, const Value& value) {
    Gradients gradients(narrow.n);
    for (int step = 1; step <= steps; ++step, ++step_) {
      for (std::int64_t i = 0; i < narrow.n; ++i) gradients.set(i, value(i));
      const UpdateCoefficients c = settings(step_);
      const RandomPlace place{.seed = 9, .step = static_cast<std::uint32_t>(step_)};
      for (OwnedPlanes* planes : {&narrow, &fp32}) {
        ASSERT_FALSE(
            update(supported_isas().back(), planes->view(), gradients.of(DType::bf16), narrow.n, c, place));
      }
    }
  }
  int step_ = 1;
};
INSTANTIATE_TEST_SUITE_P(Formats, NarrowState, ::testing::Values(Form::bf16, Form::compact8),
                         [](const auto& form) { return std::string(name_of(form.param)); });

double mean_of(const OwnedPlanes& planes, float UpdateElement::*part) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < planes.n; ++i) sum += planes.at(i).*part;
  return sum / static_cast<double>(planes.n);
}

// Each step's roundings are as often up as down, so the master follows the one of the fp32 format: 200 steps
// with gradients of one sign go 200 times the learning rate far, within a percent.
TEST_P(NarrowState, TheWeightGoesAsFarAsWithMomentsInFp32) {
  for (const Optimizer optimizer : testing::kOptimizers) {
    if (GetParam() == Form::compact8 && !has_second_moment(optimizer)) continue;
    Draw draw(43);
    OwnedPlanes fp32(Form::fp32, optimizer, 256), narrow(GetParam(), optimizer, 256);
    run(
        narrow, fp32, 200,
        [&](int step) {
          return update_coefficients({.optimizer = optimizer, .learning_rate = 1e-3, .momentum = 0.9}, step,
                                     1.0);
        },
        [&](std::int64_t) { return static_cast<float>(0.5 + draw.uniform()); });
    const double expected = mean_of(fp32, &UpdateElement::master);
    EXPECT_LT(expected, -0.15);
    EXPECT_NEAR(mean_of(narrow, &UpdateElement::master), expected, 0.01 * std::abs(expected))
        << name_of(optimizer);
  }
}

// At beta2 = 0.999 v takes thousands of steps to follow, up and down again: with scales that are rounded up it
// would never fall.
TEST_P(NarrowState, TheSecondMomentRisesAndFallsAsInFp32) {
  const auto settings = [](int step) { return update_coefficients({.learning_rate = 0.0}, step, 1.0); };
  Draw draw(44);
  OwnedPlanes fp32(Form::fp32, Optimizer::adamw, 1024), narrow(GetParam(), Optimizer::adamw, 1024);
  for (const double scale : {1.0, 0.1, 0.0}) {
    run(narrow, fp32, 2500, settings, [&](std::int64_t) {
      return static_cast<float>(scale * (draw.uniform() + draw.uniform() + draw.uniform() - 1.5));
    });
    const double expected = mean_of(fp32, &UpdateElement::v);
    EXPECT_NEAR(mean_of(narrow, &UpdateElement::v), expected, 0.03 * expected) << scale;
  }
}

// A step of 1e-6 is a thirtieth of a code of compact8 at weight 1, and a thousand of them are 1e-3.
TEST_P(NarrowState, SmallStepsOfAWeightAddUp) {
  OwnedPlanes fp32(Form::fp32, Optimizer::adamw, 1024), narrow(GetParam(), Optimizer::adamw, 1024);
  for (std::int64_t i = 0; i < 1024; ++i) {
    fp32.set(i, {1.0f, 0.0f, 0.0f});
    narrow.set(i, {1.0f, 0.0f, 0.0f});
  }
  run(
      narrow, fp32, 1000, [](int step) { return update_coefficients({.learning_rate = 1e-6}, step, 1.0); },
      [](std::int64_t) { return 1.0f; });
  const double moved = mean_of(fp32, &UpdateElement::master) - 1.0;
  EXPECT_NEAR(moved, -1e-3, 2e-5);
  EXPECT_NEAR(mean_of(narrow, &UpdateElement::master) - 1.0, moved, 0.03 * std::abs(moved));
}

}  // namespace
}  // namespace spillway::cpu_adam
