#pragma once
// Estimates from few and noisy values, of which some are far off.
#include <cstddef>
#include <vector>

namespace spillway::aio {

struct Estimate {
  double value = 0;
  double low = 0, high = 0;  ///< interval
  int count = 0;
};

/// What is known of the noise before anything was measured: a variance that counts as much as so many values.
struct NoisePrior {
  double variance = 0;
  double weight = 0;
};

/// The mean of the middle three fifths (of three or four values: without the least and the largest; of one or
/// two: of all) with Yuen's interval: a few values far off move it little. Of one value the interval is the
/// prior's alone. `spread` scales the interval: 1 for 95% at one look, more where one looks often. No values:
/// all 0.
Estimate trimmed_mean(std::vector<double> values, const NoisePrior& prior, double spread = 1);

/// Exponentials of an estimate of logarithms.
Estimate exponential(const Estimate& logarithm);

/// share in [0, 1], interpolated between neighbours; 0 for no values.
double quantile_of(std::vector<double> values, double share);

/// The standard deviation of the bulk of the values (from the median distance to the median).
double robust_deviation(const std::vector<double>& values);

/// Two-sided 95% quantile of Student's t.
double t95(double degrees_of_freedom);

/// Where the values split best into two levels: the index of the first value of the second, with at least
/// `least` values on either side; 0 where there are too few.
std::size_t change_point(const std::vector<double>& values, std::size_t least);

}  // namespace spillway::aio
