#include "../../models/groups.h"

#include "../../core/error.h"
#include "../../models/decoder.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::models {
namespace {

/// The parameters without decay.
std::set<std::string> exempt(const std::optional<std::vector<std::string>>& patterns) {
  std::vector<UnitSpec> units{{"a", {{"wte.weight", {8, 4}, 7}, {"ln.weight", {4}}, {"ln.bias", {4}}}},
                              {"b", {{"h.0.weight", {4, 4}, 1}, {"h.0.bias", {4}}}}};
  assign_decay_groups(units, patterns);
  std::set<std::string> names;
  for (const auto& unit : units) {
    for (const auto& parameter : unit.parameters) {
      EXPECT_TRUE(parameter.group == 0 || parameter.group == 1);
      if (parameter.group == 1) names.insert(parameter.name);
    }
  }
  return names;
}

using Names = std::set<std::string>;

TEST(DecayGroups, WithoutPatternsBiasesAndNormsDoNotDecay) {
  EXPECT_EQ(exempt(std::nullopt), (Names{"ln.weight", "ln.bias", "h.0.bias"}));
}

TEST(DecayGroups, PatternsTakeThePlaceOfTheDefault) {
  EXPECT_EQ(exempt(std::vector<std::string>{"*.bias"}), (Names{"ln.bias", "h.0.bias"}));
  EXPECT_EQ(exempt(std::vector<std::string>{"wte.weight", "h.?.w*"}), (Names{"wte.weight", "h.0.weight"}));
  EXPECT_EQ(exempt(std::vector<std::string>{"*"}).size(), 5u);
  EXPECT_EQ(exempt(std::vector<std::string>{}), Names{});
}

TEST(DecayGroups, APatternForNothingIsRefusedWithNamesThatExist) {
  for (const std::string pattern : {"*.bais", "bias", ""}) {
    try {
      exempt(std::vector<std::string>{"*.bias", pattern});
      FAIL() << pattern;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::configuration);
      EXPECT_NE(std::string(error.what()).find("\"" + pattern + "\""), std::string::npos) << error.what();
      EXPECT_NE(error.detail().hint.find("wte.weight"), std::string::npos) << error.detail().hint;
    }
  }
}

TEST(DecayGroups, ReachTheDecodersLayout) {
  const DecoderConfig config{
      .layers = 1, .heads = 1, .hidden = 16, .positions = 8, .vocabulary = 32, .inner = 64};
  const auto group = [&](const Layout& layout, const char* name) {
    return layout.parameters()[static_cast<std::size_t>(layout.parameter(name))].group;
  };
  const Layout usual = decoder_layout(config, {.batch = {1, 8}});
  for (const char* name : {"wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_proj.weight"}) {
    EXPECT_EQ(group(usual, name), 0) << name;
  }
  for (const char* name : {"ln_f.weight", "ln_f.bias", "h.0.ln_1.weight", "h.0.attn.c_attn.bias"}) {
    EXPECT_EQ(group(usual, name), 1) << name;
  }
  const Layout other =
      decoder_layout(config, {.batch = {1, 8}, .no_decay = std::vector<std::string>{"w?e.weight"}});
  EXPECT_EQ(group(other, "wpe.weight"), 1);
  EXPECT_EQ(group(other, "ln_f.bias"), 0);
}

}  // namespace
}  // namespace spillway::models
