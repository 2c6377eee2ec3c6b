#pragma once
// The formulas of the optimizer for one element, on the host and on a device. They fix every bit: each
// operation is named, in order, with explicit fused multiply-adds, so that a vectorised form on any ISA gives
// the same result (with -ffp-contract=off, subnormals kept and rounding to nearest).
#include "dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#if defined(__CUDACC__)
#define SPILLWAY_HOST_DEVICE __host__ __device__
#else
#define SPILLWAY_HOST_DEVICE
#endif

namespace spillway {

/// An fp32 master weight in two halves: `high` is the bf16 weight that the device computes with.
struct SplitMaster {
  BFloat16 high;
  std::int16_t low = 0;
  friend bool operator==(SplitMaster, SplitMaster) = default;
};

/// high = the master rounded to bf16, ties away from zero; low = what is left of its bits. Exact for all 2^32
/// bit patterns: join_master gives the same bits back. A finite master above the middle of bf16's largest value
/// and infinity has an infinite high (has_finite_weight tells), and reassembles all the same.
SPILLWAY_HOST_DEVICE constexpr SplitMaster split_master(float master) {
  const auto bits = std::bit_cast<std::uint32_t>(master);
  const std::uint32_t high = (bits + 0x8000u) >> 16;
  return {{static_cast<std::uint16_t>(high)}, static_cast<std::int16_t>(bits - (high << 16))};
}

SPILLWAY_HOST_DEVICE constexpr float join_master(BFloat16 high, std::int16_t low) {
  return std::bit_cast<float>((static_cast<std::uint32_t>(high.bits) << 16) + static_cast<std::uint32_t>(low));
}
SPILLWAY_HOST_DEVICE constexpr float join_master(SplitMaster halves) {
  return join_master(halves.high, halves.low);
}

/// The magnitude bits from which on an fp32 value is infinite or NaN, and from which on its bf16 half is.
inline constexpr std::uint32_t kInfiniteBits = 0x7f800000u;
inline constexpr std::uint32_t kInfiniteHighBits = 0x7f7f8000u;

SPILLWAY_HOST_DEVICE constexpr std::uint32_t magnitude_bits(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
}
/// Neither infinite nor NaN.
SPILLWAY_HOST_DEVICE constexpr bool is_finite(float x) {
  return magnitude_bits(x) < kInfiniteBits;
}
/// The master is finite, and so is the bf16 half that the device computes with.
SPILLWAY_HOST_DEVICE constexpr bool has_finite_weight(float master) {
  return magnitude_bits(master) < kInfiniteHighBits;
}

/// The settings of one parameter group, in double as the user wrote them.
struct AdamHyper {
  double learning_rate = 1e-3;  ///< >= 0
  double beta1 = 0.9;           ///< in [0, 1)
  double beta2 = 0.999;         ///< in [0, 1)
  double eps = 1e-8;            ///< >= 0
  double weight_decay = 0.0;    ///< >= 0
  bool decoupled = true;        ///< true: AdamW; false: L2 regularisation, added to the gradient (Adam)
};

/// All that the inner loop needs: computed once in double, each rounded once to fp32.
struct AdamCoefficients {
  float gradient_factor = 1.0f;
  float coupled_decay = 0.0f;  ///< weight_decay where it is L2, else 0
  float beta1 = 0.0f;
  float one_minus_beta1 = 1.0f;
  float beta2 = 0.0f;
  float one_minus_beta2 = 1.0f;
  float inv_sqrt_bias_correction2 = 1.0f;  ///< 1 / sqrt(1 - beta2^step)
  float eps = 0.0f;
  float step_size = 0.0f;  ///< learning_rate / (1 - beta1^step)
  float decay = 1.0f;      ///< 1 - learning_rate * weight_decay where it is decoupled, else 1
};

namespace update_detail {
/// base^exponent by squaring: the same bits with every C library. Relative error below 64 * 2^-53.
constexpr double integer_power(double base, std::int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}
}  // namespace update_detail

/// The coefficients of one step of one group. `step` counts from 1 and is the caller's: nothing here remembers
/// it, so every shard of a step has the same bias correction. `gradient_factor` = clip / (micro_batches *
/// world). std::logic_error where a value is outside its range (the configuration refuses such values by name
/// before).
inline AdamCoefficients adam_coefficients(const AdamHyper& hyper, std::int64_t step, double gradient_factor) {
  const auto is_beta = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  const auto is_rate = [](double x) { return x >= 0.0 && std::isfinite(x); };
  if (step < 1 || !is_beta(hyper.beta1) || !is_beta(hyper.beta2) || !is_rate(hyper.eps) ||
      !is_rate(hyper.learning_rate) || !is_rate(hyper.weight_decay) || !std::isfinite(gradient_factor)) {
    throw std::logic_error("adam_coefficients: a hyper-parameter or the step number is out of range");
  }
  const double bias_correction1 = 1.0 - update_detail::integer_power(hyper.beta1, step);
  const double bias_correction2 = 1.0 - update_detail::integer_power(hyper.beta2, step);
  AdamCoefficients c;
  c.gradient_factor = static_cast<float>(gradient_factor);
  c.coupled_decay = static_cast<float>(hyper.decoupled ? 0.0 : hyper.weight_decay);
  c.beta1 = static_cast<float>(hyper.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - hyper.beta1);
  c.beta2 = static_cast<float>(hyper.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - hyper.beta2);
  c.inv_sqrt_bias_correction2 = static_cast<float>(1.0 / std::sqrt(bias_correction2));
  c.eps = static_cast<float>(hyper.eps);
  c.step_size = static_cast<float>(hyper.learning_rate / bias_correction1);
  c.decay = static_cast<float>(hyper.decoupled ? 1.0 - hyper.learning_rate * hyper.weight_decay : 1.0);
  return c;
}

struct AdamElement {
  float master = 0.0f;
  float m = 0.0f;
  float v = 0.0f;
};

/// One step of Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1) or AdamW (Loshchilov and Hutter,
/// arXiv:1711.05101, algorithm 2), in the form of torch.optim.Adam and torch.optim.AdamW:
///   g  = gradient * factor  (+ weight_decay * p where it is L2)
///   m  = beta1 m + (1 - beta1) g
///   v  = beta2 v + (1 - beta2) g g
///   p  = p (1 - lr weight_decay) - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
/// Where the denominator is 0 (eps = 0 and v = 0: no gradient yet, or only such whose square underflows)
/// nothing is known about the scale of g, and the quotient is defined as 0: only the decay acts.
SPILLWAY_HOST_DEVICE inline AdamElement adam_update(AdamElement element, float gradient,
                                                    const AdamCoefficients& c) {
  float g = gradient * c.gradient_factor;
  if (c.coupled_decay != 0.0f) g = std::fma(c.coupled_decay, element.master, g);
  const float m = std::fma(c.beta1, element.m, c.one_minus_beta1 * g);
  const float v = std::fma(c.beta2, element.v, (c.one_minus_beta2 * g) * g);
  const float denominator = std::fma(std::sqrt(v), c.inv_sqrt_bias_correction2, c.eps);
  const float quotient = denominator == 0.0f ? 0.0f : m / denominator;
  return {std::fma(-c.step_size, quotient, element.master * c.decay), m, v};
}

}  // namespace spillway
