#pragma once
// The algorithm of every VectorTable, once, as templates over the instruction set. Each vector_loops_*.cpp
// compiles them with other flags, so nothing here may be a plain inline function: the linker keeps one copy of
// those, and it could be the one with instructions that the processor lacks.
#include "vector_table.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include <xsimd/xsimd.hpp>

namespace spillway::kernels {

template <class Arch>
struct Lanes {
  using F = xsimd::batch<float, Arch>;
  using I = xsimd::batch<std::int32_t, Arch>;
  static constexpr std::int64_t kWidth = static_cast<std::int64_t>(F::size);

  static F widen_full(const std::uint16_t* p) {
#if defined(__AVX512BW__)
    return F(_mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16)));
#elif defined(__AVX2__)
    return F(_mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16)));
#elif defined(__SSE2__)
    return F(_mm_castsi128_ps(
        _mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))));
#else
    std::int32_t wide[F::size];
    for (std::int64_t i = 0; i < kWidth; ++i) wide[i] = static_cast<std::int32_t>(std::uint32_t{p[i]} << 16);
    return xsimd::bitwise_cast<F>(I::load_unaligned(wide));
#endif
  }

  static void narrow_full(std::uint16_t* p, F x) {
    const I bits = xsimd::bitwise_cast<I>(x);
    const I upper = bits >> 16;
    const I rounded = (bits + I(0x7fff) + (upper & I(1))) >> 16;
    const F either =
        xsimd::select(x != x, xsimd::bitwise_cast<F>(upper | I(0x40)), xsimd::bitwise_cast<F>(rounded));
    const I half = xsimd::bitwise_cast<I>(either);
#if defined(__AVX512BW__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(half));
#elif defined(__AVX2__)
    const __m256i kept = half & I(0xffff);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(kept), _mm256_extracti128_si256(kept, 1)));
#elif defined(__SSE2__)
    const __m128i kept = half;  // sign-extended by the arithmetic shifts above, so saturation changes nothing
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(kept, kept));
#else
    std::int32_t wide[F::size];
    half.store_unaligned(wide);
    for (std::int64_t i = 0; i < kWidth; ++i) p[i] = static_cast<std::uint16_t>(wide[i]);
#endif
  }

  static F full(const float* p) {
    return F::load_unaligned(p);
  }
  static F full(const BFloat16* p) {
    return widen_full(reinterpret_cast<const std::uint16_t*>(p));
  }
  static void full(float* p, F x) {
    x.store_unaligned(p);
  }
  static void full(BFloat16* p, F x) {
    narrow_full(reinterpret_cast<std::uint16_t*>(p), x);
  }

  /// The first min(left, kWidth) elements at p, the other lanes +0.
  template <class T>
  static F load(const T* p, std::int64_t left) {
    if (left >= kWidth) return full(p);
    T piece[F::size] = {};
    std::memcpy(piece, p, static_cast<std::size_t>(left) * sizeof(T));
    return full(piece);
  }
  template <class T>
  static void store(T* p, std::int64_t left, F x) {
    if (left >= kWidth) return full(p, x);
    T piece[F::size];
    full(piece, x);
    std::memcpy(p, piece, static_cast<std::size_t>(left) * sizeof(T));
  }

  /// a b + c, fused where the instruction set can; xsimd 8 does not do it for AVX-512.
  static F fma(F a, F b, F c) {
#if defined(__AVX512F__)
    return F(_mm512_fmadd_ps(a, b, c));
#else
    return xsimd::fma(a, b, c);
#endif
  }

  /// exp(x) for -86 <= x <= 88, within 2 units in the last place; a NaN stays one. x = n ln 2 + r, and exp(r)
  /// is Cephes' polynomial (expf). Adding 1.5 * 2^23 leaves n in the low bits of the sum, from where it is
  /// shifted to the exponent.
  static F exp_within(F x) {
    const F sum = fma(x, F(1.44269504088896341f), F(12582912.0f));
    const F n = sum - F(12582912.0f);
    const F r = fma(n, F(2.12194440e-4f), fma(n, F(-0.693359375f), x));
    F p(1.9875691500e-4f);
    for (const float c :
         {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
      p = fma(p, r, F(c));
    }
    const F y = fma(p, r * r, r) + F(1.0f);
    return xsimd::bitwise_cast<F>(xsimd::bitwise_cast<I>(y) + (xsimd::bitwise_cast<I>(sum) << 23));
  }
  /// exp(x), 0 below -86 (where it is less than 5e-38), exp(88) above 88. These orders of operands let a NaN
  /// through.
  static F exp(F x) {
    const F y = exp_within(xsimd::max(F(-86.0f), xsimd::min(F(88.0f), x)));
    return xsimd::select(x < F(-86.0f), F(0.0f), y);
  }

  /// x in the first `left` lanes, `other` in the rest.
  static F keep(F x, std::int64_t left, float other) {
    if (left >= kWidth) return x;
    float piece[F::size];
    x.store_unaligned(piece);
    for (std::int64_t i = left; i < kWidth; ++i) piece[i] = other;
    return full(piece);
  }

  static float sum(F x) {
    float piece[F::size];
    x.store_unaligned(piece);
    for (std::int64_t n = kWidth / 2; n > 0; n /= 2) {
      for (std::int64_t i = 0; i < n; ++i) piece[i] += piece[i + n];
    }
    return piece[0];
  }
  static float largest(F x) {
    float piece[F::size];
    x.store_unaligned(piece);
    float result = piece[0];
    for (std::int64_t i = 1; i < kWidth; ++i) result = piece[i] > result ? piece[i] : result;
    return result;
  }
};

template <class Arch, class T>
struct Loops {
  using L = Lanes<Arch>;
  using F = typename L::F;
  static constexpr std::int64_t kWidth = L::kWidth;
  static const T* in(const void* p) { return static_cast<const T*>(p); }
  static T* out(void* p) { return static_cast<T*>(p); }
  static void zero(void* p, std::int64_t count) {
    std::memset(p, 0, static_cast<std::size_t>(count) * sizeof(T));
  }

  static void widen(float* y, const void* x, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += kWidth) L::store(y + i, count - i, L::load(in(x) + i, count - i));
  }
  static void narrow(void* y, const float* x, std::int64_t count, float factor) {
    for (std::int64_t i = 0; i < count; i += kWidth) {
      L::store(out(y) + i, count - i, L::load(x + i, count - i) * F(factor));
    }
  }
  static void add(void* y, const void* a, const void* b, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += kWidth) {
      L::store(out(y) + i, count - i, L::load(in(a) + i, count - i) + L::load(in(b) + i, count - i));
    }
  }
  static void accumulate(float* sum, const void* x, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += kWidth) {
      L::store(sum + i, count - i, L::load(sum + i, count - i) + L::load(in(x) + i, count - i));
    }
  }
  static float dot(const void* a, const void* b, std::int64_t count) {
    F sum(0.0f);
    for (std::int64_t i = 0; i < count; i += kWidth) {
      sum = L::fma(L::load(in(a) + i, count - i), L::load(in(b) + i, count - i), sum);
    }
    return L::sum(sum);
  }

  // gelu(x) = x s(x) with s(x) = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): tanh written with one
  // exp.
  static constexpr float kRoot = 0.7978845608028654f;
  static constexpr float kCubic = 0.044715f;
  /// There 2u is 84, and s is 1 or 3e-37; keeps x^3 finite. This order of operands lets a NaN through on x86.
  static F clamp(F x) { return xsimd::max(F(-9.85f), xsimd::min(F(9.85f), x)); }
  static F sigmoid(F x) {
    const F u = F(kRoot) * x * L::fma(F(kCubic) * x, x, F(1.0f));
    return F(1.0f) / (F(1.0f) + L::exp_within(F(-2.0f) * u));
  }
  static void gelu(void* y, const void* x, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += kWidth) {
      const F value = L::load(in(x) + i, count - i);
      // The product is 0 in fp32 long before -9.85, and s there is not: a huge x would show it.
      L::store(out(y) + i, count - i, xsimd::max(F(-9.85f), value) * sigmoid(clamp(value)));
    }
  }
  // gelu' = s + 2 x s (1 - s) u'
  static void gelu_backward(void* dx, const void* dy, const void* x, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += kWidth) {
      const F value = clamp(L::load(in(x) + i, count - i));
      const F s = sigmoid(value);
      const F slope = F(2 * kRoot) * L::fma(F(3 * kCubic) * value, value, F(1.0f));
      const F derivative = L::fma(value * slope, s * (F(1.0f) - s), s);
      L::store(out(dx) + i, count - i, L::load(in(dy) + i, count - i) * derivative);
    }
  }

  static void layer_norm(void* y, float* mean, float* inverse_deviation, const void* x, const void* gamma,
                         const void* beta, std::int64_t width, float epsilon) {
    F sum(0.0f);
    for (std::int64_t i = 0; i < width; i += kWidth) sum += L::load(in(x) + i, width - i);
    const float m = L::sum(sum) / static_cast<float>(width);
    F squares(0.0f);
    for (std::int64_t i = 0; i < width; i += kWidth) {
      const F difference = L::keep(L::load(in(x) + i, width - i) - F(m), width - i, 0.0f);
      squares = L::fma(difference, difference, squares);
    }
    const float r = 1.0f / __builtin_sqrtf(L::sum(squares) / static_cast<float>(width) + epsilon);
    for (std::int64_t i = 0; i < width; i += kWidth) {
      const std::int64_t left = width - i;
      const F normal = (L::load(in(x) + i, left) - F(m)) * F(r);
      L::store(out(y) + i, left, L::fma(normal, L::load(in(gamma) + i, left), L::load(in(beta) + i, left)));
    }
    *mean = m;
    *inverse_deviation = r;
  }

  // With g = dy gamma and z = (x - mean) r:  dx = r (g - mean(g) - z mean(g z)).
  static void layer_norm_backward(void* dx, const void* residual, const void* dy, const void* x,
                                  const void* gamma, float mean, float r, std::int64_t width) {
    F sum(0.0f), product(0.0f);
    for (std::int64_t i = 0; i < width; i += kWidth) {
      const std::int64_t left = width - i;
      const F g = L::load(in(dy) + i, left) * L::load(in(gamma) + i, left);
      const F z = (L::load(in(x) + i, left) - F(mean)) * F(r);  // g is 0 in the lanes beyond the row
      sum += g;
      product = L::fma(g, z, product);
    }
    const F mean_g(L::sum(sum) / static_cast<float>(width));
    const F mean_gz(L::sum(product) / static_cast<float>(width));
    for (std::int64_t i = 0; i < width; i += kWidth) {
      const std::int64_t left = width - i;
      const F g = L::load(in(dy) + i, left) * L::load(in(gamma) + i, left);
      const F z = (L::load(in(x) + i, left) - F(mean)) * F(r);
      F result = F(r) * (g - mean_g - z * mean_gz);
      if (residual != nullptr) result += L::load(in(residual) + i, left);
      L::store(out(dx) + i, left, result);
    }
  }

  static void layer_norm_columns(float* dgamma, float* dbeta, const void* dy, const void* x, const float* mean,
                                 const float* inverse_deviation, std::int64_t rows, std::int64_t stride,
                                 std::int64_t columns) {
    float gamma[kColumns] = {}, beta[kColumns] = {};
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* const dy_row = in(dy) + row * stride;
      const T* const x_row = in(x) + row * stride;
      const F m(mean[row]), r(inverse_deviation[row]);
      for (std::int64_t i = 0; i < columns; i += kWidth) {
        const std::int64_t left = columns - i;
        const F g = L::load(dy_row + i, left);
        const F z = (L::load(x_row + i, left) - m) * r;
        L::full(gamma + i, L::fma(g, z, L::full(gamma + i)));
        L::full(beta + i, L::full(beta + i) + g);
      }
    }
    for (std::int64_t i = 0; i < columns; ++i) {
      dgamma[i] += gamma[i];
      dbeta[i] += beta[i];
    }
  }

  static float maximum(const float* x, std::int64_t count) {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    F result(kLowest);
    for (std::int64_t i = 0; i < count; i += kWidth) {
      result = xsimd::max(result, L::keep(L::load(x + i, count - i), count - i, kLowest));
    }
    return L::largest(result);
  }

  static float exponentials(void* p, const float* s, std::int64_t valid, std::int64_t count, float scale,
                            float shift) {
    F sum(0.0f);
    for (std::int64_t i = 0; i < valid; i += kWidth) {
      F e = L::exp(L::load(s + i, valid - i) * F(scale) - F(shift));
      e = L::keep(e, valid - i, 0.0f);
      sum += e;
      L::store(out(p) + i, valid - i, e);
    }
    zero(out(p) + valid, count - valid);
    return L::sum(sum);
  }

  static void softmax_backward(void* p, void* ds, const float* s, const float* dp, std::int64_t valid,
                               std::int64_t count, float scale, float log_sum_exp, float delta) {
    for (std::int64_t i = 0; i < valid; i += kWidth) {
      const std::int64_t left = valid - i;
      const F probability = L::exp(L::load(s + i, left) * F(scale) - F(log_sum_exp));
      L::store(out(p) + i, left, probability);
      L::store(out(ds) + i, left, probability * (L::load(dp + i, left) - F(delta)) * F(scale));
    }
    zero(out(p) + valid, count - valid);
    zero(out(ds) + valid, count - valid);
  }

  static float cross_entropy(void* x, std::int64_t classes, std::int64_t target, float scale) {
    T* const row = out(x);
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    F top(kLowest);
    for (std::int64_t i = 0; i < classes; i += kWidth) {
      top = xsimd::max(top, L::keep(L::load(row + i, classes - i), classes - i, kLowest));
    }
    const float shift = L::largest(top);
    F sum(0.0f);
    for (std::int64_t i = 0; i < classes; i += kWidth) {
      sum += L::keep(L::exp(L::load(row + i, classes - i) - F(shift)), classes - i, 0.0f);
    }
    const float total = L::sum(sum);
    float piece[F::size];
    L::full(piece, L::load(row + target, 1));
    const float at_target = piece[0] - shift;
    const F inverse(1.0f / total);
    for (std::int64_t i = 0; i < classes; i += kWidth) {
      F probability = L::exp(L::load(row + i, classes - i) - F(shift)) * inverse;
      if (target >= i && target < i + kWidth) {
        probability.store_unaligned(piece);
        piece[target - i] -= 1.0f;
        probability = L::full(static_cast<const float*>(piece));
      }
      L::store(row + i, classes - i, probability * F(scale));
    }
    return __builtin_logf(total) - at_target;
  }

  static constexpr VectorTable kTable = {
      .widen = widen,
      .narrow = narrow,
      .add = add,
      .accumulate = accumulate,
      .dot = dot,
      .gelu = gelu,
      .gelu_backward = gelu_backward,
      .layer_norm = layer_norm,
      .layer_norm_backward = layer_norm_backward,
      .layer_norm_columns = layer_norm_columns,
      .maximum = maximum,
      .exponentials = exponentials,
      .softmax_backward = softmax_backward,
      .cross_entropy = cross_entropy,
  };
};

template <class Arch>
const VectorTable& loops_table(DType type) {
  return type == DType::bf16 ? Loops<Arch, BFloat16>::kTable : Loops<Arch, float>::kTable;
}

}  // namespace spillway::kernels
