// The squared norm and the accumulation of gradients.
#include "../../cpu_adam/norm.h"

#include "../../core/parallel.h"
#include "../../cpu_adam/accumulate.h"
#include "planes_fixture.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::cpu_adam {
namespace {
using testing::Draw;
using testing::Exact;
using testing::Gradients;
using testing::kGradientTypes;
using testing::same;

std::uint64_t bits_of(double x) {
  return std::bit_cast<std::uint64_t>(x);
}

std::vector<double> sums_of(Isa isa, Gradient gradient, std::int64_t n) {
  std::vector<double> sums(static_cast<std::size_t>(norm_blocks(n)));
  square_sums(isa, gradient, n, sums.data());
  return sums;
}
SquaredNorm norm_of(Isa isa, Gradient gradient, std::int64_t n) {
  SquaredNorm norm;
  norm.add(sums_of(isa, gradient, n));
  return norm;
}

TEST(SquareSums, AgreeWithLongDoubleAndHaveTheSameBitsOnEveryIsa) {
  Draw draw(21);
  for (const std::int64_t n : {0, 1, 7, 15, 16, 17, 31, 4095, 4096, 4097, 10'001}) {
    for (const DType type : kGradientTypes) {
      Gradients gradients(n, 3);
      gradients.draw(draw, n % 2 == 0 ? &Draw::ordinary : &Draw::finite);
      long double expected = 0.0L;
      for (std::int64_t i = 0; i < n; ++i) {
        const auto g = static_cast<long double>(gradients.at(type, i));
        expected += g * g;
      }
      const Gradient gradient = gradients.of(type);
      const SquaredNorm reference = norm_of(Isa::scalar, gradient, n);
      EXPECT_TRUE(reference.finite);
      // n additions of positive numbers, each within 2^-53, over 16 sums.
      EXPECT_NEAR(reference.sum_of_squares, static_cast<double>(expected),
                  static_cast<double>(expected) * 1e-13)
          << n;
      for (const Isa isa : supported_isas()) {
        EXPECT_EQ(bits_of(norm_of(isa, gradient, n).sum_of_squares), bits_of(reference.sum_of_squares))
            << name_of(isa) << " " << name_of(type) << " n " << n;
      }
    }
  }
}

TEST(SquareSums, HaveTheSameBitsForEveryThreadCountAndForPiecesCutAtBlocks) {
  const std::int64_t n = 100 * kNormBlock + 33;
  Draw draw(22);
  Exact<BFloat16> gradient(n);
  for (std::int64_t i = 0; i < n; ++i) gradient[i] = to_bf16(draw.ordinary());
  const Gradient all{gradient.data(), DType::bf16};
  const auto expected = sums_of(Isa::scalar, all, n);
  for (const Isa isa : supported_isas()) {
    for (const int threads : {1, 2, 3}) {
      Workers workers(threads);
      std::vector<double> sums(expected.size());
      square_sums(isa, workers, all, n, sums.data());
      EXPECT_EQ(sums, expected) << name_of(isa) << " " << threads;
    }
  }
  SquaredNorm whole, pieces;
  whole.add(expected);
  pieces.add(sums_of(chosen_isa(), all, 37 * kNormBlock));
  pieces.add(sums_of(chosen_isa(), advance(all, 37 * kNormBlock), n - 37 * kNormBlock));
  EXPECT_EQ(bits_of(pieces.sum_of_squares), bits_of(whole.sum_of_squares));
}

TEST(SquareSums, FindANonFiniteElementAnywhereAndTakeHugeOnesForFinite) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::uint64_t nan_bits = bits_of(std::numeric_limits<double>::quiet_NaN());
  for (const Isa isa : supported_isas()) {
    for (const DType type : kGradientTypes) {
      const float largest = type == DType::fp32   ? std::numeric_limits<float>::max()
                            : type == DType::fp16 ? 65504.0f
                                                  : 0x1.fep127f;
      for (const std::int64_t n : {1, 16, 19, 4100}) {
        Gradients gradients(n);
        for (std::int64_t i = 0; i < n; ++i) gradients.set(i, largest);
        EXPECT_TRUE(norm_of(isa, gradients.of(type), n).finite);
        for (const float bad : {infinity, -infinity, nan, -nan}) {
          for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
            gradients.set(at, bad);
            EXPECT_FALSE(norm_of(isa, gradients.of(type), n).finite)
                << name_of(isa) << " " << name_of(type) << " " << n << " " << at << " " << bad;
            if (std::isnan(bad)) {
              const auto sums = sums_of(isa, gradients.of(type), n);
              EXPECT_EQ(bits_of(sums[static_cast<std::size_t>(at / kNormBlock)]), nan_bits);
            }
            gradients.set(at, largest);
          }
        }
      }
    }
  }
}

TEST(SquareSums, MisuseIsALogicError) {
  const float g = 1.0f;
  double sum = 0.0;
  EXPECT_THROW(square_sums(Isa::scalar, {&g, DType::fp16}, -1, &sum), std::logic_error);
  EXPECT_THROW(square_sums(Isa::scalar, {&g, DType::fp32}, -1, &sum), std::logic_error);
  EXPECT_THROW(square_sums(Isa::scalar, {nullptr, DType::fp32}, 1, &sum), std::logic_error);
}

TEST(Accumulation, IsTheSumInOrderFromPlusZeroOnEveryIsa) {
  Draw draw(23);
  for (std::int64_t n = 0; n <= 300; ++n) {
    Gradients batches[3] = {Gradients(n, 1), Gradients(n, 1), Gradients(n, 1)};
    for (Gradients& batch : batches) batch.draw(draw, n % 3 == 0 ? &Draw::finite : &Draw::ordinary);
    for (const DType type : kGradientTypes) {
      for (const Isa isa : supported_isas()) {
        Exact<float> sum(n, 7);
        for (float& x : sum.span()) x = std::numeric_limits<float>::quiet_NaN();  // not to be read
        for (const Gradients& batch : batches) {
          accumulate(isa, &batch == batches ? Accumulate::assign : Accumulate::add, sum.data(), batch.of(type),
                     n);
        }
        for (std::int64_t i = 0; i < n; ++i) {
          float expected = 0.0f;
          for (const Gradients& batch : batches) expected += batch.at(type, i);
          ASSERT_TRUE(same(sum[i], expected))
              << name_of(isa) << " " << name_of(type) << " n " << n << " [" << i << "]";
        }
      }
    }
  }
}

TEST(Accumulation, ReadsEveryBitPatternOfFp16AsTheScalarConversionDoes) {
  Exact<Float16> h(65536);
  for (std::int64_t i = 0; i < h.size(); ++i) h[i] = {static_cast<std::uint16_t>(i)};
  for (const Isa isa : supported_isas()) {
    Exact<float> sum(h.size());
    accumulate(isa, Accumulate::assign, sum.data(), {h.data(), DType::fp16}, h.size());
    for (std::int64_t i = 0; i < h.size(); ++i) {
      ASSERT_TRUE(same(sum[i], 0.0f + to_float(h[i]))) << name_of(isa) << " " << std::hex << i;
    }
  }
}

TEST(Accumulation, TheFirstMicroBatchTurnsMinusZeroIntoPlusZero) {
  for (const Isa isa : supported_isas()) {
    Exact<float> sum(35), h(35);
    for (std::int64_t i = 0; i < 35; ++i) h[i] = -0.0f;
    accumulate(isa, Accumulate::assign, sum.data(), {h.data(), DType::fp32}, 35);
    for (std::int64_t i = 0; i < 35; ++i)
      EXPECT_FALSE(std::signbit(sum[i])) << name_of(isa) << " [" << i << "]";
  }
}

TEST(Accumulation, OverWorkersGivesTheSameBits) {
  const std::int64_t n = 100'003;
  Draw draw(24);
  Exact<BFloat16> h(n);
  Exact<float> start(n), expected(n);
  for (std::int64_t i = 0; i < n; ++i) {
    h[i] = to_bf16(draw.ordinary());
    start[i] = expected[i] = draw.ordinary();
    expected[i] += to_float(h[i]);
  }
  for (const int threads : {1, 2, 3}) {
    Workers workers(threads);
    Exact<float> sum(n);
    std::copy(start.data(), start.data() + n, sum.data());
    accumulate(chosen_isa(), workers, Accumulate::add, sum.data(), {h.data(), DType::bf16}, n);
    for (std::int64_t i = 0; i < n; ++i) ASSERT_TRUE(same(sum[i], expected[i])) << threads << " [" << i << "]";
  }
}

}  // namespace
}  // namespace spillway::cpu_adam
