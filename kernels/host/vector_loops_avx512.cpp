// Compiled with -mavx512f -mavx512cd -mavx512dq -mavx512bw -mfma.
#include "vector_loops.h"

namespace spillway::kernels {

const VectorTable& avx512_table(DType type) {
  return loops_table<xsimd::avx512bw>(type);
}

}  // namespace spillway::kernels
