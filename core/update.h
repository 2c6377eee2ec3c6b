#pragma once
// The formulas of the optimizers for one element, on the host and on a device. They fix every bit: each
// operation is named, in order, with explicit fused multiply-adds, so that a vectorised form on any ISA gives
// the same result (with -ffp-contract=off, subnormals kept and rounding to nearest).
#include "dtype.h"
#include "host_device_code.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string_view>

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

/// The optimizers. Lion and SGD have a first moment only.
enum class Optimizer : std::uint8_t { adamw, adam, lion, sgd };

constexpr std::string_view name_of(Optimizer optimizer) {
  constexpr std::string_view names[] = {"adamw", "adam", "lion", "sgd"};
  return names[static_cast<int>(optimizer)];
}
constexpr bool has_second_moment(Optimizer optimizer) {
  return optimizer == Optimizer::adamw || optimizer == Optimizer::adam;
}

/// The settings of one parameter group, in double as the user wrote them.
struct HyperParameters {
  Optimizer optimizer = Optimizer::adamw;
  double learning_rate = 1e-3;  ///< >= 0
  double beta1 = 0.9;           ///< in [0, 1); Adam and Lion
  double beta2 = 0.999;         ///< in [0, 1); Adam and Lion
  double eps = 1e-8;            ///< >= 0; Adam
  double weight_decay = 0.0;  ///< >= 0; AdamW and Lion: off the weight, Adam and SGD: L2, added to the gradient
  double momentum = 0.0;      ///< in [0, 1); SGD
  bool nesterov = false;      ///< SGD
  friend bool operator==(const HyperParameters&, const HyperParameters&) = default;
};

/// All that the inner loop needs: computed once in double, each rounded once to fp32.
struct UpdateCoefficients {
  Optimizer optimizer = Optimizer::adamw;
  float gradient_factor = 1.0f;
  float coupled_decay = 0.0f;  ///< weight_decay where it is L2, else 0
  float decay = 1.0f;          ///< 1 - learning_rate * weight_decay where it is decoupled, else 1
  float step_size = 0.0f;      ///< Adam: learning_rate / (1 - beta1^step); Lion and SGD: learning_rate
  float beta1 = 0.0f;          ///< SGD: momentum
  float one_minus_beta1 = 1.0f;
  float beta2 = 0.0f;
  float one_minus_beta2 = 1.0f;
  float inv_sqrt_bias_correction2 = 1.0f;  ///< 1 / sqrt(1 - beta2^step)
  float eps = 0.0f;
  float m_share = 1.0f;         ///< SGD: of the momentum in the direction; Nesterov: momentum, else 1
  float gradient_share = 0.0f;  ///< SGD: of the gradient; Nesterov: 1, else 0
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
inline UpdateCoefficients update_coefficients(const HyperParameters& hyper, std::int64_t step,
                                              double gradient_factor) {
  const auto is_share = [](double x) { return x >= 0.0 && static_cast<float>(x) < 1.0f; };
  const auto is_rate = [](double x) { return x >= 0.0 && std::isfinite(x); };
  if (step < 1 || !is_share(hyper.beta1) || !is_share(hyper.beta2) || !is_share(hyper.momentum) ||
      !is_rate(hyper.eps) || !is_rate(hyper.learning_rate) || !is_rate(hyper.weight_decay) ||
      !std::isfinite(gradient_factor)) {
    throw std::logic_error("update_coefficients: a hyper-parameter or the step number is out of range");
  }
  const bool is_sgd = hyper.optimizer == Optimizer::sgd;
  const bool is_adam = has_second_moment(hyper.optimizer);
  const bool is_coupled = hyper.optimizer == Optimizer::adam || is_sgd;
  const double bias_correction1 = is_adam ? 1.0 - update_detail::integer_power(hyper.beta1, step) : 1.0;
  const double bias_correction2 = is_adam ? 1.0 - update_detail::integer_power(hyper.beta2, step) : 1.0;
  UpdateCoefficients c;
  c.optimizer = hyper.optimizer;
  c.gradient_factor = static_cast<float>(gradient_factor);
  c.coupled_decay = static_cast<float>(is_coupled ? hyper.weight_decay : 0.0);
  c.decay = static_cast<float>(is_coupled ? 1.0 : 1.0 - hyper.learning_rate * hyper.weight_decay);
  c.step_size = static_cast<float>(hyper.learning_rate / bias_correction1);
  c.beta1 = static_cast<float>(is_sgd ? hyper.momentum : hyper.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - hyper.beta1);
  c.beta2 = static_cast<float>(hyper.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - hyper.beta2);
  c.inv_sqrt_bias_correction2 = static_cast<float>(1.0 / std::sqrt(bias_correction2));
  c.eps = static_cast<float>(hyper.eps);
  c.m_share = hyper.nesterov ? c.beta1 : 1.0f;
  c.gradient_share = hyper.nesterov ? 1.0f : 0.0f;
  return c;
}

/// A weight and its moments; v stays 0 where the optimizer has none.
struct UpdateElement {
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
SPILLWAY_HOST_DEVICE inline UpdateElement adam_update(UpdateElement element, float gradient,
                                                      const UpdateCoefficients& c) {
  float g = gradient * c.gradient_factor;
  if (c.coupled_decay != 0.0f) g = std::fma(c.coupled_decay, element.master, g);
  const float m = std::fma(c.beta1, element.m, c.one_minus_beta1 * g);
  const float v = std::fma(c.beta2, element.v, (c.one_minus_beta2 * g) * g);
  const float denominator = std::fma(std::sqrt(v), c.inv_sqrt_bias_correction2, c.eps);
  const float quotient = denominator == 0.0f ? 0.0f : m / denominator;
  return {std::fma(-c.step_size, quotient, element.master * c.decay), m, v};
}

/// One step of Lion (Chen et al., arXiv:2302.06675, algorithm 2):
///   p  = p (1 - lr weight_decay) - lr sign(beta1 m + (1 - beta1) g)
///   m  = beta2 m + (1 - beta2) g
/// The sign of 0 and of NaN is 0.
SPILLWAY_HOST_DEVICE inline UpdateElement lion_update(UpdateElement element, float gradient,
                                                      const UpdateCoefficients& c) {
  const float g = gradient * c.gradient_factor;
  const float direction = std::fma(c.beta1, element.m, c.one_minus_beta1 * g);
  const float sign = direction > 0.0f ? 1.0f : direction < 0.0f ? -1.0f : 0.0f;
  const float m = std::fma(c.beta2, element.m, c.one_minus_beta2 * g);
  return {std::fma(-c.step_size, sign, element.master * c.decay), m, 0.0f};
}

/// One step of SGD with momentum, in the form of torch.optim.SGD without dampening:
///   g  = gradient * factor + weight_decay * p
///   m  = momentum m + g
///   p  = p - lr m, or with Nesterov's momentum p - lr (g + momentum m)
SPILLWAY_HOST_DEVICE inline UpdateElement sgd_update(UpdateElement element, float gradient,
                                                     const UpdateCoefficients& c) {
  const float g = std::fma(c.coupled_decay, element.master, gradient * c.gradient_factor);
  const float m = std::fma(c.beta1, element.m, g);
  const float direction = std::fma(c.m_share, m, c.gradient_share * g);
  return {std::fma(-c.step_size, direction, element.master), m, 0.0f};
}

SPILLWAY_HOST_DEVICE inline UpdateElement update_element(UpdateElement element, float gradient,
                                                         const UpdateCoefficients& c) {
  if (c.optimizer == Optimizer::lion) return lion_update(element, gradient, c);
  if (c.optimizer == Optimizer::sgd) return sgd_update(element, gradient, c);
  return adam_update(element, gradient, c);
}

}  // namespace spillway
