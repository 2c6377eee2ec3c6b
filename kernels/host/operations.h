#pragma once
// The operations on the host's cores (D11): tiles fixed by shape, each run by one thread.
#include "../operations.h"

#include <cstdint>
#include <memory>

namespace spillway {
class HostDevice;
}

namespace spillway::kernels {

/// One calling thread at a time, like the engine that it serves. The results are the same bits for any number
/// of device threads; between instruction sets they differ in rounding.
class HostOperations final : public Operations {
 public:
  /// Makes every oneDNN primitive that the shapes need and reserves its scratch memory on the device under the
  /// name "scratch", exactly scratch_bytes(). type: bf16 or fp32. Throws Error (resources) where the device's
  /// budget does not hold it; std::logic_error for another type or a shape with a dimension below 1. The device
  /// must outlive it.
  HostOperations(HostDevice& device, DType type, const Shapes& shapes);
  ~HostOperations() override;  ///< waits for what it has enqueued
  HostOperations(const HostOperations&) = delete;
  HostOperations& operator=(const HostOperations&) = delete;

  /// Pure: what the constructor would reserve with that many workers. It depends on the processor, as oneDNN
  /// does.
  static std::int64_t scratch_bytes(DType type, const Shapes& shapes, int threads);

  DType type() const override;

  void linear(void* y, const void* x, const void* w, const void* bias, const LinearShape& shape,
              int unit) override;
  void linear_backward_input(void* dx, const void* dy, const void* w, const LinearShape& shape,
                             int unit) override;
  void linear_backward_weight(float* dw, float* dbias, const void* dy, const void* x, const LinearShape& shape,
                              int unit) override;

  void layer_norm(void* y, float* mean, float* inverse_deviation, const void* x, const void* gamma,
                  const void* beta, std::int64_t rows, std::int64_t width, float epsilon, int unit) override;
  void layer_norm_backward(void* dx, float* dgamma, float* dbeta, const void* residual, const void* dy,
                           const void* x, const void* gamma, const float* mean, const float* inverse_deviation,
                           std::int64_t rows, std::int64_t width, int unit) override;

  void gelu(void* y, const void* x, std::int64_t count, int unit) override;
  void gelu_backward(void* dx, const void* dy, const void* x, std::int64_t count, int unit) override;
  void add(void* y, const void* a, const void* b, std::int64_t count, int unit) override;

  void attention(void* y, float* log_sum_exp, const void* qkv, const AttentionShape& shape, int unit) override;
  void attention_backward(void* dqkv, const void* dy, const void* qkv, const void* y, const float* log_sum_exp,
                          const AttentionShape& shape, int unit) override;

  void embedding(void* y, const std::int32_t* tokens, const void* table, const void* positions,
                 std::int64_t count, std::int64_t length, std::int64_t width, int unit) override;
  void embedding_backward(float* dtable, const std::int32_t* tokens, const void* dy, std::int64_t count,
                          std::int64_t rows_of_table, std::int64_t width, int unit) override;
  void position_backward(float* dpositions, const void* dy, std::int64_t count, std::int64_t length,
                         std::int64_t width, int unit) override;

  void cross_entropy(float* losses, void* logits, const std::int32_t* targets, std::int64_t rows,
                     std::int64_t classes, float scale, int unit) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::kernels
