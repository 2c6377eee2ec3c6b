#pragma once
// The loops over rows of numbers, compiled for several instruction sets and chosen at run time.
#include "../../core/dtype.h"

#include <cstdint>

namespace spillway::kernels {

/// Loops over elements of one type T (bf16 or fp32), passed as void. All arithmetic is in fp32, sums are in an
/// order that follows from the count and the instruction set, and bf16 is rounded to nearest even on integers.
struct VectorTable {
  void (*widen)(float* y, const void* x, std::int64_t count);
  /// y = x * factor
  void (*narrow)(void* y, const float* x, std::int64_t count, float factor);
  void (*add)(void* y, const void* a, const void* b, std::int64_t count);
  /// sum[i] += x[i]
  void (*accumulate)(float* sum, const void* x, std::int64_t count);
  float (*dot)(const void* a, const void* b, std::int64_t count);

  void (*gelu)(void* y, const void* x, std::int64_t count);
  void (*gelu_backward)(void* dx, const void* dy, const void* x, std::int64_t count);

  /// One row; see Operations.
  void (*layer_norm)(void* y, float* mean, float* inverse_deviation, const void* x, const void* gamma,
                     const void* beta, std::int64_t width, float epsilon);
  void (*layer_norm_backward)(void* dx, const void* residual, const void* dy, const void* x, const void* gamma,
                              float mean, float inverse_deviation, std::int64_t width);
  /// Sums over the rows of `columns` (at most kColumns) columns of matrices whose rows are `stride` apart.
  void (*layer_norm_columns)(float* dgamma, float* dbeta, const void* dy, const void* x, const float* mean,
                             const float* inverse_deviation, std::int64_t rows, std::int64_t stride,
                             std::int64_t columns);

  float (*maximum)(const float* x, std::int64_t count);
  /// p[i] = exp(scale s[i] - shift) for i < valid, 0 from there to count; returns the sum before rounding.
  float (*exponentials)(void* p, const float* s, std::int64_t valid, std::int64_t count, float scale,
                        float shift);
  /// p as above with shift = log_sum_exp; ds = p (dp - delta) scale.
  void (*softmax_backward)(void* p, void* ds, const float* s, const float* dp, std::int64_t valid,
                           std::int64_t count, float scale, float log_sum_exp, float delta);
  /// Returns -log softmax(x)[target]; x becomes (softmax(x) - [i = target]) * scale.
  float (*cross_entropy)(void* x, std::int64_t classes, std::int64_t target, float scale);
};

constexpr std::int64_t kColumns = 64;  ///< columns of one tile of a sum over rows

/// For the widest instruction set that the processor has and oneDNN may use (ONEDNN_MAX_CPU_ISA lowers both).
/// type: bf16 or fp32; std::logic_error for another.
const VectorTable& vector_table(DType type);

// One for each instruction set that this build has a loop for.
const VectorTable& baseline_table(DType type);
#if defined(__x86_64__)
const VectorTable& avx2_table(DType type);
const VectorTable& avx512_table(DType type);
#endif

}  // namespace spillway::kernels
