#include "state.h"

#include <algorithm>
#include <cstring>

namespace spillway::kernels {

void HostOperations::embedding(void* y, const std::int32_t* tokens, const void* table, const void* positions,
                               std::int64_t count, std::int64_t length, std::int64_t width, int unit) {
  State& state = *state_;
  state.launch_rows(
      "embedding", count, width,
      [=, &state](std::int64_t first, std::int64_t rows) {
        for (std::int64_t i = first; i < first + rows; ++i) {
          std::byte* const to = at(y, i * width, state.element);
          const std::byte* const from = at(table, tokens[i] * width, state.element);
          if (positions == nullptr) {
            std::memcpy(to, from, static_cast<std::size_t>(width * state.element));
          } else {
            state.vector.add(to, from, at(positions, i % length * width, state.element), width);
          }
        }
      },
      unit);
}

void HostOperations::embedding_backward(float* dtable, const std::int32_t* tokens, const void* dy,
                                        std::int64_t count, std::int64_t, std::int64_t width, int unit) {
  State& state = *state_;
  // A tile owns columns, so that each element of the table has one writer and one order.
  state.launch(
      "embedding_backward", (width + kColumns - 1) / kColumns,
      [=, &state](std::int64_t tile, int) {
        const std::int64_t column = tile * kColumns;
        for (std::int64_t i = 0; i < count; ++i) {
          state.vector.accumulate(dtable + tokens[i] * width + column,
                                  at(dy, i * width + column, state.element),
                                  std::min(kColumns, width - column));
        }
      },
      unit);
}

void HostOperations::position_backward(float* dpositions, const void* dy, std::int64_t count,
                                       std::int64_t length, std::int64_t width, int unit) {
  State& state = *state_;
  state.launch_rows(
      "position_backward", std::min(length, count), width,
      [=, &state](std::int64_t first, std::int64_t rows) {
        for (std::int64_t position = first; position < first + rows; ++position) {
          for (std::int64_t i = position; i < count; i += length) {
            state.vector.accumulate(dpositions + position * width, at(dy, i * width, state.element), width);
          }
        }
      },
      unit);
}

}  // namespace spillway::kernels
