#include "support.h"

#include <gtest/gtest.h>

namespace spillway::kernels {
namespace {

std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t rows) {
  std::mt19937 generator(5);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<std::int32_t>(generator() % rows));
  return tokens;
}

TEST(Embedding, IsTheRoundedSumOfTokenAndPosition) {
  for (const DType type : kTypes) {
    for (const std::int64_t width : {1, 17, 64, 131}) {
      const std::int64_t count = 12, length = 6, rows = 29;
      Machine machine(type);
      const Array table = Array::random(type, rows * width, 1),
                  positions = Array::random(type, length * width, 2);
      const auto tokens = some_tokens(count, rows);
      for (const bool with_positions : {true, false}) {
        Array y(type, count * width), expected(type, count * width);
        machine.run.embedding(y.data(), tokens.data(), table.data(),
                              with_positions ? positions.data() : nullptr, count, length, width);
        machine.finish();
        for (std::int64_t i = 0; i < y.count(); ++i) {
          const auto token =
              static_cast<float>(table[tokens[static_cast<std::size_t>(i / width)] * width + i % width]);
          const auto position = static_cast<float>(positions[i / width % length * width + i % width]);
          expected.set(i, with_positions ? token + position : token);
        }
        EXPECT_EQ(y, expected) << label(type, {width});
      }
    }
  }
}

// The order of the sums is part of the interface, so the result is the same to the bit as a plain loop's.
TEST(Embedding, GradientsAreAddedInOrder) {
  for (const DType type : kTypes) {
    for (const std::int64_t width : {1, 17, 64, 131, 200}) {
      for (const std::int64_t count : {1, 5, 300}) {
        const std::int64_t length = 7, rows = 11;
        Machine machine(type);
        const auto tokens = some_tokens(count, rows);
        const Array dy = Array::random(type, count * width, 1);
        Array dtable = Array::random(DType::fp32, rows * width, 2),
              dpositions = Array::random(DType::fp32, length * width, 3);
        Array expected_table = dtable, expected_positions = dpositions;
        for (std::int64_t i = 0; i < count; ++i) {
          for (std::int64_t c = 0; c < width; ++c) {
            const auto g = static_cast<float>(dy[i * width + c]);
            expected_table.floats()[tokens[static_cast<std::size_t>(i)] * width + c] += g;
            expected_positions.floats()[i % length * width + c] += g;
          }
        }
        machine.run.embedding_backward(dtable.floats(), tokens.data(), dy.data(), count, rows, width);
        machine.run.position_backward(dpositions.floats(), dy.data(), count, length, width);
        machine.finish();
        EXPECT_EQ(dtable, expected_table) << label(type, {count, width});
        EXPECT_EQ(dpositions, expected_positions) << label(type, {count, width});
      }
    }
  }
}

}  // namespace
}  // namespace spillway::kernels
