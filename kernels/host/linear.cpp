#include "linear.h"

#include "state.h"

#include <algorithm>
#include <cstring>

namespace spillway::kernels {
namespace {

// Tiles keep the whole width of the result, so that every matrix is dense: oneDNN has its best kernels, and
// those that take their scratch memory from the caller, for dense matrices only. It packs the other factor once
// for each tile, so tiles are no smaller than the machine's threads need.
std::int64_t rows_of_tile(std::int64_t rows) {
  return rows >= 1024 ? 128 : 64;
}

constexpr std::int64_t kMostColumns = 128;
std::int64_t columns_of_tile(std::int64_t out) {
  return out >= 1024 ? kMostColumns : 64;
}

TiledProduct tiled(std::int64_t size, std::int64_t tile, ProductSpec spec) {
  TiledProduct result{.size = size, .tile = tile};
  spec.m = tile;
  result.whole = spec;
  result.rest = spec;
  result.rest.m = size % tile;
  return result;
}

constexpr std::int64_t kAhead = 16;  // rows

void prefetch(const std::byte* from, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

/// One tile of the gradient of the weights: a piece of dy, dense.
struct WeightScratch {
  WeightScratch(const LinearPlan& plan, std::byte* base) : cursor(base) {
    dy = cursor.take(plan.weight.whole.k * std::min(plan.weight.size, plan.weight.tile) *
                     size_of(plan.weight.whole.input));
    product = cursor.take(0);
  }
  ScratchCursor cursor;
  std::byte *dy, *product;
};

std::int64_t most_scratch(const TiledProduct& product) {
  std::int64_t bytes = 0;
  if (product.size >= product.tile) bytes = Product::scratch_bytes(product.whole);
  if (product.rest.m != 0) bytes = std::max(bytes, Product::scratch_bytes(product.rest));
  return aligned(bytes);
}

}  // namespace

LinearPlan::LinearPlan(DType type, const LinearShape& s)
    : forward(
          tiled(s.rows, rows_of_tile(s.rows),
                {.n = s.out, .k = s.in, .b = Storage::columns, .input = type, .output = type, .bias = true})),
      input(tiled(s.rows, rows_of_tile(s.rows), {.n = s.in, .k = s.out, .input = type, .output = type})),
      weight(tiled(s.out, columns_of_tile(s.out),
                   {.n = s.in, .k = s.rows, .a = Storage::columns, .input = type, .accumulate = true})) {}

std::int64_t LinearPlan::scratch_bytes() const {
  return std::max({most_scratch(forward), most_scratch(input),
                   WeightScratch(*this, nullptr).cursor.used() + most_scratch(weight)});
}

void HostOperations::linear(void* y, const void* x, const void* w, const void* bias, const LinearShape& shape,
                            int unit) {
  State& state = *state_;
  const TiledProduct& tiles = state.plan(shape).forward;
  if (bias == nullptr) bias = state.scratch.data();  // zeros
  state.launch(
      "linear", tiles.tiles(),
      [=, &state, &tiles](std::int64_t tile, int worker) {
        const std::int64_t row = tile * tiles.tile;
        state.products.at(tiles.of(tile))
            .run(at(y, row * shape.out, state.element), at(x, row * shape.in, state.element), w, bias,
                 state.scratch_of(worker));
      },
      unit);
}

void HostOperations::linear_backward_input(void* dx, const void* dy, const void* w, const LinearShape& shape,
                                           int unit) {
  State& state = *state_;
  const TiledProduct& tiles = state.plan(shape).input;
  state.launch(
      "linear_backward_input", tiles.tiles(),
      [=, &state, &tiles](std::int64_t tile, int worker) {
        const std::int64_t row = tile * tiles.tile;
        state.products.at(tiles.of(tile))
            .run(at(dx, row * shape.in, state.element), at(dy, row * shape.out, state.element), w, nullptr,
                 state.scratch_of(worker));
      },
      unit);
}

void HostOperations::linear_backward_weight(float* dw, float* dbias, const void* dy, const void* x,
                                            const LinearShape& shape, int unit) {
  State& state = *state_;
  const LinearPlan& plan = state.plan(shape);
  state.launch(
      "linear_backward_weight", plan.weight.tiles(),
      [=, &state, &plan](std::int64_t tile, int worker) {
        const WeightScratch scratch(plan, state.scratch_of(worker));
        const std::int64_t column = tile * plan.weight.tile;
        const std::int64_t columns = std::min(plan.weight.tile, shape.out - column);
        float sums[kMostColumns] = {};
        for (std::int64_t row = 0; row < shape.rows; ++row) {
          std::byte* const to = at(scratch.dy, row * columns, state.element);
          // The processor does not foresee a stride of a whole row.
          prefetch(at(dy, std::min(row + kAhead, shape.rows - 1) * shape.out + column, state.element),
                   columns * state.element);
          std::memcpy(to, at(dy, row * shape.out + column, state.element),
                      static_cast<std::size_t>(columns * state.element));
          if (dbias != nullptr) state.vector.accumulate(sums, to, columns);
        }
        if (dbias != nullptr) {
          for (std::int64_t i = 0; i < columns; ++i) dbias[column + i] += sums[i];
        }
        state.products.at(plan.weight.of(tile))
            .run(dw + column * shape.in, scratch.dy, x, nullptr, scratch.product);
      },
      unit);
}

}  // namespace spillway::kernels
