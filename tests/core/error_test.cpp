#include "../../core/error.h"

#include <cerrno>

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(Error, TheLineHoldsWhatIsKnownAndNothingElse) {
  EXPECT_STREQ(Error(ErrorKind::io, "short").what(), "short");
  EXPECT_STREQ(Error(ErrorKind::io, "cannot write", {.operation = "write"}).what(),
               "cannot write (operation: write)");
  EXPECT_STREQ(Error(ErrorKind::io, "cannot write", {.path = "/a b"}).what(), "cannot write (path: /a b)");
  EXPECT_STREQ(
      Error(ErrorKind::io, "cannot write",
            {.operation = "write", .path = "/x", .offset = 0, .length = 4096, .error_number = ENOSPC})
          .what(),
      "cannot write (operation: write, path: /x, offset: 0, length: 4096, errno 28: No space left on device)");
}

TEST(Error, TheLineIsOneWhateverAFileOrKeyIsCalled) {
  EXPECT_STREQ(
      Error(ErrorKind::configuration, "unknown key a\nb\x1b[2J\x7f", {.path = "/t\tab/\xc3\xa9"}).what(),
      R"(unknown key a\x0ab\x1b[2J\x7f (path: /t\x09ab/)"
      "\xc3\xa9)");
  EXPECT_EQ(Error(ErrorKind::io, "x", {.hint = "try\nthis"}).detail().hint, "try\\x0athis");
}

TEST(Error, KeepsItsKindAndDetailWhenThrown) {
  try {
    throw Error(ErrorKind::resources, "no memory", {.length = 7, .hint = "less of it"});
  } catch (const std::runtime_error& caught) {
    const auto* error = dynamic_cast<const Error*>(&caught);
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->kind(), ErrorKind::resources);
    EXPECT_EQ(error->detail().length, 7);
    EXPECT_EQ(error->detail().hint, "less of it");
    // The hint is a line of its own.
    EXPECT_EQ(std::string(error->what()).find("less of it"), std::string::npos);
  }
}

TEST(Error, ExitCodesAreThoseOfTheDesign) {
  EXPECT_EQ(exit_code(ErrorKind::usage), 2);
  EXPECT_EQ(exit_code(ErrorKind::configuration), 2);
  EXPECT_EQ(exit_code(ErrorKind::resources), 3);
  EXPECT_EQ(exit_code(ErrorKind::io), 4);
  EXPECT_EQ(exit_code(ErrorKind::communication), 5);
  EXPECT_EQ(exit_code(ErrorKind::numerics), 6);
}

}  // namespace
}  // namespace spillway
