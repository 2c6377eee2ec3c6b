#pragma once
// Private: the update of the state format compact8, a group of 32 elements at a time. See simd.h, and
// core/state_format.h for the formulas.
#include "simd.h"

namespace spillway::cpu_adam {
namespace {

/// decode_m
template <class L>
SPILLWAY_INLINE typename L::Float decode_m(Signed<L> code, typename L::Float scale) {
  const typename L::Float c = xsimd::to_float(code);
  return scale * (c / (typename L::Float(254.0f) - xsimd::abs(c)));
}
/// decode_v
template <class L>
SPILLWAY_INLINE typename L::Float decode_v(typename L::Bits code, typename L::Float scale) {
  const typename L::Float c = xsimd::to_float(xsimd::bitwise_cast<Signed<L>>(code));
  const auto root = (c * typename L::Float(1.0f / 255.0f)) * scale;
  return as_float<L>(xsimd::max(as_bits<L>(root * root), xsimd::min(code, typename L::Bits(1u))));
}
/// encode_m, encode_v: the code is the low byte. `random` is masked.
template <class L>
SPILLWAY_INLINE typename L::Bits encode_m(typename L::Float m, typename L::Float maximum,
                                          typename L::Bits random) {
  using Float = typename L::Float;
  const Float share = m / (maximum + xsimd::abs(m));
  return (as_bits<L>(L::fma(Float(254.0f * kCodeOne), share, Float(kCodeMagic))) + random) >> 14;
}
template <class L>
SPILLWAY_INLINE typename L::Bits encode_v(typename L::Float root, typename L::Float codes_per_root,
                                          typename L::Bits random) {
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  constexpr std::uint32_t zero = __builtin_bit_cast(std::uint32_t, kCodeMagic) >> 14;
  const Bits least = xsimd::min(as_bits<L>(root), Bits(1u)) + Bits(zero);
  return xsimd::max((as_bits<L>(L::fma(root, codes_per_root, Float(kCodeMagic))) + random) >> 14, least);
}

/// What is left to encode of a group.
template <class L>
struct Group {
  static constexpr int at_once = 2 * L::width, rounds = kCompactGroup / at_once;
  using Float = typename L::Float;
  Float even_m[rounds], odd_m[rounds], even_root[rounds], odd_root[rounds];
  typename L::Bits random[rounds];
  std::uint32_t m_bits, root_bits;  ///< the largest |m| and root, as bits, which are in the order of the values
};

/// Updates a group's weights; its moments and scales are for encode_moments.
template <class L, Rule rule, class G>
SPILLWAY_INLINE void update_group(Group<L>& group, const Compact8Planes& p, const G* gradient,
                                  const Broadcast<L>& c, const Rounding& rounding, std::int64_t first,
                                  Largest<L>& largest) {
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  const Float m_scale(decode_scale(*p.m_scales)), v_scale(decode_scale(*p.v_scales));
  Bits largest_m(0u), largest_root(0u);
#pragma GCC unroll 4
  for (int k = 0; k < Group<L>::rounds; ++k) {
    const int i = k * Group<L>::at_once;
    Float even, odd, even_gradient, odd_gradient, even_root, odd_root;
    load_masters<L>(p.high + i, L::decode_low(L::load_signed8(p.low + i)), even, odd);
    load_gradient<L>(gradient + i, even_gradient, odd_gradient);
    const Bits m_codes = L::load_signed8(p.m + i), v_codes = L::load_unsigned8(p.v + i);
    Float even_m = decode_m<L>(even_signed<L>(m_codes), m_scale);
    Float odd_m = decode_m<L>(odd_signed<L>(m_codes), m_scale);
    Float even_v = decode_v<L>(even_unsigned<L>(v_codes), v_scale);
    Float odd_v = decode_v<L>(odd_unsigned<L>(v_codes), v_scale);
    step<L, rule>(even, even_m, even_v, even_root, even_gradient, c, largest);
    step<L, rule>(odd, odd_m, odd_v, odd_root, odd_gradient, c, largest);
    const Bits random = random_pairs<L>(rounding, first + i);
    L::store8(p.low + i, L::encode_low(store_highs<L>(p.high + i, even, odd), random));
    largest_m = xsimd::max(largest_m, xsimd::max(magnitude<L>(even_m), magnitude<L>(odd_m)));
    largest_root = xsimd::max(largest_root, xsimd::max(as_bits<L>(even_root), as_bits<L>(odd_root)));
    group.random[k] = random;
    group.even_m[k] = even_m;
    group.odd_m[k] = odd_m;
    group.even_root[k] = even_root;
    group.odd_root[k] = odd_root;
  }
  group.m_bits = L::largest(largest_m);
  group.root_bits = L::largest(largest_root);
}

/// `random`: the group's word.
template <class L>
SPILLWAY_INLINE void encode_moments(const Group<L>& group, const Compact8Planes& p, std::uint32_t random) {
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  *p.m_scales = encode_scale(__builtin_bit_cast(float, group.m_bits), random >> 17);
  *p.v_scales = encode_scale(__builtin_bit_cast(float, group.root_bits), random & 0x7fffu);
  constexpr std::uint32_t smallest_root = __builtin_bit_cast(std::uint32_t, kSmallestRoot);
  const std::uint32_t root_bits = group.root_bits > smallest_root ? group.root_bits : smallest_root;
  const Float maximum(group.m_bits > 0u ? __builtin_bit_cast(float, group.m_bits) : kNoMaximum);
  const Float codes_per_root(codes_of_root(__builtin_bit_cast(float, root_bits)));
  const Bits mask(kCodeRandomMask);
#pragma GCC unroll 4
  for (int k = 0; k < Group<L>::rounds; ++k) {
    const int i = k * Group<L>::at_once;
    const Bits even_random = (group.random[k] >> 16) & mask, odd_random = group.random[k] & mask;
    L::store8(p.m + i, L::blend16(encode_m<L>(group.even_m[k], maximum, even_random),
                                  encode_m<L>(group.odd_m[k], maximum, odd_random) << 16));
    L::store8(p.v + i, L::blend16(encode_v<L>(group.even_root[k], codes_per_root, even_random),
                                  encode_v<L>(group.odd_root[k], codes_per_root, odd_random) << 16));
  }
}

SPILLWAY_INLINE Compact8Planes group_at(const Compact8Planes& p, std::int64_t group) {
  const std::int64_t i = group * kCompactGroup;
  return {p.high + i, p.low + i, p.m + i, p.v + i, p.m_scales + group, p.v_scales + group};
}

/// Room for a group that is not full; elements beyond it stay zero and below every maximum.
struct GroupTail {
  BFloat16 high[kCompactGroup] = {};
  std::int8_t low[kCompactGroup] = {}, m[kCompactGroup] = {};
  std::uint8_t v[kCompactGroup] = {};
};

template <class L, Rule rule, class G>
bool update_groups(const Compact8Planes p, const G* gradient, std::int64_t n,
                   const UpdateCoefficients& coefficients, const Rounding rounding) {
  const Broadcast<L> c(coefficients);
  Largest<L> largest;
  // A group is encoded after the weights of the next are updated: its maxima take long to be known, and a
  // processor does not look far enough ahead to find the next group's work by itself.
  const std::int64_t groups = n / kCompactGroup;
  const auto word_of = [&](std::int64_t group) {
    return rounding.key.group_word(rounding.first / kCompactGroup + static_cast<std::uint32_t>(group));
  };
  Group<L> last;
  if (groups > 0) update_group<L, rule>(last, p, gradient, c, rounding, 0, largest);
  for (std::int64_t group = 1; group < groups; ++group) {
    Group<L> next;
    const std::int64_t first = group * kCompactGroup;
    update_group<L, rule>(next, group_at(p, group), gradient + first, c, rounding, first, largest);
    encode_moments<L>(last, group_at(p, group - 1), word_of(group - 1));
    last = next;
  }
  if (groups > 0) encode_moments<L>(last, group_at(p, groups - 1), word_of(groups - 1));
  const std::int64_t i = groups * kCompactGroup;
  if (i < n) {
    GroupTail tail;
    G tail_gradient[kCompactGroup] = {};
    copy(tail.high, p.high + i, n - i);
    copy(tail.low, p.low + i, n - i);
    copy(tail.m, p.m + i, n - i);
    copy(tail.v, p.v + i, n - i);
    copy(tail_gradient, gradient + i, n - i);
    const Compact8Planes planes{tail.high, tail.low, tail.m, tail.v, p.m_scales + groups, p.v_scales + groups};
    update_group<L, rule>(last, planes, tail_gradient, c, rounding, i, largest);
    encode_moments<L>(last, planes, word_of(groups));
    copy(p.high + i, tail.high, n - i);
    copy(p.low + i, tail.low, n - i);
    copy(p.m + i, tail.m, n - i);
    copy(p.v + i, tail.v, n - i);
  }
  return largest.reaches(kInfiniteHighBits, kInfiniteBits);
}

template <class L>
bool update_compact8(const Compact8Planes& p, Gradient gradient, std::int64_t n, const UpdateCoefficients& c,
                     const Rounding& rounding) {
  return with_type(gradient, [&](const auto* g) {
    return with_adam(c,
                     [&](auto rule) { return update_groups<L, decltype(rule)::value>(p, g, n, c, rounding); });
  });
}

}  // namespace
}  // namespace spillway::cpu_adam
