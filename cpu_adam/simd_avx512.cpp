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
    return _mm512_mullo_epi16(code, _mm512_set1_epi16(kLowStep));
  }
  SPILLWAY_INLINE static Bits encode_low(Bits low, Bits random) {
    // low + 32766 from 0 on, and / 258 by the high half of a product: (x * 32514) >> 23, exact below 2^16.
    const __m512i from_lowest =
        _mm512_subs_epu16(_mm512_xor_si512(low, _mm512_set1_epi16(-32768)), _mm512_set1_epi16(2));
    const __m512i in_order = _mm512_rol_epi32(random, 16);
    const __m512i lifted =
        _mm512_adds_epu16(from_lowest, _mm512_mulhi_epu16(in_order, _mm512_set1_epi16(kLowStep)));
    const __m512i code = _mm512_srli_epi16(_mm512_mulhi_epu16(lifted, _mm512_set1_epi16(32514)), 7);
    return _mm512_sub_epi16(code, _mm512_set1_epi16(127));
  }
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
