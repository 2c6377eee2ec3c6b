// Compiled with -mavx512f -mavx512bw -mavx512cd -mavx512dq -mavx512vl. See simd.h for what a Lanes type
// provides.
#include "simd_kernels.h"

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
  SPILLWAY_INLINE static Bits load(const void* from) { return _mm512_loadu_si512(from); }
  SPILLWAY_INLINE static void store(void* to, Bits x) { _mm512_storeu_si512(to, x); }
  SPILLWAY_INLINE static Bits blend16(Bits low, Bits high) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, low, high);
  }
  SPILLWAY_INLINE static Bits load_signed8(const void* from) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  SPILLWAY_INLINE static Bits load_unsigned8(const void* from) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }
  SPILLWAY_INLINE static void store8(void* to, Bits x) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi16_epi8(x));
  }
  SPILLWAY_INLINE static Bits decode_low(Bits code) {
    const __m512i halves = _mm512_srai_epi16(_mm512_add_epi16(code, _mm512_set1_epi16(64)), 7);
    return _mm512_add_epi16(_mm512_mullo_epi16(code, _mm512_set1_epi16(258)), halves);
  }
  SPILLWAY_INLINE static Bits encode_low(Bits low) { return _mm512_mulhrs_epi16(low, _mm512_set1_epi16(127)); }
  SPILLWAY_INLINE static void separate(Float& first, Float& second) {
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const Float before = first;
    first = _mm512_permutex2var_ps(before, even, second);
    second = _mm512_permutex2var_ps(before, odd, second);
  }
  SPILLWAY_INLINE static std::uint32_t largest(Bits x) { return _mm512_reduce_max_epu32(x); }
  SPILLWAY_INLINE static Double low_half(Float x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
  SPILLWAY_INLINE static Double high_half(Float x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
};

}  // namespace

constinit const Kernels kAvx512Kernels = kernels_for<Avx512>();

}  // namespace spillway::cpu_adam
