#include "../../core/size.h"

#include "../../core/error.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(Size, GoodSizes) {
  const std::vector<std::pair<std::string, std::int64_t>> table = {
      {"0", 0},
      {"4096", 4096},
      {"12B", 12},
      {"1K", 1024},
      {"1k", 1024},
      {"1KiB", 1024},
      {"1kib", 1024},
      {"1KB", 1000},
      {"40M", 40 << 20},
      {"40MiB", 40 << 20},
      {"40MB", 40'000'000},
      {"1.5GiB", 3LL << 29},
      {"2GB", 2'000'000'000},
      {"2 GB", 2'000'000'000},
      {"3T", 3LL << 40},
      {"3TB", 3'000'000'000'000},
      {"0.5K", 512},
      {"4611686018427387903B", 4611686018427387903},
      {"123456789012345", 123456789012345},
      {"9007199254740993", 9007199254740993}};
  for (const auto& [text, bytes] : table) {
    EXPECT_EQ(parse_size(text, "--x"), bytes) << text;
  }
}

TEST(Size, BadSizesAreRefusedWithWhatTheyAreForAndWhy) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"", "it does not begin with a number"},
      {"M", "it does not begin with a number"},
      {" 4M", "it does not begin with a number"},
      {"+4M", "it does not begin with a number"},
      {"nan", "it does not begin with a number"},
      {"inf", "it does not begin with a number"},
      {".5G", "it does not begin with a number"},
      {"-40M", "it is negative"},
      {"-0", "it is negative"},
      {"4X", "'x' is no unit"},
      {"4MiBs", "'mibs' is no unit"},
      {"4M4", "'m4' is no unit"},
      {"1e3", "'e3' is no unit"},
      {"0x10", "'x10' is no unit"},
      {"1,5G", "',5g' is no unit"},
      {"9999999T", "it is larger than any memory"},
      {"9223372036854775808", "it is larger than any memory"},
      {std::string(400, '9'), "it is larger than any memory"},
  };
  for (const auto& [text, why] : table) {
    try {
      parse_size(text, "--device-memory");
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_EQ(std::string(error.what()), "--device-memory: '" + text + "' is not a size: " + why);
      EXPECT_FALSE(error.detail().hint.empty());
    }
  }
}

TEST(Size, FormatsWithOneDecimalAtMost) {
  const std::vector<std::pair<std::int64_t, std::string>> table = {{0, "0 B"},
                                                                   {1023, "1023 B"},
                                                                   {1024, "1 KiB"},
                                                                   {1536, "1.5 KiB"},
                                                                   {40 << 20, "40 MiB"},
                                                                   {39'321'600, "37.5 MiB"},
                                                                   {(1 << 20) - 1, "1.0 MiB"},
                                                                   {1LL << 30, "1 GiB"},
                                                                   {5LL << 40, "5 TiB"},
                                                                   {1LL << 52, "4096 TiB"},
                                                                   {-1536, "-1.5 KiB"},
                                                                   {(1 << 20) + 1, "1.0 MiB"}};
  for (const auto& [bytes, text] : table) EXPECT_EQ(format_size(bytes), text) << bytes;
}

}  // namespace
}  // namespace spillway
