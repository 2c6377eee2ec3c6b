// The memory traffic that an update's speed is held against.
#include "../../cpu_adam/streams.h"

#include "../../core/parallel.h"
#include "../../cpu_adam/update.h"
#include "planes_fixture.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::cpu_adam {
namespace {
using testing::Draw;
using testing::first_difference;
using testing::Form;
using testing::Gradients;
using testing::kForms;
using testing::kGradientTypes;
using testing::optimizers_of;
using testing::OwnedPlanes;

class Streams : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Forms, Streams, ::testing::ValuesIn(kForms),
                         [](const auto& form) { return std::string(name_of(form.param)); });

/// Calls check(the bytes of a plane of `a`, those of the same one of `b`) for each plane.
template <class Check>
void for_planes(OwnedPlanes& a, OwnedPlanes& b, const Check& check) {
  const auto compare = [&](auto& x, auto& y) { check(std::as_bytes(x.span()), std::as_bytes(y.span())); };
  compare(a.high, b.high);
  compare(a.low, b.low);
  compare(a.master, b.master);
  compare(a.m, b.m);
  compare(a.v, b.v);
  compare(a.m16, b.m16);
  compare(a.v16, b.v16);
  compare(a.low8, b.low8);
  compare(a.m8, b.m8);
  compare(a.v8, b.v8);
  compare(a.m_scales, b.m_scales);
  compare(a.v_scales, b.v_scales);
}

TEST_P(Streams, MovedTwiceRestoreEveryPlaneAndMovedOnceChangeEach) {
  Draw draw(71);
  Workers workers(2);
  std::vector<std::int64_t> lengths = {1023, 1024, 1025, 2 * kUpdateBlock + 77};
  for (std::int64_t n = 0; n <= 300; ++n) lengths.push_back(n);
  for (const std::int64_t n : lengths) {
    for (const Optimizer optimizer : optimizers_of(GetParam())) {
      if (optimizer == Optimizer::adam || optimizer == Optimizer::sgd) continue;  // the same planes
      OwnedPlanes planes(GetParam(), optimizer, n, n % 7);
      Gradients gradients(n, n % 5);
      planes.draw(draw, &Draw::ordinary);
      gradients.draw(draw, &Draw::ordinary);
      OwnedPlanes before = planes;
      for (const Isa isa : supported_isas()) {
        for (const DType type : kGradientTypes) {
          const Gradient g = gradients.of(type);
          const std::uint32_t folded = move_streams(isa, workers, planes.view(), g, n);
          // One bit in the first byte of each 32 bits, and nothing else.
          for_planes(planes, before, [&](auto now, auto old) {
            for (std::size_t i = 0; i < now.size(); ++i) {
              ASSERT_EQ(now[i], i % 4 == 0 ? old[i] ^ std::byte{1} : old[i]) << name_of(isa) << " " << n;
            }
          });
          ASSERT_EQ(move_streams(isa, workers, planes.view(), g, n), folded);
          for_planes(planes, before, [&](auto now, auto old) {
            ASSERT_TRUE(std::equal(now.begin(), now.end(), old.begin())) << name_of(isa) << " " << n;
          });
        }
        if (n > 1000) break;
      }
    }
  }
}

TEST_P(Streams, FoldEveryBitOfTheGradient) {
  constexpr std::int64_t n = 2077;
  Workers workers(2);
  OwnedPlanes planes(GetParam(), Optimizer::adamw, n);
  for (const DType type : kGradientTypes) {
    Gradients gradients(n);
    Draw draw(72);
    gradients.draw(draw, &Draw::ordinary);
    const std::uint32_t folded = move_streams(Isa::scalar, workers, planes.view(), gradients.of(type), n);
    for (const Isa isa : supported_isas()) {
      ASSERT_EQ(move_streams(isa, workers, planes.view(), gradients.of(type), n), folded) << name_of(isa);
      for (std::int64_t i = 0; i < n; i += i < 40 || i > n - 40 ? 1 : 97) {
        Gradients changed = gradients;
        changed.fp32[i] = std::bit_cast<float>(testing::bits_of(changed.fp32[i]) ^ 0x10000u);
        changed.bf16[i].bits ^= 1u;
        changed.fp16[i].bits ^= 0x100u;
        ASSERT_NE(move_streams(isa, workers, planes.view(), changed.of(type), n), folded)
            << name_of(isa) << " " << name_of(type) << " [" << i << "]";
      }
    }
  }
}

TEST_P(Streams, AreOfTheBytesThatAnUpdateMoves) {
  // Of an element: its planes twice, its gradient once.
  const double state_bytes[] = {12, 12, 8, 5.125};
  for (const Optimizer optimizer : optimizers_of(GetParam())) {
    OwnedPlanes planes(GetParam(), optimizer, 320);
    const double moments = GetParam() == Form::bf16 ? 2 : 4;
    const double plane_bytes =
        state_bytes[static_cast<int>(GetParam())] - (has_second_moment(optimizer) ? 0 : moments);
    const Gradients gradients(320);
    for (const DType type : kGradientTypes) {
      EXPECT_EQ(static_cast<double>(streamed_bytes(planes.view(), gradients.of(type), 320)),
                320 * (2 * plane_bytes + static_cast<double>(size_of(type))));
    }
    EXPECT_EQ(streamed_bytes(planes.view(), gradients.of(DType::bf16), 0), 0);
  }
  if (GetParam() == Form::compact8) {  // a group that is not full has scales too
    OwnedPlanes planes(GetParam(), Optimizer::adamw, 33);
    const Gradients gradients(33);
    EXPECT_EQ(streamed_bytes(planes.view(), gradients.of(DType::bf16), 33), 33 * (2 * 5 + 2) + 2 * 2 * 4);
  }
}

TEST_P(Streams, FirstTouchMakesZeroOfJustTheElementsThatItIsGiven) {
  Draw draw(73);
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{32}, std::int64_t{1056}, 3 * kUpdateBlock}) {
    for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::lion}) {
      if (GetParam() == Form::compact8 && optimizer == Optimizer::lion) continue;
      OwnedPlanes planes(GetParam(), optimizer, n + 64);
      planes.draw(draw, &Draw::ordinary);
      const OwnedPlanes before = planes, zero(GetParam(), optimizer, n + 64);
      Workers workers(2);
      first_touch(workers, planes.view(), n);
      EXPECT_EQ(first_difference(planes, zero, 0, n), -1) << n;
      EXPECT_EQ(first_difference(planes, before, n, n + 64), -1) << n;
    }
  }
}

TEST_P(Streams, FirstTouchOfAllStaysWithinThePlanes) {
  Workers workers(2);
  Draw draw(74);
  for (std::int64_t n = 0; n <= 300; ++n) {
    OwnedPlanes planes(GetParam(), Optimizer::adamw, n);
    planes.draw(draw, &Draw::ordinary);
    first_touch(workers, planes.view(), n);
    ASSERT_EQ(first_difference(planes, OwnedPlanes(GetParam(), Optimizer::adamw, n)), -1) << n;
  }
}

TEST(StreamsMisuse, IsALogicError) {
  OwnedPlanes planes(Form::fp32, Optimizer::adamw, 8);
  const Gradients gradients(8);
  Workers workers(1);
  EXPECT_THROW(move_streams(Isa::scalar, workers, planes.view(), gradients.of(DType::bf16), -1),
               std::logic_error);
  EXPECT_THROW(move_streams(Isa::scalar, workers, planes.view(), {nullptr, DType::bf16}, 8), std::logic_error);
}

}  // namespace
}  // namespace spillway::cpu_adam
