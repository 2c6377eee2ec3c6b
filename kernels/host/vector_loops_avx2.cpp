// Compiled with -mavx2 -mfma.
#include "vector_loops.h"

namespace spillway::kernels {

const VectorTable& avx2_table(DType type) {
  return loops_table<xsimd::fma3<xsimd::avx2>>(type);
}

}  // namespace spillway::kernels
