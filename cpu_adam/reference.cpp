// The reference: one element after another, in the plainest form. It runs everywhere, and every vectorised form
// is held against its bits. Its fused multiply-adds are library calls where the baseline has no such
// instruction.
#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace spillway::cpu_adam {
namespace {

float gradient_at(Gradient gradient, std::int64_t i) {
  if (gradient.type == DType::fp32) return static_cast<const float*>(gradient.data)[i];
  if (gradient.type == DType::fp16) return to_float(static_cast<const Float16*>(gradient.data)[i]);
  return to_float(static_cast<const BFloat16*>(gradient.data)[i]);
}

/// The moment that a non-finite gradient shows in.
float last_moment(const UpdateElement& e, const UpdateCoefficients& c) {
  return has_second_moment(c.optimizer) ? e.v : e.m;
}

bool update_fp32(const Fp32Planes& p, Gradient gradient, std::int64_t n, const UpdateCoefficients& c,
                 const Rounding&) {
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const UpdateElement old{join_master(p.high[i], p.low[i]), p.m[i],
                            has_second_moment(c.optimizer) ? p.v[i] : 0};
    const UpdateElement now = update_element(old, gradient_at(gradient, i), c);
    const SplitMaster halves = split_master(now.master);
    p.high[i] = halves.high;
    p.low[i] = halves.low;
    p.m[i] = now.m;
    if (has_second_moment(c.optimizer)) p.v[i] = now.v;
    finite = finite && has_finite_weight(now.master) && is_finite(last_moment(now, c));
  }
  return !finite;
}

bool update_full(const FullPlanes& p, Gradient gradient, std::int64_t n, const UpdateCoefficients& c,
                 const Rounding&) {
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const UpdateElement old{p.master[i], p.m[i], has_second_moment(c.optimizer) ? p.v[i] : 0};
    const UpdateElement now = update_element(old, gradient_at(gradient, i), c);
    p.master[i] = now.master;
    p.m[i] = now.m;
    if (has_second_moment(c.optimizer)) p.v[i] = now.v;
    finite = finite && is_finite(now.master) && is_finite(last_moment(now, c));
  }
  return !finite;
}

bool update_bf16(const Bf16Planes& p, Gradient gradient, std::int64_t n, const UpdateCoefficients& c,
                 const Rounding& rounding) {
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const UpdateElement old{join_master(p.high[i], p.low[i]), to_float(p.m[i]),
                            has_second_moment(c.optimizer) ? to_float(p.v[i]) : 0};
    const UpdateElement now = update_element(old, gradient_at(gradient, i), c);
    const SplitMaster halves = split_master(now.master);
    const std::uint32_t random = rounding.key.bits(rounding.first + static_cast<std::uint32_t>(i));
    p.high[i] = halves.high;
    p.low[i] = halves.low;
    p.m[i] = to_bf16_stochastic(now.m, random);
    if (has_second_moment(c.optimizer)) p.v[i] = to_bf16_stochastic(now.v, random);
    finite = finite && has_finite_weight(now.master) && magnitude_bits(last_moment(now, c)) < kInfiniteBf16Bits;
  }
  return !finite;
}

bool update_compact8(const Compact8Planes& p, Gradient gradient, std::int64_t n, const UpdateCoefficients& c,
                     const Rounding& rounding) {
  bool finite = true;
  for (std::int64_t begin = 0; begin < n; begin += kCompactGroup) {
    const std::int64_t end = std::min(n, begin + kCompactGroup);
    const std::uint32_t first = rounding.first + static_cast<std::uint32_t>(begin);
    std::uint16_t& m_scale = p.m_scales[begin / kCompactGroup];
    std::uint16_t& v_scale = p.v_scales[begin / kCompactGroup];
    UpdateElement now[kCompactGroup];
    std::uint32_t largest_m = 0, largest_root = 0;  // as bits, which are in the order of the values
    for (std::int64_t i = begin; i < end; ++i) {
      const UpdateElement old{join_master(p.high[i], decode_low(p.low[i])),
                              decode_m(p.m[i], decode_scale(m_scale)), decode_v(p.v[i], decode_scale(v_scale))};
      UpdateElement& e = now[i - begin];
      e = adam_update(old, gradient_at(gradient, i), c);
      const SplitMaster halves = split_master(e.master);
      p.high[i] = halves.high;
      p.low[i] = encode_low(halves.low, rounding.key.bits(first + static_cast<std::uint32_t>(i - begin)));
      largest_m = std::max(largest_m, magnitude_bits(e.m));
      largest_root = std::max(largest_root, magnitude_bits(std::sqrt(e.v)));
      finite = finite && has_finite_weight(e.master) && is_finite(e.v);
    }
    const std::uint32_t random = rounding.key.group_word(first / kCompactGroup);
    m_scale = encode_scale(std::bit_cast<float>(largest_m), random >> 17);
    v_scale = encode_scale(std::bit_cast<float>(largest_root), random & 0x7fffu);
    const float maximum = largest_m > 0 ? std::bit_cast<float>(largest_m) : kNoMaximum;
    const float codes_per_root = codes_of_root(
        std::bit_cast<float>(std::max(largest_root, std::bit_cast<std::uint32_t>(kSmallestRoot))));
    for (std::int64_t i = begin; i < end; ++i) {
      const UpdateElement& e = now[i - begin];
      const std::uint32_t its_random = rounding.key.bits(first + static_cast<std::uint32_t>(i - begin));
      p.m[i] = encode_m(e.m, maximum, its_random);
      p.v[i] = encode_v(std::sqrt(e.v), codes_per_root, its_random);
    }
  }
  return !finite;
}

double square_sum(Gradient gradient, std::int64_t n) {
  double lanes[kNormLanes] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const double g = static_cast<double>(gradient_at(gradient, i));
    lanes[i % kNormLanes] += g * g;  // the product is exact
  }
  for (int half = kNormLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

void accumulate_sum(Accumulate how, float* sum, Gradient h, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    sum[i] = (how == Accumulate::assign ? 0.0f : sum[i]) + gradient_at(h, i);
  }
}

void narrow(BFloat16* narrowed, const float* gradient, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) narrowed[i] = to_bf16(gradient[i]);
}

void change(std::byte* stream, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 4) stream[i] ^= std::byte{1};
}

std::uint32_t fold(const std::byte* stream, std::int64_t bytes) {
  std::uint32_t folded = 0;
  for (std::int64_t i = 0; i < bytes; ++i) folded ^= std::to_integer<std::uint32_t>(stream[i]) << (i % 4 * 8);
  return folded;
}

}  // namespace

constinit const Kernels kScalarKernels = {update_fp32,    update_bf16, update_compact8, update_full, square_sum,
                                          accumulate_sum, narrow,      change,          fold};

}  // namespace spillway::cpu_adam
