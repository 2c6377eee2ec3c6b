#include "kernels.h"

#include <stdexcept>
#include <string>

namespace spillway::cpu_adam {

const Kernels& kernels_of(Isa isa) {
  if (!is_supported(isa)) select_isa(name_of(isa));  // throws, with what can run here
#if defined(__x86_64__)
  if (isa == Isa::avx2) return kAvx2Kernels;
  if (isa == Isa::avx512) return kAvx512Kernels;
#elif defined(__aarch64__)
  if (isa == Isa::neon) return kNeonKernels;
#endif
  return kScalarKernels;
}

void check_arguments(const char* function, Gradient gradient, std::int64_t n) {
  if (n < 0) throw std::logic_error(std::string(function) + ": negative count");
  if (n > 0 && gradient.data == nullptr) throw std::logic_error(std::string(function) + ": null gradient");
}

}  // namespace spillway::cpu_adam
