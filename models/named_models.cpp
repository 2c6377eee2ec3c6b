#include "named_models.h"

#include <vector>

#include <fmt/format.h>

namespace spillway::models {
namespace {

NamedModel gpt2(const char* name, int layers, int heads, int width) {
  return {name, fmt::format(R"({{"model_type": "gpt2", "n_layer": {}, "n_head": {}, "n_embd": {}, )"
                            R"("n_positions": 1024, "vocab_size": 50257}})",
                            layers, heads, width)};
}

}  // namespace

std::span<const NamedModel> named_models() {
  static const std::vector<NamedModel> models = {
      {"decoder-tiny", R"({"model_type": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 128, "n_positions": 64, )"
                       R"("vocab_size": 256})"},
      {"decoder-25m",
       R"({"model_type": "gpt2", "n_layer": 14, "n_head": 6, "n_embd": 384, "n_positions": 256, )"
       R"("vocab_size": 256, "initializer_range": 0.05})"},
      gpt2("gpt2", 12, 12, 768),
      gpt2("gpt2-medium", 24, 16, 1024),
      gpt2("gpt2-large", 36, 20, 1280),
      gpt2("gpt2-xl", 48, 25, 1600),
  };
  return models;
}

}  // namespace spillway::models
