#pragma once
// A gradient made ready to move: fp32 rounded to bf16 (D5).
#include "../core/dtype.h"
#include "isa.h"

#include <cstdint>

namespace spillway {
class Workers;
}

namespace spillway::cpu_adam {

/// narrowed[i] = to_bf16(gradient[i]) of core/dtype.h for n elements; the same bits on every ISA, NaN included.
/// Errors as of update().
void narrow(Isa isa, BFloat16* narrowed, const float* gradient, std::int64_t n);
/// The same, spread over the workers, and the gradient is zero afterwards: while a piece of it is in a cache,
/// that costs little.
void narrow_and_clear(Isa isa, Workers& workers, BFloat16* narrowed, float* gradient, std::int64_t n);

}  // namespace spillway::cpu_adam
