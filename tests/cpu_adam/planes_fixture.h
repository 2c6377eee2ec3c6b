#pragma once
// Shared by the tests of cpu_adam: planes in exact-size heap buffers (AddressSanitizer sees one element too
// many), and drawn values.
#include "../../core/update.h"
#include "../../cpu_adam/isa.h"
#include "../../cpu_adam/planes.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <random>

namespace spillway::cpu_adam::testing {

/// n elements that begin `shift` elements after the start of the allocation and end with it.
template <class T>
class Exact {
 public:
  explicit Exact(std::int64_t n, std::int64_t shift = 0)
      : shift_(shift), count_(n), data_(new T[static_cast<std::size_t>(n + shift)]()) {}
  T* data() { return data_.get() + shift_; }
  const T* data() const { return data_.get() + shift_; }
  std::int64_t size() const { return count_; }
  T& operator[](std::int64_t i) { return data()[i]; }
  const T& operator[](std::int64_t i) const { return data()[i]; }

 private:
  std::int64_t shift_, count_;
  std::unique_ptr<T[]> data_;
};

/// The planes of n elements in both forms; which one is used is the test's choice.
struct OwnedPlanes {
  explicit OwnedPlanes(std::int64_t count, std::int64_t shift = 0)
      : n(count), high(n, shift), low(n, shift), master(n, shift), m(n, shift), v(n, shift) {}
  SplitPlanes split() { return {high.data(), low.data(), m.data(), v.data()}; }
  FullPlanes full() { return {master.data(), m.data(), v.data()}; }
  void set(std::int64_t i, const AdamElement& e) {
    const SplitMaster halves = split_master(e.master);
    high[i] = halves.high;
    low[i] = halves.low;
    master[i] = e.master;
    m[i] = e.m;
    v[i] = e.v;
  }
  AdamElement split_at(std::int64_t i) const { return {join_master(high[i], low[i]), m[i], v[i]}; }
  AdamElement full_at(std::int64_t i) const { return {master[i], m[i], v[i]}; }

  std::int64_t n;
  Exact<BFloat16> high;
  Exact<std::int16_t> low;
  Exact<float> master, m, v;
};

inline std::uint32_t bits_of(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
/// Equal bits, or both NaN (whose payload no ISA promises).
inline bool same(float a, float b) {
  return bits_of(a) == bits_of(b) || (a != a && b != b);
}
inline bool same(const AdamElement& a, const AdamElement& b) {
  return same(a.master, b.master) && same(a.m, b.m) && same(a.v, b.v);
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : generator_(seed) {}
  std::uint64_t bits() { return generator_(); }
  double uniform() { return static_cast<double>(generator_() >> 11) * 0x1p-53; }
  /// A weight or gradient as they occur: magnitudes over many decades, both signs.
  float ordinary() {
    const double magnitude = std::exp(uniform() * 30.0 - 25.0);
    return static_cast<float>(bits() & 1 ? magnitude : -magnitude);
  }
  /// Any finite bit pattern: zeros of both signs, subnormals, huge values.
  float finite() {
    for (;;) {
      const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(generator_()));
      if (is_finite(x)) return bits() % 16 == 0 ? special() : x;
    }
  }
  float special() {
    const float values[] = {0.0f,
                            -0.0f,
                            1.0f,
                            -1.0f,
                            std::numeric_limits<float>::denorm_min(),
                            -std::numeric_limits<float>::denorm_min(),
                            0x1p-127f,
                            -0x1.8p-130f,
                            std::numeric_limits<float>::min(),
                            std::numeric_limits<float>::max(),
                            -std::numeric_limits<float>::max(),
                            1e-30f,
                            1e19f};
    return values[bits() % std::size(values)];
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace spillway::cpu_adam::testing

namespace spillway::cpu_adam {
inline void PrintTo(Isa isa, std::ostream* out) {
  *out << name_of(isa);
}
}  // namespace spillway::cpu_adam
