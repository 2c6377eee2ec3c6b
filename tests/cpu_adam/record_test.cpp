#include "../../cpu_adam/record.h"

#include "../../cpu_adam/update.h"
#include "planes_fixture.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::cpu_adam {
namespace {
using testing::Draw;
using testing::Exact;
using testing::first_difference;
using testing::Form;
using testing::Gradients;
using testing::kForms;
using testing::kOptimizers;
using testing::optimizers_of;
using testing::OwnedPlanes;

constexpr StateFormat kFormats[] = {StateFormat::fp32, StateFormat::bf16, StateFormat::compact8};

RecordFormat record_of(Form form, Optimizer optimizer) {
  const StateFormat format = form == Form::bf16       ? StateFormat::bf16
                             : form == Form::compact8 ? StateFormat::compact8
                                                      : StateFormat::fp32;
  return {format, optimizer, form == Form::full ? DType::fp32 : DType::bf16};
}

struct Expected {
  Form form;
  bool has_v;
  double record, parameter;
};
/// A record's bytes for each element, and with the weight.
constexpr Expected kBytes[] = {
    {Form::fp32, true, 10, 12},
    {Form::fp32, false, 6, 8},
    {Form::full, true, 8, 12},
    {Form::full, false, 4, 8},
    {Form::bf16, true, 6, 8},
    {Form::bf16, false, 4, 6},
    {Form::compact8, true, 3.125, 5.125},
};

TEST(RecordFormat, HasTheBytesThatItsPlanesTake) {
  for (const Expected& expected : kBytes) {
    for (const Optimizer optimizer : optimizers_of(expected.form)) {
      if (has_second_moment(optimizer) != expected.has_v) continue;
      const RecordFormat record = record_of(expected.form, optimizer);
      EXPECT_EQ(record.bytes_per_parameter(), expected.parameter) << name_of(expected.form);
      EXPECT_EQ(record.bytes(0), 0);
      for (const std::int64_t n : {std::int64_t{32}, std::int64_t{1} << 20, std::int64_t{1} << 33}) {
        EXPECT_EQ(static_cast<double>(record.bytes(n)), expected.record * static_cast<double>(n));
      }
    }
  }
  const RecordFormat compact8 = record_of(Form::compact8, Optimizer::adamw);
  EXPECT_EQ(compact8.bytes(1), 3 + 4);  // a group of one has scales of its own
  EXPECT_EQ(compact8.bytes(33), 3 * 33 + 8);
}

TEST(RecordFormat, RefusesWhatDoesNotExistAndSaysWhy) {
  for (const StateFormat format : kFormats) {
    for (const Optimizer optimizer : kOptimizers) {
      for (const DType weight : {DType::bf16, DType::fp16, DType::fp32}) {
        const bool exists = weight == DType::bf16
                                ? format != StateFormat::compact8 || has_second_moment(optimizer)
                                : weight == DType::fp32 && format == StateFormat::fp32;
        EXPECT_EQ(RecordFormat::refusal(format, optimizer, weight).empty(), exists);
        if (exists) {
          const RecordFormat record(format, optimizer, weight);
          EXPECT_EQ(record.format(), format);
          EXPECT_EQ(record.weight(), weight);
        } else {
          EXPECT_THROW(RecordFormat(format, optimizer, weight), std::logic_error);
        }
      }
    }
  }
}

/// The bytes of a plane, from the start of the record.
using Span = std::pair<std::int64_t, std::int64_t>;
template <class T>
void add_span(std::vector<Span>& spans, const std::byte* record, const T* plane, std::int64_t count) {
  if (plane == nullptr) return;
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(plane) % alignof(T), 0u);
  const std::int64_t begin = reinterpret_cast<const std::byte*>(plane) - record;
  spans.emplace_back(begin, begin + count * static_cast<std::int64_t>(sizeof(T)));
}
template <class M>
void add_spans(std::vector<Span>& spans, const std::byte* record, const SplitPlanes<M>& p, std::int64_t n) {
  add_span(spans, record, p.low, n);
  add_span(spans, record, p.m, n);
  add_span(spans, record, p.v, n);
}
void add_spans(std::vector<Span>& spans, const std::byte* record, const FullPlanes& p, std::int64_t n) {
  add_span(spans, record, p.m, n);
  add_span(spans, record, p.v, n);
}
void add_spans(std::vector<Span>& spans, const std::byte* record, const Compact8Planes& p, std::int64_t n) {
  add_span(spans, record, p.low, n);
  add_span(spans, record, p.m, n);
  add_span(spans, record, p.v, n);
  add_span(spans, record, p.m_scales, (n + 31) / 32);
  add_span(spans, record, p.v_scales, (n + 31) / 32);
}

TEST(RecordFormat, PlanesFillTheRecordWithoutAGapOrAnOverlap) {
  for (const Form form : kForms) {
    for (const Optimizer optimizer : optimizers_of(form)) {
      const RecordFormat format = record_of(form, optimizer);
      for (std::int64_t n = 1; n <= 300; ++n) {
        Exact<std::byte> weights(4 * n), record(format.bytes(n));
        const Planes planes = format.planes(weights.data(), record.data(), n);
        std::vector<Span> spans;
        std::visit([&](const auto& p) { add_spans(spans, record.data(), p, n); }, planes);
        std::sort(spans.begin(), spans.end());
        std::int64_t end = 0;
        for (const Span& span : spans) {
          ASSERT_EQ(span.first, end) << name_of(form) << " " << n;
          end = span.second;
        }
        ASSERT_EQ(end, format.bytes(n)) << name_of(form) << " " << n;
      }
    }
  }
}

TEST(RecordFormat, HasTheWeightsWhereTheyWereAndNoSecondMomentWithoutNeed) {
  for (const Form form : kForms) {
    for (const Optimizer optimizer : optimizers_of(form)) {
      Exact<std::byte> weights(4 * 8), record(200);
      const Planes planes = record_of(form, optimizer).planes(weights.data(), record.data(), 8);
      ASSERT_EQ(planes.index(), OwnedPlanes(form, optimizer, 8).view().index());
      std::visit(
          [&](const auto& p) {
            EXPECT_EQ(p.v != nullptr, has_second_moment(optimizer)) << name_of(form);
            if constexpr (requires { p.high; }) {
              EXPECT_EQ(static_cast<void*>(p.high), weights.data());
            } else {
              EXPECT_EQ(static_cast<void*>(p.master), weights.data());
            }
          },
          planes);
    }
  }
}

TEST(RecordFormat, AnUpdateOfARecordIsThatOfItsPlanes) {
  Draw draw(61);
  for (const Form form : kForms) {
    for (const Optimizer optimizer : optimizers_of(form)) {
      const RecordFormat format = record_of(form, optimizer);
      const UpdateCoefficients c = update_coefficients({.optimizer = optimizer, .momentum = 0.9}, 1, 1.0);
      for (const std::int64_t n : {1, 31, 77}) {
        OwnedPlanes planes(form, optimizer, n);
        Gradients gradients(n);
        gradients.draw(draw, &Draw::ordinary);
        Exact<std::byte> weights(n * size_of(format.weight())), record(format.bytes(n));
        const Planes in_record = format.planes(weights.data(), record.data(), n);
        std::vector<float> expected(static_cast<std::size_t>(n)), actual(expected);
        for (float& weight : expected) weight = draw.ordinary();
        store_weights(planes.view(), 0, expected);
        store_weights(in_record, 0, expected);
        for (int step = 0; step < 3; ++step) {
          ASSERT_FALSE(update(supported_isas().back(), planes.view(), gradients.of(DType::bf16), n, c));
          ASSERT_FALSE(update(supported_isas().back(), in_record, gradients.of(DType::bf16), n, c));
        }
        load_weights(planes.view(), 0, expected);
        load_weights(in_record, 0, actual);
        ASSERT_EQ(actual, expected) << name_of(form) << " " << name_of(optimizer) << " " << n;
      }
    }
  }
}

class StoredWeights : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Forms, StoredWeights, ::testing::ValuesIn(kForms),
                         [](const auto& form) { return std::string(name_of(form.param)); });

TEST_P(StoredWeights, ComeBackExactlyOrWithinCompact8sBoundAndThenStay) {
  constexpr std::int64_t n = 300;
  Draw draw(62);
  OwnedPlanes planes(GetParam(), Optimizer::adamw, n);
  std::vector<float> weights(n), loaded(n), again(n);
  for (float& weight : weights) {
    do weight = draw.finite();
    while (!has_finite_weight(weight));
  }
  store_weights(planes.view(), 0, weights);
  load_weights(planes.view(), 0, loaded);
  for (std::size_t i = 0; i < n; ++i) {
    if (GetParam() != Form::compact8) {
      ASSERT_EQ(testing::bits_of(loaded[i]), testing::bits_of(weights[i]));
    }
    const double spacing = std::ldexp(1.0, std::max(std::ilogb(weights[i]), -126) - 7);
    ASSERT_LE(std::abs(static_cast<double>(loaded[i]) - weights[i]), spacing * 130 / 65536);
  }
  store_weights(planes.view(), 0, loaded);
  load_weights(planes.view(), 0, again);
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(testing::bits_of(again[i]), testing::bits_of(loaded[i]));
}

TEST_P(StoredWeights, HaveMomentsOfZeroAndOthersAreLeftAlone) {
  constexpr std::int64_t n = 160, first = 32, count = 64;
  Draw draw(63);
  for (const Optimizer optimizer : optimizers_of(GetParam())) {
    OwnedPlanes planes(GetParam(), optimizer, n);
    planes.draw(draw, &Draw::ordinary);
    const OwnedPlanes before = planes;
    std::vector<float> weights(count, 0.75f), loaded(count);
    store_weights(planes.view(), first, weights);
    EXPECT_EQ(first_difference(planes, before, 0, first), -1);
    EXPECT_EQ(first_difference(planes, before, first + count, n), -1);
    load_weights(planes.view(), first, loaded);
    EXPECT_EQ(loaded, weights);
    for (std::int64_t i = first; i < first + count; ++i) {
      EXPECT_EQ(testing::bits_of(planes.at(i).m), 0u);
      EXPECT_EQ(testing::bits_of(planes.at(i).v), 0u);
    }
  }
}

TEST_P(StoredWeights, MayEndInsideAGroup) {
  OwnedPlanes planes(GetParam(), Optimizer::adamw, 77);
  std::vector<float> weights(13, 0.5f), loaded(13);
  store_weights(planes.view(), 64, weights);
  load_weights(planes.view(), 64, loaded);
  EXPECT_EQ(loaded, weights);
  load_weights(planes.view(), 70, std::span(loaded).first(7));  // reading may begin anywhere
  EXPECT_EQ(loaded, weights);
}

TEST(Compact8StoredWeights, BeginAtAGroup) {
  OwnedPlanes planes(Form::compact8, Optimizer::adamw, 64);
  const std::vector<float> weights(8);
  EXPECT_THROW(store_weights(planes.view(), 8, weights), std::logic_error);
}

}  // namespace
}  // namespace spillway::cpu_adam
