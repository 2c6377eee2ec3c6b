#include "../../cpu_adam/narrow.h"

#include "../../core/parallel.h"
#include "planes_fixture.h"

#include <bit>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::cpu_adam {
namespace {
using testing::Exact;

TEST(Narrow, GivesTheBitsOfTheScalarConversionForEveryLengthAndPattern) {
  std::uint32_t bits = 1;
  for (std::int64_t n = 0; n <= 300; ++n) {
    Exact<float> wide(n, 1);
    Exact<BFloat16> narrowed(n, 3);
    for (std::int64_t i = 0; i < n; ++i) {
      bits = bits * 1664525u + 1013904223u;
      // Ties, NaNs whose payload lies in the lower half, infinities and subnormals come up often.
      const std::uint32_t drawn[] = {bits, (bits & 0xffff0000u) | 0x8000u, 0x7f800001u, 0xff800000u,
                                     bits & 0x807fffffu};
      wide[i] = std::bit_cast<float>(drawn[(bits >> 8) % 5]);
    }
    for (const Isa isa : supported_isas()) {
      narrow(isa, narrowed.data(), wide.data(), n);
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(narrowed[i].bits, to_bf16(wide[i]).bits) << name_of(isa) << " n " << n << " i " << i;
      }
    }
  }
}

TEST(Narrow, SpreadsOverWorkersWithoutLosingAnElementAndClears) {
  const std::int64_t n = 300'001;
  std::vector<float> wide(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(i) * 0.37f;
  for (const int threads : {1, 2, 3}) {
    Workers workers(threads);
    std::vector<BFloat16> narrowed(wide.size());
    std::vector<float> gradient = wide;
    gradient.push_back(5);
    narrow_and_clear(chosen_isa(), workers, narrowed.data(), gradient.data(), n);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(narrowed[i].bits, to_bf16(wide[i]).bits) << i;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(gradient[i]), 0U) << i;
    }
    EXPECT_EQ(gradient.back(), 5);
  }
}

TEST(Narrow, RefusesMisuse) {
  float wide = 0;
  BFloat16 narrowed;
  EXPECT_THROW(narrow(Isa::scalar, &narrowed, &wide, -1), std::logic_error);
  EXPECT_THROW(narrow(Isa::scalar, &narrowed, nullptr, 1), std::logic_error);
  EXPECT_THROW(narrow(Isa::scalar, nullptr, &wide, 1), std::logic_error);
}

}  // namespace
}  // namespace spillway::cpu_adam
