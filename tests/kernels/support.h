#pragma once
// Arrays of either element type, filled from a seed, and a device with operations to run on them.
#include "../../core/host_device.h"
#include "../../kernels/host/operations.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::kernels {

/// Half the distance of two neighbours at 1: the largest relative error of one rounding.
inline double unit(DType type) {
  return type == DType::bf16 ? 0x1p-8 : 0x1p-24;
}
constexpr double kUnit32 = 0x1p-24;

class Array {
 public:
  /// Filled with NaN, so that what is not written shows.
  Array(DType type, std::int64_t count)
      : type_(type), count_(count), bytes_(static_cast<std::size_t>(count * size_of(type)), 0xff) {}

  static Array random(DType type, std::int64_t count, std::uint64_t seed, double scale = 1) {
    Array result(type, count);
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal(0, scale);
    for (std::int64_t i = 0; i < count; ++i) result.set(i, normal(generator));
    return result;
  }

  void set(std::int64_t i, double value) {
    const auto narrow = static_cast<float>(value);
    if (type_ == DType::bf16) {
      static_cast<BFloat16*>(data())[i] = to_bf16(narrow);
    } else {
      static_cast<float*>(data())[i] = narrow;
    }
  }
  double operator[](std::int64_t i) const {
    return type_ == DType::bf16 ? to_float(static_cast<const BFloat16*>(data())[i])
                                : static_cast<const float*>(data())[i];
  }
  std::vector<double> values() const {
    std::vector<double> result(static_cast<std::size_t>(count_));
    for (std::int64_t i = 0; i < count_; ++i) result[static_cast<std::size_t>(i)] = (*this)[i];
    return result;
  }

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  float* floats() { return static_cast<float*>(data()); }
  std::int64_t count() const { return count_; }
  DType type() const { return type_; }
  friend bool operator==(const Array&, const Array&) = default;

 private:
  DType type_;
  std::int64_t count_;
  std::vector<unsigned char> bytes_;
};

struct Machine {
  explicit Machine(DType type, const Shapes& shapes = {}, int threads = 2)
      : device({.threads = threads}), host(device, type, shapes) {}
  HostDevice device;
  HostOperations host;
  Operations& run = host;
  void finish() { device.synchronize(); }
};

/// bound(i) is the largest |result - expected| allowed at i.
template <class Bound>
void expect_close(const Array& result, std::span<const double> expected, Bound&& bound,
                  const std::string& what) {
  ASSERT_EQ(result.count(), static_cast<std::int64_t>(expected.size())) << what;
  double worst = 0;
  for (std::int64_t i = 0; i < result.count(); ++i) {
    const double want = expected[static_cast<std::size_t>(i)];
    const double error = std::abs(result[i] - want), allowed = bound(i);
    ASSERT_TRUE(error <= allowed) << what << "[" << i << "] = " << result[i] << ", expected " << want
                                  << ", error " << error << ", allowed " << allowed;
    worst = std::max(worst, error / allowed);
  }
  EXPECT_TRUE(worst <= 1) << what;
}

inline std::string label(DType type, std::initializer_list<std::int64_t> dimensions) {
  std::string result(name_of(type));
  for (const std::int64_t d : dimensions) result += " " + std::to_string(d);
  return result;
}

constexpr DType kTypes[] = {DType::bf16, DType::fp32};

}  // namespace spillway::kernels
