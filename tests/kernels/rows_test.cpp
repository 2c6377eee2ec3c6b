#include "gradient_check.h"
#include "support.h"

#include <limits>

#include <gtest/gtest.h>

namespace spillway::kernels {
namespace {

using Doubles = std::vector<double>;
double at(const Doubles& v, std::int64_t i) {
  return v[static_cast<std::size_t>(i)];
}

constexpr std::int64_t kWidths[] = {1, 2, 3, 15, 16, 17, 31, 64, 67, 131, 384};
constexpr double kEpsilon = 1e-5;

struct Normalised {
  Doubles y, z;  // z is (x - mean) / deviation
  Doubles mean, inverse;
};
Normalised layer_norm(const Doubles& x, const Doubles& gamma, const Doubles& beta) {
  const auto width = static_cast<std::int64_t>(gamma.size());
  const auto rows = static_cast<std::int64_t>(x.size()) / width;
  Normalised result{Doubles(x.size()), Doubles(x.size()), {}, {}};
  for (std::int64_t row = 0; row < rows; ++row) {
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < width; ++i) mean += at(x, row * width + i) / static_cast<double>(width);
    for (std::int64_t i = 0; i < width; ++i) {
      variance += std::pow(at(x, row * width + i) - mean, 2) / static_cast<double>(width);
    }
    const double inverse = 1 / std::sqrt(variance + kEpsilon);
    result.mean.push_back(mean);
    result.inverse.push_back(inverse);
    for (std::int64_t i = 0; i < width; ++i) {
      const auto index = static_cast<std::size_t>(row * width + i);
      result.z[index] = (x[index] - mean) * inverse;
      result.y[index] = result.z[index] * at(gamma, i) + at(beta, i);
    }
  }
  return result;
}

// Errors below come from fp32 sums over at most 384 elements in 4 or more lanes (about 100 additions in a row)
// and a handful of further roundings.
constexpr double kSum = 128 * kUnit32;

TEST(LayerNorm, ForwardMatchesFloat64) {
  for (const DType type : kTypes) {
    for (const std::int64_t width : kWidths) {
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, 40000 / width}) {
        if (width < 15 && rows > 5) continue;
        SCOPED_TRACE(label(type, {rows, width}));
        Machine machine(type);
        Array x = Array::random(type, rows * width, 1, 3);
        for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, x[i] + 2);
        const Array gamma = Array::random(type, width, 2), beta = Array::random(type, width, 3);
        Array y(type, rows * width), mean(DType::fp32, rows), inverse(DType::fp32, rows);
        machine.run.layer_norm(y.data(), mean.floats(), inverse.floats(), x.data(), gamma.data(), beta.data(),
                               rows, width, static_cast<float>(kEpsilon));
        machine.finish();
        const Normalised expected = layer_norm(x.values(), gamma.values(), beta.values());
        const Doubles xs = x.values();
        double largest = 0;
        for (const double value : xs) largest = std::max(largest, std::abs(value));
        expect_close(
            mean, expected.mean, [&](std::int64_t) { return kSum * largest; }, "mean");
        // An error of the mean counts as many times as the row is narrower than its mean is large.
        const auto relative = [&](std::int64_t row) {
          return kSum * (4 + largest * at(expected.inverse, row));
        };
        expect_close(
            inverse, expected.inverse,
            [&](std::int64_t row) { return relative(row) * at(expected.inverse, row); }, "inverse_deviation");
        expect_close(
            y, expected.y,
            [&](std::int64_t i) {
              return unit(type) * std::abs(at(expected.y, i)) +
                     2 * relative(i / width) *
                         ((std::abs(at(expected.z, i)) + 1) * std::abs(gamma[i % width]) +
                          std::abs(beta[i % width]));
            },
            "y");
      }
    }
  }
}

struct NormGradient {
  Doubles dx, magnitude, dgamma, dbeta, dgamma_magnitude, dbeta_magnitude;
};
NormGradient layer_norm_backward(const Normalised& normal, const Doubles& dy, const Doubles& gamma) {
  const auto width = static_cast<std::int64_t>(gamma.size());
  const auto rows = static_cast<std::int64_t>(dy.size()) / width;
  NormGradient result{Doubles(dy.size()),    Doubles(dy.size()),    Doubles(gamma.size()),
                      Doubles(gamma.size()), Doubles(gamma.size()), Doubles(gamma.size())};
  for (std::int64_t row = 0; row < rows; ++row) {
    double mean_g = 0, mean_gz = 0, magnitude = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const double g = at(dy, row * width + i) * at(gamma, i), z = at(normal.z, row * width + i);
      mean_g += g / static_cast<double>(width);
      mean_gz += g * z / static_cast<double>(width);
      magnitude += (std::abs(g) + std::abs(g * z)) / static_cast<double>(width);
    }
    for (std::int64_t i = 0; i < width; ++i) {
      const auto index = static_cast<std::size_t>(row * width + i), column = static_cast<std::size_t>(i);
      const double g = dy[index] * gamma[column], z = normal.z[index], inverse = at(normal.inverse, row);
      result.dx[index] = inverse * (g - mean_g - z * mean_gz);
      result.magnitude[index] = inverse * (std::abs(g) + (1 + std::abs(z)) * magnitude);
      result.dgamma[column] += dy[index] * z;
      result.dbeta[column] += dy[index];
      result.dgamma_magnitude[column] += std::abs(dy[index]) * (1 + std::abs(z));
      result.dbeta_magnitude[column] += std::abs(dy[index]);
    }
  }
  return result;
}

TEST(LayerNorm, GradientsMatchFloat64) {
  for (const DType type : kTypes) {
    for (const std::int64_t width : kWidths) {
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{7}, std::int64_t{150}}) {
        SCOPED_TRACE(label(type, {rows, width}));
        Machine machine(type);
        const Array x = Array::random(type, rows * width, 1), gamma = Array::random(type, width, 2);
        const Array beta = Array::random(type, width, 3), dy = Array::random(type, rows * width, 4);
        const Array residual = Array::random(type, rows * width, 5);
        const Array before = Array::random(DType::fp32, width, 6);
        Array y(type, rows * width), mean(DType::fp32, rows), inverse(DType::fp32, rows);
        machine.run.layer_norm(y.data(), mean.floats(), inverse.floats(), x.data(), gamma.data(), beta.data(),
                               rows, width, static_cast<float>(kEpsilon));
        const Normalised normal = layer_norm(x.values(), gamma.values(), beta.values());
        const NormGradient expected = layer_norm_backward(normal, dy.values(), gamma.values());
        double largest = 1;
        for (const double value : normal.inverse) largest = std::max(largest, value);
        for (const int where : {0, 1, 2}) {  // no residual, one of its own, one that dx overwrites
          Array dx = where == 2 ? residual : Array(type, rows * width);
          Array dgamma = before, dbeta = before;
          machine.run.layer_norm_backward(dx.data(), dgamma.floats(), dbeta.floats(),
                                          where == 0   ? nullptr
                                          : where == 1 ? residual.data()
                                                       : dx.data(),
                                          dy.data(), x.data(), gamma.data(), mean.floats(), inverse.floats(),
                                          rows, width);
          machine.finish();
          Doubles total = expected.dx, gammas = expected.dgamma, betas = expected.dbeta;
          for (std::int64_t i = 0; where != 0 && i < residual.count(); ++i) {
            total[static_cast<std::size_t>(i)] += residual[i];
          }
          for (std::int64_t i = 0; i < width; ++i) {
            gammas[static_cast<std::size_t>(i)] += before[i];
            betas[static_cast<std::size_t>(i)] += before[i];
          }
          expect_close(
              dx, total,
              [&](std::int64_t i) {
                return unit(type) * std::abs(at(total, i)) +
                       4 * kSum * (1 + largest) * (at(expected.magnitude, i) + std::abs(residual[i]));
              },
              "dx");
          const double sum = (static_cast<double>(rows) + 4 * 128 * (1 + largest)) * kUnit32;
          expect_close(
              dgamma, gammas,
              [&](std::int64_t i) { return sum * (at(expected.dgamma_magnitude, i) + std::abs(before[i])); },
              "dgamma");
          expect_close(
              dbeta, betas,
              [&](std::int64_t i) { return sum * (at(expected.dbeta_magnitude, i) + std::abs(before[i])); },
              "dbeta");
        }
      }
    }
  }
}

TEST(LayerNorm, GradientMayTakeThePlaceOfWhatItIsMadeFrom) {
  for (const DType type : kTypes) {
    const std::int64_t rows = 37, width = 95;
    Machine machine(type);
    const Array x = Array::random(type, rows * width, 1), gamma = Array::random(type, width, 2);
    Array dy = Array::random(type, rows * width, 4), dx(type, rows * width), y(type, rows * width);
    Array mean(DType::fp32, rows), inverse(DType::fp32, rows);
    std::vector<Array> sums(4, Array::random(DType::fp32, width, 5));
    machine.run.layer_norm(y.data(), mean.floats(), inverse.floats(), x.data(), gamma.data(), gamma.data(),
                           rows, width, static_cast<float>(kEpsilon));
    const auto backward = [&](Array& to, Array& dgamma, Array& dbeta) {
      machine.run.layer_norm_backward(to.data(), dgamma.floats(), dbeta.floats(), nullptr, dy.data(), x.data(),
                                      gamma.data(), mean.floats(), inverse.floats(), rows, width);
    };
    backward(dx, sums[0], sums[1]);
    backward(dy, sums[2], sums[3]);
    machine.finish();
    EXPECT_EQ(dy.values(), dx.values());
    EXPECT_EQ(sums[2].values(), sums[0].values());
    EXPECT_EQ(sums[3].values(), sums[1].values());
  }
}

TEST(LayerNorm, GradientsMatchFiniteDifferences) {
  const std::int64_t rows = 3, width = 21;
  Machine machine(DType::fp32);
  const Array x = Array::random(DType::fp32, rows * width, 1), gamma = Array::random(DType::fp32, width, 2);
  const Array beta = Array::random(DType::fp32, width, 3), dy = Array::random(DType::fp32, rows * width, 4);
  Array y(DType::fp32, rows * width), mean(DType::fp32, rows), inverse(DType::fp32, rows),
      dx(DType::fp32, rows * width);
  std::vector<float> dgamma(static_cast<std::size_t>(width)), dbeta(static_cast<std::size_t>(width));
  machine.run.layer_norm(y.data(), mean.floats(), inverse.floats(), x.data(), gamma.data(), beta.data(), rows,
                         width, static_cast<float>(kEpsilon));
  machine.run.layer_norm_backward(dx.data(), dgamma.data(), dbeta.data(), nullptr, dy.data(), x.data(),
                                  gamma.data(), mean.floats(), inverse.floats(), rows, width);
  machine.finish();
  const Doubles xs = x.values(), gammas = gamma.values(), betas = beta.values(), weights = dy.values();
  expect_gradient(dx.values(), xs, weights, [&](const Doubles& v) { return layer_norm(v, gammas, betas).y; });
  expect_gradient(Doubles(dgamma.begin(), dgamma.end()), gammas, weights,
                  [&](const Doubles& v) { return layer_norm(xs, v, betas).y; });
  expect_gradient(Doubles(dbeta.begin(), dbeta.end()), betas, weights,
                  [&](const Doubles& v) { return layer_norm(xs, gammas, v).y; });
}

const double kRoot = std::sqrt(2 / std::acos(-1.0));
double inner(double x) {
  return kRoot * (x + 0.044715 * x * x * x);
}
double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(inner(x)));
}
double gelu_slope(double x) {
  const double t = std::tanh(inner(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRoot * (1 + 3 * 0.044715 * x * x);
}

Array activations(DType type, std::int64_t count) {
  Array x = Array::random(type, count, 1, 3);
  const double special[] = {0, -0.0, 1e-30, -1e-30, 12.5, -12.5, 100, -100, 3e38, -3e38};
  for (std::int64_t i = 0; i < std::min<std::int64_t>(count / 2, 10); ++i) x.set(i, special[i]);
  return x;
}

TEST(Gelu, MatchesFloat64) {
  for (const DType type : kTypes) {
    for (const std::int64_t count : {1, 15, 16, 17, 1000, 40009}) {
      SCOPED_TRACE(label(type, {count}));
      Machine machine(type);
      const Array x = activations(type, count), dy = Array::random(type, count, 2);
      Array y(type, count), dx = dy;
      machine.run.gelu(y.data(), x.data(), count);
      machine.run.gelu_backward(dx.data(), dx.data(), x.data(), count);  // in place
      machine.finish();
      Doubles expected, derivative;
      for (std::int64_t i = 0; i < count; ++i) {
        expected.push_back(gelu(x[i]));
        derivative.push_back(dy[i] * gelu_slope(x[i]));
      }
      // exp(-2u) errs by 2|u| units of its argument and a few of its own. Below x = -5 the reference cancels.
      const auto relative = [&](double value) {
        return (8 + 8 * std::min(std::abs(inner(value)), 12.0)) * kUnit32;
      };
      expect_close(
          y, expected,
          [&](std::int64_t i) {
            return (unit(type) + relative(x[i])) * std::abs(at(expected, i)) +
                   (x[i] < -5 ? 1e-14 * std::min(-x[i], 100.0) : 1e-37);
          },
          "y");
      expect_close(
          dx, derivative,
          [&](std::int64_t i) {
            return unit(type) * std::abs(at(derivative, i)) + relative(x[i]) * 3 * std::abs(dy[i]) + 1e-37;
          },
          "dx");
    }
  }
}

TEST(Gelu, GradientMatchesFiniteDifferences) {
  const std::int64_t count = 50;
  Machine machine(DType::fp32);
  const Array x = Array::random(DType::fp32, count, 1, 2), dy = Array::random(DType::fp32, count, 2);
  Array dx(DType::fp32, count);
  machine.run.gelu_backward(dx.data(), dy.data(), x.data(), count);
  machine.finish();
  expect_gradient(dx.values(), x.values(), dy.values(), [](const Doubles& v) {
    Doubles result;
    for (const double value : v) result.push_back(gelu(value));
    return result;
  });
}

TEST(Gelu, NotANumberStaysOne) {
  for (const DType type : kTypes) {
    Machine machine(type);
    Array x = Array::random(type, 37, 1), y(type, 37), dx(type, 37);
    const Array dy = Array::random(type, 37, 2);
    for (const std::int64_t i : {3, 35}) x.set(i, std::numeric_limits<double>::quiet_NaN());
    machine.run.gelu(y.data(), x.data(), 37);
    machine.run.gelu_backward(dx.data(), dy.data(), x.data(), 37);
    machine.finish();
    for (std::int64_t i = 0; i < 37; ++i) {
      EXPECT_EQ(std::isnan(y[i]), i == 3 || i == 35) << i;
      EXPECT_EQ(std::isnan(dx[i]), i == 3 || i == 35) << i;
    }
  }
}

TEST(Add, IsTheRoundedSum) {
  for (const DType type : kTypes) {
    for (const std::int64_t count : {1, 17, 33000}) {
      Machine machine(type);
      Array a = Array::random(type, count, 1);
      const Array b = Array::random(type, count, 2);
      a.set(0, 1e-39);  // subnormal: kept
      Array y(type, count), in_place = a;
      Array expected(type, count);
      for (std::int64_t i = 0; i < count; ++i) {
        expected.set(i, static_cast<float>(a[i]) + static_cast<float>(b[i]));
      }
      machine.run.add(y.data(), a.data(), b.data(), count);
      machine.run.add(in_place.data(), in_place.data(), b.data(), count);
      machine.finish();
      EXPECT_EQ(y, expected) << label(type, {count});
      EXPECT_EQ(in_place, expected) << label(type, {count});
    }
  }
}

TEST(Add, RoundsLikeTheNumberFormat) {
  // Ties, subnormals, infinities, NaN: bit for bit what core/dtype.h says.
  Machine machine(DType::bf16);
  std::vector<BFloat16> a, b, expected, y;
  for (std::uint32_t i = 0; i < 65536; i += 7) {
    for (const std::uint16_t other : {0x0000, 0x0001, 0x3b80, 0x3c00, 0x7f7f, 0xbf81}) {
      a.push_back({static_cast<std::uint16_t>(i)});
      b.push_back({other});
      expected.push_back(to_bf16(to_float(a.back()) + to_float(b.back())));
    }
  }
  y.resize(a.size());
  machine.run.add(y.data(), a.data(), b.data(), static_cast<std::int64_t>(a.size()));
  machine.finish();
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool nan = std::isnan(to_float(expected[i]));
    EXPECT_TRUE(nan ? std::isnan(to_float(y[i])) : y[i] == expected[i]) << a[i].bits << " + " << b[i].bits;
  }
}

struct Loss {
  Doubles losses, gradient, probability, distance;
};
Loss cross_entropy(const Doubles& logits, const std::vector<std::int32_t>& targets, std::int64_t classes,
                   double scale) {
  Loss result{{}, Doubles(logits.size()), Doubles(logits.size()), Doubles(logits.size())};
  for (std::size_t row = 0; row < targets.size(); ++row) {
    const auto* x = logits.data() + row * static_cast<std::size_t>(classes);
    const double top = *std::max_element(x, x + classes);
    double sum = 0;
    for (std::int64_t i = 0; i < classes; ++i) sum += std::exp(x[i] - top);
    const bool counts = targets[row] >= 0;
    result.losses.push_back(counts ? std::log(sum) + top - x[targets[row]] : 0);
    for (std::int64_t i = 0; counts && i < classes; ++i) {
      const std::size_t index = row * static_cast<std::size_t>(classes) + static_cast<std::size_t>(i);
      result.probability[index] = std::exp(x[i] - top) / sum;
      result.distance[index] = top - x[i];
      result.gradient[index] = (result.probability[index] - (i == targets[row])) * scale;
    }
  }
  return result;
}

std::vector<std::int32_t> some_targets(std::int64_t rows, std::int64_t classes) {
  std::vector<std::int32_t> targets;
  for (std::int64_t row = 0; row < rows; ++row) {
    targets.push_back(row % 5 == 3 ? -1 : static_cast<std::int32_t>((row * 7919 + classes - 1) % classes));
  }
  return targets;
}

TEST(CrossEntropy, MatchesFloat64) {
  for (const DType type : kTypes) {
    for (const std::int64_t classes : {1, 2, 17, 255, 256, 1009}) {
      for (const std::int64_t rows : {1, 13, 100}) {
        SCOPED_TRACE(label(type, {rows, classes}));
        Machine machine(type);
        const float scale = 0.37f;
        const Array logits = Array::random(type, rows * classes, 1, 4);
        const auto targets = some_targets(rows, classes);
        Array gradient = logits, losses(DType::fp32, rows);
        machine.run.cross_entropy(losses.floats(), gradient.data(), targets.data(), rows, classes, scale);
        machine.finish();
        const Loss expected = cross_entropy(logits.values(), targets, classes, scale);
        expect_close(
            losses, expected.losses,
            [&](std::int64_t row) { return (300 + 4 * at(expected.losses, row)) * kUnit32; }, "losses");
        expect_close(
            gradient, expected.gradient,
            [&](std::int64_t i) {
              const double p = at(expected.probability, i);
              return (unit(type) + 2 * kUnit32) * std::abs(at(expected.gradient, i)) +
                     scale * kUnit32 * p * (300 + 4 * at(expected.distance, i));
            },
            "gradient");
      }
    }
  }
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  const std::int64_t rows = 5, classes = 19;
  Machine machine(DType::fp32);
  Array logits = Array::random(DType::fp32, rows * classes, 1), losses(DType::fp32, rows);
  const Doubles xs = logits.values();
  const auto targets = some_targets(rows, classes);
  machine.run.cross_entropy(losses.floats(), logits.data(), targets.data(), rows, classes, 0.5f);
  machine.finish();
  expect_gradient(logits.values(), xs, Doubles(static_cast<std::size_t>(rows), 0.5),
                  [&](const Doubles& v) { return cross_entropy(v, targets, classes, 1).losses; });
}

TEST(CrossEntropy, LargeLogitsStayFinite) {
  Machine machine(DType::fp32);
  std::vector<float> logits = {1e4f, -1e4f, 3e4f, 0};
  const std::int32_t target = 1;
  float loss = 0;
  machine.run.cross_entropy(&loss, logits.data(), &target, 1, 4, 1.0f);
  machine.finish();
  EXPECT_FLOAT_EQ(loss, 4e4f);
  EXPECT_EQ(logits, (std::vector<float>{0, -1, 1, 0}));
}

}  // namespace
}  // namespace spillway::kernels
