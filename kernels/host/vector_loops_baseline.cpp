// For every processor of the architecture.
#include "vector_loops.h"

namespace spillway::kernels {

const VectorTable& baseline_table(DType type) {
  return loops_table<xsimd::default_arch>(type);
}

}  // namespace spillway::kernels
