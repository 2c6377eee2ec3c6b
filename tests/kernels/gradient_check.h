#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::kernels {

/// gradient[i] must be the derivative of sum(weights * function(x)) with respect to x[i], found by central
/// differences of a float64 function.
template <class Function>
void expect_gradient(const std::vector<double>& gradient, std::vector<double> x,
                     const std::vector<double>& weights, Function&& function) {
  ASSERT_EQ(gradient.size(), x.size());
  constexpr double kStep = 1e-5;
  const auto value = [&] {
    const std::vector<double> y = function(x);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
    return sum;
  };
  double largest = 0;
  for (const double g : gradient) largest = std::max(largest, std::abs(g));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double saved = x[i];
    x[i] = saved + kStep;
    const double above = value();
    x[i] = saved - kStep;
    const double below = value();
    x[i] = saved;
    // Steps of 1e-5 err by about 1e-9 in float64; the gradient itself is fp32.
    EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 5e-6 * (largest + 1)) << i;
  }
}

}  // namespace spillway::kernels
