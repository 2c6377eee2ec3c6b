// The optimizers over many steps: against PyTorch's numbers, against float64, and the split master against an
// fp32 Adam of the test's own.
#include "../../core/parallel.h"
#include "../../cpu_adam/update.h"
#include "optimizer_reference.h"
#include "planes_fixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::cpu_adam {
namespace {
using testing::bits_of;
using testing::Draw;
using testing::DrawValue;
using testing::Form;
using testing::Gradients;
using testing::OwnedPlanes;
using testing::same;
namespace expected = optimizer_reference;

using Trace = float[expected::kSteps][expected::kSize];
struct Published {
  const char* name;
  const Trace& weights;
  Optimizer optimizer;
  bool momentum = true, nesterov = false;
};
void PrintTo(const Published& published, std::ostream* out) {
  *out << published.name;
}

class PyTorch : public ::testing::TestWithParam<Published> {};
INSTANTIATE_TEST_SUITE_P(
    Optimizers, PyTorch,
    ::testing::Values(Published{"AdamW", expected::kAdamW, Optimizer::adamw},
                      Published{"Adam", expected::kAdam, Optimizer::adam},
                      Published{"Lion", expected::kLion, Optimizer::lion},
                      Published{"Sgd", expected::kSgd, Optimizer::sgd},
                      Published{"SgdNesterov", expected::kNesterov, Optimizer::sgd, true, true},
                      Published{"SgdWithoutMomentum", expected::kPlainSgd, Optimizer::sgd, false}),
    [](const auto& published) { return std::string(published.param.name); });

TEST_P(PyTorch, TwentyStepsOfTwoGroupsWithClippingAgree) {
  const Published& published = GetParam();
  Workers workers(2);
  for (const Isa isa : supported_isas()) {
    for (const Form form : {Form::fp32, Form::full}) {
      OwnedPlanes planes(form, published.optimizer, expected::kSize);
      double moved[expected::kSize] = {};
      for (int i = 0; i < expected::kSize; ++i) planes.set(i, {expected::kStart[i], 0.0f, 0.0f});
      for (int step = 1; step <= expected::kSteps; ++step) {
        UpdateSegment segments[2];
        for (int group = 0; group < 2; ++group) {
          const expected::Group& g = expected::kGroups[group];
          segments[group].offset = group == 0 ? 0 : expected::kSplit;
          segments[group].count = group == 0 ? expected::kSplit : expected::kSize - expected::kSplit;
          segments[group].coefficients = update_coefficients({.optimizer = published.optimizer,
                                                              .learning_rate = g.learning_rate,
                                                              .beta1 = g.beta1,
                                                              .beta2 = g.beta2,
                                                              .eps = g.eps,
                                                              .weight_decay = g.weight_decay,
                                                              .momentum = published.momentum ? g.momentum : 0.0,
                                                              .nesterov = published.nesterov},
                                                             step, expected::kFactors[step - 1]);
        }
        Gradients gradients(expected::kSize);
        for (int i = 0; i < expected::kSize; ++i) gradients.set(i, expected::kGradients[step - 1][i]);
        ASSERT_FALSE(update(isa, workers, planes.view(), gradients.of(DType::bf16), segments));
        for (int i = 0; i < expected::kSize; ++i) {
          const float theirs = published.weights[step - 1][i];
          const float before = step == 1 ? expected::kStart[i] : published.weights[step - 2][i];
          // Their steps round more often (no fma). Each may add a rounding of the weight (2^-24 of it, twice)
          // and some 2^-21 of the way gone so far.
          moved[i] += std::abs(static_cast<double>(theirs) - before);
          const double tolerance = step * 0x1p-23 * std::abs(theirs) + 0x1p-21 * moved[i];
          ASSERT_NEAR(planes.at(i).master, theirs, tolerance)
              << name_of(isa) << " step " << step << " [" << i << "]";
        }
      }
    }
  }
}

/// One element in float64, by the published formulas.
struct Exact64 {
  double p = 0, m = 0, v = 0;
  double increment = 0;   ///< how far the last step went, decay apart
  double terms = 0;       ///< what it would be were no term of the other's sign
  double least_sign = 1;  ///< how near to 0 the sum was whose sign Lion took, in parts of its terms

  void step(double g, const HyperParameters& h, std::int64_t t) {
    const bool is_coupled = h.optimizer == Optimizer::adam || h.optimizer == Optimizer::sgd;
    const double g_terms = std::abs(g) + (is_coupled ? h.weight_decay * std::abs(p) : 0.0);
    if (is_coupled) g += h.weight_decay * p;
    const double decay = is_coupled ? 1 : 1 - h.learning_rate * h.weight_decay;
    if (h.optimizer == Optimizer::lion) {
      const double direction = h.beta1 * m + (1 - h.beta1) * g;
      least_sign =
          std::min(least_sign, std::abs(direction) / (h.beta1 * std::abs(m) + (1 - h.beta1) * std::abs(g)));
      increment = h.learning_rate * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
      terms = h.learning_rate;
      m = h.beta2 * m + (1 - h.beta2) * g;
    } else if (h.optimizer == Optimizer::sgd) {
      const double m_terms = h.momentum * std::abs(m) + g_terms;
      m = h.momentum * m + g;
      terms = h.learning_rate * (h.nesterov ? g_terms + h.momentum * m_terms : m_terms);
      increment = h.learning_rate * (h.nesterov ? g + h.momentum * m : m);
    } else {
      const double m_terms = h.beta1 * std::abs(m) + (1 - h.beta1) * g_terms;
      m = h.beta1 * m + (1 - h.beta1) * g;
      v = h.beta2 * v + (1 - h.beta2) * g * g;
      const auto steps = static_cast<double>(t);
      const double rate = h.learning_rate / (1 - std::pow(h.beta1, steps)) /
                          (std::sqrt(v / (1 - std::pow(h.beta2, steps))) + h.eps);
      increment = rate * m;
      terms = rate * m_terms;
    }
    p = p * decay - increment;
  }
};

double spacing_at(double x) {
  const auto nearest = static_cast<float>(std::abs(x));
  return static_cast<double>(std::nextafter(nearest, std::numeric_limits<float>::infinity())) - nearest;
}

std::vector<HyperParameters> settings_with(double weight_decay) {
  std::vector<HyperParameters> settings;
  for (const Optimizer optimizer : testing::kOptimizers) {
    settings.push_back(
        {.optimizer = optimizer, .learning_rate = 1e-3, .weight_decay = weight_decay, .momentum = 0.9});
  }
  settings.push_back(settings.back());
  settings.back().nesterov = true;
  return settings;
}

/// Whether the decay acts by a factor on the weight.
bool shrinks(const HyperParameters& h) {
  return h.weight_decay > 0 && (h.optimizer == Optimizer::adamw || h.optimizer == Optimizer::lion);
}

// One step from the same state. In units of the spacing of fp32 at the weight (units in the last place): its
// last rounding is off by at most half a unit; where a decay shrinks it, the rounding of the product by another
// half, and that of the factor 1 - lr wd, which is nearly 1, by as much once more. The increment is off by some
// 2^-21 of its terms, which are at most 1/16 of the weight here: half a unit. Measured: 0.62 units without such
// a decay, 1.52 with one.
TEST(Float64, IsWithinOneUnitInTheLastPlaceAfterAStepAndTwoWhereTheDecayShrinksTheWeight) {
  for (const double weight_decay : {0.0, 0.1}) {
    for (const HyperParameters& hyper : settings_with(weight_decay)) {
      Draw draw(31);
      double largest = 0.0;
      int counted = 0;
      for (int i = 0; i < 40'000; ++i) {
        const std::int64_t t = 1 + draw.below(3000);
        const UpdateElement before{draw.ordinary(), draw.ordinary() * 0x1p-5f,
                                   std::abs(draw.ordinary()) * 0x1p-5f};
        const float g = draw.ordinary() * 0x1p-5f;
        const UpdateElement after = update_element(before, g, update_coefficients(hyper, t, 1.0));
        Exact64 exact{before.master, before.m, before.v};
        exact.step(g, hyper, t);
        if (hyper.optimizer == Optimizer::lion && exact.least_sign < 1e-5) continue;
        if (exact.terms > 0x1p-4 * std::abs(exact.p)) continue;
        ++counted;
        largest = std::max(largest, std::abs(after.master - exact.p) / spacing_at(exact.p));
      }
      EXPECT_GT(counted, 10'000);
      EXPECT_LE(largest, shrinks(hyper) ? 2.0 : 1.0) << name_of(hyper.optimizer) << " " << weight_decay;
    }
  }
}

// Over T steps the roundings of the weight add up to at most T / 2 units in the last place of its largest
// value, or 3 T / 2 where the decay shrinks it. Of the increments' sum, m and v bring an error by the rounding
// of beta1 and beta2 to fp32, which 1 / (1 - beta) steps pile up:
//   |p - p64| <= (1/2 or 3/2) T ulp(max|p|) + (16 + 0.5 / (1 - beta1) + 0.25 / (1 - beta2)) 2^-24 sum of
//   |increments|
// Measured after 1,000 steps: 56 units with Adam; 344 with Lion, whose equal steps all round the same way.
TEST(Float64, StaysNearOverAThousandSteps) {
  constexpr int kSteps = 1000, kElements = 64;
  for (const double weight_decay : {0.0, 0.01}) {
    for (const HyperParameters& hyper : settings_with(weight_decay)) {
      Draw draw(3);
      std::vector<Exact64> exact(kElements);
      std::vector<UpdateElement> ours(kElements);
      std::vector<double> moved(kElements), largest(kElements);
      for (std::size_t i = 0; i < kElements; ++i) {
        ours[i].master = static_cast<float>(draw.uniform() * 2 - 1);
        exact[i].p = ours[i].master;
      }
      const double of_weight = shrinks(hyper) ? 1.5 : 0.5;
      const double of_increment = 16 + 0.5 / (1 - hyper.beta1) + 0.25 / (1 - hyper.beta2);
      double most = 0.0;
      for (int step = 1; step <= kSteps; ++step) {
        const UpdateCoefficients c = update_coefficients(hyper, step, 0.5);
        for (std::size_t i = 0; i < kElements; ++i) {
          const double drawn = (draw.uniform() - 0.3) * std::exp2(static_cast<double>(i % 20) - 15.0);
          const auto g = static_cast<float>(drawn);
          ours[i] = update_element(ours[i], g, c);
          exact[i].step(g * 0.5, hyper, step);
          moved[i] += exact[i].terms;
          largest[i] = std::max(largest[i], std::abs(exact[i].p));
          ASSERT_GT(exact[i].least_sign, 1e-6)
              << "draw other gradients: here a rounding decides on Lion's sign";
          const double distance = std::abs(ours[i].master - exact[i].p), unit = spacing_at(largest[i]);
          ASSERT_LE(distance, of_weight * step * unit + of_increment * 0x1p-24 * moved[i])
              << name_of(hyper.optimizer) << " " << step << " " << i;
          most = std::max(most, distance / unit);
        }
      }
      EXPECT_LE(most, hyper.optimizer == Optimizer::lion ? 400 : 200) << name_of(hyper.optimizer);
    }
  }
}

/// An fp32 Adam with plain numbers, in the order of operations that core/update.h documents.
struct PlainAdam {
  float p = 0, m = 0, v = 0;

  void step(float gradient, const HyperParameters& h, std::int64_t t, double factor) {
    const auto integer_power = [](double base, std::int64_t exponent) {
      double power = 1.0;
      for (; exponent > 0; exponent /= 2, base *= base) {
        if (exponent % 2 != 0) power *= base;
      }
      return power;
    };
    const auto beta1 = static_cast<float>(h.beta1), rest1 = static_cast<float>(1.0 - h.beta1);
    const auto beta2 = static_cast<float>(h.beta2), rest2 = static_cast<float>(1.0 - h.beta2);
    const auto rate = static_cast<float>(h.learning_rate / (1.0 - integer_power(h.beta1, t)));
    const auto scale = static_cast<float>(1.0 / std::sqrt(1.0 - integer_power(h.beta2, t)));
    const auto eps = static_cast<float>(h.eps);
    float g = gradient * static_cast<float>(factor);
    float shrink = 1.0f;
    if (h.optimizer == Optimizer::adamw) {
      shrink = static_cast<float>(1.0 - h.learning_rate * h.weight_decay);
    } else if (h.weight_decay != 0.0) {
      g = std::fma(static_cast<float>(h.weight_decay), p, g);
    }
    m = std::fma(beta1, m, rest1 * g);
    v = std::fma(beta2, v, (rest2 * g) * g);
    const float below = std::fma(std::sqrt(v), scale, eps);
    p = std::fma(-rate, below == 0.0f ? 0.0f : m / below, p * shrink);
  }
};

/// Gradients that lead over fp32's whole range: ordinary ones, zeros of both signs, subnormal, tiny and huge
/// ones whose squares still have room.
float wide_gradient(Draw& draw) {
  const float values[] = {0.0f,         -0.0f,     std::numeric_limits<float>::denorm_min(),
                          -0x1.8p-130f, 0x1p-126f, -0x1p-80f,
                          0x1p40f,      -0x1p62f};
  return draw.bits() % 3 == 0 ? values[draw.bits() % std::size(values)] : draw.ordinary();
}
/// Weights likewise; every other one lies on a tie of the rounding to `high`.
float wide_weight(Draw& draw) {
  for (;;) {
    const float weight = draw.finite();
    const std::uint32_t tie = (bits_of(weight) & 0xffff0000u) | 0x8000u;
    const float chosen = draw.bits() % 2 == 0 ? weight : std::bit_cast<float>(tie);
    if (std::abs(chosen) < 0x1p126f) return chosen;
  }
}

TEST(Lossless, HighAndLowAreTheBitsOfAnFp32AdamAfterEachOfAThousandSteps) {
  constexpr std::int64_t kElements = 77;
  for (const Isa isa : supported_isas()) {
    for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::adam}) {
      Draw draw(4);
      OwnedPlanes split(Form::fp32, optimizer, kElements), full(Form::full, optimizer, kElements);
      std::vector<PlainAdam> plain(kElements);
      for (std::int64_t i = 0; i < kElements; ++i) {
        const float weight = wide_weight(draw);
        plain[static_cast<std::size_t>(i)].p = weight;
        split.set(i, {weight, 0.0f, 0.0f});
        full.set(i, {weight, 0.0f, 0.0f});
      }
      Gradients gradients(kElements);
      for (int step = 1; step <= 1000; ++step) {
        HyperParameters hyper{.optimizer = optimizer, .learning_rate = 0.1 / step, .weight_decay = 0.1};
        // An eps that is 0, or lost in all but the smallest roots. Of huge weights, L2 decay would overflow v.
        hyper.eps = step % 3 == 0 ? 0.0 : 1e-30;
        if (optimizer == Optimizer::adam) hyper.weight_decay = step % 2 == 0 ? 0.0 : 1e-20;
        const double factor = draw.uniform();
        for (std::int64_t i = 0; i < kElements; ++i) gradients.set(i, wide_gradient(draw));
        const UpdateCoefficients c = update_coefficients(hyper, step, factor);
        ASSERT_FALSE(update(isa, split.view(), gradients.of(DType::fp32), kElements, c));
        ASSERT_FALSE(update(isa, full.view(), gradients.of(DType::fp32), kElements, c));
        for (std::int64_t i = 0; i < kElements; ++i) {
          PlainAdam& e = plain[static_cast<std::size_t>(i)];
          e.step(gradients.fp32[i], hyper, step, factor);
          const UpdateElement theirs{e.p, e.m, e.v};
          ASSERT_TRUE(same(split.at(i), theirs)) << name_of(isa) << " step " << step << " [" << i << "]";
          ASSERT_TRUE(same(full.at(i), theirs)) << name_of(isa) << " step " << step << " [" << i << "]";
        }
      }
    }
  }
}

TEST(Lossless, TheSplitMasterFollowsThePlainOneWithEveryOptimizer) {
  constexpr std::int64_t kElements = 133;
  const Isa isa = supported_isas().back();
  for (const Optimizer optimizer : testing::kOptimizers) {
    Draw draw(5);
    OwnedPlanes split(Form::fp32, optimizer, kElements), full(Form::full, optimizer, kElements);
    for (std::int64_t i = 0; i < kElements; ++i) {
      const UpdateElement e{draw.ordinary(), 0.0f, 0.0f};
      split.set(i, e);
      full.set(i, e);
    }
    Gradients gradients(kElements);
    for (int step = 1; step <= 300; ++step) {
      gradients.draw(draw, &Draw::ordinary);
      const UpdateCoefficients c = update_coefficients({.optimizer = optimizer,
                                                        .learning_rate = 0.1 / step,
                                                        .weight_decay = 0.1,
                                                        .momentum = 0.9,
                                                        .nesterov = step % 2 == 0},
                                                       step, draw.uniform());
      ASSERT_FALSE(update(isa, split.view(), gradients.of(DType::bf16), kElements, c));
      ASSERT_FALSE(update(isa, full.view(), gradients.of(DType::bf16), kElements, c));
      for (std::int64_t i = 0; i < kElements; ++i)
        ASSERT_TRUE(same(split.at(i), full.at(i))) << name_of(optimizer);
    }
  }
}

}  // namespace
}  // namespace spillway::cpu_adam
