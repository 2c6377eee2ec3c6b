#include "../../models/text_data.h"

#include "../../core/error.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <gtest/gtest.h>

namespace spillway::models {
namespace {

class TextDataTest : public ::testing::Test {
 protected:
  TextDataTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "spillway-text-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  ~TextDataTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  std::string file(const std::string& name, const std::string& text) const {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string directory_;
};

struct Sequences {
  std::vector<std::int32_t> tokens, targets;
};

Sequences draw(const TextData& data, std::uint64_t seed, std::int64_t first, std::size_t count) {
  Sequences s{std::vector<std::int32_t>(count), std::vector<std::int32_t>(count)};
  data.batch(seed, first, s.tokens, s.targets);
  return s;
}

TEST_F(TextDataTest, ConcatenatesFilesAsBytes) {
  const TextData data({file("a", "ab"), file("b", ""), file("c", std::string("\xff\0", 2))}, 3);
  EXPECT_EQ(data.size(), 4);
  const Sequences s = draw(data, 1, 0, 3);
  EXPECT_EQ(s.tokens, (std::vector<std::int32_t>{'a', 'b', 255}));  // the only place
  EXPECT_EQ(s.targets, (std::vector<std::int32_t>{'b', 255, 0}));
}

TEST_F(TextDataTest, ReadsFilesOfSeveralPieces) {
  std::string text((3 << 20) + 17, 'x');
  text.back() = 'y';
  const TextData data({file("large", text)}, static_cast<std::int64_t>(text.size()) - 1);
  EXPECT_EQ(data.size(), static_cast<std::int64_t>(text.size()));
  const Sequences s = draw(data, 1, 0, text.size() - 1);
  EXPECT_EQ(s.targets.back(), 'y');
}

TEST_F(TextDataTest, EveryTargetIsTheNextTokenAndEveryPlaceIsDrawn) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i);
  constexpr std::size_t kLength = 8;
  const TextData data({file("counting", text)}, kLength);
  const Sequences s = draw(data, 4, 0, kLength * 4000);
  std::vector<int> begins(text.size() - kLength);
  for (std::size_t i = 0; i < s.tokens.size(); ++i) {
    ASSERT_EQ(s.targets[i], s.tokens[i] + 1);
    if (i % kLength == 0) {
      ++begins.at(static_cast<std::size_t>(s.tokens[i]));
    } else {
      ASSERT_EQ(s.tokens[i], s.targets[i - 1]);
    }
  }
  EXPECT_GT(*std::ranges::min_element(begins), 0);  // 192 places, 4000 draws: each about 21 times
  EXPECT_LT(*std::ranges::max_element(begins), 50);
}

TEST_F(TextDataTest, OrderFollowsFromSeedAndNumberAlone) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += static_cast<char>((i * 7 + i / 250) % 251);
  constexpr std::size_t kLength = 16;
  const TextData data({file("text", text)}, kLength);
  const Sequences whole = draw(data, 9, 100, kLength * 12);
  for (std::size_t i = 0; i < 12; i += 3) {
    const Sequences part = draw(data, 9, 100 + static_cast<std::int64_t>(i), kLength * 3);
    const auto begin = static_cast<std::ptrdiff_t>(i * kLength),
               size = static_cast<std::ptrdiff_t>(3 * kLength);
    EXPECT_TRUE(std::equal(part.tokens.begin(), part.tokens.end(), whole.tokens.begin() + begin,
                           whole.tokens.begin() + begin + size));
  }
  EXPECT_NE(draw(data, 10, 100, kLength * 12).tokens, whole.tokens);
  EXPECT_NE(draw(data, 9, 101, kLength * 12).tokens, whole.tokens);
}

TEST_F(TextDataTest, EntropyIsThatOfSingleBytes) {
  // Shares 1/2, 1/4, 1/4: (1/2 + 1/2 + 1/2) ln 2.
  const TextData data({file("text", "aabcaabc")}, 1);
  EXPECT_NEAR(data.unigram_entropy(), 1.5 * std::log(2.0), 1e-15);
  EXPECT_EQ(TextData({file("same", "aaaa")}, 1).unigram_entropy(), 0.0);
}

TEST_F(TextDataTest, NamesTheFileItCannotRead) {
  for (const std::string& path : {directory_ + "/missing", directory_}) {
    try {
      TextData({path}, 1);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::io);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
      EXPECT_NE(error.detail().error_number, 0);
    }
  }
}

TEST_F(TextDataTest, RefusesTooLittleTextWithBothNumbers) {
  const std::string path = file("short", "0123456789");
  EXPECT_NO_THROW(TextData({path}, 9));
  for (const auto& files : {std::vector<std::string>{path}, std::vector<std::string>{}}) {
    try {
      TextData(files, 10);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::configuration);
      const std::string message = error.what();
      EXPECT_NE(message.find(files.empty() ? "has 0 bytes" : "has 10 bytes"), std::string::npos) << message;
      EXPECT_NE(message.find("11"), std::string::npos) << message;
    }
  }
}

TEST_F(TextDataTest, RefusesPartsOfASequence) {
  const TextData data({file("text", "0123456789")}, 4);
  std::vector<std::int32_t> four(4), six(6), eight(8);
  EXPECT_THROW(data.batch(1, 0, six, six), std::logic_error);
  EXPECT_THROW(data.batch(1, 0, four, eight), std::logic_error);
  EXPECT_THROW(data.batch(1, -1, four, four), std::logic_error);
}

}  // namespace
}  // namespace spillway::models
