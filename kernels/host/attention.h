#pragma once
// Causal attention by blocks of queries and keys, one tile for each sequence and head.
#include "../operations.h"
#include "product_set.h"

#include <cstdint>

namespace spillway::kernels {

struct AttentionPlan {
  AttentionPlan(DType type, const AttentionShape& shape);

  DType type;
  AttentionShape shape;
  std::int64_t block;   ///< queries and keys of a full block
  std::int64_t blocks;  ///< the last may be shorter

  std::int64_t rows(std::int64_t index) const {
    return index + 1 < blocks ? block : shape.length - index * block;
  }
  ProductSpec scores(std::int64_t queries, std::int64_t keys) const;   ///< s = q k^T
  ProductSpec values(std::int64_t queries, std::int64_t keys) const;   ///< o += p v
  ProductSpec columns(std::int64_t queries, std::int64_t keys) const;  ///< dv += p^T do

  std::int64_t scratch_bytes() const;  ///< of one worker
  /// Key blocks that lie before the last are full, so there are three pairs of sizes at most.
  template <class Function>
  void for_products(Function&& function) const {
    const auto pair = [&](std::int64_t queries, std::int64_t keys) {
      function(scores(queries, keys));
      function(values(queries, keys));
      function(columns(queries, keys));
    };
    pair(rows(0), rows(0));
    if (rows(blocks - 1) != rows(0)) {
      pair(rows(blocks - 1), rows(0));
      pair(rows(blocks - 1), rows(blocks - 1));
    }
  }
};

}  // namespace spillway::kernels
