#pragma once
// Random numbers by counter: the value at a place follows from (seed, step, stream, element) alone, so that it
// is the same for every thread count, tier and order of calls (D9).
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>

namespace spillway {

/// What a sequence of numbers is for. A parameter's stream is its index in the layout: step 0 are its first
/// weights, later ones the rounding of its moments. Other purposes count down from the top.
inline constexpr std::uint32_t kDataOrderStream = 0xffffffffu;
inline constexpr std::uint32_t kSamplingStream = 0xfffffffeu;

/// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
        static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// One stream of one step under a seed. Blocks are numbered from 0; each gives four values.
struct RandomStream {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t stream = 0;

  constexpr std::array<std::uint32_t, 4> words(std::uint64_t block) const {
    return philox4x32(
        {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), stream, step},
        {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  }

  /// In [0, 1), a multiple of 2^-53; one for each element.
  constexpr double uniform(std::uint64_t element) const {
    const auto w = words(element);
    return static_cast<double>(((std::uint64_t{w[1]} << 32) | w[0]) >> 11) * 0x1p-53;
  }

  /// Standard normal values of the elements 4 * block to 4 * block + 3, by Box and Muller's transform in double
  /// of uniforms with 32 bits: none is beyond 6.7 standard deviations.
  std::array<double, 4> normals(std::uint64_t block) const {
    const auto w = words(block);
    std::array<double, 4> values{};
    for (std::size_t pair = 0; pair < 4; pair += 2) {
      const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(w[pair]) + 1.0) * 0x1p-32));
      const double angle = 2.0 * std::numbers::pi * static_cast<double>(w[pair + 1]) * 0x1p-32;
      values[pair] = radius * std::cos(angle);
      values[pair + 1] = radius * std::sin(angle);
    }
    return values;
  }

  /// values[i] = deviation * normal of element first + i; the same for every way of cutting a range into
  /// pieces.
  void fill_normal(std::uint64_t first, std::span<float> values, double deviation) const {
    for (std::size_t i = 0; i < values.size();) {
      const std::uint64_t element = first + i;
      const auto block = normals(element / 4);
      for (auto lane = static_cast<std::size_t>(element % 4); lane < 4 && i < values.size(); ++lane, ++i) {
        values[i] = static_cast<float>(deviation * block[lane]);
      }
    }
  }
};

/// Where an element's random numbers come from: stochastic rounding is keyed by nothing else.
struct RandomPlace {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t parameter = 0;  ///< its index in the layout
  std::int64_t element = 0;     ///< its index in the parameter
};

/// 16 random bits for each element, for stochastic rounding: an update draws them for every element, and ten
/// rounds of Philox would take longer than the update. So Philox draws a key for 2^32 elements of a parameter
/// and step, and the bits are half of a word of Wellons' 32-bit mixer (github.com/skeeto/hash-prospector: 16
/// 21f0aaad 15 735a2d97 15) of half the element's number, with one half of the key added before it and the
/// other in the middle.
struct RoundingKey {
  std::uint32_t before = 0, middle = 0;

  RoundingKey() = default;
  constexpr explicit RoundingKey(const RandomPlace& place) {
    const RandomStream stream{place.seed, place.step, place.parameter};
    const auto words = stream.words(static_cast<std::uint64_t>(place.element) >> 32);
    before = words[0];
    middle = words[1];
  }

  /// Of the elements 2 * pair (its high half) and 2 * pair + 1 (its low half), which count modulo 2^32.
  constexpr std::uint32_t word(std::uint32_t pair) const {
    std::uint32_t x = pair + before;
    x = (x ^ (x >> 16)) * kFirstFactor + middle;
    x = (x ^ (x >> 15)) * kSecondFactor;
    return x ^ (x >> 15);
  }
  /// Of a group of 32 elements, which counts modulo 2^27. Pairs end before these.
  constexpr std::uint32_t group_word(std::uint32_t group) const { return word(0x80000000u + group); }
  constexpr std::uint32_t bits(std::uint32_t element) const {
    return element % 2 == 0 ? word(element / 2) >> 16 : word(element / 2) & 0xffffu;
  }
  static constexpr std::uint32_t kFirstFactor = 0x21f0aaadu, kSecondFactor = 0x735a2d97u;
};

}  // namespace spillway
