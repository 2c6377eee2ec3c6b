#include "../../cpu_adam/isa.h"

#include "../../core/error.h"
#include "../../cpu_adam/update.h"
#include "planes_fixture.h"

#include <cstdlib>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace spillway::cpu_adam {
namespace {
using testing::kIsas;

TEST(Isa, TheScalarFormRunsEverywhereAndTheFastestIsTheDefault) {
  EXPECT_TRUE(is_supported(Isa::scalar));
  EXPECT_EQ(supported_isas().front(), Isa::scalar);
  EXPECT_EQ(select_isa(""), supported_isas().back());
}

TEST(Isa, NeonIsOfEvery64BitArmAndOfNothingElse) {
#if defined(__aarch64__)
  EXPECT_EQ(supported_isas(), (std::vector{Isa::scalar, Isa::neon}));
#else
  EXPECT_FALSE(is_supported(Isa::neon));
#endif
}

TEST(Isa, ANameSelectsItOrIsRefusedWhereTheProcessorLacksIt) {
  for (const Isa isa : kIsas) {
    if (is_supported(isa)) {
      EXPECT_EQ(select_isa(name_of(isa)), isa);
    } else {
      EXPECT_THROW(select_isa(name_of(isa)), Error);
      EXPECT_THROW(update(isa, Fp32Planes{}, {}, 0, {}), Error);
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

/// Sets the variable while it lives.
class Environment {
 public:
  explicit Environment(const char* value) {
    if (const char* before = std::getenv("SPILLWAY_ISA")) before_ = before;
    setenv("SPILLWAY_ISA", value, 1);
  }
  ~Environment() {
    if (before_) {
      setenv("SPILLWAY_ISA", before_->c_str(), 1);
    } else {
      unsetenv("SPILLWAY_ISA");
    }
  }

 private:
  std::optional<std::string> before_;
};

TEST(Isa, TheEnvironmentVariableChooses) {
  {
    const Environment scalar("scalar");
    EXPECT_EQ(chosen_isa(), Isa::scalar);
  }
  {
    const Environment unknown("abacus");
    EXPECT_THROW(chosen_isa(), Error);
  }
  const Environment empty("");
  EXPECT_EQ(chosen_isa(), supported_isas().back());
}

}  // namespace
}  // namespace spillway::cpu_adam
