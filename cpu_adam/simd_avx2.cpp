// Compiled with -mavx2 -mfma. See simd.h for what a Lanes type provides.
#include "simd_kernels.h"

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
  SPILLWAY_INLINE static Bits load(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  SPILLWAY_INLINE static void store(void* to, Bits x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
  SPILLWAY_INLINE static Bits blend16(Bits low, Bits high) { return _mm256_blend_epi16(low, high, 0xaa); }
  SPILLWAY_INLINE static Bits load_signed8(const void* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  SPILLWAY_INLINE static Bits load_unsigned8(const void* from) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  SPILLWAY_INLINE static void store8(void* to, Bits x) {
    const __m256i kept = _mm256_and_si256(x, _mm256_set1_epi16(0xff));
    const __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(kept), _mm256_extracti128_si256(kept, 1));
    _mm_storeu_si128(static_cast<__m128i*>(to), packed);
  }
  SPILLWAY_INLINE static Bits decode_low(Bits code) {
    return _mm256_mullo_epi16(code, _mm256_set1_epi16(kLowStep));
  }
  SPILLWAY_INLINE static Bits encode_low(Bits low, Bits random) {
    // low + 32766 from 0 on, and / 258 by the high half of a product: (x * 32514) >> 23, exact below 2^16.
    const __m256i from_lowest =
        _mm256_subs_epu16(_mm256_xor_si256(low, _mm256_set1_epi16(-32768)), _mm256_set1_epi16(2));
    const __m256i in_order = _mm256_or_si256(_mm256_slli_epi32(random, 16), _mm256_srli_epi32(random, 16));
    const __m256i lifted =
        _mm256_adds_epu16(from_lowest, _mm256_mulhi_epu16(in_order, _mm256_set1_epi16(kLowStep)));
    const __m256i code = _mm256_srli_epi16(_mm256_mulhi_epu16(lifted, _mm256_set1_epi16(32514)), 7);
    return _mm256_sub_epi16(code, _mm256_set1_epi16(127));
  }
  SPILLWAY_INLINE static void separate(Float& first, Float& second) {
    const __m256 even = _mm256_shuffle_ps(first, second, 0x88), odd = _mm256_shuffle_ps(first, second, 0xdd);
    first = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
    second = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8));
  }
  SPILLWAY_INLINE static std::uint32_t largest(Bits x) {
    __m128i most = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(most));
  }
  SPILLWAY_INLINE static Double low_half(Float x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
  SPILLWAY_INLINE static Double high_half(Float x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
};

}  // namespace

constinit const Kernels kAvx2Kernels = kernels_for<Avx2>();

}  // namespace spillway::cpu_adam
