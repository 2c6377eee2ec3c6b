#pragma once
// Accumulation of gradients over micro-batches in fp32: G = sum of h[i] in order of i, from +0 (D5).
#include "isa.h"
#include "planes.h"

#include <cstdint>

namespace spillway {
class Workers;
}

namespace spillway::cpu_adam {

enum class Accumulate {
  assign,  ///< sum = +0 + h: the first micro-batch; what `sum` held before is not read, and -0 becomes +0
  add,     ///< sum += h
};

/// Adds h (bf16 or fp32, not overlapping `sum`) into n elements of `sum`, spread over the workers. Errors as of
/// update(). Where a result is NaN, its payload may differ between ISAs.
void accumulate(Isa isa, Workers& workers, Accumulate how, float* sum, Gradient h, std::int64_t n);
/// The same on the calling thread.
void accumulate(Isa isa, Accumulate how, float* sum, Gradient h, std::int64_t n);

}  // namespace spillway::cpu_adam
