// The update of every form of planes: each ISA against the scalar reference bit by bit, independence of place
// and of threads, and what is reported.
#include "../../cpu_adam/update.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "../../core/parallel.h"
#include "planes_fixture.h"

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace spillway::cpu_adam {
namespace {
using testing::Draw;
using testing::drawn_coefficients;
using testing::DrawValue;
using testing::first_difference;
using testing::Form;
using testing::Gradients;
using testing::kForms;
using testing::kGradientTypes;
using testing::kIsas;
using testing::optimizers_of;
using testing::OwnedPlanes;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The nearest below that the format takes: groups of compact8 begin at multiples of 32.
std::int64_t place_in(Form form, std::int64_t element) {
  return form == Form::compact8 ? element / 32 * 32 : element;
}

/// Whether compact8 leaves the codes of the group of element i open: where a moment or weight of it becomes
/// infinite or NaN, which ends the run.
bool is_ruined(const OwnedPlanes& before, const Gradients& gradients, DType type, std::int64_t i,
               const UpdateCoefficients& c) {
  const std::int64_t begin = i / kCompactGroup * kCompactGroup;
  for (std::int64_t k = begin; k < std::min(before.n, begin + kCompactGroup); ++k) {
    const UpdateElement after = adam_update(before.at(k), gradients.at(type, k), c);
    if (!is_finite(after.m) || !is_finite(after.v) || !is_finite(after.master)) return true;
  }
  return false;
}

/// Runs the reference and `isa` on the same drawn state; every plane of every element must agree.
void expect_like_reference(Isa isa, Form form, std::int64_t n, std::int64_t shift, Draw& draw,
                           DrawValue value) {
  for (const Optimizer optimizer : optimizers_of(form)) {
    OwnedPlanes before(form, optimizer, n), expected(form, optimizer, n);
    OwnedPlanes actual(form, optimizer, n, shift);
    Gradients gradients(n, shift);
    before.draw(draw, value);
    gradients.draw(draw, value);
    for (const DType type : kGradientTypes) {
      const UpdateCoefficients c = drawn_coefficients(draw, optimizer);
      const RandomPlace place{draw.bits(), draw.below(1000), draw.below(1000),
                              place_in(form, static_cast<std::int64_t>(draw.bits() >> 20))};
      copy_state(expected, before);
      copy_state(actual, before);
      const bool flag = update(Isa::scalar, expected.view(), gradients.of(type), n, c, place);
      ASSERT_EQ(update(isa, actual.view(), gradients.of(type), n, c, place), flag)
          << name_of(optimizer) << " " << name_of(type) << " n " << n;
      for (std::int64_t i = 0; (i = first_difference(actual, expected, i, n)) >= 0; ++i) {
        ASSERT_TRUE(form == Form::compact8 && flag && is_ruined(before, gradients, type, i, c))
            << name_of(optimizer) << " " << name_of(type) << " n " << n << " [" << i << "] shift " << shift
            << " gradient " << gradients.at(type, i) << ": " << actual.at(i).master << " " << actual.at(i).m
            << " " << actual.at(i).v << " instead of " << expected.at(i).master << " " << expected.at(i).m
            << " " << expected.at(i).v;
      }
    }
  }
}

class OnIsa : public ::testing::TestWithParam<std::tuple<Isa, Form>> {
 protected:
  void SetUp() override {
    if (!is_supported(isa())) GTEST_SKIP() << "this processor has no " << name_of(isa());
  }
  static Isa isa() { return std::get<0>(GetParam()); }
  static Form form() { return std::get<1>(GetParam()); }
};
std::string name_of_parameter(const ::testing::TestParamInfo<std::tuple<Isa, Form>>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" + std::string(name_of(std::get<1>(info.param)));
}

class Vectorised : public OnIsa {};
INSTANTIATE_TEST_SUITE_P(Isas, Vectorised,
                         ::testing::Combine(::testing::Values(Isa::neon, Isa::avx2, Isa::avx512),
                                            ::testing::ValuesIn(kForms)),
                         name_of_parameter);

TEST_P(Vectorised, EqualsTheReferenceForEveryLengthAndAlignment) {
  Draw draw(11);
  for (std::int64_t n = 0; n <= 300; ++n) {
    expect_like_reference(isa(), form(), n, n % 19, draw, &Draw::ordinary);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Vectorised, EqualsTheReferenceForEveryFiniteValue) {
  Draw draw(12);
  for (int repeat = 0; repeat < 100; ++repeat) {
    expect_like_reference(isa(), form(), 261, 1, draw, &Draw::finite);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Vectorised, EqualsTheReferenceForLargeArraysOfOrdinaryValues) {
  Draw draw(13);
  expect_like_reference(isa(), form(), 20'011, 3, draw, &Draw::ordinary);
}

class AnyIsa : public OnIsa {};
INSTANTIATE_TEST_SUITE_P(Isas, AnyIsa,
                         ::testing::Combine(::testing::ValuesIn(kIsas), ::testing::ValuesIn(kForms)),
                         name_of_parameter);

class HoldsInfinity : public OnIsa {};  // compact8's codes do not
INSTANTIATE_TEST_SUITE_P(Isas, HoldsInfinity,
                         ::testing::Combine(::testing::ValuesIn(kIsas),
                                            ::testing::Values(Form::fp32, Form::full, Form::bf16)),
                         name_of_parameter);
class DrawsBits : public OnIsa {};
INSTANTIATE_TEST_SUITE_P(Isas, DrawsBits,
                         ::testing::Combine(::testing::ValuesIn(kIsas), ::testing::Values(Form::bf16)),
                         name_of_parameter);
class HasGroups : public OnIsa {};
INSTANTIATE_TEST_SUITE_P(Isas, HasGroups,
                         ::testing::Combine(::testing::ValuesIn(kIsas), ::testing::Values(Form::compact8)),
                         name_of_parameter);

TEST_P(AnyIsa, ReportsANonFiniteGradientWhereverItLies) {
  for (const Optimizer optimizer : optimizers_of(form())) {
    const UpdateCoefficients c = update_coefficients({.optimizer = optimizer}, 1, 1.0);
    for (const std::int64_t n : {1, 15, 16, 17, 33, 70}) {
      const OwnedPlanes at_rest(form(), optimizer, n);
      OwnedPlanes planes(form(), optimizer, n);
      Gradients gradients(n);
      for (std::int64_t bad = 0; bad < n; ++bad) {
        for (const float g : {kInfinity, -kInfinity, kNan, -kNan, 0.5f}) {
          gradients.set(bad, g);
          const DType type = kGradientTypes[static_cast<std::size_t>(bad) % 3];
          copy_state(planes, at_rest);
          ASSERT_EQ(update(isa(), planes.view(), gradients.of(type), n, c), !is_finite(g))
              << name_of(optimizer) << " " << name_of(type) << " " << n << " " << bad << " " << g;
        }
        gradients.set(bad, -0.25f);
      }
    }
  }
}

TEST_P(HoldsInfinity, ReportsANonFiniteWeightOrMomentWhereverItLies) {
  const UpdateElement bad_ones[] = {{kInfinity, 0, 0}, {-kInfinity, 0, 0}, {kNan, 0, 0},
                                    {1, kInfinity, 1}, {1, -kInfinity, 1}, {1, kNan, 1},
                                    {1, 1, kInfinity}, {1, 1, kNan}};
  for (const Optimizer optimizer : optimizers_of(form())) {
    const UpdateCoefficients c = update_coefficients({.optimizer = optimizer, .momentum = 0.9}, 10, 1.0);
    for (const std::int64_t n : {1, 33, 70}) {
      OwnedPlanes at_rest(form(), optimizer, n), planes(form(), optimizer, n);
      const Gradients gradients(n);
      for (std::int64_t i = 0; i < n; ++i) at_rest.set(i, {1.0f, 0.5f, 0.25f});
      copy_state(planes, at_rest);
      ASSERT_FALSE(update(isa(), planes.view(), gradients.of(DType::bf16), n, c));
      for (std::int64_t at = 0; at < n; ++at) {
        for (const UpdateElement& bad : bad_ones) {
          if (!has_second_moment(optimizer) && !is_finite(bad.v)) continue;
          copy_state(planes, at_rest);
          planes.set(at, bad);
          ASSERT_TRUE(update(isa(), planes.view(), gradients.of(DType::bf16), n, c))
              << name_of(optimizer) << " " << n << " [" << at << "] " << bad.master << " " << bad.m << " "
              << bad.v;
        }
      }
    }
  }
}

TEST_P(AnyIsa, ReportsASecondMomentThatOverflows) {
  Gradients gradients(35);
  gradients.set(34, 1e25f);
  for (const Optimizer optimizer : optimizers_of(form())) {
    OwnedPlanes planes(form(), optimizer, 35);
    EXPECT_EQ(update(isa(), planes.view(), gradients.of(DType::bf16), 35,
                     update_coefficients({.optimizer = optimizer, .learning_rate = 0.0}, 1, 1.0)),
              has_second_moment(optimizer))
        << name_of(optimizer);
  }
}

TEST_P(AnyIsa, ReportsAMomentThatStochasticRoundingCouldMakeInfiniteInBF16Alone) {
  // With beta2 = 0 the new v is the square of g: here the last one that stays, and the first that may not.
  float largest = 0x1.fp63f;
  while (largest * largest <= 0x1.fep127f) largest = std::nextafter(largest, kInfinity);
  const float over = largest;
  largest = std::nextafter(largest, 0.0f);
  ASSERT_TRUE(is_finite(over * over));
  ASSERT_GE(testing::bits_of(over * over), kInfiniteBf16Bits);
  const UpdateCoefficients c = update_coefficients({.learning_rate = 0.0, .beta2 = 0.0}, 1, 1.0);
  for (const float g : {largest, over}) {
    for (const std::int64_t at : {0, 40}) {
      OwnedPlanes planes(form(), Optimizer::adamw, 41);
      Gradients gradients(41);
      gradients.set(at, g);
      EXPECT_EQ(update(isa(), planes.view(), gradients.of(DType::fp32), 41, c),
                form() == Form::bf16 && g == over)
          << g << " [" << at << "]";
    }
  }
  // Lion's only moment, with beta2 = 0, is the gradient itself.
  const UpdateCoefficients lion =
      update_coefficients({.optimizer = Optimizer::lion, .learning_rate = 0.0, .beta2 = 0.0}, 1, 1.0);
  for (const float g : {0x1.fep127f, -0x1.fe0002p127f}) {
    if (form() == Form::compact8) continue;
    OwnedPlanes planes(form(), Optimizer::lion, 41);
    Gradients gradients(41);
    gradients.set(40, g);
    EXPECT_EQ(update(isa(), planes.view(), gradients.of(DType::fp32), 41, lion), form() == Form::bf16 && g < 0)
        << g;
  }
}

TEST_P(AnyIsa, ReportsAFiniteMasterWhoseBFloat16IsInfinite) {
  const UpdateCoefficients c = update_coefficients({.learning_rate = 0.0}, 1, 1.0);
  const Gradients gradients(1);
  OwnedPlanes planes(form(), Optimizer::adamw, 1);
  planes.set(0, {std::numeric_limits<float>::max(), 0.0f, 0.0f});
  EXPECT_EQ(update(isa(), planes.view(), gradients.of(DType::bf16), 1, c), form() != Form::full);
  if (form() != Form::compact8) {
    EXPECT_EQ(planes.at(0).master, std::numeric_limits<float>::max());
  }
}

#if defined(__x86_64__)
TEST_P(AnyIsa, KeepsSubnormalsWhateverTheCallerHasSet) {
  const UpdateCoefficients c = update_coefficients({.learning_rate = 0.0}, 1, 1.0);
  OwnedPlanes planes(form(), Optimizer::adamw, 33);
  const Gradients gradients(33);
  for (std::int64_t i = 0; i < 33; ++i) planes.set(i, {0x1p-130f, 0.0f, 0.0f});
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040u);  // FTZ and DAZ
  const bool flag = update(isa(), planes.view(), gradients.of(DType::fp32), 33, c);
  _mm_setcsr(saved);
  EXPECT_FALSE(flag);
  for (std::int64_t i = 0; i < 33; ++i) EXPECT_EQ(planes.at(i).master, 0x1p-130f);
}
#endif

/// Places around the one where the random key changes, even and odd.
constexpr std::int64_t kKeyBorder = std::int64_t{1} << 32;
constexpr std::int64_t kElements[] = {0, 1, kKeyBorder - 5, kKeyBorder - 40, 3 * kKeyBorder - 1};

TEST_P(AnyIsa, GivesARangeInPiecesWhatItGivesTheWhole) {
  constexpr std::int64_t n = 131;
  Draw draw(15);
  for (const Optimizer optimizer : optimizers_of(form())) {
    OwnedPlanes before(form(), optimizer, n), whole(form(), optimizer, n), pieces(form(), optimizer, n);
    Gradients gradients(n);
    before.draw(draw, &Draw::ordinary);
    gradients.draw(draw, &Draw::ordinary);
    const UpdateCoefficients c =
        update_coefficients({.optimizer = optimizer, .weight_decay = 0.1, .momentum = 0.9}, 7, 0.5);
    const Gradient g = gradients.of(DType::fp16);
    for (const std::int64_t element : kElements) {
      const RandomPlace place{.seed = 42, .step = 7, .parameter = 3, .element = place_in(form(), element)};
      copy_state(whole, before);
      ASSERT_FALSE(update(isa(), whole.view(), g, n, c, place));
      for (std::int64_t cut = 0; cut <= n; cut += testing::cut_of(form())) {
        copy_state(pieces, before);
        RandomPlace rest = place;
        rest.element += cut;
        ASSERT_FALSE(update(isa(), pieces.view(), g, cut, c, place));
        ASSERT_FALSE(update(isa(), advance(pieces.view(), cut), advance(g, cut), n - cut, c, rest));
        ASSERT_EQ(first_difference(pieces, whole), -1)
            << name_of(optimizer) << " element " << element << " cut " << cut;
      }
    }
  }
}

TEST_P(DrawsBits, RoundsTheMomentsOfBF16WithTheBitsOfTheirPlace) {
  constexpr std::int64_t n = 77;
  Draw draw(16);
  for (const Optimizer optimizer : optimizers_of(form())) {
    const UpdateCoefficients c = update_coefficients({.optimizer = optimizer, .momentum = 0.9}, 3, 1.0);
    for (const std::int64_t element : kElements) {
      OwnedPlanes planes(form(), optimizer, n);
      Gradients gradients(n);
      planes.draw(draw, &Draw::ordinary);
      gradients.draw(draw, &Draw::ordinary);
      const OwnedPlanes before = planes;
      const RandomPlace place{.seed = 1, .step = 3, .parameter = 9, .element = element};
      ASSERT_FALSE(update(isa(), planes.view(), gradients.of(DType::bf16), n, c, place));
      for (std::int64_t i = 0; i < n; ++i) {
        const UpdateElement after = update_element(before.at(i), gradients.at(DType::bf16, i), c);
        RandomPlace here = place;
        here.element += i;
        const std::uint32_t random = RoundingKey(here).bits(static_cast<std::uint32_t>(here.element));
        ASSERT_EQ(planes.at(i).master, after.master);
        ASSERT_EQ(planes.m16[i], to_bf16_stochastic(after.m, random)) << element << " [" << i << "]";
        if (planes.has_v) {
          ASSERT_EQ(planes.v16[i], to_bf16_stochastic(after.v, random)) << element << " [" << i << "]";
        }
      }
    }
  }
}

TEST_P(HasGroups, CountFromTheStartAndTheLastMayBeShorter) {
  constexpr std::int64_t n = 77;
  Draw draw(17);
  OwnedPlanes planes(form(), Optimizer::adamw, n);
  Gradients gradients(n);
  planes.draw(draw, &Draw::ordinary);
  gradients.draw(draw, &Draw::ordinary);
  const OwnedPlanes before = planes;
  const UpdateCoefficients c = update_coefficients({.weight_decay = 0.01}, 5, 1.0);
  const RandomPlace place{.seed = 3, .step = 5, .parameter = 2, .element = 96};
  const RoundingKey key(place);
  ASSERT_FALSE(update(isa(), planes.view(), gradients.of(DType::fp32), n, c, place));
  std::vector<UpdateElement> after;
  for (std::int64_t i = 0; i < n; ++i) after.push_back(adam_update(before.at(i), gradients.fp32[i], c));
  for (std::int64_t begin = 0; begin < n; begin += 32) {
    const auto size = static_cast<std::size_t>(std::min<std::int64_t>(32, n - begin));
    const testing::CompactGroup group =
        testing::encode_group(std::span(after).subspan(static_cast<std::size_t>(begin), size), key,
                              static_cast<std::uint32_t>(96 + begin));
    ASSERT_EQ(planes.m_scales[begin / 32], group.m_scale) << begin;
    ASSERT_EQ(planes.v_scales[begin / 32], group.v_scale) << begin;
    for (std::size_t k = 0; k < size; ++k) {
      const std::int64_t i = begin + static_cast<std::int64_t>(k);
      const SplitMaster halves = split_master(after[static_cast<std::size_t>(i)].master);
      ASSERT_EQ(planes.m8[i], group.m[k]) << i;
      ASSERT_EQ(planes.v8[i], group.v[k]) << i;
      ASSERT_EQ(planes.high[i], halves.high) << i;
      ASSERT_EQ(planes.low8[i], encode_low(halves.low, key.bits(static_cast<std::uint32_t>(96 + i)))) << i;
    }
  }
}

/// Two segments with an empty one between them and elements outside, on both sides of a key's border.
std::vector<UpdateSegment> drawn_segments(Form form, Optimizer optimizer, std::int64_t n) {
  std::vector<UpdateSegment> segments(3);
  segments[0] = {
      32,
      2 * kUpdateBlock + 1,
      update_coefficients({.optimizer = optimizer, .learning_rate = 0.1}, 1, 1.0),
      {.seed = 5, .step = 1, .parameter = 8, .element = place_in(form, kKeyBorder - kUpdateBlock - 3)}};
  segments[1] = {2 * kUpdateBlock + 64, 0, segments[0].coefficients, {}};
  segments[2] = {3 * kUpdateBlock,
                 n - 3 * kUpdateBlock - 9,
                 update_coefficients({.optimizer = optimizer, .learning_rate = 0.01}, 9, 0.5),
                 {.seed = 5, .step = 1, .parameter = 9, .element = 0}};
  return segments;
}

/// Apart from the scales of compact8, which a segment's last group may share with what lies behind it.
bool has_same_elements(const OwnedPlanes& a, const OwnedPlanes& b, std::int64_t i) {
  if (a.form != Form::compact8) return first_difference(a, b, i, i + 1) < 0;
  return a.high[i] == b.high[i] && a.low8[i] == b.low8[i] && a.m8[i] == b.m8[i] && a.v8[i] == b.v8[i];
}

class UpdateSegments : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Forms, UpdateSegments, ::testing::ValuesIn(kForms),
                         [](const auto& form) { return std::string(name_of(form.param)); });

TEST_P(UpdateSegments, GiveTheSameBitsForEveryThreadCountAndIsaAndTouchNothingElse) {
  constexpr std::int64_t n = 4 * kUpdateBlock + 77;
  Draw draw(14);
  for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::lion}) {
    if (GetParam() == Form::compact8 && optimizer == Optimizer::lion) continue;
    OwnedPlanes before(GetParam(), optimizer, n), expected(GetParam(), optimizer, n),
        actual(GetParam(), optimizer, n);
    Gradients gradients(n);
    before.draw(draw, &Draw::ordinary);
    gradients.draw(draw, &Draw::ordinary);
    const Gradient g = gradients.of(DType::bf16);
    const std::vector<UpdateSegment> segments = drawn_segments(GetParam(), optimizer, n);
    copy_state(expected, before);
    for (const UpdateSegment& s : segments) {
      ASSERT_FALSE(update(Isa::scalar, advance(expected.view(), s.offset), advance(g, s.offset), s.count,
                          s.coefficients, s.place));
    }
    for (const std::int64_t outside :
         {std::int64_t{0}, std::int64_t{31}, 2 * kUpdateBlock + 40, n - 9, n - 1}) {
      EXPECT_TRUE(has_same_elements(expected, before, outside)) << outside;
    }
    ASSERT_EQ(first_difference(expected, before, 32, n), 32);
    for (const Isa isa : supported_isas()) {
      for (const int threads : {1, 2, 3}) {
        Workers workers(threads);
        copy_state(actual, before);
        ASSERT_FALSE(update(isa, workers, actual.view(), g, segments));
        ASSERT_EQ(first_difference(actual, expected), -1) << name_of(isa) << " " << threads;
      }
    }
  }
}

TEST_P(UpdateSegments, EachHasTheSettingsOfItsOwnGroup) {
  OwnedPlanes planes(GetParam(), Optimizer::adamw, 64);
  Gradients gradients(64);
  for (std::int64_t i = 0; i < 64; ++i) gradients.set(i, 1.0f);
  const UpdateSegment segments[] = {{0, 32, update_coefficients({.learning_rate = 0.25, .eps = 0}, 1, 1.0)},
                                    {32, 32, update_coefficients({.learning_rate = 0.5, .eps = 0}, 1, 1.0)}};
  Workers workers(2);
  EXPECT_FALSE(update(supported_isas().back(), workers, planes.view(), gradients.of(DType::fp32), segments));
  for (std::int64_t i = 0; i < 64; ++i) EXPECT_NEAR(planes.at(i).master, i < 32 ? -0.25f : -0.5f, 2e-6f);
}

TEST_P(UpdateSegments, ReportANonFiniteElementInAnyBlock) {
  constexpr std::int64_t n = 3 * kUpdateBlock;
  Workers workers(3);
  for (const std::int64_t bad : {std::int64_t{0}, kUpdateBlock + 5, n - 1}) {
    OwnedPlanes planes(GetParam(), Optimizer::adamw, n);
    Gradients gradients(n);
    gradients.set(bad, kInfinity);
    const UpdateSegment all{0, n, update_coefficients({}, 1, 1.0), {}};
    EXPECT_TRUE(update(supported_isas().back(), workers, planes.view(), gradients.of(DType::bf16), {&all, 1}))
        << bad;
  }
}

TEST(UpdateMisuse, IsALogicError) {
  OwnedPlanes planes(Form::fp32, Optimizer::adamw, 8);
  const Gradients gradients(8);
  Workers workers(1);
  const Gradient g = gradients.of(DType::bf16);
  const UpdateSegment overlapping[] = {{0, 4, {}, {}}, {3, 4, {}, {}}};
  EXPECT_THROW(update(Isa::scalar, workers, planes.view(), g, overlapping), std::logic_error);
  EXPECT_THROW(update(Isa::scalar, planes.view(), g, -1, {}), std::logic_error);
  EXPECT_THROW(update(Isa::scalar, planes.view(), {nullptr, DType::bf16}, 8, {}), std::logic_error);
}

TEST(UpdateMisuse, NullPlanesAreALogicErrorButForTheSecondMomentOfWhoHasNone) {
  const Gradients gradients(8);
  const Gradient g = gradients.of(DType::bf16);
  for (const Form form : kForms) {
    for (const Optimizer optimizer : optimizers_of(form)) {
      OwnedPlanes planes(form, optimizer, 8);
      const UpdateCoefficients c = update_coefficients({.optimizer = optimizer}, 1, 1.0);
      EXPECT_FALSE(update(Isa::scalar, planes.view(), g, 8, c));
      const auto expect_refused = [&](auto view, auto... parts) {
        const auto without = [&](auto part) {
          auto changed = view;
          changed.*part = nullptr;
          EXPECT_THROW(update(Isa::scalar, changed, g, 8, c), std::logic_error) << name_of(form);
        };
        (without(parts), ...);
        if (has_second_moment(optimizer)) without(&decltype(view)::v);
      };
      if (form == Form::fp32) {
        using P = Fp32Planes;
        expect_refused(std::get<P>(planes.view()), &P::high, &P::low, &P::m);
      } else if (form == Form::bf16) {
        using P = Bf16Planes;
        expect_refused(std::get<P>(planes.view()), &P::high, &P::low, &P::m);
      } else if (form == Form::full) {
        using P = FullPlanes;
        expect_refused(std::get<P>(planes.view()), &P::master, &P::m);
      } else {
        using P = Compact8Planes;
        expect_refused(std::get<P>(planes.view()), &P::high, &P::low, &P::m, &P::m_scales, &P::v_scales);
      }
    }
  }
}

TEST(UpdateMisuse, Compact8IsRefusedToOptimizersWithoutASecondMomentAndCutsInsideAGroup) {
  OwnedPlanes planes(Form::compact8, Optimizer::adamw, 64);
  const Gradients gradients(64);
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::sgd}) {
    const UpdateCoefficients c = update_coefficients({.optimizer = optimizer}, 1, 1.0);
    EXPECT_THROW(update(Isa::scalar, planes.view(), gradients.of(DType::bf16), 64, c), std::logic_error);
  }
  const UpdateCoefficients c = update_coefficients({}, 1, 1.0);
  EXPECT_THROW(update(Isa::scalar, planes.view(), gradients.of(DType::bf16), 64, c, {.element = 16}),
               std::logic_error);
  EXPECT_THROW(advance(planes.view(), 16), std::logic_error);
  EXPECT_NO_THROW(advance(planes.view(), 32));
}

}  // namespace
}  // namespace spillway::cpu_adam
