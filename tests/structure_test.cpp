// The arrows between folders point one way: a folder includes only those above it in the table of HACKING.md.
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core", {}},
    {"aio", {"core"}},
    {"cpu_adam", {"core"}},
    {"kernels", {"core"}},
    {"offload", {"core", "aio", "cpu_adam", "kernels"}},
    {"models", {"core", "kernels", "offload"}},
    {"cli", {"core", "aio", "cpu_adam", "kernels", "offload", "models"}},
};

std::vector<fs::path> sources(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string extension = entry.path().extension();
    if (extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh")
      found.push_back(entry.path());
  }
  return found;
}

/// What the line includes: the name, and whether it stands in quotation marks. An empty name for another line.
std::pair<std::string, bool> included(const std::string& line) {
  const std::size_t hash = line.find_first_not_of(" \t");
  if (hash == std::string::npos || line[hash] != '#') return {};
  const std::size_t word = line.find_first_not_of(" \t", hash + 1);
  if (word == std::string::npos || line.compare(word, 7, "include") != 0) return {};
  const std::size_t open = line.find_first_of("<\"", word + 7);
  const std::size_t close = open == std::string::npos ? open : line.find_first_of(">\"", open + 1);
  if (close == std::string::npos) return {};
  return {line.substr(open + 1, close - open - 1), line[open] == '"'};
}

TEST(Structure, ArrowsBetweenFoldersPointOneWay) {
  const fs::path root = SPILLWAY_SOURCE_DIR;
  int checked = 0;
  for (const auto& [folder, allowed] : kMayInclude) {
    for (const fs::path& file : sources(root / folder)) {
      std::ifstream stream(file);
      std::string line;
      while (std::getline(stream, line)) {
        const auto [name, is_quoted] = included(line);
        if (name.empty()) continue;
        const bool is_cuda = name.starts_with("cuda") || name.starts_with("cublas") || name.starts_with("nccl");
        EXPECT_FALSE(is_cuda && folder != "core" && folder != "kernels") << file << " includes " << name;
        if (!is_quoted) continue;
        const fs::path target = fs::weakly_canonical(file.parent_path() / name);
        EXPECT_TRUE(fs::exists(target))
            << file << " includes " << name << ", which is not there by that relative path";
        const std::string other = *fs::relative(target, root).begin();
        EXPECT_TRUE(other == folder || allowed.count(other)) << file << " includes " << name << " of " << other;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 50) << "the sources were not found";
}

TEST(Structure, EveryFolderHasTests) {
  const fs::path root = SPILLWAY_SOURCE_DIR;
  for (const auto& [folder, allowed] : kMayInclude) {
    EXPECT_FALSE(sources(root / "tests" / folder).empty()) << folder << " has no tests";
  }
}

}  // namespace
