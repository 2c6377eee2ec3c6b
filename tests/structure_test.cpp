// The arrows between folders point one way: a folder includes only those above it in the table of HACKING.md.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
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

TEST(Structure, ArrowsBetweenFoldersPointOneWay) {
  const fs::path root = SPILLWAY_SOURCE_DIR;
  const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  int checked = 0;
  for (const auto& [folder, allowed] : kMayInclude) {
    for (const fs::path& file : sources(root / folder)) {
      std::ifstream stream(file);
      std::string line;
      while (std::getline(stream, line)) {
        std::smatch match;
        if (!std::regex_search(line, match, include)) continue;
        const std::string name = match[2];
        const bool is_cuda = name.starts_with("cuda") || name.starts_with("cublas") || name.starts_with("nccl");
        EXPECT_FALSE(is_cuda && folder != "core" && folder != "kernels") << file << " includes " << name;
        if (match[1] == "<") continue;
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
