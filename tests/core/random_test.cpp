#include "../../core/random.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known answers of Random123's kat_vectors for philox4x32, 10 rounds.
TEST(Random, PhiloxGivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}),
            (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
            (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Random, EveryPartOfThePlaceChangesTheValue) {
  const RandomStream base{.seed = 7, .step = 3, .stream = 5};
  const Words words = base.words(11);
  EXPECT_NE(words, base.words(12));
  EXPECT_NE(words, base.words(11 + (std::uint64_t{1} << 32)));
  EXPECT_NE(words, (RandomStream{.seed = 8, .step = 3, .stream = 5}.words(11)));
  EXPECT_NE(words, (RandomStream{.seed = 7 + (std::uint64_t{1} << 32), .step = 3, .stream = 5}.words(11)));
  EXPECT_NE(words, (RandomStream{.seed = 7, .step = 4, .stream = 5}.words(11)));
  EXPECT_NE(words, (RandomStream{.seed = 7, .step = 3, .stream = 6}.words(11)));
}

TEST(Random, UniformIsUniformInItsRange) {
  constexpr int kCount = 100000;
  const RandomStream stream{.seed = 1};
  double sum = 0, squares = 0;
  std::vector<int> bins(20);
  for (int i = 0; i < kCount; ++i) {
    const double u = stream.uniform(static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
    ++bins[static_cast<std::size_t>(u * 20)];
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);  // five standard errors
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 0.005);
  for (const int bin : bins) EXPECT_NEAR(bin, kCount / 20, 350);
}

TEST(Random, NormalHasTheMomentsAndTailsOfANormal) {
  constexpr std::size_t kCount = 200000;
  std::vector<float> values(kCount);
  RandomStream{.seed = 2}.fill_normal(0, values, 1.0);
  double sum = 0, squares = 0, fourth = 0, neighbours = 0;
  int beyond_two = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double x = values[i];
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    if (i > 0) neighbours += x * values[i - 1];
    beyond_two += std::abs(x) > 2;
  }
  const double n = kCount;
  EXPECT_NEAR(sum / n, 0.0, 0.012);
  EXPECT_NEAR(squares / n, 1.0, 0.016);
  EXPECT_NEAR(fourth / n, 3.0, 0.11);
  EXPECT_NEAR(neighbours / n, 0.0, 0.012);
  EXPECT_NEAR(beyond_two / n, 0.0455, 0.0024);
}

TEST(Random, PiecesOfARangeGiveTheSameValues) {
  const RandomStream stream{.seed = 3, .step = 1, .stream = 9};
  std::vector<float> whole(101), pieces(101);
  stream.fill_normal(6, whole, 0.02);
  for (std::size_t begin = 0; begin < pieces.size(); begin += 7) {
    const std::size_t size = std::min<std::size_t>(7, pieces.size() - begin);
    stream.fill_normal(6 + begin, std::span(pieces).subspan(begin, size), 0.02);
  }
  EXPECT_EQ(whole, pieces);
}

}  // namespace
}  // namespace spillway
