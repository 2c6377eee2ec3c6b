#pragma once
// JSON as people write it: with comments, and refused where a key is given twice.
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace spillway {

/// `source` names the text in messages. Comments (// and /* */) are allowed. Throws Error (configuration), one
/// line, with the place for text that is no JSON and with the full dotted key for a key given twice, and for
/// more than 64 levels.
nlohmann::json parse_json(std::string_view text, std::string_view source);

/// The whole of a text file of at most 16 MiB. Throws Error: io where it can't be read, configuration where it
/// is larger.
std::string read_text_file(const std::string& path, std::string_view what);

/// The candidate with the smallest edit distance from `word`, where that is close enough to be a slip of the
/// hand (a third of its letters at most); else empty. Case does not count.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace spillway
