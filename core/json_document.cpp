#include "json_document.h"

#include "error.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace spillway {
namespace {

using nlohmann::json;

/// Writing and copying a document is recursive, and a configuration is a few levels deep.
constexpr int kMostLevels = 64;

/// The library's messages begin with "[json.exception.parse_error.101] parse error at ".
std::string without_prefix(std::string message) {
  if (const auto end = message.find("] "); message.starts_with('[') && end != std::string::npos) {
    message.erase(0, end + 2);
  }
  if (constexpr std::string_view error = "parse error at "; message.starts_with(error))
    message.erase(0, error.size());
  return message;
}

/// The keys on the way from the root to where the parser is, each with those seen beside it.
class KeysGiven {
 public:
  void open() { levels_.emplace_back(); }
  void close() { levels_.pop_back(); }
  /// False where the key was given before in the same object.
  bool add(const std::string& key) {
    levels_.back().current = key;
    return levels_.back().seen.insert(key).second;
  }
  std::string dotted() const {
    std::string path;
    for (const auto& level : levels_) {
      if (!path.empty()) path += '.';
      path += level.current;
    }
    return path;
  }

 private:
  struct Level {
    std::string current;
    std::set<std::string> seen;
  };
  std::vector<Level> levels_;
};

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
      const std::size_t change = diagonal + (lower(a[i - 1]) != lower(b[j - 1]) ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

json parse_json(std::string_view text, std::string_view source) {
  KeysGiven keys;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth >= kMostLevels) {
      throw Error(ErrorKind::configuration,
                  fmt::format("{}: objects and lists are more than {} deep", source, kMostLevels));
    }
    if (event == json::parse_event_t::object_start) keys.open();
    if (event == json::parse_event_t::object_end) keys.close();
    if (event == json::parse_event_t::key && !keys.add(parsed.get_ref<const std::string&>())) {
      throw Error(ErrorKind::configuration, fmt::format("{}: {} is given twice", source, keys.dotted()),
                  {.hint = "keep one of the two"});
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const json::exception& failure) {
    throw Error(ErrorKind::configuration,
                fmt::format("{}: not JSON: {}", source, without_prefix(failure.what())));
  }
}

std::string read_text_file(const std::string& path, std::string_view what) {
  constexpr std::size_t kMost = 16u << 20;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  std::string text(file != nullptr ? kMost + 1 : 0, '\0');
  const std::size_t bytes = file != nullptr ? std::fread(text.data(), 1, text.size(), file.get()) : 0;
  if (file == nullptr || std::ferror(file.get()) != 0) {
    throw Error(ErrorKind::io, fmt::format("cannot read the {}", what),
                {.operation = file == nullptr ? "open" : "read",
                 .path = path,
                 .error_number = errno,
                 .hint = "name a file that is there and can be read"});
  }
  text.resize(bytes);
  if (text.size() > kMost) {
    throw Error(ErrorKind::configuration, fmt::format("the {} {} is larger than 16 MiB", what, path));
  }
  return text;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t smallest = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const auto& candidate : candidates) {
    // A word may be as long as a file; no distance is smaller than the difference in length.
    if (std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size()) >= smallest) continue;
    if (const std::size_t distance = edit_distance(word, candidate); distance < smallest) {
      smallest = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace spillway
