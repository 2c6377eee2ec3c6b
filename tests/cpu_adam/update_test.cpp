// Every ISA against the scalar reference bit by bit, and the spread over workers.
#include "../../cpu_adam/update.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "../../core/parallel.h"
#include "planes_fixture.h"

#include <cmath>
#include <string>
#include <vector>

namespace spillway::cpu_adam {
namespace {
using testing::Draw;
using testing::Exact;
using testing::OwnedPlanes;
using testing::same;

AdamCoefficients drawn_coefficients(Draw& draw) {
  const std::int64_t steps[] = {1, 2, 17, 10'000, 10'000'000};
  const auto zero_or = [&](double value) { return draw.bits() % 4 == 0 ? 0.0 : value; };
  AdamHyper hyper;
  hyper.learning_rate = zero_or(draw.uniform() * 0.1);
  hyper.beta1 = zero_or(draw.uniform());
  hyper.beta2 = zero_or(1.0 - draw.uniform() * 0.1);
  hyper.eps = zero_or(draw.uniform() * 1e-6);
  hyper.weight_decay = zero_or(draw.uniform());
  hyper.decoupled = draw.bits() % 2 == 0;
  return adam_coefficients(hyper, steps[draw.bits() % std::size(steps)],
                           draw.bits() % 4 == 0 ? 1.0 : draw.uniform());
}

struct Gradients {
  Gradients(std::int64_t n, std::int64_t shift) : fp32(n, shift), bf16(n, shift) {}
  void set(std::int64_t i, float g) {
    fp32[i] = g;
    bf16[i] = to_bf16(g);
  }
  Gradient of(DType type) const {
    return type == DType::fp32 ? Gradient{fp32.data(), type} : Gradient{bf16.data(), type};
  }
  Exact<float> fp32;
  Exact<BFloat16> bf16;
};

/// Runs the reference and `isa` on the same drawn state; every plane of every element must agree.
void expect_like_reference(Isa isa, std::int64_t n, std::int64_t shift, Draw& draw, float (Draw::*value)()) {
  for (const DType type : {DType::bf16, DType::fp32}) {
    for (const bool split : {true, false}) {
      const AdamCoefficients c = drawn_coefficients(draw);
      OwnedPlanes expected(n, 0), actual(n, shift);
      Gradients gradients(n, shift);
      for (std::int64_t i = 0; i < n; ++i) {
        const AdamElement e{(draw.*value)(), (draw.*value)(), std::abs((draw.*value)())};
        expected.set(i, e);
        actual.set(i, e);
        gradients.set(i, (draw.*value)());
      }
      const Gradient g = gradients.of(type);
      const Planes there = split ? Planes(expected.split()) : Planes(expected.full());
      const Planes here = split ? Planes(actual.split()) : Planes(actual.full());
      const bool flag = update(Isa::scalar, there, g, n, c);
      ASSERT_EQ(update(isa, here, g, n, c), flag) << name_of(isa) << " n " << n;
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_TRUE(split ? same(actual.split_at(i), expected.split_at(i))
                          : same(actual.full_at(i), expected.full_at(i)))
            << name_of(isa) << " n " << n << " [" << i << "] shift " << shift << " gradient "
            << gradients.fp32[i];
      }
    }
  }
}

class UpdateOnIsa : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!is_supported(GetParam())) GTEST_SKIP() << "this processor has no " << name_of(GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(Isas, UpdateOnIsa, ::testing::Values(Isa::avx2, Isa::avx512),
                         [](const auto& isa) { return std::string(name_of(isa.param)); });

TEST_P(UpdateOnIsa, EqualsTheReferenceForEveryLengthAndAlignment) {
  Draw draw(11);
  for (std::int64_t n = 0; n <= 300; ++n) expect_like_reference(GetParam(), n, n % 19, draw, &Draw::ordinary);
}

TEST_P(UpdateOnIsa, EqualsTheReferenceForEveryFiniteValue) {
  Draw draw(12);
  for (int repeat = 0; repeat < 400; ++repeat) expect_like_reference(GetParam(), 261, 1, draw, &Draw::finite);
}

TEST_P(UpdateOnIsa, EqualsTheReferenceForLargeArraysOfOrdinaryValues) {
  Draw draw(13);
  for (int repeat = 0; repeat < 8; ++repeat)
    expect_like_reference(GetParam(), 20'011, 3, draw, &Draw::ordinary);
}

class AnyIsa : public UpdateOnIsa {};
INSTANTIATE_TEST_SUITE_P(Isas, AnyIsa, ::testing::Values(Isa::scalar, Isa::avx2, Isa::avx512),
                         [](const auto& isa) { return std::string(name_of(isa.param)); });

TEST_P(AnyIsa, ReportsWhatIsNotFiniteWhereverItLies) {
  const AdamCoefficients c = adam_coefficients({}, 1, 1.0);
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::int64_t n : {1, 15, 16, 17, 40}) {
    for (std::int64_t bad = 0; bad < n; ++bad) {
      for (const float g : {infinity, -infinity, nan, -nan, 1e25f, 0.5f}) {  // the square of 1e25 overflows v
        for (const bool split : {true, false}) {
          OwnedPlanes planes(n);
          Gradients gradients(n, 0);
          gradients.set(bad, g);
          const Planes view = split ? Planes(planes.split()) : Planes(planes.full());
          ASSERT_EQ(update(GetParam(), view, gradients.of(DType::bf16), n, c), g != 0.5f)
              << n << " " << bad << " " << g;
        }
      }
    }
  }
}

TEST_P(AnyIsa, ReportsAFiniteMasterWhoseBFloat16IsInfinite) {
  const AdamCoefficients c = adam_coefficients({.learning_rate = 0.0}, 1, 1.0);
  Gradients gradients(1, 0);
  OwnedPlanes planes(1);
  planes.set(0, {std::numeric_limits<float>::max(), 0.0f, 0.0f});
  EXPECT_TRUE(update(GetParam(), planes.split(), gradients.of(DType::bf16), 1, c));
  EXPECT_FALSE(update(GetParam(), planes.full(), gradients.of(DType::bf16), 1, c));
  EXPECT_EQ(planes.split_at(0).master, std::numeric_limits<float>::max());
}

#if defined(__x86_64__)
TEST_P(AnyIsa, KeepsSubnormalsWhateverTheCallerHasSet) {
  const AdamCoefficients c = adam_coefficients({.learning_rate = 0.0}, 1, 1.0);
  OwnedPlanes planes(33);
  Gradients gradients(33, 0);
  for (std::int64_t i = 0; i < 33; ++i) planes.set(i, {0x1p-140f, 0.0f, 0.0f});
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040u);  // FTZ and DAZ
  const bool flag = update(GetParam(), planes.full(), gradients.of(DType::fp32), 33, c);
  _mm_setcsr(saved);
  EXPECT_FALSE(flag);
  for (std::int64_t i = 0; i < 33; ++i) EXPECT_EQ(planes.master[i], 0x1p-140f);
}
#endif

std::vector<AdamElement> run_segments(Isa isa, int threads, std::int64_t n,
                                      const std::vector<UpdateSegment>& segments) {
  Draw draw(14);
  Workers workers(threads);
  OwnedPlanes planes(n);
  Gradients gradients(n, 0);
  for (std::int64_t i = 0; i < n; ++i) {
    planes.set(i, {draw.ordinary(), draw.ordinary(), std::abs(draw.ordinary())});
    gradients.set(i, draw.ordinary());
  }
  EXPECT_FALSE(update(isa, workers, planes.split(), gradients.of(DType::bf16), segments));
  std::vector<AdamElement> result;
  for (std::int64_t i = 0; i < n; ++i) result.push_back(planes.split_at(i));
  return result;
}

TEST(UpdateSegments, GiveTheSameBitsForEveryThreadCountAndIsaAndTouchNothingElse) {
  const std::int64_t n = 5 * kUpdateBlock + 77;
  std::vector<UpdateSegment> segments(3);
  segments[0] = {5, 2 * kUpdateBlock + 1, adam_coefficients({.learning_rate = 0.1}, 1, 1.0)};
  segments[1] = {segments[0].offset + segments[0].count, 0, {}};
  segments[2] = {3 * kUpdateBlock, n - 3 * kUpdateBlock - 9,
                 adam_coefficients({.learning_rate = 0.01}, 9, 0.5)};
  const auto before = run_segments(Isa::scalar, 1, n, {});
  const auto expected = run_segments(Isa::scalar, 1, n, segments);
  for (const Isa isa : supported_isas()) {
    for (const int threads : {1, 2, 3}) {
      const auto actual = run_segments(isa, threads, n, segments);
      std::int64_t moved = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_TRUE(same(actual[at], expected[at])) << name_of(isa) << " " << threads << " [" << i << "]";
        moved += same(actual[at], before[at]) ? 0 : 1;
      }
      EXPECT_EQ(moved, segments[0].count + segments[2].count);
    }
  }
}

TEST(UpdateSegments, EachHasTheSettingsOfItsOwnGroup) {
  OwnedPlanes planes(6);
  Gradients gradients(6, 0);
  for (std::int64_t i = 0; i < 6; ++i) gradients.set(i, 1.0f);
  const UpdateSegment segments[] = {{0, 3, adam_coefficients({.learning_rate = 0.25, .eps = 0}, 1, 1.0)},
                                    {3, 3, adam_coefficients({.learning_rate = 0.5, .eps = 0}, 1, 1.0)}};
  Workers workers(2);
  EXPECT_FALSE(update(best_isa(), workers, planes.split(), gradients.of(DType::fp32), segments));
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_NEAR(planes.split_at(i).master, i < 3 ? -0.25f : -0.5f, 1e-6f);
}

TEST(UpdateSegments, ReportANonFiniteElementInAnyBlock) {
  const std::int64_t n = 3 * kUpdateBlock;
  Workers workers(3);
  for (const std::int64_t bad : {std::int64_t{0}, kUpdateBlock + 5, n - 1}) {
    OwnedPlanes planes(n);
    Gradients gradients(n, 0);
    gradients.set(bad, std::numeric_limits<float>::infinity());
    const UpdateSegment all{0, n, adam_coefficients({}, 1, 1.0)};
    EXPECT_TRUE(update(best_isa(), workers, planes.split(), gradients.of(DType::bf16), {&all, 1})) << bad;
  }
}

TEST(UpdateSegments, MisuseIsALogicError) {
  OwnedPlanes planes(8);
  Gradients gradients(8, 0);
  Workers workers(1);
  const Gradient g = gradients.of(DType::bf16);
  const UpdateSegment overlapping[] = {{0, 4, {}}, {3, 4, {}}};
  EXPECT_THROW(update(Isa::scalar, workers, planes.split(), g, overlapping), std::logic_error);
  EXPECT_THROW(update(Isa::scalar, planes.split(), g, -1, {}), std::logic_error);
  EXPECT_THROW(update(Isa::scalar, planes.split(), {g.data, DType::fp16}, 8, {}), std::logic_error);
  EXPECT_THROW(update(Isa::scalar, planes.split(), {nullptr, DType::bf16}, 8, {}), std::logic_error);
  EXPECT_THROW(update(Isa::scalar, SplitPlanes{}, g, 8, {}), std::logic_error);
}

}  // namespace
}  // namespace spillway::cpu_adam
