// Any text as a configuration, as a model's, and as a size.
#include "../../core/config.h"
#include "../../core/json_document.h"
#include "../../core/size.h"
#include "../../models/decoder.h"
#include "../../models/named_models.h"
#include "check.h"

#include <algorithm>
#include <string_view>

#include <nlohmann/json.hpp>

namespace {

using namespace spillway;
using fuzz::check;

/// The configuration names a model's file: that would be read, and fuzzing opens no paths of its making.
bool names_a_file(std::string_view text) {
  try {
    const nlohmann::json document = parse_json(text, "input");
    if (!document.is_object() || !document.contains("spillway")) return false;
    const auto& ours = document["spillway"];
    if (!ours.is_object() || !ours.contains("model") || !ours["model"].is_string()) return false;
    const auto named = models::named_models();
    return std::none_of(named.begin(), named.end(),
                        [&](const NamedModel& model) { return ours["model"] == model.name; });
  } catch (const Error&) {
    return false;
  }
}

void read_configuration(std::string_view text, bool allow_unknown_keys) {
  const auto named = models::named_models();
  const Config config =
      parse_config(text, "input", {.models = named, .allow_unknown_keys = allow_unknown_keys});
  for (const auto* lines : {&config.assumed, &config.notes}) {
    for (const std::string& line : *lines) check(line.find('\n') == std::string::npos, "a note is one line");
  }
  const std::string written = to_json(config);
  // What was accepted is accepted again: nothing may be thrown from here on.
  try {
    const Config again = parse_config(written, "written", {.models = named});
    check(again.assumed.empty(), "what is written leaves nothing to assume");
    check(to_json(again) == written, "what is written is read as the same");
  } catch (const Error& error) {
    check(false, error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  if (names_a_file(text)) return -1;  // not worth a place in the corpus
  for (const bool allow_unknown_keys : {false, true}) {
    fuzz::only_errors_of_ours([&] { read_configuration(text, allow_unknown_keys); });
  }
  fuzz::only_errors_of_ours([&] {
    const models::DecoderConfig model = models::parse_decoder_config(text, "input");
    check(model.heads > 0 && model.hidden % model.heads == 0, "heads divide the width");
    check(model.vocabulary > 0 && model.positions > 0 && model.layers > 0 && model.inner > 0,
          "sizes are positive");
    check(model.epsilon > 0 && model.initializer_range > 0, "epsilon and initializer_range are positive");
  });
  fuzz::only_errors_of_ours([&] {
    const std::int64_t bytes_meant = parse_size(text, "input");
    check(bytes_meant >= 0 && bytes_meant < std::int64_t{1} << 62, "a size is from 0 to below 2^62");
    format_size(bytes_meant);
  });
  return 0;
}
