#include "../../core/dtype.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(BFloat16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const BFloat16 x{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(x);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(wide))));
    } else {
      EXPECT_EQ(to_bf16(wide).bits, x.bits);
    }
  }
}

TEST(Float16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const Float16 x{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(x);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_fp16(wide))));
    } else {
      EXPECT_EQ(to_fp16(wide).bits, x.bits);
    }
  }
}

// The nearest neighbour found by search over all values, ties to the even code.
template <class Narrow, class Widen>
std::uint16_t nearest(float x, Widen widen, std::uint16_t infinity, double overflow) {
  const double target = std::fabs(static_cast<double>(x));
  if (target >= overflow) return infinity;
  std::uint16_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  int low = 0, high = infinity - 1;
  while (low < high) {  // last code whose value is not above the target
    const int middle = (low + high + 1) / 2;
    if (static_cast<double>(widen(Narrow{static_cast<std::uint16_t>(middle)})) <= target)
      low = middle;
    else
      high = middle - 1;
  }
  for (int code = low; code <= low + 1 && code < infinity; ++code) {
    const double d = std::fabs(static_cast<double>(widen(Narrow{static_cast<std::uint16_t>(code)})) - target);
    if (d < distance || (d == distance && code % 2 == 0)) {
      distance = d;
      best = static_cast<std::uint16_t>(code);
    }
  }
  return best;
}

TEST(Conversions, RoundToNearestEvenOverTheWholeRange) {
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    auto bits = static_cast<std::uint32_t>(random());
    if (i % 4 == 0) bits = (bits & 0xffff0000u) | 0x8000u;                                // ties of bf16
    if (i % 4 == 1) bits = ((bits % 0x0fffffffu) + 0x33000000u - 0x1000u) & 0x7ffff000u;  // fp16's range, ties
    bits &= 0x7fffffffu;
    const float x = std::bit_cast<float>(bits);
    if (std::isnan(x) || std::isinf(x)) continue;
    const double bf16_overflow = std::ldexp(1.0 + 255.0 / 256.0, 127);
    ASSERT_EQ(to_bf16(x).bits, (nearest<BFloat16>(
                                   x, [](BFloat16 y) { return to_float(y); }, 0x7f80, bf16_overflow)))
        << bits;
    ASSERT_EQ(to_fp16(x).bits, (nearest<Float16>(
                                   x, [](Float16 y) { return to_float(y); }, 0x7c00, 65520.0)))
        << bits;
    ASSERT_EQ(to_bf16(-x).bits, to_bf16(x).bits | 0x8000u);
    ASSERT_EQ(to_fp16(-x).bits, to_fp16(x).bits | 0x8000u);
  }
}

TEST(Conversions, KeepInfinityNanAndSignedZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_bf16(infinity).bits, 0x7f80);
  EXPECT_EQ(to_fp16(-infinity).bits, 0xfc00);
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_fp16(-0.0f).bits, 0x8000);
  const float quiet = std::bit_cast<float>(0x7f800001u);  // its payload lies in the half that bf16 drops
  EXPECT_TRUE(std::isnan(to_float(to_bf16(quiet))));
  EXPECT_TRUE(std::isnan(to_float(to_fp16(quiet))));
}

}  // namespace
}  // namespace spillway
