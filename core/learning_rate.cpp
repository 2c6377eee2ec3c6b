#include "learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace spillway {
namespace {

double decay(const ScheduleConfig& s, std::int64_t warmup, std::int64_t t) {
  const double left = static_cast<double>(s.total_steps - t);
  return std::max(0.0, left / static_cast<double>(std::max<std::int64_t>(1, s.total_steps - warmup)));
}

double cosine(const ScheduleConfig& s, std::int64_t warmup, std::int64_t t) {
  const std::int64_t steps = s.total_steps - warmup, made = t - warmup + 1;
  const double place = made >= steps ? 1.0 : static_cast<double>(made) / static_cast<double>(steps);
  const double ratio = (1.0 + std::cos(std::numbers::pi * place)) / 2.0;
  return std::max(0.0, s.cosine_minimum_ratio + (1.0 - s.cosine_minimum_ratio) * ratio);
}

}  // namespace

double learning_rate(const ScheduleConfig& s, double base, std::int64_t t) {
  if (s.kind == ScheduleKind::constant) return base;
  const std::int64_t warmup = std::max<std::int64_t>(2, s.warmup_steps);
  const double ramp = s.logarithmic
                          ? std::log(static_cast<double>(t + 1)) / std::log(static_cast<double>(warmup))
                          : static_cast<double>(t) / static_cast<double>(warmup);
  if (s.kind == ScheduleKind::warmup_cosine) {
    return base *
           (t < warmup ? s.warmup_minimum_ratio + (1.0 - s.warmup_minimum_ratio) * ramp : cosine(s, warmup, t));
  }
  const double after = s.kind == ScheduleKind::warmup ? 1.0 : decay(s, warmup, t);
  return s.minimum + (s.maximum - s.minimum) * (t < warmup ? ramp : after);
}

}  // namespace spillway
