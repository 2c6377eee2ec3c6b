#include "system_files.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <system_error>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::aio {
namespace {

namespace fs = std::filesystem;

/// "\040" is a space: the mount table writes white space and backslashes so.
std::string unescaped(std::string_view text) {
  const auto octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && octal(text[i + 1]) && octal(text[i + 2]) &&
        octal(text[i + 3])) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

/// Those of the mount's line, then what the file system adds.
std::string merged_options(const std::string& of_mount, const std::string& of_file_system) {
  std::vector<std::string> all = split(of_mount, ',');
  for (const std::string& option : split(of_file_system, ',')) {
    // A mount may be read-only where its file system is not; never the other way round.
    if (option == "rw" || option.empty() || std::find(all.begin(), all.end(), option) != all.end()) continue;
    all.push_back(option);
  }
  return fmt::format("{}", fmt::join(all, ","));
}

bool is_below(const std::string& path, const std::string& point) {
  if (point == "/") return path.starts_with('/');
  return path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
}

}  // namespace

std::string read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
  const auto begin = std::find_if(line.begin(), line.end(),
                                  [](char c) { return !std::isspace(static_cast<unsigned char>(c)); });
  line.erase(line.begin(), begin);
  return line;
}

std::optional<std::int64_t> read_number(const fs::path& path) {
  const std::string line = read_line(path);
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (failure != std::errc{} || end == line.data()) return std::nullopt;
  return value;
}

bool is_there(const fs::path& path) {
  std::error_code failure;
  return fs::exists(path, failure);
}

fs::path real_path(const fs::path& path) {
  std::error_code failure;
  const fs::path end = fs::canonical(path, failure);
  return failure ? fs::path() : end;
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code failure;
  for (auto entry = fs::directory_iterator(directory, failure); !failure && entry != fs::directory_iterator();
       entry.increment(failure)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  });
  return names;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::vector<Mount> mount_table(const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  // "36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue", with any number of optional
  // fields before the dash.
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = split(line, ' ');
    const auto dash =
        std::find(words.begin() + std::min<std::ptrdiff_t>(6, std::ssize(words)), words.end(), "-");
    if (words.end() - dash < 3) continue;
    mounts.push_back({.device = words[2],
                      .point = unescaped(words[4]),
                      .type = unescaped(dash[1]),
                      .source = unescaped(dash[2]),
                      .options = merged_options(words[5], words.end() - dash > 3 ? unescaped(dash[3]) : "")});
  }
  return mounts;
}

const Mount* mount_of(const std::vector<Mount>& mounts, const std::string& device, const std::string& path) {
  const Mount* best = nullptr;
  std::tuple<bool, bool, std::size_t> best_rank;
  for (const Mount& mount : mounts) {
    const bool same = mount.device == device, below = is_below(path, mount.point);
    if (!same && !below) continue;
    const std::tuple rank(same, below, below ? mount.point.size() : 0);
    if (best != nullptr && rank < best_rank) continue;  // of two on one point the later one is seen
    best = &mount;
    best_rank = rank;
  }
  return best;
}

}  // namespace spillway::aio
