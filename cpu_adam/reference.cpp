// The reference: one element after another, in the plainest form. It runs everywhere, and every vectorised form
// is held against its bits. Its fused multiply-adds are library calls where the baseline has no such
// instruction.
#include "kernels.h"

#include <cmath>

namespace spillway::cpu_adam {
namespace {

float gradient_at(Gradient gradient, std::int64_t i) {
  if (gradient.type == DType::fp32) return static_cast<const float*>(gradient.data)[i];
  return to_float(static_cast<const BFloat16*>(gradient.data)[i]);
}

bool update_split(const SplitPlanes& planes, Gradient gradient, std::int64_t n, const AdamCoefficients& c) {
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const AdamElement old{join_master(planes.high[i], planes.low[i]), planes.m[i], planes.v[i]};
    const AdamElement now = adam_update(old, gradient_at(gradient, i), c);
    const SplitMaster halves = split_master(now.master);
    planes.high[i] = halves.high;
    planes.low[i] = halves.low;
    planes.m[i] = now.m;
    planes.v[i] = now.v;
    finite = finite && has_finite_weight(now.master) && is_finite(now.v);
  }
  return !finite;
}

bool update_full(const FullPlanes& planes, Gradient gradient, std::int64_t n, const AdamCoefficients& c) {
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {
    const AdamElement now =
        adam_update({planes.master[i], planes.m[i], planes.v[i]}, gradient_at(gradient, i), c);
    planes.master[i] = now.master;
    planes.m[i] = now.m;
    planes.v[i] = now.v;
    finite = finite && is_finite(now.master) && is_finite(now.v);
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

}  // namespace

constinit const Kernels kScalarKernels = {update_split, update_full, square_sum, accumulate_sum, narrow};

}  // namespace spillway::cpu_adam
