#pragma once
// Private: the update of the formats whose elements stand for themselves. See simd.h.
#include "simd.h"

namespace spillway::cpu_adam {
namespace {

template <class L>
SPILLWAY_INLINE typename L::Float load_master(const Fp32Planes& p) {
  return as_float<L>((L::load_unsigned16(p.high) << 16) + L::load_signed16(p.low));
}
template <class L>
SPILLWAY_INLINE typename L::Float load_master(const FullPlanes& p) {
  return L::Float::load_unaligned(p.master);
}
template <class L>
SPILLWAY_INLINE void store_master(const Fp32Planes& p, typename L::Float master) {
  const auto bits = as_bits<L>(master);
  L::store16(p.high, (bits + typename L::Bits(0x8000u)) >> 16);
  L::store16(p.low, bits);  // what split_master leaves is their low half, read with a sign
}
template <class L>
SPILLWAY_INLINE void store_master(const FullPlanes& p, typename L::Float master) {
  master.store_unaligned(p.master);
}

/// fp32 and full: `width` elements.
template <class L, Rule rule, class P, class G>
SPILLWAY_INLINE void update_elements(const P& p, const G* gradient, const Broadcast<L>& c, const Rounding&,
                                     std::int64_t, Largest<L>& largest) {
  using Float = typename L::Float;
  constexpr bool has_v = has_second_moment(rule);
  Float master = load_master<L>(p), m = Float::load_unaligned(p.m), v, root;
  if constexpr (has_v) v = Float::load_unaligned(p.v);
  step<L, rule>(master, m, v, root, load_gradient<L>(gradient), c, largest);
  store_master<L>(p, master);
  m.store_unaligned(p.m);
  if constexpr (has_v) v.store_unaligned(p.v);
}

/// to_bf16_stochastic of core/state_format.h for the elements of even and of odd number.
template <class L>
SPILLWAY_INLINE void store_rounded(BFloat16* to, typename L::Float even, typename L::Float odd,
                                   typename L::Bits random) {
  L::store(to, L::blend16((as_bits<L>(even) + odd_unsigned<L>(random)) >> 16,
                          as_bits<L>(odd) + even_unsigned<L>(random)));
}

/// bf16: 2 width elements; `first` is the number of the first one in its call.
template <class L, Rule rule, class G>
SPILLWAY_INLINE void update_elements(const Bf16Planes& p, const G* gradient, const Broadcast<L>& c,
                                     const Rounding& rounding, std::int64_t first, Largest<L>& largest) {
  using Float = typename L::Float;
  using Bits = typename L::Bits;
  constexpr bool has_v = has_second_moment(rule);
  Float even, odd, even_m, odd_m, even_v, odd_v, even_gradient, odd_gradient, root;
  load_masters<L>(p.high, L::load(p.low), even, odd);
  load_gradient<L>(gradient, even_gradient, odd_gradient);
  load_gradient<L>(p.m, even_m, odd_m);
  if constexpr (has_v) load_gradient<L>(p.v, even_v, odd_v);
  step<L, rule>(even, even_m, even_v, root, even_gradient, c, largest);
  step<L, rule>(odd, odd_m, odd_v, root, odd_gradient, c, largest);
  L::store(p.low, store_highs<L>(p.high, even, odd));
  const Bits random = random_pairs<L>(rounding, first);
  store_rounded<L>(p.m, even_m, odd_m, random);
  if constexpr (has_v) store_rounded<L>(p.v, even_v, odd_v, random);
}

/// Elements that are worked on together, and from which magnitudes on a weight and its last moment end the run.
template <class L, class P>
struct Form;
template <class L>
struct Form<L, Fp32Planes> {
  static constexpr int elements = L::width;
  static constexpr std::uint32_t weight_limit = kInfiniteHighBits, moment_limit = kInfiniteBits;
};
template <class L>
struct Form<L, FullPlanes> {
  static constexpr int elements = L::width;
  static constexpr std::uint32_t weight_limit = kInfiniteBits, moment_limit = kInfiniteBits;
};
template <class L>
struct Form<L, Bf16Planes> {
  static constexpr int elements = 2 * L::width;
  static constexpr std::uint32_t weight_limit = kInfiniteHighBits, moment_limit = kInfiniteBf16Bits;
};

template <bool has_v, class M>
SPILLWAY_INLINE SplitPlanes<M> at(const SplitPlanes<M>& p, std::int64_t i) {
  return {p.high + i, p.low + i, p.m + i, has_v ? p.v + i : nullptr};
}
template <bool has_v>
SPILLWAY_INLINE FullPlanes at(const FullPlanes& p, std::int64_t i) {
  return {p.master + i, p.m + i, has_v ? p.v + i : nullptr};
}

/// Elements between two looks ahead, and how many ahead: the processor's own prefetching loses its way among so
/// many streams. A prefetch of what does not exist does nothing.
constexpr std::int64_t kRow = 32, kAhead = 192;

template <class T>
SPILLWAY_INLINE void prefetch(const T* plane, std::int64_t i) {
  constexpr std::int64_t line = 64 / sizeof(T);
  for (std::int64_t k = 0; k < kRow; k += line) {
    __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(plane) +
                                                     static_cast<std::uintptr_t>(i + kAhead + k) * sizeof(T)));
  }
}
template <bool has_v, class M>
SPILLWAY_INLINE void prefetch_planes(const SplitPlanes<M>& p, std::int64_t i) {
  prefetch(p.high, i);
  prefetch(p.low, i);
  prefetch(p.m, i);
  if constexpr (has_v) prefetch(p.v, i);
}
template <bool has_v>
SPILLWAY_INLINE void prefetch_planes(const FullPlanes& p, std::int64_t i) {
  prefetch(p.master, i);
  prefetch(p.m, i);
  if constexpr (has_v) prefetch(p.v, i);
}

/// Room for the elements that are too few to be worked on; those beyond them stay zero, and an update keeps
/// zero at zero.
template <int n, class M>
struct SplitTail {
  BFloat16 high[n] = {};
  std::int16_t low[n] = {};
  M m[n] = {}, v[n] = {};
  SPILLWAY_INLINE SplitPlanes<M> planes() { return {high, low, m, v}; }
};
template <int n>
struct FullTail {
  float master[n] = {}, m[n] = {}, v[n] = {};
  SPILLWAY_INLINE FullPlanes planes() { return {master, m, v}; }
};
template <int n, class M>
SPILLWAY_INLINE SplitTail<n, M> tail_of(const SplitPlanes<M>&) {
  return {};
}
template <int n>
SPILLWAY_INLINE FullTail<n> tail_of(const FullPlanes&) {
  return {};
}

template <bool has_v, class M>
SPILLWAY_INLINE void copy_planes(const SplitPlanes<M>& to, const SplitPlanes<M>& from, std::int64_t n) {
  copy(to.high, from.high, n);
  copy(to.low, from.low, n);
  copy(to.m, from.m, n);
  if constexpr (has_v) copy(to.v, from.v, n);
}
template <bool has_v>
SPILLWAY_INLINE void copy_planes(const FullPlanes& to, const FullPlanes& from, std::int64_t n) {
  copy(to.master, from.master, n);
  copy(to.m, from.m, n);
  if constexpr (has_v) copy(to.v, from.v, n);
}

template <class L, Rule rule, class P, class G>
bool update_planes(const P p, const G* gradient, std::int64_t n, const UpdateCoefficients& coefficients,
                   const Rounding rounding) {
  using Shape = Form<L, P>;
  constexpr bool has_v = has_second_moment(rule);
  const Broadcast<L> c(coefficients);
  Largest<L> largest;
  std::int64_t i = 0;
  for (; i + kRow <= n; i += kRow) {
    prefetch_planes<has_v>(p, i);
    prefetch(gradient, i);
#pragma GCC unroll 8
    for (std::int64_t k = 0; k < kRow; k += Shape::elements) {
      update_elements<L, rule>(at<has_v>(p, i + k), gradient + i + k, c, rounding, i + k, largest);
    }
  }
  for (; i + Shape::elements <= n; i += Shape::elements) {
    update_elements<L, rule>(at<has_v>(p, i), gradient + i, c, rounding, i, largest);
  }
  if (i < n) {
    auto tail = tail_of<Shape::elements>(p);
    G tail_gradient[Shape::elements] = {};
    copy_planes<has_v>(tail.planes(), at<has_v>(p, i), n - i);
    copy(tail_gradient, gradient + i, n - i);
    update_elements<L, rule>(tail.planes(), tail_gradient, c, rounding, i, largest);
    copy_planes<has_v>(at<has_v>(p, i), tail.planes(), n - i);
  }
  return largest.reaches(Shape::weight_limit, Shape::moment_limit);
}

template <class L, class P>
bool update(const P& p, Gradient gradient, std::int64_t n, const UpdateCoefficients& c,
            const Rounding& rounding) {
  return with_type(gradient, [&](const auto* g) {
    return with_rule(c,
                     [&](auto rule) { return update_planes<L, decltype(rule)::value>(p, g, n, c, rounding); });
  });
}

}  // namespace
}  // namespace spillway::cpu_adam
