// Compiled with -mavx2 -mfma. See simd.h for what a Lanes type provides.
#include "simd.h"

#include <immintrin.h>

namespace spillway::cpu_adam {
namespace {

struct Avx2 {
  using Arch = xsimd::fma3<xsimd::avx2>;
  using Float = xsimd::batch<float, Arch>;
  using Bits = xsimd::batch<std::uint32_t, Arch>;
  using Double = xsimd::batch<double, Arch>;
  static constexpr int width = 8;

  SPILLWAY_INLINE static Float fma(Float x, Float y, Float z) { return _mm256_fmadd_ps(x, y, z); }
  SPILLWAY_INLINE static Bits load_unsigned16(const void* from) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  SPILLWAY_INLINE static Bits load_signed16(const void* from) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  SPILLWAY_INLINE static void store16(void* to, Bits x) {
    // packus saturates, so the upper halves are cleared first.
    const __m256i kept = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(kept), _mm256_extracti128_si256(kept, 1));
    _mm_storeu_si128(static_cast<__m128i*>(to), packed);
  }
  SPILLWAY_INLINE static Double low_half(Float x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
  SPILLWAY_INLINE static Double high_half(Float x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
};

}  // namespace

constinit const Kernels kAvx2Kernels = kernels_for<Avx2>();

}  // namespace spillway::cpu_adam
