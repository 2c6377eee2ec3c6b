#pragma once
// Private: the passes that read or move a gradient: norm, accumulation, narrowing, and the streams that an
// update is held against. See simd.h.
#include "simd.h"

namespace spillway::cpu_adam {
namespace {

/// The 16 sums of a block, as so many vectors of doubles.
template <class L>
struct Squares {
  static constexpr int per_vector = L::width / 2;
  static constexpr int vectors = kNormLanes / per_vector;
  typename L::Double sums[vectors];

  SPILLWAY_INLINE Squares() {
    for (auto& sum : sums) sum = typename L::Double(0.0);
  }
  template <class G>
  SPILLWAY_INLINE void add(const G* gradient) {  // kNormLanes elements
    for (int i = 0; i < vectors; i += 2) {
      const auto g = load_gradient<L>(gradient + i * per_vector);
      const auto low = L::low_half(g), high = L::high_half(g);
      sums[i] = sums[i] + low * low;
      sums[i + 1] = sums[i + 1] + high * high;
    }
  }
  SPILLWAY_INLINE double total() const {
    double lanes[kNormLanes];
    for (int i = 0; i < vectors; ++i) sums[i].store_unaligned(lanes + i * per_vector);
    for (int half = kNormLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
  }
};

template <class L, class G>
double square_sum_of(const G* gradient, std::int64_t n) {
  Squares<L> squares;
  std::int64_t i = 0;
  for (; i + kNormLanes <= n; i += kNormLanes) squares.add(gradient + i);
  if (i < n) {
    G tail[kNormLanes] = {};
    copy(tail, gradient + i, n - i);
    squares.add(tail);
  }
  return squares.total();
}

template <class L>
double square_sum(Gradient gradient, std::int64_t n) {
  return with_type(gradient, [&](const auto* g) { return square_sum_of<L>(g, n); });
}

template <class L, class G>
void accumulate_into(Accumulate how, float* sum, const G* h, std::int64_t n) {
  using Float = typename L::Float;
  const bool assigns = how == Accumulate::assign;
  std::int64_t i = 0;
  for (; i + L::width <= n; i += L::width) {
    const Float before = assigns ? Float(0.0f) : Float::load_unaligned(sum + i);
    (before + load_gradient<L>(h + i)).store_unaligned(sum + i);
  }
  if (i < n) {
    float tail[L::width] = {};
    G tail_h[L::width] = {};
    if (!assigns) copy(tail, sum + i, n - i);
    copy(tail_h, h + i, n - i);
    (Float::load_unaligned(tail) + load_gradient<L>(tail_h)).store_unaligned(tail);
    copy(sum + i, tail, n - i);
  }
}

template <class L>
void accumulate_sum(Accumulate how, float* sum, Gradient h, std::int64_t n) {
  with_type(h, [&](const auto* elements) { accumulate_into<L>(how, sum, elements, n); });
}

/// to_bf16 of core/dtype.h.
template <class L>
SPILLWAY_INLINE void narrow_lanes(BFloat16* narrowed, const float* gradient) {
  using Bits = typename L::Bits;
  const Bits bits = as_bits<L>(L::Float::load_unaligned(gradient));
  const Bits high = bits >> 16;
  const Bits rounded = (bits + Bits(0x7fffu) + (high & Bits(1u))) >> 16;
  L::store16(narrowed, select_greater<L>(bits & Bits(0x7fffffffu), kInfiniteBits, high | Bits(0x40u), rounded));
}

template <class L>
void narrow(BFloat16* narrowed, const float* gradient, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + L::width <= n; i += L::width) narrow_lanes<L>(narrowed + i, gradient + i);
  if (i < n) {
    float tail[L::width] = {};
    BFloat16 tail_narrowed[L::width] = {};
    copy(tail, gradient + i, n - i);
    narrow_lanes<L>(tail_narrowed, tail);
    copy(narrowed + i, tail_narrowed, n - i);
  }
}

template <class L>
void change(std::byte* stream, std::int64_t bytes) {
  using Bits = typename L::Bits;
  constexpr std::int64_t step = L::width * 4;
  auto* words = reinterpret_cast<std::uint32_t*>(stream);
  std::int64_t i = 0;
  for (; i + step <= bytes; i += step) {
    (Bits::load_unaligned(words + i / 4) ^ Bits(1u)).store_unaligned(words + i / 4);
  }
  for (; i < bytes; i += 4) stream[i] = static_cast<std::byte>(static_cast<unsigned char>(stream[i]) ^ 1u);
}

template <class L>
std::uint32_t fold(const std::byte* stream, std::int64_t bytes) {
  using Bits = typename L::Bits;
  constexpr std::int64_t step = L::width * 4;
  const auto* words = reinterpret_cast<const std::uint32_t*>(stream);
  Bits sum(0u);
  std::int64_t i = 0;
  for (; i + step <= bytes; i += step) sum = sum ^ Bits::load_unaligned(words + i / 4);
  std::uint32_t lanes[L::width];
  sum.store_unaligned(lanes);
  std::uint32_t folded = 0;
  for (int lane = 0; lane < L::width; ++lane) folded ^= lanes[lane];
  for (; i < bytes; ++i) folded ^= std::uint32_t{static_cast<unsigned char>(stream[i])} << (i % 4 * 8);
  return folded;
}

}  // namespace
}  // namespace spillway::cpu_adam
