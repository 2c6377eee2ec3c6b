#include "../../cli/text.h"

#include <array>
#include <limits>

#include <gtest/gtest.h>

namespace spillway::cli {
namespace {

TEST(Text, NumbersAreGrouped) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(24'940'800), "24,940,800");
  EXPECT_EQ(grouped(-1'234'567), "-1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
}

TEST(Text, DurationsHaveTwoUnitsAtMost) {
  EXPECT_EQ(duration(0), "0.0 s");
  EXPECT_EQ(duration(0.84), "0.8 s");
  EXPECT_EQ(duration(9.97), "10 s");
  EXPECT_EQ(duration(59.6), "1 m 00 s");
  EXPECT_EQ(duration(151), "2 m 31 s");
  EXPECT_EQ(duration(3 * 3600 + 5 * 60), "3 h 05 m");
  EXPECT_EQ(duration(std::numeric_limits<double>::infinity()), "-");
  EXPECT_EQ(duration(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(duration(-1), "-");
}

TEST(Text, NoByteOfASampleReachesTheTerminalAsACommand) {
  const std::array<std::int32_t, 9> bytes{'a', '\n', 0x1b, '[', '\r', '\\', 0xe9, 0x7f, 0};
  EXPECT_EQ(printable(bytes), "a\n\\x1b[\\x0d\\x5c\\xe9\\x7f\\x00");
}

TEST(Text, LinesAreBrokenAtSpaces) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(broken_at_spaces("", 4), Lines{""});
  EXPECT_EQ(broken_at_spaces("abcd", 4), Lines{"abcd"});
  EXPECT_EQ(broken_at_spaces("ab cd ef", 5), (Lines{"ab cd", "ef"}));
  EXPECT_EQ(broken_at_spaces("ab cd ef", 4), (Lines{"ab", "cd", "ef"}));
  EXPECT_EQ(broken_at_spaces("abcdefgh i abcdefgh", 4), (Lines{"abcdefgh", "i", "abcdefgh"}));
}

TEST(Text, LinesAreCutAtTheWidth) {
  EXPECT_EQ(lines_of("abcdef\n\ngh", 4), (std::vector<std::string>{"abcd", "ef", "", "gh"}));
  EXPECT_EQ(lines_of("abcd\n", 4), (std::vector<std::string>{"abcd", ""}));
}

TEST(Text, WhatIsNotFiniteIsSaidInWords) {
  EXPECT_EQ(fixed(2.30103, 4), "2.3010");
  EXPECT_EQ(fixed(-std::numeric_limits<double>::quiet_NaN(), 4), "not finite");
  EXPECT_EQ(fixed(std::numeric_limits<double>::infinity(), 4), "not finite");
}

TEST(Text, FieldsThatMatterLeastGoFirst) {
  const std::vector<Field> fields{{"[##]", 1}, {"3/9", 4}, {"loss 2.1", 3}, {"nvme 1", 0}};
  EXPECT_EQ(fitting(fields, 27), "[##]  3/9  loss 2.1  nvme 1");
  EXPECT_EQ(fitting(fields, 26), "[##]  3/9  loss 2.1");
  EXPECT_EQ(fitting(fields, 18), "3/9  loss 2.1");
  EXPECT_EQ(fitting(fields, 12), "3/9");
  EXPECT_EQ(fitting(fields, 2), "3/");
  EXPECT_EQ(fitting(fields, 0), "");
}

}  // namespace
}  // namespace spillway::cli
