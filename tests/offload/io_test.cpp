// What lies on NVMe gives the same bits however it is read and written, and what goes wrong there is seen.
#include "../../aio/ring.h"
#include "../../core/error.h"
#include "../../offload/engine.h"
#include "../../offload/weights_hash.h"
#include "engine_rig.h"

#include <cerrno>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

constexpr int kSteps = 2;

/// A directory and folders in it, and what the toy model trains to with nothing on a drive.
class Io : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() != "io_uring") return;
    try {
      aio::make_io_uring({});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  std::vector<std::string> folders(int count) {
    std::vector<std::string> paths;
    for (int i = 0; i < count; ++i) {
      paths.push_back(directory_.path() + "/" + std::to_string(i));
      std::filesystem::create_directory(paths.back());
    }
    return paths;
  }
  /// Everything on NVMe, through the engine of this test.
  toy::Run run() const {
    toy::Run run = make_run(Tier::nvme, Tier::nvme, directory_);
    run.config.io_engine = GetParam();
    run.config.accumulation = 1;
    return run;
  }
  void use(toy::Run& run, const std::vector<std::string>& paths) const {
    run.config.parameter_nvme_paths = run.config.optimizer_nvme_paths = paths;
  }
  static std::string train(toy::Trainer& trainer) {
    for (int step = 0; step < kSteps; ++step) trainer.step();
    return weights_xxh3(*trainer.engine);
  }
  static std::string train(const toy::Run& run) {
    toy::Trainer trainer(run);
    return train(trainer);
  }
  std::string expected() const { return train(make_run(Tier::device, Tier::device, directory_)); }
  /// What a run ends with; nothing where it trains to its end. Whatever is called later throws the same.
  std::optional<Error> failure(const toy::Run& run) const {
    std::optional<toy::Trainer> trainer;
    std::optional<Error> first;
    try {
      trainer.emplace(run);
      train(*trainer);
    } catch (const Error& error) {
      first = error;
    }
    if (first && trainer) {
      for (const auto& call : std::vector<std::function<void()>>{
               [&] {
                 trainer->engine->begin_step({toy::groups(1), 1});
               },
               [&] { trainer->engine->gather(0); }, [&] { trainer->engine->drain(); }}) {
        try {
          call();
          ADD_FAILURE() << "a call after the failure works";
        } catch (const Error& error) {
          EXPECT_STREQ(error.what(), first->what());
        }
      }
    }
    return first;
  }
  bool is_clean() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
      if (!entry.is_directory()) return false;
    }
    return true;
  }

  Directory directory_;
};

TEST_P(Io, OneHashHoweverTheDriveIsUsed) {
  const auto three = folders(3);
  struct Variant {
    const char* name;
    int paths = 1;
    std::vector<double> bandwidth = {};
    bool checksums = false, direct = true;
    int depth = 32;
    std::int64_t block = 1 << 20;
  };
  const std::string hash = expected();
  for (const Variant& variant : {
           Variant{.name = "one path"},
           Variant{.name = "three paths", .paths = 3, .bandwidth = {1, 2, 5}},
           Variant{.name = "three paths, measured", .paths = 3},
           Variant{.name = "checksums", .checksums = true},
           Variant{.name = "buffered", .direct = false, .depth = 64},
           Variant{.name = "depth 1", .depth = 1},
           Variant{.name = "blocks of 4 KiB", .depth = 64, .block = 4096},
           Variant{.name = "blocks of 8 MiB", .checksums = true, .depth = 1, .block = 8 << 20},
           Variant{.name = "three paths, checksums, buffered, blocks of 4 KiB",
           .paths = 3,
           .bandwidth = {3, 1, 1},
           .checksums = true,
           .direct = false,
           .depth = 1,
           .block = 4096},
           Variant{.name = "three paths, checksums, blocks of 8 MiB",
           .paths = 3,
           .bandwidth = {1, 1, 1},
           .checksums = true,
           .depth = 64,
           .block = 8 << 20},
       }) {
    SCOPED_TRACE(variant.name);
    toy::Run run = this->run();
    if (variant.paths > 1) use(run, three);
    run.config.nvme_bandwidth = variant.bandwidth;
    run.config.checksums = variant.checksums;
    run.config.direct_io = variant.direct;
    run.config.queue_depth = variant.depth;
    run.config.block_bytes = variant.block;
    toy::Trainer trainer(run);
    EXPECT_EQ(train(trainer), hash);

    const auto io = trainer.engine->io();
    ASSERT_TRUE(io);
    EXPECT_EQ(io->engine, GetParam());
    EXPECT_EQ(io->direct, variant.direct);
    if (GetParam() == "io_uring" && variant.paths == 1) {
      // Refused, it is said.
      EXPECT_EQ(io->registered_files && io->registered_memory, io->notes.empty());
    }
    EXPECT_EQ(io->depth, variant.depth * variant.paths);
    EXPECT_EQ(io->block_bytes, variant.block);
    EXPECT_EQ(io->places.size(), static_cast<std::size_t>(variant.paths));
    EXPECT_EQ(io->checksums > 0, variant.checksums);
    std::int64_t reserved = 0;
    for (const auto& place : io->places) {
      // What is measured here may be so far apart that one of them is left out.
      EXPECT_TRUE(place.bytes > 0 || variant.bandwidth.empty()) << place.directory;
      reserved += place.bytes;
    }
    EXPECT_EQ(reserved, trainer.engine->plan().nvme.total());
    EXPECT_EQ(trainer.engine->counters().nvme_copied_bytes, 0) << "something was not aligned";
    EXPECT_TRUE(is_clean());
  }
}

TEST_P(Io, BytesAreSpreadByTheBandwidths) {
  toy::Run run = this->run();
  use(run, folders(2));
  run.config.nvme_bandwidth = {1, 3};
  toy::Trainer trainer(run);
  const auto io = trainer.engine->io();
  ASSERT_EQ(io->places.size(), 2u);
  const std::int64_t stripe = 1 << 20, all = io->places[0].bytes + io->places[1].bytes;
  EXPECT_NEAR(static_cast<double>(io->places[0].bytes), static_cast<double>(all) / 4, stripe);
}

TEST_P(Io, PlacesMayHaveListsOfTheirOwn) {
  const auto three = folders(3);
  toy::Run run = this->run();
  run.config.optimizer_nvme_paths = {three[0], three[1]};
  run.config.parameter_nvme_paths = {three[1], three[2]};
  run.config.nvme_bandwidth = {1, 2};
  toy::Trainer trainer(run);
  EXPECT_EQ(train(trainer), expected());
  const auto io = trainer.engine->io();
  ASSERT_EQ(io->places.size(), 3u) << "each directory once";
  EXPECT_EQ(io->depth, 3 * run.config.queue_depth);
}

TEST_P(Io, ChecksumsStayWithinWhatIsPlannedForThem) {
  for (const int paths : {1, 3}) {
    toy::Run run = this->run();
    use(run, folders(paths));
    run.config.nvme_bandwidth = std::vector<double>(static_cast<std::size_t>(paths), 1.0);
    EXPECT_EQ(make_plan(toy::layout(), run.config).host.bytes_of("checksums"), 0);
    run.config.checksums = true;
    const std::int64_t planned = make_plan(toy::layout(), run.config).host.bytes_of("checksums");
    run.config.host_memory = least_plan_total(run, Tier::host);
    toy::Trainer trainer(run);
    for (int step = 0; step < 3; ++step) {
      trainer.step();
      EXPECT_LE(trainer.engine->io()->checksums * kChecksumBytes, planned);
    }
    // The plan is no more than what stripes can cut a write into.
    EXPECT_GE(trainer.engine->io()->checksums * kChecksumBytes * (paths > 1 ? 3 : 1), planned);
    EXPECT_EQ(trainer.engine->budget(Tier::host).peaks_by_name().at("checksums"), planned);
    EXPECT_EQ(trainer.engine->budget(Tier::host).peak(), trainer.engine->plan().host.total());
  }
}

TEST_P(Io, FaultsThatLoseNothingChangeNothing) {
  const std::string hash = expected();
  for (const int paths : {1, 3}) {
    for (const std::string faults :
         {"short=0.3,seed=3", "interrupt=0.3,seed=4", "delay=0.3,delay_us=300,reorder",
          "short=0.3,interrupt=0.2,delay=0.2,delay_us=300,reorder,seed=5"}) {
      SCOPED_TRACE(faults + " over " + std::to_string(paths));
      toy::Run run = this->run();
      use(run, folders(paths));
      run.config.nvme_bandwidth = std::vector<double>(static_cast<std::size_t>(paths), 1.0);
      run.config.block_bytes = 64 << 10;
      run.config.checksums = paths > 1;
      run.config.io_faults = faults;
      toy::Trainer trainer(run);
      EXPECT_EQ(train(trainer), hash);
      const bool repeats = faults.find("short") != std::string::npos || faults.starts_with("interrupt");
      EXPECT_EQ(trainer.engine->counters().nvme_resubmissions > 0, repeats);
    }
  }
  EXPECT_TRUE(is_clean());
}

TEST_P(Io, AnOperationThatFailsEndsTheRunWithItsPlaceAndLeavesNothing) {
  for (const auto& [number, kind] : {std::pair{EIO, ErrorKind::io}, std::pair{ENOSPC, ErrorKind::resources}}) {
    for (const char* when : {"fail=1:", "fail=40:", "fail_from=60:"}) {
      toy::Run run = this->run();
      run.config.block_bytes = 64 << 10;
      run.config.io_faults = std::string(when) + (number == EIO ? "EIO" : "ENOSPC");
      SCOPED_TRACE(run.config.io_faults);
      const auto error = failure(run);
      ASSERT_TRUE(error) << "nothing has failed";
      EXPECT_EQ(error->kind(), kind);
      EXPECT_EQ(error->detail().error_number, number);
      EXPECT_EQ(error->detail().path, directory_.path());
      EXPECT_GE(error->detail().offset, 0);
      EXPECT_GT(error->detail().length, 0);
      EXPECT_FALSE(error->detail().operation.empty());
      EXPECT_TRUE(directory_.is_empty());
    }
  }
}

TEST_P(Io, AFileThatEndsEarlyIsAnError) {
  toy::Run run = this->run();
  run.config.io_faults = "eof=20";
  const auto error = failure(run);
  ASSERT_TRUE(error) << "nothing was thrown";
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_EQ(error->detail().operation, "read");
  EXPECT_EQ(error->detail().path, directory_.path());
  EXPECT_TRUE(directory_.is_empty());
}

TEST_P(Io, BitsThatFlipAreFoundByChecksumsAndByNothingElse) {
  const std::string hash = expected();
  bool unnoticed = false;
  for (const int n :
       {400, 420, 440, 460, 480}) {  // after the first writes: zeros that were reserved have no sum
    toy::Run run = this->run();
    run.config.block_bytes = 64 << 10;
    run.config.io_faults = "flip=" + std::to_string(n);
    {
      toy::Trainer trainer(run);
      unnoticed = unnoticed || train(trainer) != hash;  // and no call has thrown
    }
    run.config.checksums = true;
    const auto error = failure(run);
    ASSERT_TRUE(error) << "checksums did not notice that of operation " << n;
    EXPECT_EQ(error->kind(), ErrorKind::io);
    EXPECT_EQ(error->detail().path, directory_.path());
    EXPECT_GE(error->detail().offset, 0);
    const std::string text = error->what();
    const auto digits = [&](std::string_view after) -> std::size_t {
      const auto at = text.find(after);
      if (at == std::string::npos) return 0;
      return text.find_first_not_of("0123456789abcdef", at + after.size()) - (at + after.size());
    };
    EXPECT_EQ(digits("XXH3 is "), 16u) << text;
    EXPECT_EQ(digits("instead of "), 16u) << text;
  }
  EXPECT_TRUE(unnoticed) << "no flipped bit has reached a weight";
}

INSTANTIATE_TEST_SUITE_P(Engines, Io, testing::Values("io_uring", "posix"),
                         [](const auto& engine) { return engine.param; });

TEST(IoReport, IsThereWhereSomethingLiesOnNvmeAndNotesEachThingOnce) {
  Directory directory;
  EXPECT_FALSE(toy::Trainer(make_run(Tier::host, Tier::device, directory)).engine->io());
  toy::Run run = make_run(Tier::nvme, Tier::host, directory);
  EXPECT_TRUE(toy::Trainer(run).engine->io());
  for (const char* name : {"/a", "/b"}) std::filesystem::create_directory(directory.path() + name);
  run.config.parameter_nvme_paths = {directory.path() + "/a", directory.path() + "/b"};
  run.config.nvme_bandwidth = {1, 1};
  run.config.optimizer_tier = Tier::nvme;  // two volumes over the same directories
  run.config.optimizer_nvme_paths = {directory.path() + "/b", directory.path() + "/a"};
  const auto notes = toy::Trainer(run).engine->io()->notes;
  EXPECT_EQ(std::set<std::string>(notes.begin(), notes.end()).size(), notes.size());
  int shared = 0;
  for (const auto& note : notes) shared += note.find("on one file system") != std::string::npos;
  EXPECT_GE(shared, 1);
}

TEST(IoReport, WhatCannotBeReadIsRefusedBeforeAnythingIsReserved) {
  Directory directory;
  for (const Tier tier : {Tier::nvme, Tier::host}) {
    toy::Run run = make_run(tier, tier, directory);
    run.config.io_faults = "shorts=1";
    HostDevice device({run.device_memory, 1});
    SingleRankCommunicator communicator;
    try {
      Engine engine(run.config, toy::layout(), device, communicator);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::configuration);
      EXPECT_NE(std::string(error.what()).find("spillway.io_faults"), std::string::npos) << error.what();
    }
    EXPECT_EQ(device.budget().peak(), 0);
    run.config.io_faults = "";
    run.config.io_engine = "libaio";
    EXPECT_THROW(Engine(run.config, toy::layout(), device, communicator), std::logic_error);
  }
}

}  // namespace
}  // namespace spillway
