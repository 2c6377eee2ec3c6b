#include "../../models/token_data.h"

#include "../../core/error.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

namespace spillway::models {
namespace {

using Names = std::vector<std::string>;
using Tokens = std::vector<std::int32_t>;

class TokenDataTest : public ::testing::Test {
 protected:
  TokenDataTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "spillway-tokens-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  ~TokenDataTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  std::string file(const std::string& name, const std::string& bytes) const {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string directory_;
};

template <class T>
std::string raw(const Tokens& tokens) {
  std::string bytes;
  for (const std::int32_t token : tokens) {
    const auto value = static_cast<T>(token);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

std::string header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::string bytes(1024, '\0');
  const std::int32_t values[] = {magic, version, count};
  std::memcpy(bytes.data(), values, sizeof values);
  return bytes;
}
constexpr std::int32_t k16 = 20240520, k32 = 20240801;

Tokens counting(int count) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

struct Sequences {
  Tokens tokens, targets;
};
Sequences draw(const TokenData& data, std::uint64_t seed, std::int64_t first, std::size_t count) {
  Sequences s{Tokens(count), Tokens(count)};
  data.batch(seed, first, s.tokens, s.targets);
  return s;
}

/// The error for files that must be refused, then " | " and the hint.
std::string refusal(const Names& names, TokenData::Options options, ErrorKind kind = ErrorKind::configuration) {
  try {
    const TokenData data(names, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return std::string(error.what()) + " | " + error.detail().hint;
  }
  ADD_FAILURE() << "not refused";
  return {};
}
void expect_words(const std::string& text, const Names& words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST_F(TokenDataTest, TextIsReadAsBytesOverAllFiles) {
  const TokenData data({file("a", "ab"), file("b", ""), file("c", std::string("\xff\0", 2))},
                       {.length = 3, .vocabulary = 256});
  EXPECT_TRUE(data.is_text());
  EXPECT_EQ(data.tokens(), 4);
  EXPECT_EQ(data.sequences(), 1);
  const Sequences s = draw(data, 1, 0, 3);
  EXPECT_EQ(s.tokens, (Tokens{'a', 'b', 255}));
  EXPECT_EQ(s.targets, (Tokens{'b', 255, 0}));
}

TEST_F(TokenDataTest, HeadersTellTheTypeAndRawFilesNeedOne) {
  const Tokens tokens{1, 50000, 7, 65535, 3};
  const std::string llm16 = file("llm16.bin", header(k16, 1, 5) + raw<std::uint16_t>(tokens));
  const std::string llm32 = file("llm32.bin", header(k32, 1, 5) + raw<std::uint32_t>(tokens));
  const std::string raw16 = file("raw16.bin", raw<std::uint16_t>(tokens));
  const std::string raw32 = file("raw32.bin", raw<std::uint32_t>(tokens));
  for (const auto& [path, format] : {std::pair{llm16, TokenFormat::automatic},
                                     {llm16, TokenFormat::uint16},
                                     {llm32, TokenFormat::automatic},
                                     {llm32, TokenFormat::uint32},
                                     {raw16, TokenFormat::uint16},
                                     {raw32, TokenFormat::uint32}}) {
    const TokenData data({path}, {.length = 4, .vocabulary = 70000, .format = format});
    EXPECT_FALSE(data.is_text());
    EXPECT_EQ(data.tokens(), 5);
    const Sequences s = draw(data, 1, 0, 4);
    EXPECT_EQ(s.tokens, (Tokens{1, 50000, 7, 65535})) << path;
    EXPECT_EQ(s.targets, (Tokens{50000, 7, 65535, 3})) << path;
  }
  const TokenData::Options options{.length = 1, .vocabulary = 70000};
  expect_words(refusal({raw16}, options), {"raw16.bin", "no header", "--tokens uint16"});
  expect_words(refusal({llm16}, {.length = 1, .vocabulary = 70000, .format = TokenFormat::uint32}),
               {"uint16", "uint32", "leave --tokens away"});
  // A text may be forced, whatever it begins with.
  EXPECT_EQ(TokenData({llm16}, {.length = 1, .vocabulary = 256, .format = TokenFormat::bytes}).tokens(), 1034);
  expect_words(refusal({file("odd", "abc")}, {.length = 1, .vocabulary = 256, .format = TokenFormat::uint16}),
               {"3 bytes", "tokens of 2 bytes"});
}

TEST_F(TokenDataTest, HeadersThatLieAreRefused) {
  const TokenData::Options options{.length = 1, .vocabulary = 70000};
  const std::string two = raw<std::uint16_t>({1, 2});
  expect_words(refusal({file("cut.bin", header(k16, 1, 2).substr(0, 900))}, options),
               {"cut.bin", "900 bytes", "1024"});
  expect_words(refusal({file("new.bin", header(k16, 2, 2) + two)}, options), {"version 2"});
  expect_words(refusal({file("less.bin", header(k16, 1, 3) + two)}, options),
               {"3 tokens", "1030 bytes", "1028"});
  expect_words(refusal({file("more.bin", header(k16, 1, 1) + two)}, options), {"1 tokens", "1026 bytes"});
  expect_words(refusal({file("all.bin", header(k32, 1, -1) + two)}, options), {"4294967295 tokens"});
  expect_words(refusal({file("magic", header(k16, 1, 0).substr(0, 4))}, options), {"4 bytes"});
}

TEST_F(TokenDataTest, ATokenOutsideTheVocabularyIsNamedWithItsPlace) {
  Tokens tokens(3000, 5);
  tokens[2345] = 50257;
  const std::string path = file("tokens.bin", header(k16, 1, 3000) + raw<std::uint16_t>(tokens));
  expect_words(refusal({path}, {.length = 8, .vocabulary = 50257}),
               {"tokens.bin", "token number 2345 is 50257", "vocabulary of 50257", "--vocab"});
  EXPECT_EQ(TokenData({path}, {.length = 8, .vocabulary = 50258}).tokens(), 3000);
  // Behind the first piece that is checked at once, and in the second file.
  Tokens many(800'000, 1);
  many.back() = -1;
  const std::string large = file("large.bin", raw<std::uint32_t>(many));
  expect_words(refusal({path, large}, {.length = 8, .vocabulary = 60000, .format = TokenFormat::uint32},
                       ErrorKind::configuration),
               {"uint16"});
  expect_words(refusal({large}, {.length = 8, .vocabulary = 1ll << 31, .format = TokenFormat::uint32}),
               {"token number 799999 is 4294967295"});
  expect_words(refusal({file("text", "abc")}, {.length = 1, .vocabulary = 255}), {"text", "255", "256"});
}

TEST_F(TokenDataTest, PatternsGiveTheirFilesInOrderAndNamesStandBeforePatterns) {
  file("s-10", "c");
  file("s-2", "d");
  file("s-1", "b");
  file("s[1]", "x");
  const TokenData data({directory_ + "/s-*", directory_ + "/s[1]"}, {.length = 1, .vocabulary = 256});
  std::string all;
  for (const auto& path : data.files()) all += path.substr(directory_.size()) + " ";
  EXPECT_EQ(all, "/s-1 /s-10 /s-2 /s[1] ");
  expect_words(refusal({directory_ + "/t-*"}, {.vocabulary = 256}, ErrorKind::io),
               {"matches the pattern", "/t-*"});
  expect_words(refusal({directory_ + "/t"}, {.vocabulary = 256}, ErrorKind::io), {"/t", "No such file"});
  expect_words(refusal({directory_}, {.vocabulary = 256}, ErrorKind::io), {directory_, "directory"});
  expect_words(refusal({"/dev/zero"}, {.vocabulary = 256}, ErrorKind::io), {"/dev/zero"});
  // Nobody writes into it, and nobody waits for that.
  const std::string pipe = directory_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_words(refusal({pipe}, {.vocabulary = 256}, ErrorKind::io), {pipe, "save it to a file"});
}

TEST_F(TokenDataTest, TextAndTokensDoNotMix) {
  const std::string text = file("text", "abc"),
                    tokens = file("tokens", header(k16, 1, 2) + raw<std::uint16_t>({1, 2}));
  expect_words(refusal({text, tokens}, {.length = 1, .vocabulary = 300}), {"holds tokens", "holds text"});
  expect_words(refusal({tokens, text}, {.length = 1, .vocabulary = 300}), {"holds text", "holds tokens"});
}

TEST_F(TokenDataTest, AnEpochHasEverySequenceOnceInAnOrderOfItsOwn) {
  constexpr int kLength = 3, kCount = 302;  // 100 sequences, one token over
  const TokenData data({file("t", raw<std::uint16_t>(counting(kCount)))},
                       {.length = kLength, .vocabulary = kCount, .format = TokenFormat::uint16});
  ASSERT_EQ(data.sequences(), 100);
  std::set<Tokens> orders;
  std::set<int> begins;
  for (const std::uint64_t seed : {1u, 2u}) {
    for (const std::int64_t epoch : {0, 1, 2, 3}) {
      const Sequences s = draw(data, seed, 100 * epoch, 100 * kLength);
      Tokens places;
      for (std::size_t i = 0; i < s.tokens.size(); ++i) {
        ASSERT_EQ(s.targets[i], s.tokens[i] + 1);
        if (i % kLength == 0)
          places.push_back(s.tokens[i]);
        else
          ASSERT_EQ(s.tokens[i], s.targets[i - 1]);
      }
      orders.insert(places);
      auto sorted = places;
      std::sort(sorted.begin(), sorted.end());
      EXPECT_NE(sorted, places);
      begins.insert(sorted.front());
      for (std::size_t i = 0; i < sorted.size(); ++i)
        ASSERT_EQ(sorted[i], sorted.front() + kLength * static_cast<int>(i));
      EXPECT_EQ(data.epoch_of(100 * epoch + 99), epoch);
    }
  }
  EXPECT_EQ(orders.size(), 8u);
  EXPECT_EQ(begins, (std::set<int>{0, 1}));  // the token that is left over comes first or last
}

TEST_F(TokenDataTest, TheOrderCanBeContinuedAnywhere) {
  const TokenData data({file("t", raw<std::uint16_t>(counting(1000)))},
                       {.length = 7, .vocabulary = 1000, .format = TokenFormat::uint16});
  const Sequences whole = draw(data, 9, 0, 7 * 500);  // more than three epochs
  for (const std::size_t first : {0u, 1u, 141u, 142u, 143u, 300u, 499u}) {
    const Sequences one = draw(data, 9, static_cast<std::int64_t>(first), 7);
    EXPECT_TRUE(std::equal(one.tokens.begin(), one.tokens.end(),
                           whole.tokens.begin() + static_cast<std::ptrdiff_t>(7 * first)))
        << first;
  }
}

TEST_F(TokenDataTest, ShufflingIsAPermutationOfEverySize) {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4096, 4097}) {
    for (const std::uint32_t epoch : {0u, 1u}) {
      std::set<std::int64_t> seen;
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t place = shuffled(i, size, 42, epoch);
        ASSERT_TRUE(place >= 0 && place < size);
        seen.insert(place);
      }
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), size);
    }
  }
  // Of a trillion sequences too, without a table.
  for (std::int64_t i = 0; i < 100; ++i) {
    const std::int64_t place = shuffled(i, 1'000'000'000'000, 1, 0);
    EXPECT_TRUE(place >= 0 && place < 1'000'000'000'000);
  }
  // Neighbours come apart: about a third of pairs would ascend by chance within a tenth of the whole.
  int close = 0;
  for (std::int64_t i = 0; i + 1 < 10000; ++i) {
    close += std::abs(shuffled(i, 10000, 3, 0) - shuffled(i + 1, 10000, 3, 0)) < 1000;
  }
  EXPECT_NEAR(close, 1900, 200);
}

TEST_F(TokenDataTest, SequencesInOrderCoverTheFilesAcrossTheirBorders) {
  const Tokens all = counting(50);
  const auto part = [&](int first, int last) {
    return raw<std::uint16_t>(Tokens(all.begin() + first, all.begin() + last));
  };
  const std::string empty = header(k16, 1, 0);
  const TokenData data(
      {file("a", header(k16, 1, 3) + part(0, 3)), file("b", empty), file("c", header(k16, 1, 40) + part(3, 43)),
       file("d", header(k32, 1, 7) + raw<std::uint32_t>(Tokens(all.begin() + 43, all.end())))},
      {.length = 7, .vocabulary = 50});
  ASSERT_EQ(data.sequences(), 7);
  Tokens tokens(7), targets(7);
  for (std::int64_t i = 0; i < 7; ++i) {
    data.sequence(i, tokens, targets);
    for (int j = 0; j < 7; ++j) {
      EXPECT_EQ(tokens[static_cast<std::size_t>(j)], 7 * i + j);
      EXPECT_EQ(targets[static_cast<std::size_t>(j)], 7 * i + j + 1);
    }
  }
  EXPECT_THROW(data.sequence(7, tokens, targets), std::logic_error);
  EXPECT_THROW(data.sequence(-1, tokens, targets), std::logic_error);
}

TEST_F(TokenDataTest, EntropyIsThatOfSingleTokens) {
  // Shares 1/2, 1/4, 1/4: (1/2 + 1/2 + 1/2) ln 2. One of the tokens is beyond those counted in a table.
  const std::string path = file("t", raw<std::uint32_t>({7, 7, 3'000'000, 1, 7, 7, 3'000'000, 1}));
  const TokenData data({path}, {.length = 1, .vocabulary = 4'000'000, .format = TokenFormat::uint32});
  EXPECT_NEAR(data.unigram_entropy(), 1.5 * std::log(2.0), 1e-15);
  EXPECT_EQ(TokenData({file("same", "aaaa")}, {.length = 1, .vocabulary = 256}).unigram_entropy(), 0.0);
}

TEST_F(TokenDataTest, RefusesTooLittleWithBothNumbers) {
  const std::string path = file("short", "0123456789");
  EXPECT_NO_THROW(TokenData({path}, {.length = 9, .vocabulary = 256}));
  expect_words(refusal({path}, {.length = 10, .vocabulary = 256}), {"short", "10 bytes", "11"});
  expect_words(refusal({}, {.length = 10, .vocabulary = 256}), {"0 bytes", "11"});
}

TEST_F(TokenDataTest, AFileThatBecomesShorterIsNamed) {
  const std::string path = file("shrinks", std::string(1000, 'x'));
  const TokenData data({path}, {.length = 100, .vocabulary = 256});
  std::filesystem::resize_file(path, 10);
  try {
    draw(data, 1, 0, 100 * 9);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
  }
}

TEST_F(TokenDataTest, TooManyFilesAreRefusedAndNoneStaysOpen) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer itself needs a descriptor to look at memory";
#endif
  for (int i = 0; i < 40; ++i) file("f" + std::to_string(i), "abc");
  const auto open_now = [] {
    int count = 0;
    for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  };
  const int before = open_now();
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit small{.rlim_cur = 30, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
  expect_words(refusal({directory_ + "/f*"}, {.length = 1, .vocabulary = 256}, ErrorKind::io),
               {"Too many open files", "ulimit -n"});
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(open_now(), before);
  EXPECT_EQ(TokenData({directory_ + "/f*"}, {.length = 1, .vocabulary = 256}).tokens(), 120);
}

TEST_F(TokenDataTest, ProgressCountsAllBytes) {
  std::int64_t last = 0, all = 0;
  const TokenData data({file("a", std::string(3 << 20, 'x')), file("b", "yz")},
                       {.length = 1, .vocabulary = 256, .progress = [&](std::int64_t done, std::int64_t total) {
                          EXPECT_GT(done, last);
                          last = done;
                          all = total;
                        }});
  EXPECT_EQ(last, (3 << 20) + 2);
  EXPECT_EQ(all, last);
}

TEST_F(TokenDataTest, RefusesPartsOfASequence) {
  const TokenData data({file("text", "0123456789")}, {.length = 4, .vocabulary = 256});
  Tokens four(4), six(6), eight(8);
  EXPECT_THROW(data.batch(1, 0, six, six), std::logic_error);
  EXPECT_THROW(data.batch(1, 0, four, eight), std::logic_error);
  EXPECT_THROW(data.batch(1, -1, four, four), std::logic_error);
  EXPECT_THROW(token_format("uint8"), std::logic_error);
}

}  // namespace
}  // namespace spillway::models
