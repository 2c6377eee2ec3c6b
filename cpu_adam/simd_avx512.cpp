// Compiled with -mavx512f -mavx512bw -mavx512cd -mavx512dq -mavx512vl. See simd.h for what a Lanes type
// provides.
#include "simd.h"

#include <immintrin.h>

namespace spillway::cpu_adam {
namespace {

struct Avx512 {
  using Arch = xsimd::avx512bw;
  using Float = xsimd::batch<float, Arch>;
  using Bits = xsimd::batch<std::uint32_t, Arch>;
  using Double = xsimd::batch<double, Arch>;
  static constexpr int width = 16;

  SPILLWAY_INLINE static Float fma(Float x, Float y, Float z) { return _mm512_fmadd_ps(x, y, z); }
  SPILLWAY_INLINE static Bits load_unsigned16(const void* from) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  SPILLWAY_INLINE static Bits load_signed16(const void* from) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  SPILLWAY_INLINE static void store16(void* to, Bits x) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi32_epi16(x));
  }
  SPILLWAY_INLINE static Double low_half(Float x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
  SPILLWAY_INLINE static Double high_half(Float x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
};

}  // namespace

constinit const Kernels kAvx512Kernels = kernels_for<Avx512>();

}  // namespace spillway::cpu_adam
