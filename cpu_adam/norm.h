#pragma once
// The squared norm of a gradient and whether it is finite, in one read-only pass. The order of the additions is
// fixed by shape alone: 16 sums in double, element i of a block in sum i mod 16, then those halved pairwise (i
// with i + 8, i + 4, i + 2, i + 1), then blocks in order. So the bits depend on no ISA and no thread count.
#include "isa.h"
#include "planes.h"

#include <cstdint>
#include <span>

namespace spillway {
class Workers;
}

namespace spillway::cpu_adam {

/// Elements of one block. A gradient that is summed in pieces is cut at multiples of it.
inline constexpr std::int64_t kNormBlock = 4096;

/// Blocks of a gradient of n elements, the last one perhaps shorter.
constexpr std::int64_t norm_blocks(std::int64_t n) {
  return (n + kNormBlock - 1) / kNormBlock;
}

/// Writes the sum of squares of each block: sums[b] of block b, norm_blocks(n) of them. The squares of finite
/// elements cannot overflow in double, so a sum is infinite or NaN exactly where an element is; a NaN is always
/// the same quiet NaN. Errors as of update().
void square_sums(Isa isa, Workers& workers, Gradient gradient, std::int64_t n, double* sums);
/// The same on the calling thread.
void square_sums(Isa isa, Gradient gradient, std::int64_t n, double* sums);

struct SquaredNorm {
  double sum_of_squares = 0.0;
  bool finite = true;

  /// Adds block sums in order. A norm over many pieces is one object to which their sums are added in a fixed
  /// order of pieces.
  void add(std::span<const double> sums);
};

}  // namespace spillway::cpu_adam
