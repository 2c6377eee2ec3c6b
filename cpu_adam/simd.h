// Private: the vectorised kernels, one algorithm for every width. Included by the simd_*.cpp files only, each
// compiled for its own ISA with its own `Lanes`:
//   Float, Bits, Double   xsimd batches of float, uint32 and double; `width` floats
//   fma(x, y, z)          one rounding (xsimd 8.1 has no fused form for AVX-512: it multiplies, rounds and
//   adds) load_unsigned16, load_signed16, store16    `width` 16-bit elements, widened to and narrowed from 32
//   bits low_half, high_half   half of the floats, as doubles
// Everything here has internal linkage, and nothing from std:: is called: an inline function with a weak
// symbol, compiled for AVX-512, could be the copy that the linker keeps for the whole program.
#include "kernels.h"

#include <cstdint>

#include <xsimd/xsimd.hpp>

#define SPILLWAY_INLINE [[gnu::always_inline]] inline

namespace spillway::cpu_adam {
namespace {

template <class L>
SPILLWAY_INLINE typename L::Float as_float(typename L::Bits bits) {
  return xsimd::bitwise_cast<typename L::Float>(bits);
}
template <class L>
SPILLWAY_INLINE typename L::Bits as_bits(typename L::Float x) {
  return xsimd::bitwise_cast<typename L::Bits>(x);
}

template <class L>
SPILLWAY_INLINE typename L::Float load_gradient(const float* g) {
  return L::Float::load_unaligned(g);
}
template <class L>
SPILLWAY_INLINE typename L::Float load_gradient(const BFloat16* g) {
  return as_float<L>(L::load_unsigned16(g) << 16);
}

template <class L>
SPILLWAY_INLINE typename L::Float load_master(const SplitPlanes& p) {
  return as_float<L>((L::load_unsigned16(p.high) << 16) + L::load_signed16(p.low));
}
template <class L>
SPILLWAY_INLINE typename L::Float load_master(const FullPlanes& p) {
  return L::Float::load_unaligned(p.master);
}
template <class L>
SPILLWAY_INLINE void store_master(const SplitPlanes& p, typename L::Float master) {
  using Bits = typename L::Bits;
  const Bits bits = as_bits<L>(master);
  const Bits high = (bits + Bits(0x8000u)) >> 16;
  L::store16(p.high, high);
  L::store16(p.low, bits - (high << 16));
}
template <class L>
SPILLWAY_INLINE void store_master(const FullPlanes& p, typename L::Float master) {
  master.store_unaligned(p.master);
}

/// From which magnitude on a master weight ends the run (core/update.h).
constexpr std::uint32_t weight_limit(const SplitPlanes&) {
  return kInfiniteHighBits;
}
constexpr std::uint32_t weight_limit(const FullPlanes&) {
  return kInfiniteBits;
}

SPILLWAY_INLINE SplitPlanes at(const SplitPlanes& p, std::int64_t i) {
  return {p.high + i, p.low + i, p.m + i, p.v + i};
}
SPILLWAY_INLINE FullPlanes at(const FullPlanes& p, std::int64_t i) {
  return {p.master + i, p.m + i, p.v + i};
}

/// The largest magnitudes seen, as bits; compared with the limits once, at the end.
template <class L>
struct Largest {
  using Bits = typename L::Bits;
  Bits weight = Bits(0u), second_moment = Bits(0u);  // braces would list lane values

  SPILLWAY_INLINE void see(typename L::Float master, typename L::Float v) {
    weight = xsimd::max(weight, as_bits<L>(master) & Bits(0x7fffffffu));
    second_moment = xsimd::max(second_moment, as_bits<L>(v));  // never -0; a sign is that of a NaN, and large
  }
  SPILLWAY_INLINE bool reaches(std::uint32_t limit_of_weight) const {
    std::uint32_t weights[L::width], moments[L::width];
    weight.store_unaligned(weights);
    second_moment.store_unaligned(moments);
    bool reached = false;
    for (int i = 0; i < L::width; ++i) reached |= weights[i] >= limit_of_weight || moments[i] >= kInfiniteBits;
    return reached;
  }
};

template <class L>
struct Broadcast {
  using Float = typename L::Float;
  SPILLWAY_INLINE explicit Broadcast(const AdamCoefficients& c)
      : gradient_factor(c.gradient_factor),
        coupled_decay(c.coupled_decay),
        beta1(c.beta1),
        one_minus_beta1(c.one_minus_beta1),
        beta2(c.beta2),
        one_minus_beta2(c.one_minus_beta2),
        inv_sqrt_bias_correction2(c.inv_sqrt_bias_correction2),
        eps(c.eps),
        minus_step_size(-c.step_size),
        decay(c.decay) {}
  Float gradient_factor, coupled_decay, beta1, one_minus_beta1, beta2, one_minus_beta2,
      inv_sqrt_bias_correction2, eps, minus_step_size, decay;
};

/// adam_update of core/update.h, operation by operation, for L::width elements.
template <class L, bool coupled, class P, class G>
SPILLWAY_INLINE void update_lanes(const P& planes, const G* gradient, const Broadcast<L>& c,
                                  Largest<L>& largest) {
  using Float = typename L::Float;
  const Float zero(0.0f);
  const Float master = load_master<L>(planes);
  Float g = load_gradient<L>(gradient) * c.gradient_factor;
  if constexpr (coupled) g = L::fma(c.coupled_decay, master, g);
  const Float m = L::fma(c.beta1, Float::load_unaligned(planes.m), c.one_minus_beta1 * g);
  const Float v = L::fma(c.beta2, Float::load_unaligned(planes.v), (c.one_minus_beta2 * g) * g);
  const Float denominator = L::fma(xsimd::sqrt(v), c.inv_sqrt_bias_correction2, c.eps);
  const Float quotient = xsimd::select(denominator == zero, zero, m / denominator);
  const Float updated = L::fma(c.minus_step_size, quotient, master * c.decay);
  store_master<L>(planes, updated);
  m.store_unaligned(planes.m);
  v.store_unaligned(planes.v);
  largest.see(updated, v);
}

/// Room for the elements that do not fill a vector; those beyond them stay zero, and an update keeps zero at
/// zero.
template <class L>
struct SplitTail {
  BFloat16 high[L::width] = {};
  std::int16_t low[L::width] = {};
  float m[L::width] = {}, v[L::width] = {};
  SPILLWAY_INLINE SplitPlanes planes() { return {high, low, m, v}; }
};
template <class L>
struct FullTail {
  float master[L::width] = {}, m[L::width] = {}, v[L::width] = {};
  SPILLWAY_INLINE FullPlanes planes() { return {master, m, v}; }
};
template <class L>
SPILLWAY_INLINE SplitTail<L> tail_of(const SplitPlanes&) {
  return {};
}
template <class L>
SPILLWAY_INLINE FullTail<L> tail_of(const FullPlanes&) {
  return {};
}

template <class T>
SPILLWAY_INLINE void copy(T* to, const T* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}
SPILLWAY_INLINE void copy(const SplitPlanes& to, const SplitPlanes& from, std::int64_t n) {
  copy(to.high, from.high, n);
  copy(to.low, from.low, n);
  copy(to.m, from.m, n);
  copy(to.v, from.v, n);
}
SPILLWAY_INLINE void copy(const FullPlanes& to, const FullPlanes& from, std::int64_t n) {
  copy(to.master, from.master, n);
  copy(to.m, from.m, n);
  copy(to.v, from.v, n);
}

template <class L, bool coupled, class P, class G>
bool update_planes(const P planes, const G* gradient, std::int64_t n, const AdamCoefficients& coefficients) {
  const Broadcast<L> c(coefficients);
  Largest<L> largest;
  std::int64_t i = 0;
  for (; i + L::width <= n; i += L::width) update_lanes<L, coupled>(at(planes, i), gradient + i, c, largest);
  if (i < n) {
    auto tail = tail_of<L>(planes);
    G tail_gradient[L::width] = {};
    copy(tail.planes(), at(planes, i), n - i);
    copy(tail_gradient, gradient + i, n - i);
    update_lanes<L, coupled>(tail.planes(), tail_gradient, c, largest);
    copy(at(planes, i), tail.planes(), n - i);
  }
  return largest.reaches(weight_limit(planes));
}

template <class L, class P, class G>
bool update_gradient(const P& planes, const G* gradient, std::int64_t n, const AdamCoefficients& c) {
  return c.coupled_decay != 0.0f ? update_planes<L, true>(planes, gradient, n, c)
                                 : update_planes<L, false>(planes, gradient, n, c);
}

template <class L, class P>
bool update(const P& planes, Gradient gradient, std::int64_t n, const AdamCoefficients& c) {
  if (gradient.type == DType::fp32) {
    return update_gradient<L>(planes, static_cast<const float*>(gradient.data), n, c);
  }
  return update_gradient<L>(planes, static_cast<const BFloat16*>(gradient.data), n, c);
}

/// The 16 sums of a block, as so many vectors of doubles.
template <class L>
struct Squares {
  static constexpr int per_vector = L::width / 2;
  static constexpr int vectors = kNormLanes / per_vector;
  typename L::Double sums[vectors];

  SPILLWAY_INLINE Squares() {
    for (auto& sum : sums) sum = typename L::Double(0.0);
  }
  template <class G>
  SPILLWAY_INLINE void add(const G* gradient) {  // kNormLanes elements
    for (int i = 0; i < vectors; i += 2) {
      const auto g = load_gradient<L>(gradient + i * per_vector);
      const auto low = L::low_half(g), high = L::high_half(g);
      sums[i] = sums[i] + low * low;
      sums[i + 1] = sums[i + 1] + high * high;
    }
  }
  SPILLWAY_INLINE double total() const {
    double lanes[kNormLanes];
    for (int i = 0; i < vectors; ++i) sums[i].store_unaligned(lanes + i * per_vector);
    for (int half = kNormLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
  }
};

template <class L, class G>
double square_sum_of(const G* gradient, std::int64_t n) {
  Squares<L> squares;
  std::int64_t i = 0;
  for (; i + kNormLanes <= n; i += kNormLanes) squares.add(gradient + i);
  if (i < n) {
    G tail[kNormLanes] = {};
    copy(tail, gradient + i, n - i);
    squares.add(tail);
  }
  return squares.total();
}

template <class L>
double square_sum(Gradient gradient, std::int64_t n) {
  if (gradient.type == DType::fp32) return square_sum_of<L>(static_cast<const float*>(gradient.data), n);
  return square_sum_of<L>(static_cast<const BFloat16*>(gradient.data), n);
}

template <class L, class G>
void accumulate_into(Accumulate how, float* sum, const G* h, std::int64_t n) {
  using Float = typename L::Float;
  const bool assigns = how == Accumulate::assign;
  std::int64_t i = 0;
  for (; i + L::width <= n; i += L::width) {
    const Float before = assigns ? Float(0.0f) : Float::load_unaligned(sum + i);
    (before + load_gradient<L>(h + i)).store_unaligned(sum + i);
  }
  if (i < n) {
    float tail[L::width] = {};
    G tail_h[L::width] = {};
    if (!assigns) copy(tail, sum + i, n - i);
    copy(tail_h, h + i, n - i);
    (Float::load_unaligned(tail) + load_gradient<L>(tail_h)).store_unaligned(tail);
    copy(sum + i, tail, n - i);
  }
}

template <class L>
void accumulate_sum(Accumulate how, float* sum, Gradient h, std::int64_t n) {
  if (h.type == DType::fp32) return accumulate_into<L>(how, sum, static_cast<const float*>(h.data), n);
  accumulate_into<L>(how, sum, static_cast<const BFloat16*>(h.data), n);
}

/// to_bf16 of core/dtype.h.
template <class L>
SPILLWAY_INLINE void narrow_lanes(BFloat16* narrowed, const float* gradient) {
  using Bits = typename L::Bits;
  const Bits bits = as_bits<L>(L::Float::load_unaligned(gradient));
  const Bits high = bits >> 16;
  const Bits rounded = (bits + Bits(0x7fffu) + (high & Bits(1u))) >> 16;
  const auto is_nan = (bits & Bits(0x7fffffffu)) > Bits(kInfiniteBits);
  L::store16(narrowed, xsimd::select(is_nan, high | Bits(0x40u), rounded));
}

template <class L>
void narrow(BFloat16* narrowed, const float* gradient, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + L::width <= n; i += L::width) narrow_lanes<L>(narrowed + i, gradient + i);
  if (i < n) {
    float tail[L::width] = {};
    BFloat16 tail_narrowed[L::width] = {};
    copy(tail, gradient + i, n - i);
    narrow_lanes<L>(tail_narrowed, tail);
    copy(narrowed + i, tail_narrowed, n - i);
  }
}

template <class L>
constexpr Kernels kernels_for() {
  return {update<L, SplitPlanes>, update<L, FullPlanes>, square_sum<L>, accumulate_sum<L>, narrow<L>};
}

}  // namespace
}  // namespace spillway::cpu_adam
