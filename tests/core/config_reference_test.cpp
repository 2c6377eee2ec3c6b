// docs/configuration.md lists every key, and nothing else. SPILLWAY_UPDATE_DOCS=1 writes its tables anew.
#include "../../core/config.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

constexpr const char* kBegin =
    "<!-- tables: made from the keys themselves, see tests/core/config_reference_test.cpp -->\n";

std::string file() {
  std::ifstream stream(SPILLWAY_DOCS "/configuration.md");
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::string tables() {
  const std::vector<std::pair<KeyEffect, std::string>> titles = {
      {KeyEffect::used,
       "## Keys with an effect\n\nWhat is taken where a key is absent stands in brackets.\n\n| key | values | "
       "what it does |\n|---|---|---|\n"},
      {KeyEffect::later,
       "\n## Keys that are checked, and have no effect as yet\n\nThey are for several ranks, a GPU, or parts "
       "that are not built. The start block names those that ask for something.\n\n| key | values | what it is "
       "about |\n|---|---|---|\n"},
      {KeyEffect::ignored,
       "\n## Keys that are accepted and have no effect here\n\nWith everything inside them. The start block "
       "names those that were given.\n\n| key | why |\n|---|---|\n"},
      {KeyEffect::refused,
       "\n## Keys that are refused when they are switched on\n\n`false`, `null`, `\"none\"`, 0, 1 and "
       "`{\"enabled\": false}` are off.\n\n| key | why |\n|---|---|\n"},
  };
  std::string text;
  for (const auto& [effect, title] : titles) {
    text += title;
    for (const KeyInfo& key : config_keys()) {
      if (key.effect != effect) continue;
      const bool has_values = effect == KeyEffect::used || effect == KeyEffect::later;
      text += "| `" + key.path + "` | " + (has_values ? key.values + " | " : "") + key.help + " |\n";
    }
  }
  return text;
}

TEST(ConfigurationReference, ListsEveryKeyAsTheCodeHasIt) {
  const std::string text = file();
  const auto begin = text.find(kBegin);
  ASSERT_NE(begin, std::string::npos);
  const std::string head = text.substr(0, begin) + kBegin;
  if (std::getenv("SPILLWAY_UPDATE_DOCS") != nullptr) {
    std::ofstream(SPILLWAY_DOCS "/configuration.md") << head << tables();
    GTEST_SKIP() << "written anew";
  }
  EXPECT_EQ(text, head + tables());
}

TEST(ConfigurationReference, EveryKeyIsExplainedOnce) {
  std::set<std::string> seen;
  for (const KeyInfo& key : config_keys()) {
    EXPECT_TRUE(seen.insert(key.path).second) << key.path;
    EXPECT_FALSE(key.help.empty()) << key.path;
    EXPECT_FALSE(key.values.empty()) << key.path;
    EXPECT_EQ((key.help + key.values).find('|'), std::string::npos) << key.path;
  }
  EXPECT_GT(seen.size(), 100u);
}

}  // namespace
}  // namespace spillway
