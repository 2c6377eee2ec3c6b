#pragma once
// Shared by the tests of cpu_adam: planes of every form in exact-size heap buffers (AddressSanitizer sees one
// element too many), gradients, drawn values and settings.
#include "../../core/state_format.h"
#include "../../core/random.h"
#include "../../core/update.h"
#include "../../cpu_adam/isa.h"
#include "../../cpu_adam/planes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::cpu_adam::testing {

/// n elements that begin `shift` elements after the start of the allocation and end with it.
template <class T>
class Exact {
 public:
  explicit Exact(std::int64_t n, std::int64_t shift = 0)
      : shift_(shift), count_(n), data_(new T[static_cast<std::size_t>(n + shift)]()) {}
  Exact(const Exact& other) : Exact(other.count_, other.shift_) {
    std::copy(other.data(), other.data() + count_, data());
  }
  T* data() { return data_.get() + shift_; }
  const T* data() const { return data_.get() + shift_; }
  std::int64_t size() const { return count_; }
  T& operator[](std::int64_t i) { return data()[i]; }
  const T& operator[](std::int64_t i) const { return data()[i]; }
  std::span<T> span() { return {data(), static_cast<std::size_t>(count_)}; }

 private:
  std::int64_t shift_, count_;
  std::unique_ptr<T[]> data_;
};

inline std::uint32_t bits_of(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
/// Equal bits, or both NaN (whose payload no ISA promises).
inline bool same(float a, float b) {
  return bits_of(a) == bits_of(b) || (a != a && b != b);
}
inline bool same(const UpdateElement& a, const UpdateElement& b) {
  return same(a.master, b.master) && same(a.m, b.m) && same(a.v, b.v);
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : generator_(seed) {}
  std::uint64_t bits() { return generator_(); }
  std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(generator_() >> 16) % limit; }
  double uniform() { return static_cast<double>(generator_() >> 11) * 0x1p-53; }
  /// A weight or gradient as they occur: from 2^-36 up to 2^7, both signs.
  float ordinary() {
    const std::uint64_t drawn = generator_();
    const auto sign_and_mantissa = static_cast<std::uint32_t>(drawn) & 0x807fffffu;
    return std::bit_cast<float>(sign_and_mantissa | (127 - 36 + static_cast<std::uint32_t>(drawn >> 40) % 43)
                                                        << 23);
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
/// Draw::ordinary or Draw::finite.
using DrawValue = float (Draw::*)();

/// The ways of storing weights and state, one for each kind of planes.
enum class Form { fp32, full, bf16, compact8 };
inline constexpr Form kForms[] = {Form::fp32, Form::full, Form::bf16, Form::compact8};
inline std::string_view name_of(Form form) {
  constexpr std::string_view names[] = {"fp32", "full", "bf16", "compact8"};
  return names[static_cast<int>(form)];
}
inline constexpr Optimizer kOptimizers[] = {Optimizer::adamw, Optimizer::adam, Optimizer::lion, Optimizer::sgd};
/// The optimizers that a form exists for.
inline std::vector<Optimizer> optimizers_of(Form form) {
  if (form == Form::compact8) return {Optimizer::adamw, Optimizer::adam};
  return {std::begin(kOptimizers), std::end(kOptimizers)};
}
inline constexpr DType kGradientTypes[] = {DType::bf16, DType::fp16, DType::fp32};
/// Where a range of planes may be cut.
inline std::int64_t cut_of(Form form) {
  return form == Form::compact8 ? kCompactGroup : 1;
}

/// Planes of n elements in one form; those of other forms have no element. v is null without a second moment.
struct OwnedPlanes {
  OwnedPlanes(Form the_form, Optimizer optimizer, std::int64_t count, std::int64_t shift = 0)
      : form(the_form),
        has_v(has_second_moment(optimizer)),
        n(count),
        high(only(form != Form::full), shift),
        low(only(form == Form::fp32 || form == Form::bf16), shift),
        master(only(form == Form::full), shift),
        m(only(form == Form::fp32 || form == Form::full), shift),
        v(only((form == Form::fp32 || form == Form::full) && has_v), shift),
        m16(only(form == Form::bf16), shift),
        v16(only(form == Form::bf16 && has_v), shift),
        low8(only(form == Form::compact8), shift),
        m8(only(form == Form::compact8), shift),
        v8(only(form == Form::compact8), shift),
        m_scales(form == Form::compact8 ? groups() : 0, shift),
        v_scales(form == Form::compact8 ? groups() : 0, shift) {}

  std::int64_t groups() const { return (n + kCompactGroup - 1) / kCompactGroup; }

  Planes view() {
    if (form == Form::fp32) return Fp32Planes{high.data(), low.data(), m.data(), has_v ? v.data() : nullptr};
    if (form == Form::full) return FullPlanes{master.data(), m.data(), has_v ? v.data() : nullptr};
    if (form == Form::bf16)
      return Bf16Planes{high.data(), low.data(), m16.data(), has_v ? v16.data() : nullptr};
    return Compact8Planes{high.data(), low8.data(), m8.data(), v8.data(), m_scales.data(), v_scales.data()};
  }

  /// Stores a weight and moments; bf16's are rounded to nearest. Of compact8 the weight, and moments of zero
  /// only (set_group).
  void set(std::int64_t i, const UpdateElement& e) {
    if (form == Form::full) {
      master[i] = e.master;
    } else {
      const SplitMaster halves = split_master(e.master);
      high[i] = halves.high;
      if (form == Form::compact8) low8[i] = encode_low(halves.low, kToNearest);
      if (form != Form::compact8) low[i] = halves.low;
    }
    if (form == Form::fp32 || form == Form::full) m[i] = e.m;
    if ((form == Form::fp32 || form == Form::full) && has_v) v[i] = e.v;
    if (form == Form::bf16) m16[i] = to_bf16(e.m);
    if (form == Form::bf16 && has_v) v16[i] = to_bf16(e.v);
  }

  UpdateElement at(std::int64_t i) const {
    if (form == Form::full) return {master[i], m[i], has_v ? v[i] : 0.0f};
    if (form == Form::fp32) return {join_master(high[i], low[i]), m[i], has_v ? v[i] : 0.0f};
    if (form == Form::bf16) {
      return {join_master(high[i], low[i]), to_float(m16[i]), has_v ? to_float(v16[i]) : 0.0f};
    }
    const std::int64_t group = i / kCompactGroup;
    return {join_master(high[i], decode_low(low8[i])), decode_m(m8[i], decode_scale(m_scales[group])),
            decode_v(v8[i], decode_scale(v_scales[group]))};
  }

  /// State that a run can be in, or with Draw::finite any that the planes can hold without infinity or NaN.
  void draw(Draw& draw, DrawValue value) {
    const bool any = value == &Draw::finite;
    for (std::int64_t i = 0; i < n; ++i) {
      set(i, {(draw.*value)(), (draw.*value)(), std::fabs((draw.*value)())});
      if (form != Form::full && !is_finite(to_float(high[i]))) set(i, {1.0f, 0.0f, 0.0f});
      if (form == Form::bf16) {  // rounding may have given infinity
        if (!is_finite(to_float(m16[i]))) m16[i] = {0x7f7f};
        if (has_v && !is_finite(to_float(v16[i]))) v16[i] = {0x7f7f};
      }
      if (form == Form::compact8) {
        low8[i] = static_cast<std::int8_t>(static_cast<int>(draw.below(255)) - 127);
        m8[i] = static_cast<std::int8_t>(static_cast<int>(draw.below(255)) - 127);
        v8[i] = static_cast<std::uint8_t>(draw.below(256));
      }
    }
    for (std::int64_t group = 0; group < m_scales.size(); ++group) {
      m_scales[group] = any ? any_scale(draw) : encode_scale(std::fabs(draw.ordinary()), 0x4000u);
      v_scales[group] = any ? any_scale(draw) : encode_scale(std::fabs(draw.ordinary()), 0x4000u);
      // Half of them have squares in fp32's range.
      if (any && draw.bits() % 2 == 0) v_scales[group] = std::min<std::uint16_t>(v_scales[group], 0xbeff);
    }
  }

  const Form form;
  const bool has_v;
  const std::int64_t n;
  Exact<BFloat16> high;
  Exact<std::int16_t> low;
  Exact<float> master, m, v;
  Exact<BFloat16> m16, v16;
  Exact<std::int8_t> low8, m8;
  Exact<std::uint8_t> v8;
  Exact<std::uint16_t> m_scales, v_scales;

 private:
  std::int64_t only(bool is_of_form) const { return is_of_form ? n : 0; }
  static std::uint16_t any_scale(Draw& draw) {
    const std::uint16_t special[] = {0, 1, 2, 255, 256, 257, 0x7f00, 0xfefe, 0xfeff};
    if (draw.bits() % 4 == 0) return special[draw.bits() % std::size(special)];
    return static_cast<std::uint16_t>(draw.below(0xff00));
  }
};

/// Copies every plane: both may have shifts of their own.
inline void copy_state(OwnedPlanes& to, const OwnedPlanes& from) {
  const auto copy = [](auto& x, const auto& y) { std::copy(y.data(), y.data() + y.size(), x.data()); };
  copy(to.high, from.high);
  copy(to.low, from.low);
  copy(to.master, from.master);
  copy(to.m, from.m);
  copy(to.v, from.v);
  copy(to.m16, from.m16);
  copy(to.v16, from.v16);
  copy(to.low8, from.low8);
  copy(to.m8, from.m8);
  copy(to.v8, from.v8);
  copy(to.m_scales, from.m_scales);
  copy(to.v_scales, from.v_scales);
}

/// The first element from `first` on that is stored with other bits in `a` than in `b`, or -1. Where both are
/// NaN they count as equal.
inline std::int64_t first_difference(const OwnedPlanes& a, const OwnedPlanes& b, std::int64_t first,
                                     std::int64_t end) {
  for (std::int64_t i = first; i < end; ++i) {
    if (a.form != Form::compact8) {
      if (!same(a.at(i), b.at(i))) return i;
      continue;
    }
    const std::int64_t group = i / kCompactGroup;
    if (a.high[i] != b.high[i] || a.low8[i] != b.low8[i] || a.m8[i] != b.m8[i] || a.v8[i] != b.v8[i] ||
        a.m_scales[group] != b.m_scales[group] || a.v_scales[group] != b.v_scales[group]) {
      return i;
    }
  }
  return -1;
}
inline std::int64_t first_difference(const OwnedPlanes& a, const OwnedPlanes& b) {
  return first_difference(a, b, 0, a.n);
}

/// One gradient in every type.
struct Gradients {
  explicit Gradients(std::int64_t n, std::int64_t shift = 0) : fp32(n, shift), bf16(n, shift), fp16(n, shift) {}
  void set(std::int64_t i, float g) {
    fp32[i] = g;
    bf16[i] = to_bf16(g);
    fp16[i] = to_fp16(g);
  }
  /// Finite in every type; with Draw::finite the three are drawn apart, each over its whole range.
  void draw(Draw& draw, DrawValue value) {
    for (std::int64_t i = 0; i < fp32.size(); ++i) {
      set(i, (draw.*value)());
      if (value == &Draw::finite) fp16[i] = {static_cast<std::uint16_t>(draw.bits())};
      if (!is_finite(to_float(bf16[i]))) bf16[i] = {0x7f7f};
      if (!is_finite(to_float(fp16[i]))) fp16[i] = {0xfbff};
    }
  }
  Gradient of(DType type) const {
    if (type == DType::fp32) return {fp32.data(), type};
    if (type == DType::fp16) return {fp16.data(), type};
    return {bf16.data(), type};
  }
  float at(DType type, std::int64_t i) const {
    if (type == DType::fp32) return fp32[i];
    return type == DType::fp16 ? to_float(fp16[i]) : to_float(bf16[i]);
  }
  Exact<float> fp32;
  Exact<BFloat16> bf16;
  Exact<Float16> fp16;
};

/// Settings over their whole range, zeros included, early and late steps.
inline UpdateCoefficients drawn_coefficients(Draw& draw, Optimizer optimizer) {
  const std::int64_t steps[] = {1, 2, 17, 10'000, 10'000'000};
  const auto zero_or = [&](double value) { return draw.bits() % 4 == 0 ? 0.0 : value; };
  HyperParameters hyper;
  hyper.optimizer = optimizer;
  hyper.learning_rate = zero_or(draw.uniform() * 0.1);
  hyper.beta1 = zero_or(draw.uniform() * 0.999999);  // below 1 in fp32 too
  hyper.beta2 = zero_or(0.999999 - draw.uniform() * 0.1);
  hyper.eps = zero_or(draw.uniform() * 1e-6);
  hyper.weight_decay = zero_or(draw.uniform());
  hyper.momentum = zero_or(draw.uniform() * 0.999999);
  hyper.nesterov = draw.bits() % 2 == 0;
  // One after another: the order of arguments is the compiler's.
  const std::int64_t step = steps[draw.bits() % std::size(steps)];
  const double factor = draw.bits() % 4 == 0 ? 1.0 : draw.uniform();
  return update_coefficients(hyper, step, factor);
}

/// A group of compact8 whose moments are those of `elements`, by the scalar formulas; `count` of them.
struct CompactGroup {
  std::uint16_t m_scale = 0, v_scale = 0;
  std::int8_t m[kCompactGroup] = {};
  std::uint8_t v[kCompactGroup] = {};

  float m_at(int i) const { return decode_m(m[i], decode_scale(m_scale)); }
  float v_at(int i) const { return decode_v(v[i], decode_scale(v_scale)); }
};
/// `key` and `first` (a multiple of 32): of the group's place.
inline CompactGroup encode_group(std::span<const UpdateElement> elements, const RoundingKey& key = {},
                                 std::uint32_t first = 0) {
  CompactGroup group;
  float largest_m = 0.0f, largest_root = 0.0f;
  for (const UpdateElement& e : elements) {
    largest_m = std::max(largest_m, std::fabs(e.m));
    largest_root = std::max(largest_root, std::sqrt(e.v));
  }
  const std::uint32_t random = key.group_word(first / kCompactGroup);
  group.m_scale = encode_scale(largest_m, random >> 17);
  group.v_scale = encode_scale(largest_root, random & 0x7fffu);
  const float codes_per_root = codes_of_root(std::max(largest_root, kSmallestRoot));
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::uint32_t bits = key.bits(first + static_cast<std::uint32_t>(i));
    group.m[i] = encode_m(elements[i].m, largest_m > 0.0f ? largest_m : kNoMaximum, bits);
    group.v[i] = encode_v(std::sqrt(elements[i].v), codes_per_root, bits);
  }
  return group;
}

}  // namespace spillway::cpu_adam::testing

namespace spillway::cpu_adam {
inline void PrintTo(Isa isa, std::ostream* out) {
  *out << name_of(isa);
}
namespace testing {
inline constexpr Isa kIsas[] = {Isa::scalar, Isa::neon, Isa::avx2, Isa::avx512};
inline void PrintTo(Form form, std::ostream* out) {
  *out << name_of(form);
}
}  // namespace testing
}  // namespace spillway::cpu_adam
