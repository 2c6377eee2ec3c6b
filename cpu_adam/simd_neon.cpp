// For 64-bit ARM, all of which has these instructions. See simd.h for what a Lanes type provides.
#include "simd_kernels.h"

#include <arm_neon.h>

// What xsimd 8.1 has for NEON is replaced where it would change bits or cost a call for each vector.
namespace xsimd::kernel {
namespace {
using Float = batch<float, neon64>;
using Bits = batch<std::uint32_t, neon64>;
using Signed = batch<std::int32_t, neon64>;
}  // namespace

// It refines estimates of a quotient and of a root; these instructions round once, as other processors' do.
template <>
SPILLWAY_INLINE Float div<neon64>(const Float& x, const Float& y, requires_arch<neon>) noexcept {
  return vdivq_f32(x, y);
}
template <>
SPILLWAY_INLINE Float sqrt<neon64>(const Float& x, requires_arch<neon>) noexcept {
  return vsqrtq_f32(x);
}

// It finds a cast in a table of 81 functions, which g++ copies and calls into.
template <>
SPILLWAY_INLINE Float bitwise_cast(const Bits& x, const Float&, requires_arch<neon>) noexcept {
  return vreinterpretq_f32_u32(x);
}
template <>
SPILLWAY_INLINE Bits bitwise_cast(const Float& x, const Bits&, requires_arch<neon>) noexcept {
  return vreinterpretq_u32_f32(x);
}
template <>
SPILLWAY_INLINE Signed bitwise_cast(const Bits& x, const Signed&, requires_arch<neon>) noexcept {
  return vreinterpretq_s32_u32(x);
}
template <>
SPILLWAY_INLINE Bits bitwise_cast(const Signed& x, const Bits&, requires_arch<neon>) noexcept {
  return vreinterpretq_u32_s32(x);
}

// It compares the count of a shift with one constant after another, deeper than g++ inlines.
template <>
SPILLWAY_INLINE Bits bitwise_lshift(const Bits& x, int count, requires_arch<neon>) noexcept {
  return uint32x4_t(x) << count;
}
template <>
SPILLWAY_INLINE Signed bitwise_lshift(const Signed& x, int count, requires_arch<neon>) noexcept {
  return int32x4_t(x) << count;
}
template <>
SPILLWAY_INLINE Bits bitwise_rshift(const Bits& x, int count, requires_arch<neon>) noexcept {
  return uint32x4_t(x) >> count;
}
template <>
SPILLWAY_INLINE Signed bitwise_rshift(const Signed& x, int count, requires_arch<neon>) noexcept {
  return int32x4_t(x) >> count;
}

}  // namespace xsimd::kernel

namespace spillway::cpu_adam {
namespace {

struct Neon {
  using Arch = xsimd::neon64;
  using Float = xsimd::batch<float, Arch>;
  using Bits = xsimd::batch<std::uint32_t, Arch>;
  using Double = xsimd::batch<double, Arch>;
  static constexpr int width = 4;

  SPILLWAY_INLINE static Float fma(Float x, Float y, Float z) { return vfmaq_f32(z, x, y); }
  SPILLWAY_INLINE static Bits load_unsigned16(const void* from) {
    return vmovl_u16(vld1_u16(static_cast<const std::uint16_t*>(from)));
  }
  SPILLWAY_INLINE static Bits load_signed16(const void* from) {
    return vreinterpretq_u32_s32(vmovl_s16(vld1_s16(static_cast<const std::int16_t*>(from))));
  }
  SPILLWAY_INLINE static void store16(void* to, Bits x) {
    vst1_u16(static_cast<std::uint16_t*>(to), vmovn_u32(x));
  }
  SPILLWAY_INLINE static Bits load(const void* from) {
    return vreinterpretq_u32_u8(vld1q_u8(static_cast<const std::uint8_t*>(from)));
  }
  SPILLWAY_INLINE static void store(void* to, Bits x) {
    vst1q_u8(static_cast<std::uint8_t*>(to), vreinterpretq_u8_u32(x));
  }
  SPILLWAY_INLINE static Bits blend16(Bits low, Bits high) {
    return vbslq_u32(vdupq_n_u32(0xffffu), low, high);
  }
  SPILLWAY_INLINE static Bits load_signed8(const void* from) {
    return vreinterpretq_u32_s16(vmovl_s8(vld1_s8(static_cast<const std::int8_t*>(from))));
  }
  SPILLWAY_INLINE static Bits load_unsigned8(const void* from) {
    return vreinterpretq_u32_u16(vmovl_u8(vld1_u8(static_cast<const std::uint8_t*>(from))));
  }
  SPILLWAY_INLINE static void store8(void* to, Bits x) {
    vst1_u8(static_cast<std::uint8_t*>(to), vmovn_u16(vreinterpretq_u16_u32(x)));
  }
  SPILLWAY_INLINE static Bits decode_low(Bits code) {
    return vreinterpretq_u32_s16(vmulq_n_s16(vreinterpretq_s16_u32(code), kLowStep));
  }
  SPILLWAY_INLINE static uint16x8_t multiply_high(uint16x8_t x, std::uint16_t factor) {
    const uint32x4_t first = vmull_n_u16(vget_low_u16(x), factor), second = vmull_high_n_u16(x, factor);
    return vuzp2q_u16(vreinterpretq_u16_u32(first), vreinterpretq_u16_u32(second));
  }
  SPILLWAY_INLINE static Bits encode_low(Bits low, Bits random) {
    // low + 32766 from 0 on, and / 258 by the high half of a product: (x * 32514) >> 23, exact below 2^16.
    const uint16x8_t from_least = veorq_u16(vreinterpretq_u16_u32(low), vdupq_n_u16(0x8000));
    const uint16x8_t from_lowest = vqsubq_u16(from_least, vdupq_n_u16(2));
    const uint16x8_t in_order = vrev32q_u16(vreinterpretq_u16_u32(random));
    const uint16x8_t lifted = vqaddq_u16(from_lowest, multiply_high(in_order, kLowStep));
    const uint16x8_t code = vshrq_n_u16(multiply_high(lifted, 32514), 7);
    return vreinterpretq_u32_u16(vsubq_u16(code, vdupq_n_u16(127)));
  }
  SPILLWAY_INLINE static void separate(Float& first, Float& second) {
    const Float before = first;
    first = vuzp1q_f32(before, second);
    second = vuzp2q_f32(before, second);
  }
  SPILLWAY_INLINE static std::uint32_t largest(Bits x) { return vmaxvq_u32(x); }
  SPILLWAY_INLINE static Double low_half(Float x) { return vcvt_f64_f32(vget_low_f32(x)); }
  SPILLWAY_INLINE static Double high_half(Float x) { return vcvt_high_f64_f32(x); }
};

}  // namespace

constinit const Kernels kNeonKernels = kernels_for<Neon>();

}  // namespace spillway::cpu_adam
