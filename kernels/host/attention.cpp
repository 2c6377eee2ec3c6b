#include "attention.h"

#include "state.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace spillway::kernels {
namespace {

constexpr std::int64_t kBlock = 128;

/// What one worker holds for one sequence and head, forward. The scores of a block of queries lie key block
/// after key block, each dense.
struct ForwardScratch {
  ForwardScratch(const AttentionPlan& plan, std::byte* base) : cursor(base) {
    const std::int64_t length = plan.shape.length, width = plan.shape.head_width, element = size_of(plan.type);
    for (auto& part : qkv) part = cursor.take(length * width * element);
    scores = cursor.take<float>(plan.block * length);
    probabilities = cursor.take(plan.block * plan.block * element);
    result = cursor.take<float>(plan.block * width);
    sums = cursor.take<float>(plan.block);
    shifts = cursor.take<float>(plan.block);
    product = cursor.take(0);
  }
  ScratchCursor cursor;
  std::byte* qkv[3];
  float* scores;
  std::byte* probabilities;
  float *result, *sums, *shifts;
  std::byte* product;
};

struct BackwardScratch {
  BackwardScratch(const AttentionPlan& plan, std::byte* base) : cursor(base) {
    const std::int64_t length = plan.shape.length, width = plan.shape.head_width, element = size_of(plan.type);
    for (auto& part : qkv) part = cursor.take(length * width * element);
    dy = cursor.take(length * width * element);
    delta = cursor.take<float>(length);
    scores = cursor.take<float>(plan.block * plan.block);
    dp = cursor.take<float>(plan.block * plan.block);
    p = cursor.take(plan.block * plan.block * element);
    ds = cursor.take(plan.block * plan.block * element);
    dq = cursor.take<float>(plan.block * width);
    dk = cursor.take<float>(length * width);
    dv = cursor.take<float>(length * width);
    product = cursor.take(0);
  }
  ScratchCursor cursor;
  std::byte* qkv[3];
  std::byte* dy;
  float *delta, *scores, *dp;
  std::byte *p, *ds;
  float *dq, *dk, *dv;
  std::byte* product;
};

/// Where a sequence and head lies in qkv[batch, length, 3, heads, width] and y[batch, length, heads, width].
struct Place {
  Place(const AttentionShape& s, std::int64_t tile)
      : sequence(tile / s.heads),
        head(tile % s.heads),
        qkv_stride(3 * s.heads * s.head_width),
        y_stride(s.heads * s.head_width),
        shape(s) {}
  std::int64_t qkv(int part, std::int64_t token) const {
    return (sequence * shape.length + token) * qkv_stride + (part * shape.heads + head) * shape.head_width;
  }
  std::int64_t y(std::int64_t token) const {
    return (sequence * shape.length + token) * y_stride + head * shape.head_width;
  }
  std::int64_t sequence, head, qkv_stride, y_stride;
  const AttentionShape& shape;
};

/// Rows of `bytes` bytes that are `stride` bytes apart, made dense.
void gather_rows(std::byte* to, const std::byte* from, std::int64_t rows, std::int64_t stride,
                 std::int64_t bytes) {
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * bytes, from + row * stride, static_cast<std::size_t>(bytes));
  }
}

void zero(float* p, std::int64_t count) {
  std::memset(p, 0, static_cast<std::size_t>(count) * sizeof(float));
}

float scale_of(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_width));
}

}  // namespace

AttentionPlan::AttentionPlan(DType its_type, const AttentionShape& its_shape)
    : type(its_type),
      shape(its_shape),
      block(std::min(kBlock, its_shape.length)),
      blocks((its_shape.length + block - 1) / block) {}

ProductSpec AttentionPlan::scores(std::int64_t queries, std::int64_t keys) const {
  return {.m = queries, .n = keys, .k = shape.head_width, .b = Storage::columns, .input = type};
}
ProductSpec AttentionPlan::values(std::int64_t queries, std::int64_t keys) const {
  return {.m = queries, .n = shape.head_width, .k = keys, .input = type, .accumulate = true};
}
ProductSpec AttentionPlan::columns(std::int64_t queries, std::int64_t keys) const {
  return {
      .m = keys, .n = shape.head_width, .k = queries, .a = Storage::columns, .input = type, .accumulate = true};
}

std::int64_t AttentionPlan::scratch_bytes() const {
  std::int64_t product = 0;
  for_products(
      [&](const ProductSpec& spec) { product = std::max(product, aligned(Product::scratch_bytes(spec))); });
  return product +
         std::max(ForwardScratch(*this, nullptr).cursor.used(), BackwardScratch(*this, nullptr).cursor.used());
}

void HostOperations::attention(void* y, float* log_sum_exp, const void* qkv, const AttentionShape& shape,
                               int unit) {
  State& state = *state_;
  const AttentionPlan& plan = state.plan(shape);
  const auto body = [=, &state, &plan](std::int64_t tile, int worker) {
    const ForwardScratch scratch(plan, state.scratch_of(worker));
    const VectorTable& vector = state.vector;
    const Place place(plan.shape, tile);
    const std::int64_t width = shape.head_width, element = state.element, block = plan.block;
    const float scale = scale_of(shape);
    for (int part = 0; part < 3; ++part) {
      gather_rows(scratch.qkv[part], at(qkv, place.qkv(part, 0), element), shape.length,
                  place.qkv_stride * element, width * element);
    }
    for (std::int64_t i = 0; i < plan.blocks; ++i) {
      const std::int64_t first = i * block, rows = plan.rows(i);
      // s = q k^T for the keys that any of these queries may see.
      for (std::int64_t j = 0; j <= i; ++j) {
        state.products.at(plan.scores(rows, plan.rows(j)))
            .run(scratch.scores + rows * j * block, at(scratch.qkv[0], first * width, element),
                 at(scratch.qkv[1], j * block * width, element), nullptr, scratch.product);
      }
      const auto row_of = [&](std::int64_t row, std::int64_t j) {
        return scratch.scores + rows * j * block + row * plan.rows(j);
      };
      // Queries see the keys up to their own: all of the earlier blocks, row + 1 of the last.
      const auto visible = [&](std::int64_t row, std::int64_t j) { return j < i ? block : row + 1; };
      for (std::int64_t row = 0; row < rows; ++row) {
        float top = vector.maximum(row_of(row, 0), visible(row, 0));
        for (std::int64_t j = 1; j <= i; ++j)
          top = std::max(top, vector.maximum(row_of(row, j), visible(row, j)));
        scratch.shifts[row] = top * scale;
        scratch.sums[row] = 0;
      }
      // o = sum over keys of exp(scale s - shift) v, divided by the sum of the exponentials at the end.
      zero(scratch.result, rows * width);
      for (std::int64_t j = 0; j <= i; ++j) {
        for (std::int64_t row = 0; row < rows; ++row) {
          scratch.sums[row] +=
              vector.exponentials(at(scratch.probabilities, row * plan.rows(j), element), row_of(row, j),
                                  visible(row, j), plan.rows(j), scale, scratch.shifts[row]);
        }
        state.products.at(plan.values(rows, plan.rows(j)))
            .run(scratch.result, scratch.probabilities, at(scratch.qkv[2], j * block * width, element), nullptr,
                 scratch.product);
      }
      for (std::int64_t row = 0; row < rows; ++row) {
        vector.narrow(at(y, place.y(first + row), element), scratch.result + row * width, width,
                      1.0f / scratch.sums[row]);
        log_sum_exp[tile * shape.length + first + row] = scratch.shifts[row] + std::log(scratch.sums[row]);
      }
    }
  };
  state.launch("attention", shape.batch * shape.heads, body, unit);
}

void HostOperations::attention_backward(void* dqkv, const void* dy, const void* qkv, const void* y,
                                        const float* log_sum_exp, const AttentionShape& shape, int unit) {
  State& state = *state_;
  const AttentionPlan& plan = state.plan(shape);
  const auto body = [=, &state, &plan](std::int64_t tile, int worker) {
    const BackwardScratch scratch(plan, state.scratch_of(worker));
    const VectorTable& vector = state.vector;
    const Place place(plan.shape, tile);
    const std::int64_t width = shape.head_width, element = state.element, block = plan.block;
    const float scale = scale_of(shape);
    for (int part = 0; part < 3; ++part) {
      gather_rows(scratch.qkv[part], at(qkv, place.qkv(part, 0), element), shape.length,
                  place.qkv_stride * element, width * element);
    }
    gather_rows(scratch.dy, at(dy, place.y(0), element), shape.length, place.y_stride * element,
                width * element);
    for (std::int64_t token = 0; token < shape.length; ++token) {
      scratch.delta[token] =
          vector.dot(at(scratch.dy, token * width, element), at(y, place.y(token), element), width);
    }
    zero(scratch.dk, shape.length * width);
    zero(scratch.dv, shape.length * width);
    for (std::int64_t i = 0; i < plan.blocks; ++i) {
      const std::int64_t first = i * block, rows = plan.rows(i);
      const std::byte* const q_block = at(scratch.qkv[0], first * width, element);
      const std::byte* const dy_block = at(scratch.dy, first * width, element);
      zero(scratch.dq, rows * width);
      for (std::int64_t j = 0; j <= i; ++j) {
        const std::int64_t keys = plan.rows(j), key = j * block;
        const std::byte* const k_block = at(scratch.qkv[1], key * width, element);
        const Product& scores = state.products.at(plan.scores(rows, keys));
        const Product& columns = state.products.at(plan.columns(rows, keys));
        // s = q k^T, dp = do v^T; p = exp(scale s - lse), ds = p (dp - delta) scale
        scores.run(scratch.scores, q_block, k_block, nullptr, scratch.product);
        scores.run(scratch.dp, dy_block, at(scratch.qkv[2], key * width, element), nullptr, scratch.product);
        for (std::int64_t row = 0; row < rows; ++row) {
          vector.softmax_backward(at(scratch.p, row * keys, element), at(scratch.ds, row * keys, element),
                                  scratch.scores + row * keys, scratch.dp + row * keys, j < i ? keys : row + 1,
                                  keys, scale, log_sum_exp[tile * shape.length + first + row],
                                  scratch.delta[first + row]);
        }
        // dv += p^T do, dk += ds^T q, dq += ds k
        columns.run(scratch.dv + key * width, scratch.p, dy_block, nullptr, scratch.product);
        columns.run(scratch.dk + key * width, scratch.ds, q_block, nullptr, scratch.product);
        state.products.at(plan.values(rows, keys))
            .run(scratch.dq, scratch.ds, k_block, nullptr, scratch.product);
      }
      for (std::int64_t row = 0; row < rows; ++row) {
        vector.narrow(at(dqkv, place.qkv(0, first + row), element), scratch.dq + row * width, width, 1.0f);
      }
    }
    for (std::int64_t token = 0; token < shape.length; ++token) {
      vector.narrow(at(dqkv, place.qkv(1, token), element), scratch.dk + token * width, width, 1.0f);
      vector.narrow(at(dqkv, place.qkv(2, token), element), scratch.dv + token * width, width, 1.0f);
    }
  };
  state.launch("attention_backward", shape.batch * shape.heads, body, unit);
}

}  // namespace spillway::kernels
