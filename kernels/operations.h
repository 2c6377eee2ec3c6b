#pragma once
// The operations that a model is built from. All are enqueued on the device's compute stream and return at
// once; pointers are device addresses that must live until the work has been done. Matrices are row-major and
// dense. Activations and parameters have the type of type() (bf16 or fp32); sums are taken in fp32; gradients
// of parameters are fp32 and added into. Nothing depends on the number of threads (D9).
#include "../core/dtype.h"

#include <cstdint>
#include <vector>

namespace spillway::kernels {

/// y[rows, out] = x[rows, in] w[out, in]^T
struct LinearShape {
  std::int64_t rows = 0, in = 0, out = 0;
};

/// Self-attention of `batch` sequences of `length` tokens with `heads` heads of `head_width`.
struct AttentionShape {
  std::int64_t batch = 0, length = 0, heads = 0, head_width = 0;
};

/// All shapes with which a model will call its operations: scratch memory is reserved for them, no more. A
/// shape that was not named is std::logic_error when it is used.
struct Shapes {
  std::vector<LinearShape> linears = {};
  std::vector<AttentionShape> attentions = {};
};

class Operations {
 public:
  virtual ~Operations() = default;
  virtual DType type() const = 0;

  /// y = x w^T + bias. bias[out] may be null.
  virtual void linear(void* y, const void* x, const void* w, const void* bias, const LinearShape& shape,
                      int unit = -1) = 0;
  /// dx[rows, in] = dy[rows, out] w[out, in]
  virtual void linear_backward_input(void* dx, const void* dy, const void* w, const LinearShape& shape,
                                     int unit = -1) = 0;
  /// dw[out, in] += dy^T x; dbias[out] += column sums of dy (may be null).
  virtual void linear_backward_weight(float* dw, float* dbias, const void* dy, const void* x,
                                      const LinearShape& shape, int unit = -1) = 0;

  /// y = (x - mean) * inverse_deviation * gamma + beta for each row; the variance is the biased one.
  /// mean[rows] and inverse_deviation[rows] are kept for the backward pass.
  virtual void layer_norm(void* y, float* mean, float* inverse_deviation, const void* x, const void* gamma,
                          const void* beta, std::int64_t rows, std::int64_t width, float epsilon,
                          int unit = -1) = 0;
  /// dx = residual + gradient with respect to x (residual[rows, width] may be null, and may be dx itself: the
  /// gradient of a residual connection around the normalisation); dgamma += ..., dbeta += ... dx may be dy.
  virtual void layer_norm_backward(void* dx, float* dgamma, float* dbeta, const void* residual, const void* dy,
                                   const void* x, const void* gamma, const float* mean,
                                   const float* inverse_deviation, std::int64_t rows, std::int64_t width,
                                   int unit = -1) = 0;

  /// The tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
  virtual void gelu(void* y, const void* x, std::int64_t count, int unit = -1) = 0;
  /// dx may be dy itself.
  virtual void gelu_backward(void* dx, const void* dy, const void* x, std::int64_t count, int unit = -1) = 0;

  /// y = a + b; y may be a or b.
  virtual void add(void* y, const void* a, const void* b, std::int64_t count, int unit = -1) = 0;

  /// Causal attention, scores scaled by 1/sqrt(head_width). qkv[batch, length, 3, heads, head_width],
  /// y[batch, length, heads, head_width], log_sum_exp[batch, heads, length] (natural logarithm of each row's
  /// sum, kept for the backward pass). Memory of a block of queries times length for each worker, never
  /// length^2 for all heads.
  virtual void attention(void* y, float* log_sum_exp, const void* qkv, const AttentionShape& shape,
                         int unit = -1) = 0;
  virtual void attention_backward(void* dqkv, const void* dy, const void* qkv, const void* y,
                                  const float* log_sum_exp, const AttentionShape& shape, int unit = -1) = 0;

  /// y[i, width] = table[tokens[i]] + positions[i % length]; positions may be null. Tokens must be in range
  /// (the caller has checked them).
  virtual void embedding(void* y, const std::int32_t* tokens, const void* table, const void* positions,
                         std::int64_t count, std::int64_t length, std::int64_t width, int unit = -1) = 0;
  /// dtable[tokens[i]] += dy[i], in the order of i for each row of the table.
  virtual void embedding_backward(float* dtable, const std::int32_t* tokens, const void* dy, std::int64_t count,
                                  std::int64_t rows_of_table, std::int64_t width, int unit = -1) = 0;
  /// dpositions[i % length] += dy[i], in the order of i.
  virtual void position_backward(float* dpositions, const void* dy, std::int64_t count, std::int64_t length,
                                 std::int64_t width, int unit = -1) = 0;

  /// losses[i] = -log softmax(logits[i])[targets[i]]; logits become their gradient times `scale`. A negative
  /// target counts as no loss: its loss is 0 and its gradient row is zero.
  virtual void cross_entropy(float* losses, void* logits, const std::int32_t* targets, std::int64_t rows,
                             std::int64_t classes, float scale, int unit = -1) = 0;
};

}  // namespace spillway::kernels
