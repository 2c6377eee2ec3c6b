#include "tuner_statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace spillway::aio {

double t95(double degrees_of_freedom) {
  // Cornish-Fisher's expansion around the normal quantile; exact tables where it is not good enough.
  constexpr double kExact[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447};
  const double df = std::max(degrees_of_freedom, 1.0);
  if (df < 6) {
    const auto below = static_cast<std::size_t>(df) - 1;
    const double between = df - std::floor(df);
    return kExact[below] + between * (kExact[below + 1] - kExact[below]);
  }
  const double z = 1.959964, z3 = z * z * z, z5 = z3 * z * z;
  return z + (z3 + z) / (4 * df) + (5 * z5 + 16 * z3 + 3 * z) / (96 * df * df);
}

Estimate trimmed_mean(std::vector<double> values, const NoisePrior& prior, double spread) {
  Estimate result{.count = static_cast<int>(values.size())};
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  const std::size_t cut = values.size() < 3 ? 0 : std::max<std::size_t>(1, values.size() / 5);
  const std::size_t last = values.size() - 1 - cut;
  const auto kept = static_cast<double>(values.size() - 2 * cut);
  double sum = 0;
  for (std::size_t i = cut; i <= last; ++i) sum += values[i];
  result.value = sum / kept;

  // Winsorised: what is cut off counts as the nearest that is kept.
  std::vector<double> drawn_in = values;
  for (double& value : drawn_in) value = std::clamp(value, values[cut], values[last]);
  const double mean =
      std::accumulate(drawn_in.begin(), drawn_in.end(), 0.0) / static_cast<double>(drawn_in.size());
  double squares = 0;
  for (const double value : drawn_in) squares += (value - mean) * (value - mean);
  // squares / (kept - 1) is the variance that Yuen's standard error has for `kept` values.
  const double degrees = prior.weight + kept - 1;
  const double variance = degrees > 0 ? (prior.weight * prior.variance + squares) / degrees : 0;
  const double half = spread * t95(degrees) * std::sqrt(variance / kept);
  result.low = result.value - half;
  result.high = result.value + half;
  return result;
}

Estimate exponential(const Estimate& logarithm) {
  return {std::exp(logarithm.value), std::exp(logarithm.low), std::exp(logarithm.high), logarithm.count};
}

double quantile_of(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

double robust_deviation(const std::vector<double>& values) {
  const double middle = quantile_of(values, 0.5);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - middle));
  return 1.4826 * quantile_of(std::move(distances), 0.5);
}

std::size_t change_point(const std::vector<double>& values, std::size_t least) {
  const std::size_t count = values.size();
  if (least == 0 || count < 2 * least) return 0;
  std::vector<double> sums(count + 1, 0.0);
  std::partial_sum(values.begin(), values.end(), sums.begin() + 1);
  std::size_t best = 0;
  double most = -1;
  for (std::size_t i = least; i + least <= count; ++i) {
    const auto before = static_cast<double>(i), after = static_cast<double>(count - i);
    const double difference = sums[i] / before - (sums[count] - sums[i]) / after;
    const double explained = difference * difference * before * after;  // of the sum of squares
    if (explained > most) {
      most = explained;
      best = i;
    }
  }
  return best;
}

}  // namespace spillway::aio
