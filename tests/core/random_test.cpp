#include "../../core/random.h"

#include <algorithm>
#include <cmath>
#include <span>
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

// Rounding bits. All bounds are for fixed places, so nothing here depends on luck: a generator that has none of
// these faults fails a bound of five standard deviations once in two million draws, and these were drawn once.
constexpr std::uint32_t kDrawn = 1u << 18;

std::vector<std::uint32_t> rounding_bits(const RandomPlace& place, std::uint32_t first = 0) {
  const RoundingKey key(place);
  std::vector<std::uint32_t> bits(kDrawn);
  for (std::uint32_t i = 0; i < kDrawn; ++i) bits[i] = key.bits(first + i);
  return bits;
}

/// Of both sequences as numbers from 0 to 65,535: 0 where they know nothing of each other, with a standard
/// deviation of 1 / sqrt(their length) = 0.002.
double correlation(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b) {
  const std::size_t n = std::min(a.size(), b.size());
  double products = 0.0;
  for (std::size_t i = 0; i < n; ++i) products += (a[i] - 32767.5) * (b[i] - 32767.5);
  return products / (static_cast<double>(n) * (65536.0 * 65536.0 - 1) / 12);
}

/// Neither the values nor any one of their bits tell of each other: two bits agree in a half of the elements,
/// with a standard deviation of 0.001.
void expect_unrelated(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b,
                      double correlation_bound = 0.01, double agreement_bound = 0.005) {
  EXPECT_NEAR(correlation(a, b), 0.0, correlation_bound);
  int agreements[16] = {};
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (int bit = 0; bit < 16; ++bit) agreements[bit] += (((a[i] ^ b[i]) >> bit) & 1u) == 0;
  }
  for (int bit = 0; bit < 16; ++bit) {
    EXPECT_NEAR(agreements[bit] / static_cast<double>(a.size()), 0.5, agreement_bound) << "bit " << bit;
  }
}

constexpr RandomPlace kSomePlaces[] = {
    {},
    {.seed = 1, .step = 1},
    {.seed = 1234567890123456789u, .step = 100'000, .parameter = 77},
    {.seed = 3, .step = 2, .parameter = 1, .element = std::int64_t{5} << 32},
};

TEST(RoundingBits, AreUniform) {
  for (const RandomPlace& place : kSomePlaces) {
    std::vector<int> high(256), low(256);
    double sum = 0.0;
    for (const std::uint32_t bits : rounding_bits(place)) {
      ASSERT_LT(bits, 0x10000u);
      ++high[bits >> 8];
      ++low[bits & 0xffu];
      sum += bits;
    }
    for (const auto& bins : {high, low}) {
      double chi_square = 0.0;
      for (const int bin : bins) chi_square += std::pow(bin - kDrawn / 256.0, 2) / (kDrawn / 256.0);
      // 255 degrees of freedom: a mean of 255, a standard deviation of 22.6.
      EXPECT_GT(chi_square, 255 - 5 * 22.6);
      EXPECT_LT(chi_square, 255 + 5 * 22.6);
    }
    EXPECT_NEAR(sum / kDrawn, 32767.5, 5 * 18919 / std::sqrt(kDrawn));  // so that roundings add no bias
  }
}

TEST(RoundingBits, OfNeighboursAreUnrelated) {
  for (const RandomPlace& place : kSomePlaces) {
    const auto bits = rounding_bits(place);
    for (const std::uint32_t distance : {1u, 2u, 3u, 16u, 32u, 64u, 1024u}) {
      expect_unrelated(bits, rounding_bits(place, distance));
    }
    // A mixer of 32 bits is not perfect: thousands of elements apart, single bits agree in up to 51 % of the
    // elements and the values are correlated by up to 1.3 %. Of a rounding's error that is nothing to see.
    for (const std::uint32_t distance : {2048u, 4096u, 8192u}) {
      expect_unrelated(bits, rounding_bits(place, distance), 0.02, 0.015);
    }
    // The two halves of one word.
    std::vector<std::uint32_t> even, odd;
    for (std::size_t i = 0; i < bits.size(); i += 2) {
      even.push_back(bits[i]);
      odd.push_back(bits[i + 1]);
    }
    expect_unrelated(even, odd);
  }
}

TEST(RoundingBits, OfOtherStepsParametersAndSeedsAreUnrelated) {
  for (const RandomPlace& place : kSomePlaces) {
    const auto bits = rounding_bits(place);
    for (const std::uint32_t other : {1u, 2u, 256u}) {
      RandomPlace there = place;
      there.step += other;
      expect_unrelated(bits, rounding_bits(there));
      there = place;
      there.parameter += other;
      expect_unrelated(bits, rounding_bits(there));
      there = place;
      there.seed += other;
      expect_unrelated(bits, rounding_bits(there));
      there = place;
      there.element += std::int64_t{other} << 32;
      expect_unrelated(bits, rounding_bits(there));
    }
  }
}

// At one element over many steps, as its moments see them.
TEST(RoundingBits, OfAnElementAreUniformAndUnrelatedOverItsSteps) {
  for (const std::uint32_t element : {0u, 1u, 12345u}) {
    std::vector<std::uint32_t> bits, next;
    std::vector<int> bins(64);
    for (std::uint32_t step = 0; step < 20'000; ++step) {
      bits.push_back(RoundingKey(RandomPlace{.seed = 11, .step = step}).bits(element));
      ++bins[bits.back() >> 10];
    }
    double chi_square = 0.0;
    for (const int bin : bins) chi_square += std::pow(bin - 20'000 / 64.0, 2) / (20'000 / 64.0);
    EXPECT_NEAR(chi_square, 63, 5 * 11.2);
    next.assign(bits.begin() + 1, bits.end());
    EXPECT_NEAR(correlation(bits, next), 0.0, 5 / std::sqrt(20'000));
  }
}

TEST(RoundingKeys, ChangeWithEveryPartOfThePlaceAndNotWithinTwoToThe32Elements) {
  constexpr std::int64_t per_key = std::int64_t{1} << 32;
  const RandomPlace place{.seed = 5, .step = 6, .parameter = 7, .element = 3 * per_key + 8};
  const auto same = [&](const RandomPlace& other) {
    const RoundingKey a(place), b(other);
    return a.before == b.before && a.middle == b.middle;
  };
  EXPECT_TRUE(same(place));
  RandomPlace other = place;
  other.element = 3 * per_key;
  EXPECT_TRUE(same(other));
  other.element = 4 * per_key - 1;
  EXPECT_TRUE(same(other));
  other.element = 4 * per_key;
  EXPECT_FALSE(same(other));
  other.element = 3 * per_key - 1;
  EXPECT_FALSE(same(other));
  EXPECT_FALSE(same({.seed = 6, .step = 6, .parameter = 7, .element = place.element}));
  EXPECT_FALSE(
      same({.seed = 5 + (std::uint64_t{1} << 32), .step = 6, .parameter = 7, .element = place.element}));
  EXPECT_FALSE(same({.seed = 5, .step = 5, .parameter = 7, .element = place.element}));
  EXPECT_FALSE(same({.seed = 5, .step = 6, .parameter = 8, .element = place.element}));
}

// Of the key's place, Philox has the element's upper half for its counter.
TEST(RoundingBits, AreHalvesOfAWordThatAnEvenElementSharesWithTheNext) {
  const RandomPlace place{.seed = 5, .step = 6, .parameter = 7, .element = (std::int64_t{2} << 32) + 9};
  const RoundingKey key(place);
  const auto words = RandomStream{.seed = 5, .step = 6, .stream = 7}.words(2);
  EXPECT_EQ(key.before, words[0]);
  EXPECT_EQ(key.middle, words[1]);
  for (const std::uint32_t pair : {0u, 1u, 1000u, 0x7fffffffu}) {
    EXPECT_EQ(key.bits(2 * pair), key.word(pair) >> 16);
    EXPECT_EQ(key.bits(2 * pair + 1), key.word(pair) & 0xffffu);
  }
}

// A checkpoint continues with the bits of the run that wrote it only as long as these stay what they are.
TEST(RoundingBits, AreTheseForEver) {
  struct Fixed {
    RandomPlace place;
    std::uint32_t element, bits;
  };
  constexpr Fixed kFixed[] = {
      {{}, 0u, 0xaa19u},
      {{}, 0x1u, 0x0665u},
      {{}, 0xfffu, 0x3226u},
      {{}, 0xffffffffu, 0x9ddcu},
      {{.seed = 1, .step = 1}, 0u, 0x8993u},
      {{.seed = 1, .step = 1}, 0x1u, 0x446au},
      {{.seed = 1, .step = 1}, 0xfffu, 0x44fcu},
      {{.seed = 1, .step = 1}, 0xffffffffu, 0xb167u},
      {{.seed = 1234567890123456789u, .step = 100'000, .parameter = 77, .element = 12}, 0u, 0x56c7u},
      {{.seed = 1234567890123456789u, .step = 100'000, .parameter = 77, .element = 12}, 0x1u, 0xc843u},
      {{.seed = 1234567890123456789u, .step = 100'000, .parameter = 77, .element = 12}, 0xfffu, 0xec70u},
      {{.seed = 1234567890123456789u, .step = 100'000, .parameter = 77, .element = 12}, 0xffffffffu, 0xbbc5u},
      {{.seed = 3, .step = 2, .parameter = 1, .element = std::int64_t{5} << 32}, 0u, 0xce9bu},
      {{.seed = 3, .step = 2, .parameter = 1, .element = std::int64_t{5} << 32}, 0x1u, 0x8cedu},
      {{.seed = 3, .step = 2, .parameter = 1, .element = std::int64_t{5} << 32}, 0xfffu, 0x2adfu},
      {{.seed = 3, .step = 2, .parameter = 1, .element = std::int64_t{5} << 32}, 0xffffffffu, 0xbffbu},

  };
  for (const Fixed& fixed : kFixed) EXPECT_EQ(RoundingKey(fixed.place).bits(fixed.element), fixed.bits);
}

}  // namespace
}  // namespace spillway
