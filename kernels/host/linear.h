#pragma once
// Linear layers in tiles of rows (forward, gradient of the input) and of columns (gradient of the weights).
#include "../operations.h"
#include "product_set.h"

#include <cstdint>

namespace spillway::kernels {

/// How a product of many rows is cut: `tile` rows at a time, the last tile shorter.
struct TiledProduct {
  std::int64_t size = 0, tile = 0;
  ProductSpec whole = {};  ///< of a full tile
  ProductSpec rest = {};   ///< of the last tile, m = 0 where there is none

  std::int64_t tiles() const { return (size + tile - 1) / tile; }
  const ProductSpec& of(std::int64_t index) const { return (index + 1) * tile <= size ? whole : rest; }
};

struct LinearPlan {
  LinearPlan(DType type, const LinearShape& shape);

  TiledProduct forward;                ///< over rows
  TiledProduct input;                  ///< over rows
  TiledProduct weight;                 ///< over out
  std::int64_t scratch_bytes() const;  ///< of one worker
  template <class Function>
  void for_products(Function&& function) const {
    for (const auto* product : {&forward, &input, &weight}) {
      if (product->size >= product->tile) function(product->whole);
      if (product->rest.m != 0) function(product->rest);
    }
  }
};

}  // namespace spillway::kernels
