#include "vector_table.h"

#include <stdexcept>

#include <dnnl.hpp>

namespace spillway::kernels {
#if defined(__x86_64__)
namespace {

bool library_may_use(dnnl::cpu_isa isa) {
  const auto wanted = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

}  // namespace
#endif

const VectorTable& vector_table(DType type) {
  if (type != DType::bf16 && type != DType::fp32) throw std::logic_error("operations: bf16 or fp32");
#if defined(__x86_64__)
  // oneDNN's avx512_core is F, CD, BW, DQ and VL.
  static const bool avx512 = library_may_use(dnnl::cpu_isa::avx512_core) && __builtin_cpu_supports("fma");
  static const bool avx2 = library_may_use(dnnl::cpu_isa::avx2) && __builtin_cpu_supports("fma");
  if (avx512) return avx512_table(type);
  if (avx2) return avx2_table(type);
#endif
  return baseline_table(type);
}

}  // namespace spillway::kernels
