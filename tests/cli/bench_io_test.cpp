// spillway bench io: its fields agree with one another, it destroys nothing that it was not told to, it leaves
// nothing behind, and what cannot be measured is refused. Speeds are not tested.
#include "../../cli/io_jobs.h"
#include "program.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/utsname.h>

namespace spillway::cli {
namespace {

using nlohmann::json;

constexpr std::int64_t MiB = std::int64_t{1} << 20;

class BenchIo : public testing::Test {
 protected:
  void SetUp() override {
    struct statfs status {};
    if (statfs(scratch_.root().c_str(), &status) != 0) GTEST_SKIP() << "statfs failed";
    if (status.f_type == TMPFS_MAGIC) GTEST_SKIP() << "the build is in memory, and drives are measured here";
    std::filesystem::create_directory(directory());
  }
  /// Where the volumes lie; what else a test makes lies beside it.
  std::string directory() const { return scratch_.path("drive"); }

  /// Small and short where `more` does not say otherwise.
  std::vector<std::string> bench_with(const std::vector<std::string>& more) const {
    std::vector<std::string> all{"bench", "io"};
    const auto given = [&](const char* flag) {
      return std::any_of(more.begin(), more.end(),
                         [&](const std::string& one) { return one.rfind(flag, 0) == 0; });
    };
    const std::vector<std::pair<std::string, std::string>> usual{{"--path", directory()},
                                                                 {"--size", "16M"},
                                                                 {"--block-size", "64K"},
                                                                 {"--queue-depth", "8"},
                                                                 {"--seconds", "0.05"}};
    for (const auto& [flag, value] : usual) {
      if (!given(flag.c_str()) && !(flag == "--size" && given("--overwrite")))
        all.insert(all.end(), {flag, value});
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// Runs it, expects success and gives the rows of --json.
  json rows(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = bench_with(more);
    arguments.insert(arguments.end(), {"--json", scratch_.path("rows.json")});
    outcome_ = run_program(arguments);
    EXPECT_EQ(outcome_.exit_code, 0) << outcome_.err;
    EXPECT_EQ(outcome_.err, "");
    EXPECT_TRUE(std::filesystem::is_empty(directory()));
    if (outcome_.exit_code != 0) return json::array();
    return json::parse(read_file(scratch_.path("rows.json")));
  }
  void refused(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& parts) {
    const Outcome outcome = run_program(arguments);
    std::string command;
    for (const auto& argument : arguments) command += argument + " ";
    SCOPED_TRACE(command + "\n" + outcome.err);
    EXPECT_EQ(outcome.exit_code, code);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u);
    EXPECT_NE(outcome.err.find("\nhint: "), std::string::npos);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 2);
    for (const auto& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << "missing: " << part;
    EXPECT_TRUE(std::filesystem::is_empty(directory()));
  }
  std::string file_of(std::int64_t bytes, char content = 'x') const {
    return scratch_.write("file", std::string(static_cast<std::size_t>(bytes), content));
  }

  Scratch scratch_;
  Outcome outcome_;
};

std::vector<std::string> modes_of(const json& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.push_back(row.at("mode"));
  return names;
}

TEST_F(BenchIo, GivesAFlatRowForEveryModeWhoseFieldsAgree) {
  const json all = rows({"--seconds", "0.4"});
  ASSERT_EQ(modes_of(all), (std::vector<std::string>{"read", "write", "mixed"}));
  utsname name{};
  ASSERT_EQ(uname(&name), 0);
  for (const json& row : all) {
    SCOPED_TRACE(row.dump(1));
    for (const auto& [key, value] : row.items()) EXPECT_TRUE(value.is_primitive() || key == "machine") << key;
    EXPECT_EQ(row.at("version"), SPILLWAY_VERSION);
    EXPECT_EQ(row.at("format_version"), 1);
    EXPECT_EQ(row.at("command"), "bench io");
    EXPECT_GT(row.at("machine").at("processors"), 0);
    EXPECT_TRUE(row.at("engine") == "io_uring" || row.at("engine") == "posix");
    EXPECT_EQ(row.at("engine_asked"), "auto");
    EXPECT_EQ(row.at("block_size"), 64 * 1024);
    EXPECT_EQ(row.at("queue_depth"), 8);
    EXPECT_EQ(row.at("jobs"), 1);
    EXPECT_TRUE(row.at("job").is_null());
    EXPECT_EQ(row.at("direct"), true);
    EXPECT_EQ(row.at("verified"), true);
    EXPECT_EQ(row.at("size"), 16 * MiB);
    EXPECT_EQ(row.at("seconds"), 0.4);
    EXPECT_EQ(row.at("kernel"), name.release);
    EXPECT_FALSE(row.at("drive").get<std::string>().empty());
    EXPECT_FALSE(row.at("filesystem").get<std::string>().empty());
    const double seconds = row.at("timed_seconds"), read = row.at("read_bytes"),
                 written = row.at("written_bytes");
    EXPECT_GE(seconds, 0.4);
    EXPECT_NEAR(row.at("gb_per_s"), (read + written) / seconds * 1e-9, 1e-9);
    EXPECT_NEAR(row.at("read_gb_per_s"), read / seconds * 1e-9, 1e-9);
    EXPECT_NEAR(row.at("write_gb_per_s"), written / seconds * 1e-9, 1e-9);
    EXPECT_NEAR(row.at("iops"), (read + written) / 65536 / seconds, 1e-6 * row.at("iops").get<double>());
    EXPECT_NEAR(row.at("cpu_s_per_gb"), row.at("cpu_seconds").get<double>() / (1e-9 * (read + written)), 1e-9);
    EXPECT_GT(row.at("cpu_s_per_gb"), 0.0);
    const double p50 = row.at("p50_us"), p99 = row.at("p99_us"), p999 = row.at("p999_us");
    EXPECT_GT(p50, 0.0);
    EXPECT_LE(p50, p99);
    EXPECT_LE(p99, p999);
    EXPECT_GE(row.at("spread"), 0.0);
    EXPECT_EQ(read > 0, row.at("mode") != "write");
    EXPECT_EQ(written > 0, row.at("mode") != "read");
  }
  const double both = all.at(2).at("read_bytes");
  EXPECT_NEAR(both, all.at(2).at("written_bytes").get<double>(), 4.0 * MiB);
}

TEST_F(BenchIo, SaysWhatItDoesInOrder) {
  rows({});
  std::size_t place = 0;
  for (const std::string& part :
       {std::string("spillway " SPILLWAY_VERSION), std::string("machine"), directory(), std::string("drive"),
        std::string("file system"), std::string("16 MiB, in files without a name"),
        std::string("in blocks of 64 KiB, 8 in flight, direct"), std::string("engine"), std::string("GB/s"),
        std::string("\nread "), std::string("\nwrite "), std::string("\nmixed "),
        std::string("Written in all: ")}) {
    place = outcome_.out.find(part, place);
    ASSERT_NE(place, std::string::npos) << part << " is missing, or not after the one before it:\n"
                                        << outcome_.out;
  }
  EXPECT_EQ(outcome_.out.find('\r'), std::string::npos);  // no line of progress where there is no terminal
}

TEST_F(BenchIo, FlagsHaveTheirEffect) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(modes_of(rows({"--mode", "mixed,read"})), (Names{"mixed", "read"}));
  EXPECT_EQ(modes_of(rows({"--mode", "write", "--mode", "write"})), Names{"write"});
  const json posix = rows({"--engine", "posix", "--mode", "read"});
  EXPECT_EQ(posix.at(0).at("engine"), "posix");
  EXPECT_NE(outcome_.out.find("engine      posix"), std::string::npos) << outcome_.out;
  const json buffered = rows({"--direct", "off", "--mode", "mixed"});
  EXPECT_EQ(buffered.at(0).at("direct"), false);
  EXPECT_NE(outcome_.out.find("page cache"), std::string::npos);
  const json other = rows({"--block-size", "128K", "--queue-depth", "3", "--transfer-size", "1M", "--size",
                           "24M", "--mode", "read"});
  EXPECT_EQ(other.at(0).at("block_size"), 128 * 1024);
  EXPECT_EQ(other.at(0).at("queue_depth"), 3);
  EXPECT_EQ(other.at(0).at("transfer_size"), MiB);
  EXPECT_EQ(other.at(0).at("size"), 24 * MiB);
  for (const std::string flag : {"--sqpoll", "--iopoll"}) {  // granted, or a note says why not
    const json polled = rows({flag, "--mode", "read"});
    if (polled.at(0).at(flag.substr(2)) == false) {
      EXPECT_NE(outcome_.out.find("\nnote "), std::string::npos) << outcome_.out;
    }
  }
}

TEST_F(BenchIo, SeveralPathsAreOneVolume) {
  std::filesystem::create_directory(scratch_.path("other"));
  const json striped = rows({"--path", directory(), "--path", scratch_.path("other")});
  ASSERT_EQ(striped.size(), 3u);
  EXPECT_EQ(striped.at(0).at("path"), directory() + ", " + scratch_.path("other"));
  EXPECT_EQ(striped.at(0).at("size"), 16 * MiB);
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path("other")));
}

TEST_F(BenchIo, JobsMoveAtTheSameTimeAndAddUp) {
  const json all = rows({"--jobs", "2", "--seconds", "0.2"});
  ASSERT_EQ(all.size(), 9u);
  for (std::size_t i = 0; i < 9; i += 3) {
    SCOPED_TRACE(all.at(i).dump(1));
    EXPECT_TRUE(all.at(i).at("job").is_null());
    EXPECT_EQ(all.at(i + 1).at("job"), 1);
    EXPECT_EQ(all.at(i + 2).at("job"), 2);
    double longest = 0;
    for (const char* key : {"read_bytes", "written_bytes", "cpu_seconds"}) {
      EXPECT_NEAR(all.at(i).at(key), all.at(i + 1).at(key).get<double>() + all.at(i + 2).at(key).get<double>(),
                  1e-6);
    }
    for (std::size_t job = i + 1; job < i + 3; ++job) {
      EXPECT_EQ(all.at(job).at("jobs"), 2);
      EXPECT_EQ(all.at(job).at("mode"), all.at(i).at("mode"));
      longest = std::max(longest, all.at(job).at("timed_seconds").get<double>());
    }
    EXPECT_EQ(all.at(i).at("timed_seconds"), longest);
  }
  EXPECT_NE(outcome_.out.find("  job 2"), std::string::npos);
  EXPECT_NE(outcome_.out.find("for each of 2 processes"), std::string::npos);
}

TEST_F(BenchIo, AFileIsOnlyMeasuredWhenItMayBeOverwritten) {
  const std::string file = file_of(16 * MiB);
  const std::string before = read_file(file);
  refused(bench_with({"--path", file}), 2, {file, "is a file", "would be lost", "--overwrite"});
  EXPECT_TRUE(read_file(file) == before);
  for (const std::string mode : {"mixed", "read"}) {
    const json all = rows({"--path", file, "--overwrite", "--mode", mode});
    EXPECT_EQ(all.at(0).at("size"), 16 * MiB);
    EXPECT_EQ(std::filesystem::file_size(file), static_cast<std::uintmax_t>(16 * MiB));
  }
  const std::string pattern = read_file(file);
  EXPECT_TRUE(pattern != before);
  rows({"--path", file, "--overwrite"});
  EXPECT_TRUE(read_file(file) == pattern);  // what is written is always what belongs there
  refused(bench_with({"--path", file, "--overwrite", "--path", directory()}), 2, {"directories", "files"});
  refused(bench_with({"--path", file, "--overwrite", "--path", file}), 2, {file, "twice"});
  refused(bench_with({"--path", file, "--overwrite", "--size", "8M"}), 2, {"--size"});
  refused(bench_with({"--path", file, "--overwrite", "--jobs", "2"}), 2, {"--jobs"});
  refused(bench_with({"--path", file, "--overwrite", "--json", file}), 2, {"--json", file});
  EXPECT_TRUE(read_file(file) == pattern);
}

TEST_F(BenchIo, AFileThatHoldsThePatternIsNotWrittenAgain) {
  const std::string file = file_of(16 * MiB);
  rows({"--path", file, "--overwrite", "--mode", "read"});
  struct stat before {
  }, after{};
  ASSERT_EQ(stat(file.c_str(), &before), 0);
  rows({"--path", file, "--overwrite", "--mode", "read"});
  ASSERT_EQ(stat(file.c_str(), &after), 0);
  EXPECT_EQ(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
  EXPECT_EQ(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
  EXPECT_NE(outcome_.out.find("Written in all: 0 TB"), std::string::npos) << outcome_.out;
}

TEST_F(BenchIo, MemoryIsOnlyMeasuredWhenAskedFor) {
  struct statfs status {};
  if (statfs("/dev/shm", &status) != 0 || status.f_type != TMPFS_MAGIC) GTEST_SKIP() << "/dev/shm is no tmpfs";
  refused(bench_with({"--path", "/dev/shm"}), 2, {"/dev/shm is memory, not a drive", "--direct on"});
  refused(bench_with({"--path", "/dev/shm", "--direct", "off"}), 2, {"/dev/shm is memory, not a drive"});
  const json all = rows({"--path", "/dev/shm", "--direct", "on"});
  EXPECT_EQ(all.at(0).at("drive"), "memory (tmpfs)");
  EXPECT_EQ(all.at(0).at("filesystem"), "tmpfs");
}

TEST_F(BenchIo, NumbersAreRefusedWhereTheyCannotBe) {
  for (const std::string bad : {"0", "-1", "1e6", "many", "", "6000", "2G", "4097"}) {
    refused(bench_with({"--block-size=" + bad}), 2, {"--block-size"});
    refused(bench_with({"--transfer-size=" + bad}), 2, {"--transfer-size"});
  }
  for (const std::string bad : {"0", "-1", "32769", "few", "1.5"}) {
    refused(bench_with({"--queue-depth=" + bad}), 2, {"--queue-depth", bad});
  }
  for (const std::string bad : {"0", "-1", "257", "two", "1.5"}) {
    refused(bench_with({"--jobs=" + bad}), 2, {"--jobs", bad});
  }
  for (const std::string bad : {"0", "-1", "nan", "inf", "4000", "soon"}) {
    refused(bench_with({"--seconds=" + bad}), 2, {"--seconds"});
  }
  refused(bench_with({"--size", "0"}), 2, {"0 B", "8 blocks of 64 KiB"});
  refused(bench_with({"--size", "1020K"}), 2, {"1020 KiB", "less than twice", "8 blocks of 64 KiB", "1 MiB"});
  EXPECT_EQ(rows({"--size", "1M", "--mode", "mixed"}).at(0).at("size"), MiB);
  refused(bench_with({"--size", "1000T"}), 3,
          {"--size", "1000T", "half of what is free", "M fits", directory()});
  refused(bench_with({"--size", "30T", "--jobs", "200"}), 3, {"for each of 200 jobs"});
}

TEST_F(BenchIo, OtherRefusals) {
  refused(bench_with({"--engine", "aio"}), 2, {"--engine", "aio", "io_uring or posix"});
  refused(bench_with({"--mode", "trim"}), 2, {"--mode", "trim", "read, write or mixed"});
  refused(bench_with({"--direct", "yes"}), 2, {"--direct", "yes", "on or off"});
  refused(bench_with({"--path", scratch_.path("gone")}), 4, {"--path", "gone"});
  refused(bench_with({"--path", "/dev/null"}), 2, {"--path", "/dev/null", "neither"});
  refused(bench_with({"--path", ""}), 2, {"--path", "a name is missing"});
  refused(bench_with({"--overwrite"}), 2, {"--overwrite"});
  refused(bench_with({"--json", scratch_.path("gone/x.json")}), 4, {"--json", "gone/x.json"});
  refused(bench_with({"--paths", "x"}), 2, {"--paths", "spillway bench io --help"});
  refused({"bench", "io"}, 2, {"--path"});
}

TEST_F(BenchIo, HelpExplainsFlagsAndColumns) {
  EXPECT_NE(run_program({"bench"}).out.find("  io "), std::string::npos);
  const Outcome help = run_program({"bench", "io", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const std::string part :
       {"--path",   "--size",    "--block-size",    "--queue-depth", "--jobs",   "--mode",      "--engine",
        "--direct", "--seconds", "--transfer-size", "--sqpoll",      "--iopoll", "--overwrite", "--json",
        "IOPS",     "p50",       "CPU s/GB",        "spread",        "verified", "Examples"}) {
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
  }
}

TEST_F(BenchIo, CtrlCEndsAllProcessesAndLeavesNothing) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    for (const double moment : {0.02, 0.3, 0.8}) {
      std::vector<std::string> command = bench_with({"--jobs", "3", "--seconds", "60", "--size", "8M"});
      command.insert(command.begin(), SPILLWAY_PROGRAM);
      command.insert(command.end(), {"--json", scratch_.path("rows.json")});
      EXPECT_EQ(interrupt_command(command, signal_number, moment).exit_code, -signal_number) << moment;
      EXPECT_TRUE(std::filesystem::is_empty(directory()));
      EXPECT_FALSE(std::filesystem::exists(scratch_.path("rows.json")));
      // The processes go with the one that started them; their command line names this directory.
      const std::string wait = "for i in $(seq 100); do pgrep -f '[b]ench io --path " + directory() +
                               "' > /dev/null || exit 0; sleep 0.05; done; exit 1";
      EXPECT_EQ(run_command({"bash", "-c", wait}).exit_code, 0) << "a process is left";
    }
  }
}

TEST_F(BenchIo, AProcessThatEndsEndsTheMeasurement) {
  std::vector<std::string> words = bench_with({"--jobs", "2", "--seconds", "60", "--size", "8M"});
  std::string command = SPILLWAY_PROGRAM;
  for (const auto& word : words) command += " '" + word + "'";
  // The second of the children is ended as the system would for lack of memory.
  const Outcome outcome = run_command(
      {"bash", "-c",
       command + " > /dev/null & parent=$!; for i in $(seq 200); do child=$(pgrep -P $parent | tail -n 1); "
                 "[ -n \"$child\" ] && break; sleep 0.02; done; sleep 0.3; kill -KILL $child; wait $parent; "
                 "echo $?"});
  EXPECT_EQ(outcome.out, "3\n") << outcome.err;
  EXPECT_NE(outcome.err.find("was ended by signal 9"), std::string::npos) << outcome.err;
  EXPECT_TRUE(std::filesystem::is_empty(directory()));
}

TEST(IoSamples, OfSeveralJobsAddUpOverTheLongestTime) {
  aio::Sample one{.seconds = 1.0, .read_bytes = 10, .written_bytes = 1, .operations = 3, .cpu_seconds = 0.5};
  one.latency.add(1e-6);
  one.course = {4, 7};
  aio::Sample other{.seconds = 1.5, .read_bytes = 20, .written_bytes = 2, .operations = 4, .cpu_seconds = 0.25};
  other.latency.add(9e-6);
  other.course = {5, 6, 11};
  const aio::Sample all = in_all({one, other});
  EXPECT_EQ(all.seconds, 1.5);
  EXPECT_EQ(all.read_bytes, 30);
  EXPECT_EQ(all.written_bytes, 3);
  EXPECT_EQ(all.operations, 7);
  EXPECT_EQ(all.cpu_seconds, 0.75);
  EXPECT_EQ(all.latency.count(), 2);
  EXPECT_EQ(all.course, (std::vector<std::int64_t>{9, 13, 11}));
}

TEST(IoSamples, SpreadIsThatOfWholePieces) {
  aio::Sample sample{.seconds = 0.41};
  sample.course = {100, 100, 300, 300, 200, 200, 200, 200, 7};  // the last one lasts shorter
  EXPECT_DOUBLE_EQ(spread_of(sample, 0.4), (225.0 - 175.0) / 200.0);
  EXPECT_LT(spread_of(sample, 0.15), 0.0);
  // Two seconds: quarters of them, in which what changes faster does not show.
  sample.course.clear();
  for (int i = 0; i < 40; ++i) sample.course.push_back(i % 5 == 0 ? 500 : 0);
  EXPECT_EQ(spread_of(sample, 2.0), 0.0);
  sample.course.assign(40, 0);
  EXPECT_LT(spread_of(sample, 2.0), 0.0);  // nothing moved
}

}  // namespace
}  // namespace spillway::cli
