#pragma once
// What the tests of the engine share beside the toy model: a directory for swap files, and runs in a placement.
#include "../../offload/plan.h"
#include "toy_model.h"

#include <bit>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

namespace spillway {

/// A directory on the build's own file system (a memory file system can't hold swap), empty again at the end.
class Directory {
 public:
  Directory() {
    const char* base = std::getenv("SPILLWAY_TEST_DIR");
    path_ = (base != nullptr ? std::filesystem::path(base) : std::filesystem::current_path()) /
            ("engine_test_" + std::to_string(getpid()));
    std::filesystem::create_directory(path_);
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }
  bool is_empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

inline toy::Run make_run(Tier parameters, Tier optimizer, const Directory& directory) {
  toy::Run run;
  run.config.parameter_tier = parameters;
  run.config.optimizer_tier = optimizer;
  run.config.parameter_nvme_paths = run.config.optimizer_nvme_paths = {directory.path()};
  run.config.update_threads = 1;
  run.config.gradient_clipping = 1.0;
  return run;
}

inline std::int64_t least_plan_total(const toy::Run& run, Tier tier) {
  return least_plan(toy::layout(), run.config).of(tier).total();
}

inline void expect_same(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b,
                        const Layout& layout) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t p = 0; p < a.size(); ++p) {
    ASSERT_EQ(a[p].size(), b[p].size()) << layout.parameters()[p].name;
    for (std::size_t i = 0; i < a[p].size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(a[p][i]), std::bit_cast<std::uint32_t>(b[p][i]))
          << layout.parameters()[p].name << "[" << i << "] " << a[p][i] << " " << b[p][i];
    }
  }
}

}  // namespace spillway
