#pragma once
// Private: the vectorised kernels, one algorithm for every width. Included by the simd_*.cpp files only
// (through simd_kernels.h), each compiled for its own ISA with its own `Lanes`:
//   Float, Bits, Double   xsimd batches of float, uint32 and double; `width` floats
//   fma(x, y, z)          one rounding (xsimd 8.1 has no fused form for AVX-512)
//   load_unsigned16, load_signed16, store16
//                         `width` elements of 16 bits, widened to and narrowed from 32 (by cutting off)
//   low_half, high_half   half of the floats, as doubles
//   largest(bits)         the largest of the unsigned lanes
// Where all planes are narrow, two vectors are worked on at a time, the elements of even and those of odd
// number: 16-bit elements then come out of their register, and go into it, without being shuffled.
//   load, store           a register of 2 width 16-bit elements, anywhere
//   blend16(low, high)    of each lane the low half of one and the high half of the other
//   load_signed8, load_unsigned8, store8
//                         2 width bytes, widened to and narrowed from 16 bits (by cutting off)
//   decode_low, encode_low(low, random)
//                         of core/state_format.h, in 16-bit lanes; random_pairs() says where the random bits
//                         lie
//   separate(first, second)  2 width consecutive floats become those of even and those of odd number
// Everything here has internal linkage, and nothing from std:: is called: an inline function with a weak
// symbol, compiled for AVX-512, could be the copy that the linker keeps for the whole program.
#include "../core/state_format.h"
#include "kernels.h"

#include <cstdint>

#include <xsimd/xsimd.hpp>

#define SPILLWAY_INLINE [[gnu::always_inline]] inline

namespace spillway::cpu_adam {
namespace {

template <class L>
using Signed = xsimd::batch<std::int32_t, typename L::Arch>;

template <class L>
SPILLWAY_INLINE typename L::Float as_float(typename L::Bits bits) {
  return xsimd::bitwise_cast<typename L::Float>(bits);
}
template <class L>
SPILLWAY_INLINE typename L::Bits as_bits(typename L::Float x) {
  return xsimd::bitwise_cast<typename L::Bits>(x);
}
template <class L>
SPILLWAY_INLINE typename L::Bits magnitude(typename L::Float x) {
  return as_bits<L>(x) & typename L::Bits(0x7fffffffu);
}

/// Of a register of 16-bit elements those of even and those of odd number: as bf16, without and with a sign.
template <class L>
SPILLWAY_INLINE typename L::Float even_bf16(typename L::Bits pairs) {
  return as_float<L>(pairs << 16);
}
template <class L>
SPILLWAY_INLINE typename L::Float odd_bf16(typename L::Bits pairs) {
  return as_float<L>(pairs & typename L::Bits(0xffff0000u));
}
template <class L>
SPILLWAY_INLINE typename L::Bits even_unsigned(typename L::Bits pairs) {
  return pairs & typename L::Bits(0xffffu);
}
template <class L>
SPILLWAY_INLINE typename L::Bits odd_unsigned(typename L::Bits pairs) {
  return pairs >> 16;
}
template <class L>
SPILLWAY_INLINE Signed<L> even_signed(typename L::Bits pairs) {
  return xsimd::bitwise_cast<Signed<L>>(pairs << 16) >> 16;
}
template <class L>
SPILLWAY_INLINE Signed<L> odd_signed(typename L::Bits pairs) {
  return xsimd::bitwise_cast<Signed<L>>(pairs) >> 16;
}

/// Per lane `yes` where x > limit, else `no`; both below 2^31. (Before AVX-512, xsimd compares unsigned lanes
/// by halves.)
template <class L>
SPILLWAY_INLINE typename L::Bits select_greater(typename L::Bits x, std::uint32_t limit, typename L::Bits yes,
                                                typename L::Bits no) {
  const auto as_signed = [](typename L::Bits bits) { return xsimd::bitwise_cast<Signed<L>>(bits); };
  const auto greater = as_signed(x) > Signed<L>(static_cast<std::int32_t>(limit));
  return xsimd::bitwise_cast<typename L::Bits>(xsimd::select(greater, as_signed(yes), as_signed(no)));
}

/// to_float of core/dtype.h for fp16: the product is exact, for its subnormals too; only infinity and NaN need
/// their exponent set.
template <class L>
SPILLWAY_INLINE typename L::Float from_fp16(typename L::Bits half) {
  using Bits = typename L::Bits;
  const Bits rest = half & Bits(0x7fffu);
  const Bits scaled = as_bits<L>(as_float<L>(rest << 13) * typename L::Float(0x1p112f));
  const Bits beyond = (rest << 13) | Bits(0x7f800000u);
  const Bits quiet = select_greater<L>(rest, 0x7c00u, Bits(0x00400000u), Bits(0u));
  const Bits magnitude = select_greater<L>(rest, 0x7bffu, beyond | quiet, scaled);
  return as_float<L>(magnitude | ((half & Bits(0x8000u)) << 16));
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
SPILLWAY_INLINE typename L::Float load_gradient(const Float16* g) {
  return from_fp16<L>(L::load_unsigned16(g));
}

template <class L>
SPILLWAY_INLINE void load_gradient(const float* g, typename L::Float& even, typename L::Float& odd) {
  even = L::Float::load_unaligned(g);
  odd = L::Float::load_unaligned(g + L::width);
  L::separate(even, odd);
}
template <class L>
SPILLWAY_INLINE void load_gradient(const BFloat16* g, typename L::Float& even, typename L::Float& odd) {
  const auto pairs = L::load(g);
  even = even_bf16<L>(pairs);
  odd = odd_bf16<L>(pairs);
}
template <class L>
SPILLWAY_INLINE void load_gradient(const Float16* g, typename L::Float& even, typename L::Float& odd) {
  const auto pairs = L::load(g);
  even = from_fp16<L>(even_unsigned<L>(pairs));
  odd = from_fp16<L>(odd_unsigned<L>(pairs));
}

/// join_master of core/update.h for 2 width elements; `low` is a register of low halves.
template <class L>
SPILLWAY_INLINE void load_masters(const BFloat16* highs, typename L::Bits low, typename L::Float& even,
                                  typename L::Float& odd) {
  using Bits = typename L::Bits;
  const Bits high = L::load(highs);
  even = as_float<L>((high << 16) + xsimd::bitwise_cast<Bits>(even_signed<L>(low)));
  odd = as_float<L>((high & Bits(0xffff0000u)) + xsimd::bitwise_cast<Bits>(odd_signed<L>(low)));
}
/// split_master: stores the high halves, returns a register of the low ones, which are the masters' low bits.
template <class L>
SPILLWAY_INLINE typename L::Bits store_highs(BFloat16* highs, typename L::Float even, typename L::Float odd) {
  using Bits = typename L::Bits;
  const Bits half(0x8000u);
  L::store(highs, L::blend16((as_bits<L>(even) + half) >> 16, as_bits<L>(odd) + half));
  return L::blend16(as_bits<L>(even), as_bits<L>(odd) << 16);
}

/// RoundingKey::bits of 2 width elements from number `first` of a call on, which is even: those of even number
/// in the high halves.
template <class L>
SPILLWAY_INLINE typename L::Bits random_pairs(const Rounding& rounding, std::int64_t first) {
  using Bits = typename L::Bits;
  static constexpr std::uint32_t numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const std::uint32_t pair = (rounding.first + static_cast<std::uint32_t>(first)) / 2;
  Bits x = Bits::load_unaligned(numbers) + Bits(pair + rounding.key.before);
  x = (x ^ (x >> 16)) * Bits(RoundingKey::kFirstFactor) + Bits(rounding.key.middle);
  x = (x ^ (x >> 15)) * Bits(RoundingKey::kSecondFactor);
  return x ^ (x >> 15);
}

template <class Body>
SPILLWAY_INLINE auto with_type(Gradient gradient, const Body& body) {
  if (gradient.type == DType::fp32) return body(static_cast<const float*>(gradient.data));
  if (gradient.type == DType::fp16) return body(static_cast<const Float16*>(gradient.data));
  return body(static_cast<const BFloat16*>(gradient.data));
}

template <class T>
SPILLWAY_INLINE void copy(T* to, const T* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}

/// The largest magnitudes seen, as bits; compared with the limits once, at the end.
template <class L>
struct Largest {
  using Bits = typename L::Bits;
  Bits weight = Bits(0u), moment = Bits(0u);  // braces would list lane values

  /// `last_moment`: v, which is never -0 (a sign is that of a NaN, and large), or the magnitude of m.
  SPILLWAY_INLINE void see(typename L::Float master, Bits last_moment) {
    weight = xsimd::max(weight, magnitude<L>(master));
    moment = xsimd::max(moment, last_moment);
  }
  SPILLWAY_INLINE bool reaches(std::uint32_t weight_limit, std::uint32_t moment_limit) const {
    return L::largest(weight) >= weight_limit || L::largest(moment) >= moment_limit;
  }
};

template <class L>
struct Broadcast {
  using Float = typename L::Float;
  SPILLWAY_INLINE explicit Broadcast(const UpdateCoefficients& c)
      : gradient_factor(c.gradient_factor),
        coupled_decay(c.coupled_decay),
        decay(c.decay),
        minus_step_size(-c.step_size),
        beta1(c.beta1),
        one_minus_beta1(c.one_minus_beta1),
        beta2(c.beta2),
        one_minus_beta2(c.one_minus_beta2),
        inv_sqrt_bias_correction2(c.inv_sqrt_bias_correction2),
        eps(c.eps),
        m_share(c.m_share),
        gradient_share(c.gradient_share) {}
  Float gradient_factor, coupled_decay, decay, minus_step_size, beta1, one_minus_beta1, beta2, one_minus_beta2,
      inv_sqrt_bias_correction2, eps, m_share, gradient_share;
};

/// The optimizers as the kernels tell them apart: `adamw` has no coupled decay and an eps above 0, so that its
/// denominator is never 0; `adam` has neither condition.
enum class Rule { adamw, adam, lion, sgd };
constexpr bool has_second_moment(Rule rule) {
  return rule == Rule::adamw || rule == Rule::adam;
}

/// adam_update, lion_update and sgd_update of core/update.h, operation by operation, for L::width elements in
/// place; `root` becomes that of the new v.
template <class L, Rule rule>
SPILLWAY_INLINE void step(typename L::Float& master, typename L::Float& m, typename L::Float& v,
                          typename L::Float& root, typename L::Float gradient, const Broadcast<L>& c,
                          Largest<L>& largest) {
  using Float = typename L::Float;
  const Float zero(0.0f);
  Float g = gradient * c.gradient_factor;
  if constexpr (rule == Rule::lion) {
    const Float direction = L::fma(c.beta1, m, c.one_minus_beta1 * g);
    const Float sign =
        xsimd::select(direction > zero, Float(1.0f), xsimd::select(direction < zero, Float(-1.0f), zero));
    m = L::fma(c.beta2, m, c.one_minus_beta2 * g);
    master = L::fma(c.minus_step_size, sign, master * c.decay);
    largest.see(master, magnitude<L>(m));
  } else if constexpr (rule == Rule::sgd) {
    g = L::fma(c.coupled_decay, master, g);
    m = L::fma(c.beta1, m, g);
    const Float direction = L::fma(c.m_share, m, c.gradient_share * g);
    master = L::fma(c.minus_step_size, direction, master);
    largest.see(master, magnitude<L>(m));
  } else {
    if constexpr (rule == Rule::adam) {
      g = xsimd::select(c.coupled_decay == zero, g, L::fma(c.coupled_decay, master, g));
    }
    m = L::fma(c.beta1, m, c.one_minus_beta1 * g);
    v = L::fma(c.beta2, v, (c.one_minus_beta2 * g) * g);
    root = xsimd::sqrt(v);
    const Float denominator = L::fma(root, c.inv_sqrt_bias_correction2, c.eps);
    Float quotient = m / denominator;
    if constexpr (rule == Rule::adam) quotient = xsimd::select(denominator == zero, zero, quotient);
    master = L::fma(c.minus_step_size, quotient, master * c.decay);
    largest.see(master, as_bits<L>(v));
  }
}

/// Calls body with the rule as a constant.
template <Rule rule>
struct RuleConstant {
  static constexpr Rule value = rule;
};
template <class Body>
SPILLWAY_INLINE bool with_adam(const UpdateCoefficients& c, const Body& body) {
  if (c.coupled_decay == 0.0f && c.eps > 0.0f) return body(RuleConstant<Rule::adamw>{});
  return body(RuleConstant<Rule::adam>{});
}
template <class Body>
SPILLWAY_INLINE bool with_rule(const UpdateCoefficients& c, const Body& body) {
  if (c.optimizer == Optimizer::lion) return body(RuleConstant<Rule::lion>{});
  if (c.optimizer == Optimizer::sgd) return body(RuleConstant<Rule::sgd>{});
  return with_adam(c, body);
}

}  // namespace
}  // namespace spillway::cpu_adam
