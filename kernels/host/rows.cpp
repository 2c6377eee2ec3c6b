// Operations on rows and elements: normalisation, activation, sum, loss.
#include "state.h"

#include <algorithm>

namespace spillway::kernels {

void HostOperations::layer_norm(void* y, float* mean, float* inverse_deviation, const void* x,
                                const void* gamma, const void* beta, std::int64_t rows, std::int64_t width,
                                float epsilon, int unit) {
  State& state = *state_;
  state.launch_rows(
      "layer_norm", rows, width,
      [=, &state](std::int64_t first, std::int64_t count) {
        for (std::int64_t row = first; row < first + count; ++row) {
          state.vector.layer_norm(at(y, row * width, state.element), mean + row, inverse_deviation + row,
                                  at(x, row * width, state.element), gamma, beta, width, epsilon);
        }
      },
      unit);
}

void HostOperations::layer_norm_backward(void* dx, float* dgamma, float* dbeta, const void* residual,
                                         const void* dy, const void* x, const void* gamma, const float* mean,
                                         const float* inverse_deviation, std::int64_t rows, std::int64_t width,
                                         int unit) {
  State& state = *state_;
  state.launch(
      "layer_norm_backward_weight", (width + kColumns - 1) / kColumns,
      [=, &state](std::int64_t tile, int) {
        const std::int64_t column = tile * kColumns;
        state.vector.layer_norm_columns(dgamma + column, dbeta + column, at(dy, column, state.element),
                                        at(x, column, state.element), mean, inverse_deviation, rows, width,
                                        std::min(kColumns, width - column));
      },
      unit);
  state.launch_rows(
      "layer_norm_backward_input", rows, width,
      [=, &state](std::int64_t first, std::int64_t count) {
        for (std::int64_t row = first; row < first + count; ++row) {
          const std::int64_t begin = row * width;
          state.vector.layer_norm_backward(at(dx, begin, state.element),
                                           residual == nullptr ? nullptr : at(residual, begin, state.element),
                                           at(dy, begin, state.element), at(x, begin, state.element), gamma,
                                           mean[row], inverse_deviation[row], width);
        }
      },
      unit);
}

void HostOperations::gelu(void* y, const void* x, std::int64_t count, int unit) {
  State& state = *state_;
  state.launch_rows(
      "gelu", count, 1,
      [=, &state](std::int64_t first, std::int64_t n) {
        state.vector.gelu(at(y, first, state.element), at(x, first, state.element), n);
      },
      unit);
}

void HostOperations::gelu_backward(void* dx, const void* dy, const void* x, std::int64_t count, int unit) {
  State& state = *state_;
  state.launch_rows(
      "gelu_backward", count, 1,
      [=, &state](std::int64_t first, std::int64_t n) {
        state.vector.gelu_backward(at(dx, first, state.element), at(dy, first, state.element),
                                   at(x, first, state.element), n);
      },
      unit);
}

void HostOperations::add(void* y, const void* a, const void* b, std::int64_t count, int unit) {
  State& state = *state_;
  state.launch_rows(
      "add", count, 1,
      [=, &state](std::int64_t first, std::int64_t n) {
        state.vector.add(at(y, first, state.element), at(a, first, state.element), at(b, first, state.element),
                         n);
      },
      unit);
}

void HostOperations::cross_entropy(float* losses, void* logits, const std::int32_t* targets, std::int64_t rows,
                                   std::int64_t classes, float scale, int unit) {
  State& state = *state_;
  state.launch_rows(
      "cross_entropy", rows, classes,
      [=, &state](std::int64_t first, std::int64_t count) {
        for (std::int64_t row = first; row < first + count; ++row) {
          std::byte* const its = at(logits, row * classes, state.element);
          if (targets[row] < 0) {
            std::fill_n(its, classes * state.element, std::byte{0});
            losses[row] = 0;
          } else {
            losses[row] = state.vector.cross_entropy(its, classes, targets[row], scale);
          }
        }
      },
      unit);
}

}  // namespace spillway::kernels
