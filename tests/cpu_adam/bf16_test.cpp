// The state format bf16: stochastic rounding, and why moments need it.
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

// Each step's roundings are as often up as down, so the master follows the one of the fp32 format: 200 steps
// with gradients of one sign go 200 times the learning rate far, within a percent.
TEST(Bf16State, TheWeightGoesAsFarAsWithMomentsInFp32) {
  constexpr std::int64_t kElements = 256;
  for (const Optimizer optimizer : testing::kOptimizers) {
    Draw draw(43);
    OwnedPlanes fp32(Form::fp32, optimizer, kElements), bf16(Form::bf16, optimizer, kElements);
    Gradients gradients(kElements);
    for (int step = 1; step <= 200; ++step) {
      for (std::int64_t i = 0; i < kElements; ++i) gradients.set(i, static_cast<float>(0.5 + draw.uniform()));
      const UpdateCoefficients c =
          update_coefficients({.optimizer = optimizer, .learning_rate = 1e-3, .momentum = 0.9}, step, 1.0);
      const RandomPlace place{.seed = 9, .step = static_cast<std::uint32_t>(step)};
      ASSERT_FALSE(
          update(supported_isas().back(), fp32.view(), gradients.of(DType::bf16), kElements, c, place));
      ASSERT_FALSE(
          update(supported_isas().back(), bf16.view(), gradients.of(DType::bf16), kElements, c, place));
    }
    double fp32_mean = 0.0, bf16_mean = 0.0;
    for (std::int64_t i = 0; i < kElements; ++i) {
      fp32_mean += fp32.at(i).master / kElements;
      bf16_mean += bf16.at(i).master / kElements;
    }
    EXPECT_LT(fp32_mean, -0.15);
    EXPECT_NEAR(bf16_mean, fp32_mean, 0.01 * std::abs(fp32_mean)) << name_of(optimizer);
  }
}

}  // namespace
}  // namespace spillway::cpu_adam
