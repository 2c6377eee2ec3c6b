#include "../../models/named_models.h"

#include "../../models/decoder.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace spillway::models {
namespace {

DecoderConfig named(const std::string& name) {
  for (const NamedModel& model : named_models()) {
    if (model.name == name) return parse_decoder_config(model.json, name);
  }
  throw std::logic_error("no model " + name);
}

TEST(NamedModels, HaveThePublishedNumbersOfParameters) {
  const std::map<std::string, std::int64_t> published{{"decoder-tiny", 0},         {"decoder-25m", 25'039'872},
                                                      {"gpt2", 124'439'808},       {"gpt2-medium", 354'823'168},
                                                      {"gpt2-large", 774'030'080}, {"gpt2-xl", 1'557'611'200}};
  EXPECT_EQ(named_models().size(), published.size());
  for (const auto& [name, count] : published) {
    const Layout layout = decoder_layout(named(name), {.batch = {1, 64}});
    if (count > 0) {
      EXPECT_EQ(layout.parameter_count(), count) << name;
    } else {
      EXPECT_LT(layout.parameter_count(), 1'000'000) << name;
    }
  }
}

TEST(NamedModels, CountTheirOperations) {
  // GPT-2: 84,934,656 weights in the layers' products, 38,597,376 in the head.
  EXPECT_EQ(flops_per_token(named("gpt2"), 1024), 6.0 * (84'934'656 + 38'597'376) + 12.0 * 12 * 768 * 1024);
  const DecoderConfig small{.layers = 1, .heads = 1, .hidden = 2, .positions = 8, .vocabulary = 3, .inner = 5};
  // qkv 2x6, out 2x2, expand 2x5, contract 5x2, head 2x3.
  EXPECT_EQ(flops_per_token(small, 4), 6.0 * (12 + 4 + 10 + 10 + 6) + 12.0 * 1 * 2 * 4);
}

}  // namespace
}  // namespace spillway::models
