// Adam over many steps: against PyTorch's numbers, against float64, and the split master against the plain one.
#include "../../core/parallel.h"
#include "../../cpu_adam/update.h"
#include "adam_reference.h"
#include "planes_fixture.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::cpu_adam {
namespace {
using testing::bits_of;
using testing::Draw;
using testing::Exact;
using testing::OwnedPlanes;
namespace expected = adam_reference;

class PyTorch : public ::testing::TestWithParam<bool> {};

TEST_P(PyTorch, TwentyStepsOfTwoGroupsWithClippingAgree) {
  const bool decoupled = GetParam();
  Workers workers(2);
  for (const Isa isa : supported_isas()) {
    OwnedPlanes planes(expected::kSize);
    for (int i = 0; i < expected::kSize; ++i) planes.set(i, {expected::kStart[i], 0.0f, 0.0f});
    for (int step = 1; step <= expected::kSteps; ++step) {
      UpdateSegment segments[2];
      for (int group = 0; group < 2; ++group) {
        const expected::Group& g = expected::kGroups[group];
        segments[group].offset = group == 0 ? 0 : expected::kSplit;
        segments[group].count = group == 0 ? expected::kSplit : expected::kSize - expected::kSplit;
        segments[group].coefficients =
            adam_coefficients({g.learning_rate, g.beta1, g.beta2, g.eps, g.weight_decay, decoupled}, step,
                              expected::kFactors[step - 1]);
      }
      Exact<BFloat16> gradient(expected::kSize);
      for (int i = 0; i < expected::kSize; ++i) gradient[i] = to_bf16(expected::kGradients[step - 1][i]);
      ASSERT_FALSE(update(isa, workers, planes.split(), {gradient.data(), DType::bf16}, segments));
      for (int i = 0; i < expected::kSize; ++i) {
        const float theirs = (decoupled ? expected::kAdamW : expected::kAdam)[step - 1][i];
        // Their steps round more often (no fma). Each step may add a rounding of the weight (2^-24 of it,
        // twice) and some 2^-22 of the step's own length, which is near the learning rate.
        const double lr = segments[i < expected::kSplit ? 0 : 1].coefficients.step_size;
        const double tolerance = step * (0x1p-23 * std::abs(theirs) + 0x1p-20 * lr);
        ASSERT_NEAR(planes.split_at(i).master, theirs, tolerance)
            << name_of(isa) << " step " << step << " [" << i << "]";
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Forms, PyTorch, ::testing::Values(false, true),
                         [](const auto& form) { return form.param ? "AdamW" : "Adam"; });

TEST(Adam, StaysNearFloat64OverAThousandSteps) {
  // One step rounds the weight at most twice (2^-24 of it each) and its increment by a few units of 2^-24, the
  // errors of m and v, which forget at their own rate, among them. So over T steps:
  //   |p - p64| <= T 2^-23 max|p| + 16 * 2^-24 * (sum of |increments|)
  constexpr int kSteps = 1000, kElements = 64;
  const AdamHyper hyper{.learning_rate = 1e-3, .weight_decay = 0.01};
  Draw draw(3);
  struct Double {
    double p, m = 0, v = 0, moved = 0, largest = 0;
  };
  std::vector<Double> exact(kElements);
  std::vector<AdamElement> ours(kElements);
  for (int i = 0; i < kElements; ++i) {
    ours[static_cast<std::size_t>(i)].master = static_cast<float>(draw.uniform() * 2 - 1);
    exact[static_cast<std::size_t>(i)].p = ours[static_cast<std::size_t>(i)].master;
  }
  for (int step = 1; step <= kSteps; ++step) {
    const AdamCoefficients c = adam_coefficients(hyper, step, 0.5);
    for (std::size_t i = 0; i < kElements; ++i) {
      const auto g = static_cast<float>((draw.uniform() - 0.3) * std::exp2(static_cast<double>(i % 20) - 15.0));
      ours[i] = adam_update(ours[i], g, c);
      Double& e = exact[i];
      const double scaled = g * 0.5;
      e.m = hyper.beta1 * e.m + (1 - hyper.beta1) * scaled;
      e.v = hyper.beta2 * e.v + (1 - hyper.beta2) * scaled * scaled;
      const double increment = hyper.learning_rate / (1 - std::pow(hyper.beta1, step)) * e.m /
                               (std::sqrt(e.v / (1 - std::pow(hyper.beta2, step))) + hyper.eps);
      e.p = e.p * (1 - hyper.learning_rate * hyper.weight_decay) - increment;
      e.moved += std::abs(increment);
      e.largest = std::max(e.largest, std::abs(e.p));
      ASSERT_NEAR(ours[i].master, e.p, step * 0x1p-23 * e.largest + 16 * 0x1p-24 * e.moved) << step << " " << i;
    }
  }
}

TEST(Adam, TheSplitMasterFollowsThePlainOneBitByBitOverAThousandSteps) {
  constexpr std::int64_t kElements = 517;
  for (const Isa isa : supported_isas()) {
    OwnedPlanes split(kElements), full(kElements);
    Exact<BFloat16> gradient(kElements);
    Draw draw(4);
    for (std::int64_t i = 0; i < kElements; ++i) {
      const AdamElement e{draw.ordinary(), 0.0f, 0.0f};
      split.set(i, e);
      full.set(i, e);
    }
    for (int step = 1; step <= 1000; ++step) {
      for (std::int64_t i = 0; i < kElements; ++i) gradient[i] = to_bf16(draw.ordinary());
      const AdamCoefficients c =
          adam_coefficients({.learning_rate = 0.1 / step, .weight_decay = 0.1}, step, draw.uniform());
      const Gradient g{gradient.data(), DType::bf16};
      ASSERT_FALSE(update(isa, split.split(), g, kElements, c));
      ASSERT_FALSE(update(isa, full.full(), g, kElements, c));
      for (std::int64_t i = 0; i < kElements; ++i) {
        ASSERT_EQ(bits_of(split.split_at(i).master), bits_of(full.master[i]))
            << name_of(isa) << " step " << step;
        ASSERT_EQ(bits_of(split.m[i]), bits_of(full.m[i]));
        ASSERT_EQ(bits_of(split.v[i]), bits_of(full.v[i]));
      }
    }
  }
}

}  // namespace
}  // namespace spillway::cpu_adam
