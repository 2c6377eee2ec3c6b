#pragma once
// How the optimizer's state is stored (D2), for one element or one group of them, on the host and on a device.
// Like the formulas of update.h, these fix every bit.
// - fp32: low is 16 bits, m and v fp32. The master weight reassembles without loss (split_master of update.h).
// - bf16: low is 16 bits, m and v bf16, stochastically rounded. Rounded to nearest, v would stand still: at
//   beta2 = 0.999 a step changes it by less than half of bf16's spacing.
// - compact8: low, m and v are 8 bits, and each group of 32 elements has a 16-bit scale of m and one of v, all
//   stochastically rounded.
#include "dtype.h"
#include "host_device_code.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace spillway {

enum class StateFormat : std::uint8_t { fp32, bf16, compact8 };

constexpr std::string_view name_of(StateFormat format) {
  constexpr std::string_view names[] = {"fp32", "bf16", "compact8"};
  return names[static_cast<int>(format)];
}

/// bf16: one of the two neighbours of x, the one away from zero with the probability of x's distance from the
/// other: the expectation over the 2^16 values of `random` (below 2^16) is x. Infinity stays; of a NaN anything
/// may become, so who rounds looks at x first.
SPILLWAY_HOST_DEVICE constexpr BFloat16 to_bf16_stochastic(float x, std::uint32_t random) {
  return {static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(x) + random) >> 16)};
}
/// The magnitude bits from which on a finite value may be rounded to infinity there.
inline constexpr std::uint32_t kInfiniteBf16Bits = 0x7f7f0001u;

// compact8. Every code and scale is rounded by chance too, with the element's or its group's random bits.
// Rounded to the nearest, small steps of a weight would be lost; scales rounded up would let v rise only, as
// 0.2 % and more lie between two of them, and a step at beta2 = 0.999 takes 0.05 % off the root of v. What is
// exactly on a code or scale stays there, so that encoding what was decoded changes nothing.

/// Elements that share a scale. Groups follow the element's index in its parameter.
inline constexpr int kCompactGroup = 32;
/// Groups of n elements, the last one perhaps shorter.
constexpr std::int64_t compact_groups(std::int64_t n) {
  return (n + kCompactGroup - 1) / kCompactGroup;
}

/// A scale holds 8 bits of exponent and 8 of mantissa, as in the middle of an fp32 number: fp16's range is too
/// narrow for the roots of v. One of the two neighbours of x, by `random` (15 bits), so that the mean is x. x
/// >= 0; what is above the largest scale gives that one.
SPILLWAY_INLINE_FORMULA std::uint16_t encode_scale(float x, std::uint32_t random) {
  const std::uint32_t rounded = (std::bit_cast<std::uint32_t>(x) + random) >> 15;
  return static_cast<std::uint16_t>(rounded < 0xfeffu ? rounded : 0xfeffu);
}
SPILLWAY_INLINE_FORMULA float decode_scale(std::uint16_t scale) {
  return std::bit_cast<float>(std::uint32_t{scale} << 15);
}

/// Codes of m and v are computed with 14 bits behind the point, as integers from the mantissa of a sum with
/// kCodeMagic (1.5 * 2^23 + 2: at this size fp32 is spaced by 1), and rounded by chance with 12 of the
/// element's 16 random bits. Those count in fours, and 2 is added, so that a sum which is off an exact code by
/// 2 below or 1 above goes to that code whatever is drawn: that is more than its error as a float.
inline constexpr float kCodeOne = 16384.0f;
inline constexpr float kCodeMagic = 12582914.0f;
inline constexpr std::uint32_t kCodeRandomMask = 0x3ffcu;
SPILLWAY_INLINE_FORMULA std::uint32_t rounded_code(float sum_with_magic, std::uint32_t random) {
  return (std::bit_cast<std::uint32_t>(sum_with_magic) + (random & kCodeRandomMask)) >> 14;
}

/// What m's codes are computed against: the group's unrounded maximum of |m|, or any number in a group of
/// zeros.
///   code = 127 f(m / maximum), f(x) = 2 x / (1 + |x|), in the form 254 m / (maximum + |m|)
/// f gives small values finer codes; without it training with 8-bit moments diverges. The code is the low byte.
SPILLWAY_HOST_DEVICE inline std::int8_t encode_m(float m, float maximum, std::uint32_t random) {
  const float share = m / (maximum + std::fabs(m));
  return static_cast<std::int8_t>(rounded_code(std::fma(254.0f * kCodeOne, share, kCodeMagic), random));
}
inline constexpr float kNoMaximum = 0x1p-126f;  ///< the number in a group of zeros
/// The inverse of f is z / (2 - |z|): scale * code / (254 - |code|).
SPILLWAY_HOST_DEVICE inline float decode_m(std::int8_t code, float scale) {
  const auto c = static_cast<float>(code);
  return scale * (c / (254.0f - std::fabs(c)));
}

/// v is stored by its root: code = 255 sqrt(v) / maximum, at least 1 where v > 0, `maximum` being the group's
/// unrounded maximum of sqrt(v), or kSmallestRoot in a group of zeros. `codes_per_root` =
/// codes_of_root(maximum).
SPILLWAY_INLINE_FORMULA float codes_of_root(float maximum) {
  return 255.0f * kCodeOne / maximum;
}
SPILLWAY_HOST_DEVICE inline std::uint8_t encode_v(float root, float codes_per_root, std::uint32_t random) {
  const std::uint32_t code = rounded_code(std::fma(root, codes_per_root, kCodeMagic), random) & 0xffu;
  return static_cast<std::uint8_t>(code == 0 && root > 0.0f ? 1u : code);
}
inline constexpr float kSmallestRoot = 0x1p-75f;  ///< below the root of the smallest subnormal
/// The square of code / 255 * scale; never 0 for a code above 0.
SPILLWAY_HOST_DEVICE inline float decode_v(std::uint8_t code, float scale) {
  const float root = (static_cast<float>(code) * (1.0f / 255.0f)) * scale;
  const float v = root * root;
  return v == 0.0f && code != 0 ? 0x1p-149f : v;
}

/// The low half of a master weight (split_master) in 8 bits, in integers: low / 258, rounded by chance with the
/// element's 16 random bits. Between neighbouring bf16 values fp32's bits are evenly spaced, so this is the
/// weight's distance from `high` in 127ths of half the spacing there, on either side of a power of two, and for
/// subnormals. Codes end at 127 of 258, two of the 65,536 steps before the middle.
inline constexpr std::uint32_t kLowStep = 258;
SPILLWAY_HOST_DEVICE constexpr std::int8_t encode_low(std::int16_t low, std::uint32_t random) {
  const std::uint32_t from_lowest = low > -32766 ? static_cast<std::uint32_t>(low + 32766) : 0u;
  const std::uint32_t lifted = from_lowest + ((random * kLowStep) >> 16);
  return static_cast<std::int8_t>(static_cast<int>((lifted < 65535u ? lifted : 65535u) / kLowStep) - 127);
}
inline constexpr std::uint32_t kToNearest = 0x8000u;  ///< the random number for which encode_low does that
SPILLWAY_HOST_DEVICE constexpr std::int16_t decode_low(std::int8_t code) {
  return static_cast<std::int16_t>(code * static_cast<int>(kLowStep));
}

}  // namespace spillway
