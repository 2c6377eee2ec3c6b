#include "gradient_check.h"
#include "support.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace spillway::kernels {
namespace {

using Doubles = std::vector<double>;
double at(const Doubles& v, std::int64_t i) {
  return v[static_cast<std::size_t>(i)];
}
double& at(Doubles& v, std::int64_t i) {
  return v[static_cast<std::size_t>(i)];
}

/// Straight from the definition. The *_error vectors bound the error of a result for an error of `e` of every
/// intermediate product: probability and score gradient are rounded to the type before they are multiplied.
struct Reference {
  Doubles y, log_sum_exp, dqkv;
  Doubles y_error, dqkv_error;
};

Reference attention(const Doubles& qkv, const Doubles& dy, const AttentionShape& s) {
  const std::int64_t width = s.head_width;
  const auto index = [&](std::int64_t b, std::int64_t t, int part, std::int64_t h, std::int64_t d) {
    return (((b * s.length + t) * 3 + part) * s.heads + h) * width + d;
  };
  const auto out = [&](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) {
    return ((b * s.length + t) * s.heads + h) * width + d;
  };
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  Reference r;
  r.y.resize(qkv.size() / 3);
  r.y_error.resize(r.y.size());
  r.dqkv.resize(qkv.size());
  r.dqkv_error.resize(qkv.size());
  Doubles p(static_cast<std::size_t>(s.length));
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t i = 0; i < s.length; ++i) {
        double top = -1e300, sum = 0;
        for (std::int64_t j = 0; j <= i; ++j) {
          at(p, j) = 0;
          for (std::int64_t d = 0; d < width; ++d)
            at(p, j) += at(qkv, index(b, i, 0, h, d)) * at(qkv, index(b, j, 1, h, d));
          at(p, j) *= scale;
          top = std::max(top, at(p, j));
        }
        for (std::int64_t j = 0; j <= i; ++j) sum += std::exp(at(p, j) - top);
        for (std::int64_t j = 0; j <= i; ++j) at(p, j) = std::exp(at(p, j) - top) / sum;
        r.log_sum_exp.push_back(top + std::log(sum));
        for (std::int64_t j = 0; j <= i; ++j) {
          for (std::int64_t d = 0; d < width; ++d) {
            at(r.y, out(b, i, h, d)) += at(p, j) * at(qkv, index(b, j, 2, h, d));
            at(r.y_error, out(b, i, h, d)) += at(p, j) * std::abs(at(qkv, index(b, j, 2, h, d)));
          }
        }
        if (dy.empty()) continue;
        double delta = 0, delta_error = 0;
        for (std::int64_t d = 0; d < width; ++d) {
          delta += at(dy, out(b, i, h, d)) * at(r.y, out(b, i, h, d));
          delta_error += std::abs(at(dy, out(b, i, h, d))) * at(r.y_error, out(b, i, h, d));
        }
        for (std::int64_t j = 0; j <= i; ++j) {
          double dp = 0, dp_error = 0;
          for (std::int64_t d = 0; d < width; ++d) {
            dp += at(dy, out(b, i, h, d)) * at(qkv, index(b, j, 2, h, d));
            dp_error += std::abs(at(dy, out(b, i, h, d)) * at(qkv, index(b, j, 2, h, d)));
          }
          const double ds = at(p, j) * (dp - delta) * scale;
          const double ds_error = std::abs(ds) + at(p, j) * scale * (dp_error * 0x1p-6 + delta_error);
          for (std::int64_t d = 0; d < width; ++d) {
            const double q = at(qkv, index(b, i, 0, h, d)), k = at(qkv, index(b, j, 1, h, d)),
                         g = at(dy, out(b, i, h, d));
            at(r.dqkv, index(b, i, 0, h, d)) += ds * k;
            at(r.dqkv, index(b, j, 1, h, d)) += ds * q;
            at(r.dqkv, index(b, j, 2, h, d)) += at(p, j) * g;
            at(r.dqkv_error, index(b, i, 0, h, d)) += ds_error * std::abs(k);
            at(r.dqkv_error, index(b, j, 1, h, d)) += ds_error * std::abs(q);
            at(r.dqkv_error, index(b, j, 2, h, d)) += at(p, j) * std::abs(g);
          }
        }
      }
    }
  }
  return r;
}

void check(DType type, const AttentionShape& s) {
  SCOPED_TRACE(label(type, {s.batch, s.length, s.heads, s.head_width}));
  Machine machine(type, {.attentions = {s}});
  const std::int64_t count = s.batch * s.length * s.heads * s.head_width;
  const Array qkv = Array::random(type, 3 * count, 1), dy = Array::random(type, count, 2);
  Array y(type, count), log_sum_exp(DType::fp32, s.batch * s.heads * s.length), dqkv(type, 3 * count);
  machine.run.attention(y.data(), log_sum_exp.floats(), qkv.data(), s);
  machine.run.attention_backward(dqkv.data(), dy.data(), qkv.data(), y.data(), log_sum_exp.floats(), s);
  machine.finish();
  const Reference expected = attention(qkv.values(), dy.values(), s);
  // A score errs by head_width units of the sum of its magnitudes, at most about 4 sqrt(head_width) here, and
  // its exponential by that much relatively; sums over the keys add one unit for each 4 lanes or block.
  const double width = static_cast<double>(s.head_width);
  const double exact = (64 + static_cast<double>(s.length) / 4 + 4 * width * std::sqrt(width)) * kUnit32;
  const double rounded = 2 * (type == DType::bf16 ? unit(type) : 0) + exact;
  expect_close(
      log_sum_exp, expected.log_sum_exp, [&](std::int64_t) { return exact; }, "log_sum_exp");
  const auto bound = [&](const Doubles& value, const Doubles& error) {
    return
        [&, rounded](std::int64_t i) { return unit(type) * std::abs(at(value, i)) + rounded * at(error, i); };
  };
  expect_close(y, expected.y, bound(expected.y, expected.y_error), "y");
  // delta and dp are fp32 sums; in fp32 the factor 2^-6 in front of their part must not hide that.
  const auto gradient = [&](std::int64_t i) {
    return unit(type) * std::abs(at(expected.dqkv, i)) +
           (type == DType::bf16 ? 2 : 64) * rounded * at(expected.dqkv_error, i);
  };
  expect_close(dqkv, expected.dqkv, gradient, "dqkv");
}

TEST(Attention, ForwardAndGradientsMatchFloat64) {
  for (const DType type : kTypes) {
    for (const AttentionShape& shape :
         {AttentionShape{1, 1, 1, 1}, AttentionShape{2, 7, 3, 16}, AttentionShape{1, 31, 2, 5},
          AttentionShape{1, 64, 1, 80}, AttentionShape{2, 67, 2, 32}, AttentionShape{1, 128, 1, 64}}) {
      check(type, shape);
    }
  }
}

TEST(Attention, SeveralBlocksMatchFloat64) {
  for (const DType type : kTypes) {
    check(type, {1, 129, 2, 16});
    check(type, {1, 300, 1, 32});
    check(type, {1, 256, 1, 64});
  }
}

TEST(Attention, GradientMatchesFiniteDifferences) {
  const AttentionShape shape{1, 6, 2, 4};
  Machine machine(DType::fp32, {.attentions = {shape}});
  const Array qkv = Array::random(DType::fp32, 3 * 48, 1), dy = Array::random(DType::fp32, 48, 2);
  Array y(DType::fp32, 48), log_sum_exp(DType::fp32, 12), dqkv(DType::fp32, 3 * 48);
  machine.run.attention(y.data(), log_sum_exp.floats(), qkv.data(), shape);
  machine.run.attention_backward(dqkv.data(), dy.data(), qkv.data(), y.data(), log_sum_exp.floats(), shape);
  machine.finish();
  expect_gradient(dqkv.values(), qkv.values(), dy.values(),
                  [&](const Doubles& v) { return attention(v, {}, shape).y; });
}

// What comes later must not be seen, not even multiplied by zero: a NaN there would show.
TEST(Attention, LaterTokensAreNotSeen) {
  const AttentionShape shape{1, 150, 1, 16};
  for (const DType type : kTypes) {
    Machine machine(type, {.attentions = {shape}});
    Array qkv = Array::random(type, 3 * 150 * 16, 1);
    Array y(type, 150 * 16), log_sum_exp(DType::fp32, 150), changed(type, 150 * 16), other(DType::fp32, 150);
    machine.run.attention(y.data(), log_sum_exp.floats(), qkv.data(), shape);
    machine.finish();
    for (std::int64_t i = 3 * 149 * 16; i < qkv.count(); ++i) qkv.set(i, 1e3 * qkv[i]);
    machine.run.attention(changed.data(), other.floats(), qkv.data(), shape);
    machine.finish();
    for (std::int64_t i = 0; i < 149 * 16; ++i) ASSERT_EQ(y[i], changed[i]) << i;
    EXPECT_NE(y[149 * 16], changed[149 * 16]);
  }
}

TEST(Attention, LargeScoresStayFinite) {
  const AttentionShape shape{1, 5, 1, 16};
  Machine machine(DType::fp32, {.attentions = {shape}});
  const Array qkv = Array::random(DType::fp32, 3 * 80, 1, 100), dy = Array::random(DType::fp32, 80, 2);
  Array y(DType::fp32, 80), log_sum_exp(DType::fp32, 5), dqkv(DType::fp32, 240);
  machine.run.attention(y.data(), log_sum_exp.floats(), qkv.data(), shape);
  machine.run.attention_backward(dqkv.data(), dy.data(), qkv.data(), y.data(), log_sum_exp.floats(), shape);
  machine.finish();
  for (const Array* array : {&y, &log_sum_exp, &dqkv}) {
    for (std::int64_t i = 0; i < array->count(); ++i) EXPECT_TRUE(std::isfinite((*array)[i]));
  }
}

}  // namespace
}  // namespace spillway::kernels
