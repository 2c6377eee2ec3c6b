#include "machine.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include <sched.h>

namespace spillway {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

/// The words of a file's first line; none where it can't be read.
std::vector<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line, word;
  std::getline(file, line);
  std::istringstream stream(line);
  std::vector<std::string> words;
  while (stream >> word) words.push_back(word);
  return words;
}

std::optional<std::int64_t> first_number(const std::string& path) {
  const auto words = first_line(path);
  return words.empty() ? std::nullopt : number(words.front());
}

/// The number behind a name in a file of "name value" or "name: value kB" lines.
std::optional<std::int64_t> named_number(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, value;
    if (words >> word >> value && word == name) return number(value);
  }
  return std::nullopt;
}

/// The directories of the groups that this process is in under one controller ("" is version 2), from its own
/// up to the root. A container may see its own group as the root while /proc names the path outside.
std::vector<std::string> groups(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "0::/path" or "4:cpu,cpuacct:/path"
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const bool match = controller.empty()
                           ? names.empty()
                           : ("," + names + ",").find("," + controller + ",") != std::string::npos;
    if (!match) continue;
    const std::string mount = root + "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + controller);
    std::vector<std::string> directories;
    for (std::string path = line.substr(second + 1); path.size() > 1 && path.front() == '/';
         path.erase(path.rfind('/'))) {
      directories.push_back(mount + path);
    }
    directories.push_back(mount);
    return directories;
  }
  return {};
}

struct GroupMemory {
  std::int64_t limit = kUnlimited, available = kUnlimited;

  /// Pages of files are given back when memory is asked for.
  void add(std::int64_t its_limit, std::int64_t used, std::int64_t file_pages) {
    limit = std::min(limit, its_limit);
    available = std::min(available,
                         std::max<std::int64_t>(its_limit - std::max<std::int64_t>(used - file_pages, 0), 0));
  }
};

GroupMemory group_memory(const std::string& root) {
  GroupMemory memory;
  for (const auto& group : groups(root, "")) {
    const std::int64_t pages = named_number(group + "/memory.stat", "inactive_file").value_or(0) +
                               named_number(group + "/memory.stat", "active_file").value_or(0);
    for (const char* limit : {"/memory.max", "/memory.high"}) {  // "max": none
      if (const auto bytes = first_number(group + limit))
        memory.add(*bytes, first_number(group + "/memory.current").value_or(0), pages);
    }
  }
  for (const auto& group : groups(root, "memory")) {
    const std::int64_t pages = named_number(group + "/memory.stat", "total_inactive_file").value_or(0) +
                               named_number(group + "/memory.stat", "total_active_file").value_or(0);
    // Without a limit this is a number near 2^63.
    if (const auto bytes = first_number(group + "/memory.limit_in_bytes");
        bytes && *bytes < (std::int64_t{1} << 60)) {
      memory.add(*bytes, first_number(group + "/memory.usage_in_bytes").value_or(0), pages);
    }
  }
  return memory;
}

/// Processors that a quota of `quota` in every `period` microseconds is worth.
void apply_quota(int& processors, std::optional<std::int64_t> quota, std::optional<std::int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  processors = static_cast<int>(std::min<std::int64_t>(processors, *quota / *period + (*quota % *period != 0)));
}

}  // namespace

MachineMemory machine_memory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  MachineMemory memory;
  memory.total = named_number(meminfo, "MemTotal:").value_or(0) * 1024;
  memory.available = named_number(meminfo, "MemAvailable:").value_or(0) * 1024;
  const GroupMemory group = group_memory(root);
  memory.is_limited = group.available < memory.available;
  memory.total = std::min(memory.total, group.limit);
  memory.available = std::min(memory.available, group.available);
  return memory;
}

int available_processors(const std::string& root) {
  cpu_set_t set;
  int processors = sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
  for (const auto& group : groups(root, "")) {
    const auto words = first_line(group + "/cpu.max");  // "200000 100000", "max 100000"
    if (words.size() == 2) apply_quota(processors, number(words[0]), number(words[1]));
  }
  for (const auto& group : groups(root, "cpu")) {
    apply_quota(processors, first_number(group + "/cpu.cfs_quota_us"),
                first_number(group + "/cpu.cfs_period_us"));
  }
  return std::max(processors, 1);
}

std::int64_t memory_without_margin(std::int64_t available) {
  return std::max<std::int64_t>(available - std::max<std::int64_t>(available / 16, std::int64_t{128} << 20), 0);
}

}  // namespace spillway
