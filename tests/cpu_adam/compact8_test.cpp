// The state format compact8: its scales, codes and error bounds. What an update makes of a group,
// update_test.cpp has.
#include "../../core/state_format.h"
#include "planes_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::cpu_adam {
namespace {
using testing::bits_of;
using testing::CompactGroup;
using testing::Draw;
using testing::encode_group;

constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
constexpr std::uint32_t kScales = 0xff00u;
/// The largest scale that decodes, and the largest of a root whose square is finite.
constexpr std::uint16_t kLargestScale = 0xfeffu, kLargestRootScale = 0xbeffu;

float scale_at(std::uint32_t scale) {
  return decode_scale(static_cast<std::uint16_t>(scale));
}

/// Random numbers that round down and up, and two between.
constexpr std::uint32_t kScaleRandoms[] = {0, 0x3fff, 0x4000, 0x7fff};
constexpr std::uint32_t kCodeRandoms[] = {0, 0x7fff, 0x8000, 0xffff};

TEST(Compact8Scale, IsANeighbourOffByLessThanOne256thOfANormalValue) {
  Draw draw(51);
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (std::uint32_t k = 0; k < 1024; ++k) {
      // Multiples of the scales' spacing, their neighbours, and drawn ones.
      const std::uint32_t border = (k % 256) << 15;
      const std::uint32_t mantissas[] = {border, border + 1, border - 1,
                                         static_cast<std::uint32_t>(draw.bits())};
      const auto x = std::bit_cast<float>((exponent << 23) | (mantissas[k / 256] & 0x7fffffu));
      for (const std::uint32_t random : kScaleRandoms) {
        const std::uint16_t scale = encode_scale(x, random);
        if (x > decode_scale(kLargestScale)) {
          ASSERT_EQ(scale, kLargestScale);
          continue;
        }
        if (scale > 0) {
          ASSERT_LT(scale_at(scale - 1u), x) << x;
        }
        ASSERT_GT(std::bit_cast<float>((std::uint32_t{scale} + 1) << 15), x) << x;
        if (exponent > 0) {
          ASSERT_LT(std::abs(decode_scale(scale) - static_cast<double>(x)), 0x1p-8 * x) << x;
        }
      }
    }
  }
}

TEST(Compact8Scale, ItsMeanOverAllRandomNumbersIsTheValue) {
  Draw draw(57);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const auto x = static_cast<float>(std::exp2(draw.uniform() * 100 - 60));
    double sum = 0.0;
    for (std::uint32_t random = 0; random < 0x8000u; ++random) sum += decode_scale(encode_scale(x, random));
    ASSERT_DOUBLE_EQ(sum / 0x8000, x);
  }
}

TEST(Compact8Scale, IsMonotoneAndKeepsEveryScale) {
  for (std::uint32_t scale = 0; scale < kScales; ++scale) {
    for (const std::uint32_t random : kScaleRandoms) ASSERT_EQ(encode_scale(scale_at(scale), random), scale);
    if (scale > 0) {
      ASSERT_LT(scale_at(scale - 1), scale_at(scale));
    }
  }
  std::uint16_t before = 0;
  for (std::uint32_t bits = 0; bits <= kInfiniteBits; bits += 4099) {
    const std::uint16_t scale = encode_scale(std::bit_cast<float>(bits), 0x1234u);
    ASSERT_GE(scale, before) << std::hex << bits;
    before = scale;
  }
  EXPECT_EQ(encode_scale(0.0f, 0x7fffu), 0);
  EXPECT_EQ(encode_scale(std::numeric_limits<float>::max(), 0), kLargestScale);
}

/// Scales of every 16th exponent, with every mantissa, and of each where something begins or ends.
bool is_tried(std::uint32_t scale) {
  const std::uint32_t exponent = scale >> 8;
  return exponent % 16 == 0 || exponent <= 2 || (exponent >= 0x36 && exponent <= 0x3c) || exponent == 0xbe ||
         exponent >= 0xfd;
}

// What is decoded is a float, so a code comes back as an integer and an error of some 2^-20 of itself, which no
// random number carries over. Below 1.8e-39 (and below 2.2e-37, where the group's smaller v are) floats are
// spaced too coarsely for that: a code may then go to its neighbour. From 2^127 on the sum maximum + |m|
// overflows; no m gets there, as its gradient's square would be infinite first.
TEST(Compact8Moment, EncodingWhatWasDecodedKeepsItDownToSubnormalsWhateverIsDrawn) {
  constexpr std::uint32_t kFirstStable = 0x28u;
  EXPECT_LT(scale_at(kFirstStable), 1.84e-39f);
  for (std::uint32_t s = kFirstStable; scale_at(s) < 0x1p127f; ++s) {
    if (!is_tried(s)) continue;
    const float scale = scale_at(s), maximum = decode_m(127, scale);
    for (const std::uint32_t random : kScaleRandoms) ASSERT_EQ(encode_scale(maximum, random), s);
    for (int code = -127; code <= 127; ++code) {
      const float m = decode_m(static_cast<std::int8_t>(code), scale);
      for (const std::uint32_t random : kCodeRandoms) {
        ASSERT_EQ(encode_m(m, maximum, random), code) << std::hex << s << " " << random;
      }
    }
  }
}

TEST(Compact8SecondMoment, EncodingWhatWasDecodedKeepsItDownToSubnormalsWhateverIsDrawn) {
  constexpr std::uint32_t kFirstStable = 0x4213u;
  EXPECT_LT(scale_at(kFirstStable) * scale_at(kFirstStable), 2.2e-37f);
  for (std::uint32_t s = kFirstStable; s <= kLargestRootScale; ++s) {
    if (!is_tried(s) && s != kFirstStable) continue;
    const float scale = scale_at(s), maximum = std::sqrt(decode_v(255, scale));
    for (const std::uint32_t random : kScaleRandoms) ASSERT_EQ(encode_scale(maximum, random), s);
    for (std::uint32_t code = 0; code <= 255; ++code) {
      const float root = std::sqrt(decode_v(static_cast<std::uint8_t>(code), scale));
      for (const std::uint32_t random : kCodeRandoms) {
        ASSERT_EQ(encode_v(root, codes_of_root(maximum), random), code) << std::hex << s << " " << random;
      }
    }
  }
}

/// A group whose moments have magnitudes over `decades` powers of two below a drawn largest one.
std::vector<UpdateElement> drawn_group(Draw& draw, int decades) {
  std::vector<UpdateElement> group(kCompactGroup);
  const double top = std::exp2(draw.uniform() * 80 - 50);
  for (UpdateElement& e : group) {
    e.m = static_cast<float>(top * std::exp2(-draw.uniform() * decades) * (draw.bits() % 2 == 0 ? 1 : -1));
    const double root = top * std::exp2(-draw.uniform() * decades);
    e.v = static_cast<float>(root * root);
  }
  return group;
}

TEST(Compact8Moment, TheLargestHasTheLargestCodeWhateverItsScaleRoundsTo) {
  Draw draw(52);
  for (int repeat = 0; repeat < 5'000; ++repeat) {
    const auto group = drawn_group(draw, 10);
    const CompactGroup encoded = encode_group(group);
    int largest_m = 0, largest_v = 0;
    for (int i = 1; i < kCompactGroup; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (std::abs(group[at].m) > std::abs(group[static_cast<std::size_t>(largest_m)].m)) largest_m = i;
      if (group[at].v > group[static_cast<std::size_t>(largest_v)].v) largest_v = i;
    }
    ASSERT_EQ(std::abs(encoded.m[largest_m]), 127);
    ASSERT_EQ(encoded.v[largest_v], 255);
  }
}

// A code, by the slope of the compander's inverse: with x = |m| / maximum, dx/dcode = (1 + x)^2 / 254. A step
// of 2^-5 more is room for its curvature and the scale's rounding; that rounding moves what is decoded by 2^-8.
TEST(Compact8Moment, IsWithinItsErrorBoundFinerForSmallerValues) {
  Draw draw(53);
  double most = 0.0;
  for (int repeat = 0; repeat < 5'000; ++repeat) {
    const auto group = drawn_group(draw, 12);
    const CompactGroup encoded = encode_group(group, RoundingKey({.seed = draw.bits()}));
    float maximum = 0.0f;
    for (const UpdateElement& e : group) maximum = std::max(maximum, std::abs(e.m));
    for (int i = 0; i < kCompactGroup; ++i) {
      const double m = group[static_cast<std::size_t>(i)].m, x = std::abs(m) / maximum;
      const double bound = maximum * (1 + x) * (1 + x) / 254 * (1 + 0x1p-5) + 0x1p-8 * std::abs(m);
      ASSERT_LE(std::abs(encoded.m_at(i) - m), bound) << m << " of " << maximum;
      most = std::max(most, std::abs(encoded.m_at(i) - m) / bound);
    }
  }
  EXPECT_GT(most, 0.9) << "the bound is not tight";
}

// A code of the root, and the scale's rounding.
TEST(Compact8SecondMoment, ItsRootIsWithinItsErrorBound) {
  Draw draw(54);
  double most = 0.0;
  for (int repeat = 0; repeat < 5'000; ++repeat) {
    const auto group = drawn_group(draw, 12);
    const CompactGroup encoded = encode_group(group, RoundingKey({.seed = draw.bits()}));
    float maximum = 0.0f;
    for (const UpdateElement& e : group) maximum = std::max(maximum, std::sqrt(e.v));
    for (int i = 0; i < kCompactGroup; ++i) {
      const double root = std::sqrt(static_cast<double>(group[static_cast<std::size_t>(i)].v));
      const double bound = maximum / 255.0 * (1 + 0x1p-6) + 0x1p-8 * root;
      const double error = std::abs(std::sqrt(static_cast<double>(encoded.v_at(i))) - root);
      ASSERT_LE(error, bound) << root << " of " << maximum;
      most = std::max(most, error / bound);
    }
  }
  EXPECT_GT(most, 0.9) << "the bound is not tight";
}

// 12 random bits, so the mean of a code is within 2^-12 of it, and 2^-13 for the two that they lack.
TEST(Compact8, TheMeanOfACodeOverAllRandomNumbersIsTheValue) {
  Draw draw(58);
  for (int repeat = 0; repeat < 100; ++repeat) {
    const auto maximum = static_cast<float>(std::exp2(draw.uniform() * 60 - 40));
    const auto m = static_cast<float>(maximum * (2 * draw.uniform() - 1));
    const auto root = static_cast<float>(maximum * draw.uniform());
    const auto low = static_cast<std::int16_t>(draw.bits());
    double m_sum = 0.0, v_sum = 0.0, low_sum = 0.0;
    for (std::uint32_t random = 0; random < 0x10000u; ++random) {
      m_sum += encode_m(m, maximum, random);
      v_sum += encode_v(root, codes_of_root(maximum), random);
      low_sum += decode_low(encode_low(low, random));
    }
    EXPECT_NEAR(m_sum / 0x10000, 254.0 * m / (maximum + std::abs(m)), 0x1p-11);
    if (root > maximum / 255) {  // below, a code of 0 becomes 1
      EXPECT_NEAR(v_sum / 0x10000, 255.0 * root / maximum, 0x1p-11);
    }
    EXPECT_NEAR(low_sum / 0x10000, low, std::abs(low) <= 32766 ? 0.6 : 2.6) << low;
  }
}

TEST(Compact8SecondMoment, ThatIsNotZeroNeverBecomesZero) {
  for (const float other : {kSmallest, 1e-38f, 1.0f, 3e38f}) {
    for (const float v : {kSmallest, 2 * kSmallest, 1e-44f, std::numeric_limits<float>::min(), 1e-30f}) {
      const UpdateElement elements[] = {{0, 0, other}, {0, 0, std::min(v, other)}, {0, 0, 0}};
      const CompactGroup group = encode_group(elements);
      EXPECT_GT(group.v_at(0), 0.0f) << other;
      EXPECT_GT(group.v_at(1), 0.0f) << v << " beside " << other;
      EXPECT_EQ(group.v_at(2), 0.0f) << other;
    }
  }
  for (std::uint32_t s = 0; s <= kLargestRootScale; ++s) {
    ASSERT_GT(decode_v(1, scale_at(s)), 0.0f);
    ASSERT_EQ(decode_v(0, scale_at(s)), 0.0f);
  }
}

TEST(Compact8Moment, AGroupOfZerosStaysOne) {
  const UpdateElement elements[] = {{0, 0, 0}, {0, -0.0f, 0}};
  const CompactGroup group = encode_group(elements);
  EXPECT_EQ(group.m_scale, 0);
  EXPECT_EQ(group.v_scale, 0);
  for (const int i : {0, 1}) {
    EXPECT_EQ(bits_of(group.m_at(i)), 0u);
    EXPECT_EQ(bits_of(group.v_at(i)), 0u);
  }
}

TEST(Compact8Moment, CodesAreMonotoneAndEndAtTheLargest) {
  for (const std::uint32_t random : kCodeRandoms) {
    std::int8_t before = -127;
    std::uint8_t v_before = 0;
    for (int i = -5000; i <= 5000; ++i) {
      const std::int8_t code = encode_m(static_cast<float>(i) / 5000.0f, 1.0f, random);
      ASSERT_GE(code, before);
      ASSERT_LE(code - before, 1);
      before = code;
      if (i < 0) continue;
      const std::uint8_t v_code = encode_v(static_cast<float>(i) / 5000.0f, codes_of_root(1.0f), random);
      ASSERT_GE(v_code, v_before);
      ASSERT_LE(v_code - v_before, 1);
      v_before = v_code;
    }
    EXPECT_EQ(before, 127);
    EXPECT_EQ(v_before, 255);
  }
}

// Codes are 258 of the 65,536 steps between neighbouring bf16 values apart, and end two steps before the
// middle.
TEST(Compact8Low, IsOffByLessThan258OfThe65536StepsBetweenNeighbouringBFloat16) {
  for (int low = -32768; low <= 32767; ++low) {
    for (const std::uint32_t random : kCodeRandoms) {
      const int error = decode_low(encode_low(static_cast<std::int16_t>(low), random)) - low;
      ASSERT_LT(std::abs(error), 258) << low;
    }
    const int to_nearest = decode_low(encode_low(static_cast<std::int16_t>(low), kToNearest)) - low;
    ASSERT_LE(std::abs(to_nearest), 129) << low;
  }
}

TEST(Compact8Low, EncodingWhatWasDecodedKeepsItWhateverIsDrawn) {
  for (int code = -127; code <= 127; ++code) {
    const std::int16_t low = decode_low(static_cast<std::int8_t>(code));
    for (std::uint32_t random = 0; random < 0x10000u; random += 5) ASSERT_EQ(encode_low(low, random), code);
    ASSERT_EQ(encode_low(low, 0xffffu), code);
  }
  EXPECT_EQ(encode_low(-32768, 0), -127);
  EXPECT_EQ(encode_low(32767, 0xffffu), 127);
}

// So a weight is off by less than 258 / 65536, a 254th, of the spacing of bf16 beside it: 2^-16 of a weight.
TEST(Compact8Low, AWeightIsWithinThatPartOfBFloat16sSpacing) {
  Draw draw(56);
  for (int i = 0; i < 200'000; ++i) {
    const float weight = draw.finite();
    if (!has_finite_weight(weight)) continue;
    const SplitMaster halves = split_master(weight);
    const auto random = static_cast<std::uint32_t>(draw.below(0x10000));
    const float kept = join_master(halves.high, decode_low(encode_low(halves.low, random)));
    const double spacing = std::ldexp(1.0, std::max(std::ilogb(weight), -126) - 7);
    ASSERT_LT(std::abs(static_cast<double>(kept) - weight), spacing * 258 / 65536) << weight;
  }
}

}  // namespace
}  // namespace spillway::cpu_adam
