#include "../../cpu_adam/isa.h"

#include "../../core/error.h"
#include "../../cpu_adam/update.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace spillway::cpu_adam {
namespace {

constexpr Isa kAll[] = {Isa::scalar, Isa::avx2, Isa::avx512};

TEST(Isa, TheScalarFormRunsEverywhereAndTheFastestIsTheDefault) {
  EXPECT_TRUE(is_supported(Isa::scalar));
  EXPECT_EQ(supported_isas().front(), Isa::scalar);
  EXPECT_EQ(select_isa(""), supported_isas().back());
}

TEST(Isa, ANameSelectsItOrIsRefusedWhereTheProcessorLacksIt) {
  for (const Isa isa : kAll) {
    if (is_supported(isa)) {
      EXPECT_EQ(select_isa(name_of(isa)), isa);
    } else {
      EXPECT_THROW(select_isa(name_of(isa)), Error);
      EXPECT_THROW(update(isa, SplitPlanes{}, {}, 0, {}), Error);
    }
  }
}

TEST(Isa, AnUnknownNameIsAConfigurationErrorThatNamesTheVariable) {
  for (const char* name : {"sse2", "AVX2", "avx-512", " "}) {
    try {
      select_isa(name);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::configuration);
      EXPECT_EQ(error.detail().path, "SPILLWAY_ISA");
      EXPECT_NE(error.detail().hint.find("scalar"), std::string::npos);
    }
  }
}

// Only in a process of its own, as the variable is read once.
[[noreturn]] void exit_with_best_isa(const char* value) {
  setenv("SPILLWAY_ISA", value, 1);
  try {
    std::exit(best_isa() == Isa::scalar ? 10 : 11);
  } catch (const Error&) {
    std::exit(12);
  }
}

TEST(IsaDeathTest, TheEnvironmentVariableOverrides) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_best_isa("scalar"), ::testing::ExitedWithCode(10), "");
  EXPECT_EXIT(exit_with_best_isa("abacus"), ::testing::ExitedWithCode(12), "");
  EXPECT_EXIT(exit_with_best_isa(""), ::testing::ExitedWithCode(select_isa("") == Isa::scalar ? 10 : 11), "");
}

}  // namespace
}  // namespace spillway::cpu_adam
