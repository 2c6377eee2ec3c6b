#include "norm.h"

#include "../core/parallel.h"
#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace spillway::cpu_adam {
namespace {
/// Blocks of the norm in one piece of work.
constexpr std::int64_t kBlocksPerTask = 16;

void sum_blocks(const Kernels& kernels, Gradient gradient, std::int64_t n, std::int64_t first,
                std::int64_t last, double* sums) {
  FloatEnvironment exact;
  for (std::int64_t block = first; block < last; ++block) {
    const std::int64_t begin = block * kNormBlock;
    const double sum = kernels.square_sum(advance(gradient, begin), std::min(kNormBlock, n - begin));
    sums[block] = std::isnan(sum) ? std::numeric_limits<double>::quiet_NaN() : sum;
  }
}
}  // namespace

void square_sums(Isa isa, Gradient gradient, std::int64_t n, double* sums) {
  const Kernels& kernels = kernels_of(isa);
  check_arguments("cpu_adam::square_sums", gradient, n);
  sum_blocks(kernels, gradient, n, 0, norm_blocks(n), sums);
}

void square_sums(Isa isa, Workers& workers, Gradient gradient, std::int64_t n, double* sums) {
  const Kernels& kernels = kernels_of(isa);
  check_arguments("cpu_adam::square_sums", gradient, n);
  const std::int64_t blocks = norm_blocks(n);
  workers.for_blocks((blocks + kBlocksPerTask - 1) / kBlocksPerTask, [&](std::int64_t task, int) {
    const std::int64_t first = task * kBlocksPerTask;
    sum_blocks(kernels, gradient, n, first, std::min(blocks, first + kBlocksPerTask), sums);
  });
}

void SquaredNorm::add(std::span<const double> sums) {
  FloatEnvironment exact;
  for (const double sum : sums) sum_of_squares += sum;
  finite = std::isfinite(sum_of_squares);
}

}  // namespace spillway::cpu_adam
