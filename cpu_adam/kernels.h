#pragma once
// Private: what each ISA implements. The public functions check arguments and fix the floating-point state;
// behind this table n >= 0, pointers are valid, and
// no call crosses a multiple of 2^32 elements of a parameter.
#include "../core/random.h"
#include "../core/update.h"
#include "accumulate.h"
#include "isa.h"
#include "planes.h"

#include <cstddef>
#include <cstdint>

namespace spillway::cpu_adam {

/// Random bits of elements: the key of their place, and the first one's number modulo 2^32, which is even but
/// for the scalar kernels.
struct Rounding {
  RoundingKey key;
  std::uint32_t first = 0;
};

struct Kernels {
  template <class P>
  using Update = bool(const P&, Gradient, std::int64_t n, const UpdateCoefficients&, const Rounding&);
  Update<Fp32Planes>* update_fp32;
  Update<Bf16Planes>* update_bf16;
  Update<Compact8Planes>* update_compact8;
  Update<FullPlanes>* update_full;
  double (*square_sum)(Gradient, std::int64_t n);  ///< of one block, n <= kNormBlock
  void (*accumulate)(Accumulate, float* sum, Gradient, std::int64_t n);
  void (*narrow)(BFloat16* narrowed, const float* gradient, std::int64_t n);
  void (*change)(std::byte* stream, std::int64_t bytes);               ///< flips a bit of every 32-bit word
  std::uint32_t (*fold)(const std::byte* stream, std::int64_t bytes);  ///< a value that needs all of them
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#endif

/// Error(configuration) where this processor lacks the ISA.
const Kernels& kernels_of(Isa isa);

/// std::logic_error, naming `function`, for what the public functions do not accept.
void check_arguments(const char* function, Gradient gradient, std::int64_t n);

/// The order in which the 16 sums of a block are added (norm.h).
inline constexpr int kNormLanes = 16;

}  // namespace spillway::cpu_adam
