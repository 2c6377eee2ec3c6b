// spillway train with its state on drives: the same weights however they are used, what the start block and the
// report say of it, and how a run ends whose drive fails.
#include "../aio/seccomp.h"
#include "program.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/syscall.h>

namespace spillway::cli {
namespace {

using nlohmann::json;

int count_of(const std::string& part, const std::string& text) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class Nvme : public testing::Test {
 protected:
  void SetUp() override {
    text_ = scratch_.write("text.txt", sample_text());
    for (const char* name : {"a", "b"}) std::filesystem::create_directory(scratch_.path(name));
  }

  Outcome train(const std::vector<std::string>& more) { return train_with(example("decoder-tiny.json"), more); }
  Outcome train_with(const std::string& config, const std::vector<std::string>& more) {
    std::vector<std::string> all{
        "train", "--config", config, "--data", text_, "--steps", "2", "--json", scratch_.path("result.json")};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all);
  }
  json row() { return json::parse(read_file(scratch_.path("result.json"))).at(0); }
  std::string hash_of(const std::vector<std::string>& more) {
    const Outcome outcome = train(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return row().at("weights_xxh3");
  }
  std::string expected() {
    return hash_of({"--offload-optimizer", "device", "--offload-parameters", "device"});
  }
  bool io_uring_works() {
    return train({"--nvme-path", scratch_.path("a"), "--io-engine", "io_uring"}).exit_code == 0;
  }
  bool is_clean() {
    return std::filesystem::is_empty(scratch_.path("a")) && std::filesystem::is_empty(scratch_.path("b"));
  }

  Scratch scratch_;
  std::string text_;
};

TEST_F(Nvme, BothEnginesTrainTheSameWeightsHoweverTheDriveIsUsed) {
  const std::string hash = expected();
  const std::string a = scratch_.path("a"), b = scratch_.path("b");
  const std::vector<std::vector<std::string>> ways = {
      {"--nvme-path", a},
      {"--nvme-path", a, "--nvme-path", b, "--nvme-bandwidth", "1", "--nvme-bandwidth", "3", "--checksums",
       "true"},
      {"--nvme-path", a, b, "--direct-io", "false", "--queue-depth", "1", "--block-size", "4096"},
      {"--nvme-path", a, "--io-faults", "short=0.2,interrupt=0.1,delay=0.1,delay_us=300,reorder"}};
  const bool has_io_uring = io_uring_works();
  for (const std::string engine : {"io_uring", "posix"}) {
    if (engine == "io_uring" && !has_io_uring) continue;
    for (auto way : ways) {
      way.insert(way.end(), {"--io-engine", engine});
      EXPECT_EQ(hash_of(way), hash) << engine << " " << way[2];
      EXPECT_EQ(row().at("io").at("engine"), engine);
      EXPECT_EQ(row().at("nvme_resubmissions") > 0, way[2] == "--io-faults");
      EXPECT_EQ(row().at("nvme_copied_bytes"), 0);
    }
  }
  EXPECT_TRUE(is_clean());
  if (!has_io_uring) GTEST_SKIP() << "io_uring is not allowed here: the other engine has been tested";
}

TEST_F(Nvme, TheReportHoldsWhatWasAskedForAndWhatItGot) {
  const Outcome outcome =
      train({"--nvme-path", scratch_.path("a"), "--nvme-path", scratch_.path("b"), "--nvme-bandwidth", "1", "3",
             "--io-engine", "posix", "--queue-depth", "4", "--checksums", "true", "--direct-io", "false"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json config = row().at("config"), io = row().at("io");
  const json paths = {scratch_.path("a"), scratch_.path("b")};
  EXPECT_EQ(config.at("zero_optimization").at("offload_param").at("nvme_path"), paths);
  EXPECT_EQ(config.at("zero_optimization").at("offload_optimizer").at("nvme_path"), paths);
  EXPECT_EQ(config.at("spillway").at("nvme_bandwidth"), json({1, 3}));
  EXPECT_EQ(config.at("spillway").at("checksums"), true);
  EXPECT_EQ(config.at("spillway").at("direct_io"), false);
  EXPECT_EQ(config.at("aio").at("queue_depth"), 4);
  EXPECT_EQ(io.at("engine"), "posix");
  EXPECT_EQ(io.at("queue_depth"), 8);
  EXPECT_EQ(io.at("places").size(), 2u);
  EXPECT_GT(io.at("places").at(1).at("bytes"), io.at("places").at(0).at("bytes"));
  EXPECT_EQ(row().at("tiers").at("host").at("by_name"), row().at("tiers").at("host").at("planned_by_name"));
  EXPECT_GT(row().at("tiers").at("host").at("by_name").at("checksums"), 0);

  for (const std::string part : {"drive       threads, up to 8 operations of 1 MiB at a time",
                                 "through the page cache", "with checksums"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(count_of("on one file system", outcome.out), 1) << outcome.out;
  EXPECT_EQ(outcome.out.find("FAULTS"), std::string::npos);
  // Nothing of it where nothing is on a drive.
  const Outcome resident = train({"--offload-optimizer", "host", "--offload-parameters", "host"});
  EXPECT_TRUE(row().at("io").is_null());
  EXPECT_EQ(resident.out.find("\ndrive "), std::string::npos);
}

TEST_F(Nvme, ADeepSpeedFileMayListSeveralDirectoriesAndATunedOneIsTakenAsItIs) {
  json file = json::parse(read_file(example("decoder-tiny.json")), nullptr, true, true);
  const std::string hash = expected();
  for (const char* place : {"offload_optimizer", "offload_param"}) {
    file["zero_optimization"][place] = {{"device", "nvme"},
                                        {"nvme_path", {scratch_.path("a"), scratch_.path("b")}}};
  }
  file["aio"] = {{"block_size", 1 << 17},
                 {"queue_depth", 8},
                 {"intra_op_parallelism", 1},
                 {"single_submit", false},
                 {"overlap_events", true}};
  file["spillway"]["io_engine"] = "posix";
  file["spillway"]["nvme_bandwidth"] = {2.5, 3.5};
  const Outcome outcome = train_with(scratch_.write("run.json", file.dump()), {});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(row().at("weights_xxh3"), hash);
  EXPECT_EQ(row().at("io").at("places").size(), 2u);
  EXPECT_EQ(row().at("io").at("block_size"), 1 << 17);
  EXPECT_TRUE(is_clean());
}

TEST_F(Nvme, WhereIoUringIsForbiddenThreadsServeAndOneLineSaysSo) {
  Outcome automatic, forced;
  const std::string hash = expected();
  const bool allowed = aio::with_denied({{SYS_io_uring_setup, EPERM}}, [&] {
    forced = train({"--nvme-path", scratch_.path("a"), "--io-engine", "io_uring"});
    automatic = train({"--nvme-path", scratch_.path("a")});
  });
  if (!allowed) GTEST_SKIP() << "seccomp filters are not allowed here";
  ASSERT_EQ(automatic.exit_code, 0) << automatic.err;
  EXPECT_EQ(row().at("io").at("engine"), "posix");
  EXPECT_EQ(row().at("weights_xxh3"), hash);
  EXPECT_EQ(row().at("io").at("notes").size(), 1u) << row().at("io").at("notes");
  EXPECT_NE(automatic.out.find("drive       threads"), std::string::npos) << automatic.out;
  EXPECT_EQ(count_of("io_uring", automatic.out), 1) << automatic.out;
  EXPECT_EQ(forced.exit_code, 4);
  EXPECT_EQ(forced.err.rfind("error: ", 0), 0u) << forced.err;
  EXPECT_NE(forced.err.find("\nhint: "), std::string::npos) << forced.err;
}

TEST_F(Nvme, ADriveThatFailsEndsTheRunWithItsExitCodeAndLeavesNothing) {
  for (const std::string engine : {"auto", "posix"}) {
    for (const auto& [faults, code, part] :
         {std::tuple{"fail=300:EIO", 4, "Input/output error"},
          std::tuple{"fail_from=300:ENOSPC", 3, "No space left on device"}}) {
      SCOPED_TRACE(engine + " " + faults);
      const Outcome outcome = train({"--nvme-path", scratch_.path("a"), "--io-engine", engine, "--io-faults",
                                     faults, "--block-size", "65536"});
      EXPECT_EQ(outcome.exit_code, code) << outcome.out;
      EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u) << outcome.err;
      EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
      EXPECT_NE(outcome.err.find(scratch_.path("a")), std::string::npos) << outcome.err;
      EXPECT_NE(outcome.out.find("FAULTS      THE DRIVE FAILS ON PURPOSE"), std::string::npos) << outcome.out;
      EXPECT_NE(outcome.out.find(faults), std::string::npos) << outcome.out;
      EXPECT_TRUE(is_clean());
      EXPECT_FALSE(std::filesystem::exists(scratch_.path("result.json")));
    }
  }
}

TEST_F(Nvme, ChecksumsEndARunWhoseDriveBringsSomethingElse) {
  const Outcome outcome = train({"--nvme-path", scratch_.path("a"), "--checksums", "true", "--io-faults",
                                 "flip=300", "--block-size", "65536"});
  EXPECT_EQ(outcome.exit_code, 4) << outcome.out;
  EXPECT_NE(outcome.err.find("XXH3"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find(scratch_.path("a")), std::string::npos) << outcome.err;
  EXPECT_TRUE(is_clean());
}

}  // namespace
}  // namespace spillway::cli
