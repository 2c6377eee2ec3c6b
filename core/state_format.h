#pragma once
// How the optimizer's state is stored (D2), for one element or one group of them, on the host and on a device.
// Like the formulas of update.h, these fix every bit.
//
//   fp32      low: 16 bits, m and v: fp32. The master weight reassembles without loss (split_master of
//   update.h). bf16      low: 16 bits, m and v: bf16, stochastically rounded. Rounded to nearest, v would stand
//   still: at
//             beta2 = 0.999 a step changes it by less than half of bf16's spacing.
//   compact8  low, m and v: 8 bits, and for each group of 32 elements a 16-bit scale of m and one of v.
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

// compact8
/// Elements that share a scale. Groups follow the element's index in its unit.
inline constexpr int kCompactGroup = 32;

/// A scale holds 8 bits of exponent and 8 of mantissa, as in the middle of an fp32 number: fp16's range is too
/// narrow for the roots of v. Rounded up, so that scale >= x, by less than 2^-8 of it while x is normal. x >=
/// 0; what is above the largest scale gives that one.
SPILLWAY_INLINE_FORMULA std::uint16_t encode_scale(float x) {
  const std::uint32_t rounded = (std::bit_cast<std::uint32_t>(x) + 0x7fffu) >> 15;
  return static_cast<std::uint16_t>(rounded < 0xfeffu ? rounded : 0xfeffu);
}
SPILLWAY_INLINE_FORMULA float decode_scale(std::uint16_t scale) {
  return std::bit_cast<float>(std::uint32_t{scale} << 15);
}

/// To the nearest integer, ties to even, for |x| below 2^22: its low bits as a two's complement.
SPILLWAY_INLINE_FORMULA std::uint32_t to_integer_bits(float x_plus_magic) {
  return std::bit_cast<std::uint32_t>(x_plus_magic);
}
inline constexpr float kIntegerMagic = 12582912.0f;  ///< 1.5 * 2^23: at this size fp32 is spaced by 1

/// What m's codes are computed against: the group's unrounded maximum of |m|, or the smallest subnormal in a
/// group of zeros. A code of the maximum is then always 127, so that encoding what was decoded changes nothing.
///   code = round(127 f(m / maximum)), f(x) = 2 x / (1 + |x|), in the form 254 m / (maximum + |m|)
/// f gives small values finer codes; without it training with 8-bit moments diverges.
SPILLWAY_HOST_DEVICE inline std::int8_t encode_m(float m, float maximum) {
  const float share = m / (maximum + std::fabs(m));
  return static_cast<std::int8_t>(to_integer_bits(std::fma(254.0f, share, kIntegerMagic)));
}
/// The inverse of f is z / (2 - |z|): scale * code / (254 - |code|).
SPILLWAY_HOST_DEVICE inline float decode_m(std::int8_t code, float scale) {
  const auto c = static_cast<float>(code);
  return scale * (c / (254.0f - std::fabs(c)));
}

/// v is stored by its root: code = round(255 sqrt(v) / maximum), at least 1 where v > 0, `maximum` being the
/// group's unrounded maximum of sqrt(v), or kSmallestRoot in a group of zeros. `codes_per_root` = 255 /
/// maximum.
SPILLWAY_HOST_DEVICE inline std::uint8_t encode_v(float root, float codes_per_root) {
  const std::uint32_t code = to_integer_bits(std::fma(root, codes_per_root, kIntegerMagic)) & 0xffu;
  return static_cast<std::uint8_t>(code == 0 && root > 0.0f ? 1u : code);
}
inline constexpr float kSmallestRoot = 0x1p-75f;  ///< below the root of the smallest subnormal
/// The square of code / 255 * scale; never 0 for a code above 0.
SPILLWAY_HOST_DEVICE inline float decode_v(std::uint8_t code, float scale) {
  const float root = (static_cast<float>(code) * (1.0f / 255.0f)) * scale;
  const float v = root * root;
  return v == 0.0f && code != 0 ? 0x1p-149f : v;
}

/// The low half of a master weight (split_master) in 8 bits: code = round(127 / 32768 low), in integers.
/// Between neighbouring bf16 values fp32's bits are evenly spaced, so this is the weight's distance from `high`
/// in units of half the spacing there, on either side of a power of two, and for subnormals.
SPILLWAY_INLINE_FORMULA std::int8_t encode_low(std::int16_t low) {
  return static_cast<std::int8_t>((low * 127 + 16384) >> 15);
}
/// round(32767 / 127 code): at most 130 away from what was encoded.
SPILLWAY_INLINE_FORMULA std::int16_t decode_low(std::int8_t code) {
  return static_cast<std::int16_t>(code * 258 + ((code + 64) >> 7));
}

}  // namespace spillway
