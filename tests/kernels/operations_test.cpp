// What holds for all operations together: threads, memory, misuse.
#include "../../core/error.h"
#include "support.h"

#include <stdexcept>

#include <gtest/gtest.h>
#include <omp.h>

namespace spillway::kernels {
namespace {

const Shapes kShapes = {.linears = {{200, 96, 136}, {1050, 40, 72}, {3, 96, 136}},
                        .attentions = {{2, 150, 3, 16}, {1, 9, 2, 32}}};

/// Everything once; all results.
std::vector<Array> run_all(DType type, int threads) {
  Machine machine(type, kShapes, threads);
  std::vector<Array> results;
  results.reserve(64);
  const auto result = [&](DType its, std::int64_t count) -> Array& { return results.emplace_back(its, count); };
  const auto added = [&](std::int64_t count) -> Array& {
    return results.emplace_back(Array::random(DType::fp32, count, 9));
  };
  std::vector<Array> inputs;
  inputs.reserve(64);
  const auto input = [&](std::int64_t count, double scale = 1) {
    inputs.push_back(Array::random(type, count, inputs.size(), scale));
    return inputs.back().data();
  };
  for (const auto& s : kShapes.linears) {
    const void *x = input(s.rows * s.in), *w = input(s.out * s.in), *dy = input(s.rows * s.out);
    machine.run.linear(result(type, s.rows * s.out).data(), x, w, input(s.out), s);
    machine.run.linear_backward_input(result(type, s.rows * s.in).data(), dy, w, s);
    machine.run.linear_backward_weight(added(s.out * s.in).floats(), added(s.out).floats(), dy, x, s);
  }
  for (const auto& s : kShapes.attentions) {
    const std::int64_t count = s.batch * s.length * s.heads * s.head_width;
    const void* qkv = input(3 * count);
    Array& y = result(type, count);
    Array& log_sum_exp = result(DType::fp32, s.batch * s.heads * s.length);
    machine.run.attention(y.data(), log_sum_exp.floats(), qkv, s);
    machine.run.attention_backward(result(type, 3 * count).data(), input(count), qkv, y.data(),
                                   log_sum_exp.floats(), s);
  }
  const std::int64_t rows = 300, width = 200, count = rows * width;
  const void *x = input(count, 2), *dy = input(count), *gamma = input(width);
  Array &mean = result(DType::fp32, rows), &inverse = result(DType::fp32, rows);
  machine.run.layer_norm(result(type, count).data(), mean.floats(), inverse.floats(), x, gamma, input(width),
                         rows, width, 1e-5f);
  machine.run.layer_norm_backward(result(type, count).data(), added(width).floats(), added(width).floats(),
                                  input(count), dy, x, gamma, mean.floats(), inverse.floats(), rows, width);
  machine.run.gelu(result(type, count).data(), x, count);
  machine.run.gelu_backward(result(type, count).data(), dy, x, count);
  machine.run.add(result(type, count).data(), x, dy, count);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * i % 37);
  machine.run.embedding(result(type, count).data(), tokens.data(), input(37 * width), input(100 * width), rows,
                        100, width);
  machine.run.embedding_backward(added(37 * width).floats(), tokens.data(), dy, rows, 37, width);
  machine.run.position_backward(added(100 * width).floats(), dy, rows, 100, width);
  Array& logits = results.emplace_back(Array::random(type, count, 77));
  machine.run.cross_entropy(result(DType::fp32, rows).floats(), logits.data(), tokens.data(), rows, width,
                            0.1f);
  machine.finish();
  return results;
}

TEST(Operations, BitsDoNotDependOnThreads) {
  for (const DType type : kTypes) {
    const auto one = run_all(type, 1);
    for (const int threads : {1, 2, 3}) {
      const auto many = run_all(type, threads);
      ASSERT_EQ(one.size(), many.size());
      for (std::size_t i = 0; i < one.size(); ++i) {
        EXPECT_TRUE(one[i] == many[i]) << name_of(type) << ", " << threads << " threads, result " << i;
      }
    }
  }
}

TEST(Operations, CallersOpenMpThreadsNeitherMatterNorChange) {
  const int before = omp_get_max_threads();
  const auto expected = run_all(DType::bf16, 2);
  omp_set_num_threads(3);
  const auto result = run_all(DType::bf16, 2);
  EXPECT_EQ(omp_get_max_threads(), 3);
  omp_set_num_threads(before);
  EXPECT_TRUE(expected == result);
}

TEST(Operations, ReserveExactlyWhatScratchBytesSays) {
  for (const DType type : kTypes) {
    for (const int threads : {1, 2, 3}) {
      HostDevice device({.threads = threads});
      {
        HostOperations operations(device, type, kShapes);
        EXPECT_GT(device.budget().used(), 0);
        EXPECT_EQ(device.budget().used(), HostOperations::scratch_bytes(type, kShapes, threads));
        EXPECT_EQ(device.budget().peaks_by_name(),
                  (std::map<std::string, std::int64_t>{
                      {"scratch", HostOperations::scratch_bytes(type, kShapes, threads)}}));
      }
      EXPECT_EQ(device.budget().used(), 0);
    }
  }
}

TEST(Operations, FitABudgetOfExactlyThatAndNoLess) {
  const std::int64_t bytes = HostOperations::scratch_bytes(DType::bf16, kShapes, 2);
  HostDevice enough({.memory = bytes, .threads = 2});
  EXPECT_NO_THROW(HostOperations(enough, DType::bf16, kShapes));
  HostDevice short_by_one({.memory = bytes - 1, .threads = 2});
  EXPECT_THROW(HostOperations(short_by_one, DType::bf16, kShapes), Error);
  EXPECT_EQ(short_by_one.budget().used(), 0);
}

TEST(Operations, WithoutShapesNeedNoMemory) {
  EXPECT_EQ(HostOperations::scratch_bytes(DType::bf16, {}, 4), 0);
  Machine machine(DType::bf16);
  EXPECT_EQ(machine.device.budget().used(), 0);
}

TEST(Operations, UnnamedShapesAreRefusedAtTheCall) {
  Machine machine(DType::fp32, kShapes);
  EXPECT_THROW(machine.run.linear(nullptr, nullptr, nullptr, nullptr, {200, 96, 137}), std::logic_error);
  EXPECT_THROW(machine.run.linear_backward_input(nullptr, nullptr, nullptr, {201, 96, 136}), std::logic_error);
  EXPECT_THROW(machine.run.linear_backward_weight(nullptr, nullptr, nullptr, nullptr, {200, 97, 136}),
               std::logic_error);
  EXPECT_THROW(machine.run.attention(nullptr, nullptr, nullptr, {2, 150, 3, 17}), std::logic_error);
  EXPECT_THROW(machine.run.attention_backward(nullptr, nullptr, nullptr, nullptr, nullptr, {2, 151, 3, 16}),
               std::logic_error);
  machine.finish();  // nothing of it was enqueued
}

TEST(Operations, RefuseWhatTheyAreNotMadeFor) {
  HostDevice device({});
  EXPECT_THROW(HostOperations(device, DType::fp16, {}), std::logic_error);
  EXPECT_THROW(HostOperations(device, DType::bf16, {.linears = {{0, 4, 4}}}), std::logic_error);
  EXPECT_THROW(HostOperations(device, DType::bf16, {.attentions = {{1, 4, 1, -1}}}), std::logic_error);
}

TEST(Operations, NothingToDoIsDone) {
  Machine machine(DType::bf16);
  machine.run.add(nullptr, nullptr, nullptr, 0);
  machine.run.gelu(nullptr, nullptr, 0);
  machine.run.layer_norm(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 8, 1e-5f);
  machine.run.cross_entropy(nullptr, nullptr, nullptr, 0, 8, 1.0f);
  EXPECT_NO_THROW(machine.finish());
}

TEST(Operations, DestructorWaitsForItsWork) {
  const LinearShape shape{1050, 40, 72};
  const Array x = Array::random(DType::bf16, shape.rows * shape.in, 1),
              w = Array::random(DType::bf16, shape.out * shape.in, 2);
  Array y(DType::bf16, shape.rows * shape.out);
  HostDevice device({.threads = 2});
  {
    HostOperations operations(device, DType::bf16, {.linears = {shape}});
    Operations& run = operations;
    for (int i = 0; i < 10; ++i) run.linear(y.data(), x.data(), w.data(), nullptr, shape);
  }
  for (std::int64_t i = 0; i < y.count(); ++i) ASSERT_FALSE(std::isnan(y[i]));
  EXPECT_NO_THROW(device.synchronize());
}

}  // namespace
}  // namespace spillway::kernels
