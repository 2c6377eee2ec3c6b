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

TEST(Compact8Scale, IsTheNextOneUpByLessThanOne256thOfANormalValue) {
  Draw draw(51);
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (std::uint32_t k = 0; k < 1024; ++k) {
      // Multiples of the scales' spacing, their neighbours, and drawn ones.
      const std::uint32_t border = (k % 256) << 15;
      const std::uint32_t mantissas[] = {border, border + 1, border - 1,
                                         static_cast<std::uint32_t>(draw.bits())};
      const auto x = std::bit_cast<float>((exponent << 23) | (mantissas[k / 256] & 0x7fffffu));
      const std::uint16_t scale = encode_scale(x);
      if (x > decode_scale(kLargestScale)) {
        ASSERT_EQ(scale, kLargestScale);
        continue;
      }
      ASSERT_GE(decode_scale(scale), x);
      if (scale > 0) {
        ASSERT_LT(scale_at(scale - 1u), x) << x;
      }
      if (exponent > 0) {
        ASSERT_LT(decode_scale(scale) - static_cast<double>(x), 0x1p-8 * x) << x;
      }
    }
  }
}

TEST(Compact8Scale, IsMonotoneAndKeepsEveryScale) {
  for (std::uint32_t scale = 0; scale < kScales; ++scale) {
    ASSERT_EQ(encode_scale(scale_at(scale)), scale);
    if (scale > 0) {
      ASSERT_LT(scale_at(scale - 1), scale_at(scale));
    }
  }
  std::uint16_t before = 0;
  for (std::uint32_t bits = 0; bits <= kInfiniteBits; bits += 4099) {
    const std::uint16_t scale = encode_scale(std::bit_cast<float>(bits));
    ASSERT_GE(scale, before) << std::hex << bits;
    before = scale;
  }
  EXPECT_EQ(encode_scale(0.0f), 0);
  EXPECT_EQ(encode_scale(kSmallest), 1);
  EXPECT_EQ(encode_scale(std::numeric_limits<float>::max()), kLargestScale);
}

/// Scales of every 16th exponent, with every mantissa, and of each where something begins or ends.
bool is_tried(std::uint32_t scale) {
  const std::uint32_t exponent = scale >> 8;
  return exponent % 16 == 0 || exponent <= 2 || (exponent >= 0x36 && exponent <= 0x3c) || exponent == 0xbe ||
         exponent >= 0xfd;
}

TEST(Compact8Moment, EncodingWhatWasDecodedKeepsItBelowTwoToThe127) {
  for (std::uint32_t s = 0; s < kScales; ++s) {
    const float scale = scale_at(s), maximum = std::max(decode_m(127, scale), kSmallest);
    // From 2^127 on the sum maximum + |m| overflows. No m gets there: its gradient's square would be infinite
    // first.
    if (!is_tried(s) || scale >= 0x1p127f) continue;
    ASSERT_EQ(encode_scale(decode_m(127, scale)), s);
    for (int code = -127; code <= 127; ++code) {
      const float m = decode_m(static_cast<std::int8_t>(code), scale);
      ASSERT_EQ(decode_m(encode_m(m, maximum), scale), m) << std::hex << s << " " << code;
    }
  }
}

// The root of a code's square is the root again while squares have all their bits. Where the group's largest v
// is below 4.06e-41, v is a small multiple of the smallest subnormal: it may be off by that once more, and the
// scale, which is rounded up, be the next one.
TEST(Compact8SecondMoment, EncodingWhatWasDecodedKeepsItDownToSubnormals) {
  constexpr std::uint32_t kFirstStable = 0x3be1u;
  EXPECT_LT(scale_at(kFirstStable), 6.37e-21f);
  for (std::uint32_t s = 0; s <= kLargestRootScale; ++s) {
    if (!is_tried(s)) continue;
    const float scale = scale_at(s), largest_root = std::sqrt(decode_v(255, scale));
    const float codes_per_root = 255.0f / std::max(largest_root, kSmallestRoot);
    const std::uint16_t again = encode_scale(largest_root);
    if (s >= kFirstStable) {
      ASSERT_EQ(again, s);
    }
    for (std::uint32_t code = 0; code <= 255; ++code) {
      const float v = decode_v(static_cast<std::uint8_t>(code), scale);
      const float kept = decode_v(encode_v(std::sqrt(v), codes_per_root), decode_scale(again));
      if (s >= kFirstStable) {
        ASSERT_EQ(kept, v) << std::hex << s << " " << code;
      } else {
        ASSERT_LE(std::abs(kept - v), 0x1p-7f * v + kSmallest) << std::hex << s << " " << code;
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

// A code's half a unit, by the slope of the compander's inverse: with x = |m| / maximum, dx/dcode = (1 + x)^2 /
// 254. A step of 2^-6 more is room for its curvature and the scale's rounding; that rounding moves what is
// decoded by 2^-8.
TEST(Compact8Moment, IsWithinItsErrorBoundFinerForSmallerValues) {
  Draw draw(53);
  double most = 0.0;
  for (int repeat = 0; repeat < 5'000; ++repeat) {
    const auto group = drawn_group(draw, 12);
    const CompactGroup encoded = encode_group(group);
    float maximum = 0.0f;
    for (const UpdateElement& e : group) maximum = std::max(maximum, std::abs(e.m));
    for (int i = 0; i < kCompactGroup; ++i) {
      const double m = group[static_cast<std::size_t>(i)].m, x = std::abs(m) / maximum;
      const double bound = maximum * (1 + x) * (1 + x) / 508 * (1 + 0x1p-6) + 0x1p-8 * std::abs(m);
      ASSERT_LE(std::abs(encoded.m_at(i) - m), bound) << m << " of " << maximum;
      most = std::max(most, std::abs(encoded.m_at(i) - m) / bound);
    }
  }
  EXPECT_GT(most, 0.9) << "the bound is not tight";
}

// Half a code of the root, and the scale's rounding; what would have the code 0 has the code 1.
TEST(Compact8SecondMoment, ItsRootIsWithinItsErrorBound) {
  Draw draw(54);
  double most = 0.0;
  for (int repeat = 0; repeat < 5'000; ++repeat) {
    const auto group = drawn_group(draw, 12);
    const CompactGroup encoded = encode_group(group);
    float maximum = 0.0f;
    for (const UpdateElement& e : group) maximum = std::max(maximum, std::sqrt(e.v));
    for (int i = 0; i < kCompactGroup; ++i) {
      const double root = std::sqrt(static_cast<double>(group[static_cast<std::size_t>(i)].v));
      const double half_code = maximum / 510.0 * (1 + 0x1p-6);
      const double bound = (root < half_code ? 2 * half_code : half_code) + 0x1p-8 * root;
      const double error = std::abs(std::sqrt(static_cast<double>(encoded.v_at(i))) - root);
      ASSERT_LE(error, bound) << root << " of " << maximum;
      most = std::max(most, error / bound);
    }
  }
  EXPECT_GT(most, 0.9) << "the bound is not tight";
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

TEST(Compact8Moment, HasTheSignOfItsValueAndIsSymmetric) {
  Draw draw(55);
  for (int i = 0; i < 100'000; ++i) {
    const auto maximum = static_cast<float>(std::exp2(draw.uniform() * 60 - 40));
    const auto m = static_cast<float>(maximum * draw.uniform());
    const std::int8_t code = encode_m(m, maximum);
    ASSERT_GE(code, 0);
    ASSERT_EQ(encode_m(-m, maximum), -code);
    ASSERT_EQ(decode_m(static_cast<std::int8_t>(-code), maximum), -decode_m(code, maximum));
  }
}

TEST(Compact8Moment, CodesAreMonotone) {
  std::int8_t before = -127;
  std::uint8_t v_before = 0;
  for (int i = -5000; i <= 5000; ++i) {
    const std::int8_t code = encode_m(static_cast<float>(i) / 5000.0f, 1.0f);
    ASSERT_GE(code, before);
    ASSERT_LE(code - before, 1);
    before = code;
    if (i < 0) continue;
    const std::uint8_t v_code = encode_v(static_cast<float>(i) / 5000.0f, 255.0f);
    ASSERT_GE(v_code, v_before);
    ASSERT_LE(v_code - v_before, 1);
    v_before = v_code;
  }
  EXPECT_EQ(before, 127);
  EXPECT_EQ(v_before, 255);
}

// Half a code is 129 of 65,536 steps between neighbouring bf16 values; decoding rounds once more, and its codes
// end at 32,767.
TEST(Compact8Low, IsOffByAtMost130OfThe65536StepsBetweenNeighbouringBFloat16) {
  int most = 0;
  for (int low = -32768; low <= 32767; ++low) {
    const std::int8_t code = encode_low(static_cast<std::int16_t>(low));
    const int error = std::abs(decode_low(code) - low);
    ASSERT_LE(error, 130) << low;
    most = std::max(most, error);
  }
  EXPECT_EQ(most, 130);
}

TEST(Compact8Low, EncodingWhatWasDecodedKeepsItAndZeroIsZero) {
  for (int code = -127; code <= 127; ++code) {
    ASSERT_EQ(encode_low(decode_low(static_cast<std::int8_t>(code))), code);
  }
  EXPECT_EQ(encode_low(0), 0);
  EXPECT_EQ(decode_low(0), 0);
  EXPECT_EQ(encode_low(-32768), -127);
  EXPECT_EQ(encode_low(32767), 127);
}

// So a weight is off by at most 130 / 65536, a 504th, of the spacing of bf16 beside it: near 2^-17 of a weight.
TEST(Compact8Low, AWeightIsWithinThatPartOfBFloat16sSpacing) {
  Draw draw(56);
  for (int i = 0; i < 200'000; ++i) {
    const float weight = draw.finite();
    if (!has_finite_weight(weight)) continue;
    const SplitMaster halves = split_master(weight);
    const float kept = join_master(halves.high, decode_low(encode_low(halves.low)));
    const double spacing = std::ldexp(1.0, std::max(std::ilogb(weight), -126) - 7);
    ASSERT_LE(std::abs(static_cast<double>(kept) - weight), spacing * 130 / 65536) << weight;
  }
}

}  // namespace
}  // namespace spillway::cpu_adam
