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
/// encode_m; the code is in the low bits.
template <class L>
SPILLWAY_INLINE typename L::Bits encode_m(typename L::Float m, typename L::Float maximum) {
  const auto share = m / (maximum + xsimd::abs(m));
  return as_bits<L>(L::fma(typename L::Float(254.0f), share, typename L::Float(kIntegerMagic)));
}
/// decode_v
template <class L>
SPILLWAY_INLINE typename L::Float decode_v(typename L::Bits code, typename L::Float scale) {
  const typename L::Float c = xsimd::to_float(xsimd::bitwise_cast<Signed<L>>(code));
  const auto root = (c * typename L::Float(1.0f / 255.0f)) * scale;
  return as_float<L>(xsimd::max(as_bits<L>(root * root), xsimd::min(code, typename L::Bits(1u))));
}
/// encode_v; the code is in the low bits.
template <class L>
SPILLWAY_INLINE typename L::Bits encode_v(typename L::Float root, typename L::Float codes_per_root) {
  using Bits = typename L::Bits;
  constexpr std::uint32_t zero = __builtin_bit_cast(std::uint32_t, kIntegerMagic);
  const Bits least = xsimd::min(as_bits<L>(root), Bits(1u)) + Bits(zero);
  return xsimd::max(as_bits<L>(L::fma(root, codes_per_root, typename L::Float(kIntegerMagic))), least);
}

/// What is left to encode of a group.
template <class L>
struct Group {
  static constexpr int at_once = 2 * L::width, rounds = kCompactGroup / at_once;
  using Float = typename L::Float;
  Float even_m[rounds], odd_m[rounds], even_root[rounds], odd_root[rounds];
  std::uint32_t m_bits, root_bits;  ///< the largest |m| and root, as bits, which are in the order of the values
};

/// Updates a group's weights; its moments and scales are for encode_moments.
template <class L, Rule rule, class G>
SPILLWAY_INLINE void update_group(Group<L>& group, const Compact8Planes& p, const G* gradient,
                                  const Broadcast<L>& c, Largest<L>& largest) {
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
    L::store8(p.low + i, L::encode_low(store_highs<L>(p.high + i, even, odd)));
    largest_m = xsimd::max(largest_m, xsimd::max(magnitude<L>(even_m), magnitude<L>(odd_m)));
    largest_root = xsimd::max(largest_root, xsimd::max(as_bits<L>(even_root), as_bits<L>(odd_root)));
    group.even_m[k] = even_m;
    group.odd_m[k] = odd_m;
    group.even_root[k] = even_root;
    group.odd_root[k] = odd_root;
  }
  group.m_bits = L::largest(largest_m);
  group.root_bits = L::largest(largest_root);
}

template <class L>
SPILLWAY_INLINE void encode_moments(const Group<L>& group, const Compact8Planes& p) {
  using Float = typename L::Float;
  *p.m_scales = encode_scale(__builtin_bit_cast(float, group.m_bits));
  *p.v_scales = encode_scale(__builtin_bit_cast(float, group.root_bits));
  constexpr std::uint32_t smallest_root = __builtin_bit_cast(std::uint32_t, kSmallestRoot);
  const std::uint32_t root_bits = group.root_bits > smallest_root ? group.root_bits : smallest_root;
  const Float maximum(__builtin_bit_cast(float, group.m_bits > 1u ? group.m_bits : 1u));
  const Float codes_per_root(255.0f / __builtin_bit_cast(float, root_bits));
#pragma GCC unroll 4
  for (int k = 0; k < Group<L>::rounds; ++k) {
    const int i = k * Group<L>::at_once;
    L::store8(p.m + i,
              L::blend16(encode_m<L>(group.even_m[k], maximum), encode_m<L>(group.odd_m[k], maximum) << 16));
    L::store8(p.v + i, L::blend16(encode_v<L>(group.even_root[k], codes_per_root),
                                  encode_v<L>(group.odd_root[k], codes_per_root) << 16));
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
                   const UpdateCoefficients& coefficients) {
  const Broadcast<L> c(coefficients);
  Largest<L> largest;
  // A group is encoded after the weights of the next are updated: its maxima take long to be known, and a
  // processor does not look far enough ahead to find the next group's work by itself.
  const std::int64_t groups = n / kCompactGroup;
  Group<L> last;
  if (groups > 0) update_group<L, rule>(last, p, gradient, c, largest);
  for (std::int64_t group = 1; group < groups; ++group) {
    Group<L> next;
    update_group<L, rule>(next, group_at(p, group), gradient + group * kCompactGroup, c, largest);
    encode_moments<L>(last, group_at(p, group - 1));
    last = next;
  }
  if (groups > 0) encode_moments<L>(last, group_at(p, groups - 1));
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
    update_group<L, rule>(last, planes, tail_gradient, c, largest);
    encode_moments<L>(last, planes);
    copy(p.high + i, tail.high, n - i);
    copy(p.low + i, tail.low, n - i);
    copy(p.m + i, tail.m, n - i);
    copy(p.v + i, tail.v, n - i);
  }
  return largest.reaches(kInfiniteHighBits, kInfiniteBits);
}

template <class L>
bool update_compact8(const Compact8Planes& p, Gradient gradient, std::int64_t n, const UpdateCoefficients& c,
                     const Rounding&) {
  return with_type(gradient, [&](const auto* g) {
    return with_adam(c, [&](auto rule) { return update_groups<L, decltype(rule)::value>(p, g, n, c); });
  });
}

}  // namespace
}  // namespace spillway::cpu_adam
