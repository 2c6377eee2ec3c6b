#include "support.h"

#include <gtest/gtest.h>

namespace spillway::kernels {
namespace {

using Doubles = std::vector<double>;

/// c[m, n] = a b with the sum of |a b| beside it: any order of fp32 sums errs by at most k units of that.
struct Reference {
  Doubles value, magnitude;
};
template <class A, class B>
Reference product(std::int64_t m, std::int64_t n, std::int64_t k, A&& a, B&& b) {
  Reference result{Doubles(static_cast<std::size_t>(m * n)), Doubles(static_cast<std::size_t>(m * n))};
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double term = a(i, l) * b(l, j);
        sum += term;
        magnitude += std::abs(term);
      }
      result.value[static_cast<std::size_t>(i * n + j)] = sum;
      result.magnitude[static_cast<std::size_t>(i * n + j)] = magnitude;
    }
  }
  return result;
}

void check(DType type, const LinearShape& s) {
  SCOPED_TRACE(label(type, {s.rows, s.in, s.out}));
  Machine machine(type, {.linears = {s}});
  const Array x = Array::random(type, s.rows * s.in, 1), w = Array::random(type, s.out * s.in, 2);
  const Array bias = Array::random(type, s.out, 3), dy = Array::random(type, s.rows * s.out, 4);
  const Doubles xs = x.values(), ws = w.values(), dys = dy.values();
  const auto at = [](const Doubles& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };

  const Reference forward = product(
      s.rows, s.out, s.in, [&](auto i, auto l) { return at(xs, i * s.in + l); },
      [&](auto l, auto j) { return at(ws, j * s.in + l); });
  for (const bool with_bias : {true, false}) {
    Array y(type, s.rows * s.out);
    machine.run.linear(y.data(), x.data(), w.data(), with_bias ? bias.data() : nullptr, s);
    machine.finish();
    Doubles expected = forward.value;
    for (std::int64_t i = 0; with_bias && i < y.count(); ++i)
      expected[static_cast<std::size_t>(i)] += bias[i % s.out];
    expect_close(
        y, expected,
        [&](std::int64_t i) {
          const double exact =
              kUnit32 * static_cast<double>(s.in + 2) * (at(forward.magnitude, i) + std::abs(bias[i % s.out]));
          return unit(type) * std::abs(at(expected, i)) + (1 + unit(type)) * exact;
        },
        with_bias ? "y" : "y without bias");
  }

  const Reference input = product(
      s.rows, s.in, s.out, [&](auto i, auto l) { return at(dys, i * s.out + l); },
      [&](auto l, auto j) { return at(ws, l * s.in + j); });
  Array dx(type, s.rows * s.in);
  machine.run.linear_backward_input(dx.data(), dy.data(), w.data(), s);
  machine.finish();
  expect_close(
      dx, input.value,
      [&](std::int64_t i) {
        const double exact = kUnit32 * static_cast<double>(s.out + 1) * at(input.magnitude, i);
        return unit(type) * std::abs(at(input.value, i)) + (1 + unit(type)) * exact;
      },
      "dx");

  const Reference weight = product(
      s.out, s.in, s.rows, [&](auto i, auto l) { return at(dys, l * s.out + i); },
      [&](auto l, auto j) { return at(xs, l * s.in + j); });
  const Array dw_before = Array::random(DType::fp32, s.out * s.in, 5),
              db_before = Array::random(DType::fp32, s.out, 6);
  for (const bool with_bias : {true, false}) {
    Array dw = dw_before, dbias = db_before;
    machine.run.linear_backward_weight(dw.floats(), with_bias ? dbias.floats() : nullptr, dy.data(), x.data(),
                                       s);
    machine.finish();
    Doubles expected = weight.value;
    for (std::int64_t i = 0; i < dw.count(); ++i) expected[static_cast<std::size_t>(i)] += dw_before[i];
    expect_close(
        dw, expected,
        [&](std::int64_t i) {
          return kUnit32 * static_cast<double>(s.rows + 2) * (at(weight.magnitude, i) + std::abs(dw_before[i]));
        },
        "dw");
    if (!with_bias) {
      EXPECT_EQ(dbias, db_before);
      continue;
    }
    Doubles sums = db_before.values(), magnitudes(sums.size());
    for (std::int64_t i = 0; i < dy.count(); ++i) {
      sums[static_cast<std::size_t>(i % s.out)] += dy[i];
      magnitudes[static_cast<std::size_t>(i % s.out)] += std::abs(dy[i]);
    }
    expect_close(
        dbias, sums,
        [&](std::int64_t i) {
          return kUnit32 * static_cast<double>(s.rows + 2) * (at(magnitudes, i) + std::abs(db_before[i]));
        },
        "dbias");
  }
}

TEST(Linear, ForwardAndGradientsMatchFloat64) {
  for (const DType type : kTypes) {
    for (const LinearShape& shape :
         {LinearShape{1, 1, 1}, LinearShape{1, 48, 96}, LinearShape{2, 7, 3}, LinearShape{13, 17, 19},
          LinearShape{64, 64, 64}, LinearShape{67, 33, 129}, LinearShape{128, 96, 65},
          LinearShape{131, 65, 257}, LinearShape{3, 1, 71}}) {
      check(type, shape);
    }
  }
}

// More than one panel in every dimension of the fallback, and tiles of both sizes.
TEST(Linear, LargeShapesMatchFloat64) {
  for (const DType type : kTypes) {
    check(type, {1025, 33, 70});
    check(type, {37, 521, 259});
    check(type, {521, 40, 66});
    check(type, {33, 20, 1030});
  }
}

TEST(Linear, AddsIntoTheGradientOnce) {
  const LinearShape shape{130, 24, 70};
  Machine machine(DType::bf16, {.linears = {shape}});
  const Array x = Array::random(DType::bf16, shape.rows * shape.in, 1);
  const Array dy = Array::random(DType::bf16, shape.rows * shape.out, 2);
  Array once(DType::fp32, shape.out * shape.in), twice(DType::fp32, shape.out * shape.in);
  for (Array* dw : {&once, &twice}) std::memset(dw->data(), 0, static_cast<std::size_t>(dw->count()) * 4);
  machine.run.linear_backward_weight(once.floats(), nullptr, dy.data(), x.data(), shape);
  for (int i = 0; i < 2; ++i)
    machine.run.linear_backward_weight(twice.floats(), nullptr, dy.data(), x.data(), shape);
  machine.finish();
  // Entries are sums of 130 products of about 1: some ten each, rounded in another order the second time.
  for (std::int64_t i = 0; i < once.count(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 1e-3);
}

}  // namespace
}  // namespace spillway::kernels
