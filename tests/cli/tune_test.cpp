// spillway tune: what it writes, train takes; what it cannot tune, it refuses; Ctrl-C ends it well. Speeds are
// not tested, and the search itself is (tests/aio/tuner_test.cpp) on drives that are made up.
#include "../../cli/tune_picture.h"
#include "../../cli/tune_report.h"
#include "program.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using aio::IoEngine;
using nlohmann::json;

std::vector<std::string> tune_in(const std::string& directory, const std::vector<std::string>& more) {
  std::vector<std::string> all{"tune", "--path", directory, "--size", "16M", "--seconds", "2"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

bool holds(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// Whether every tag is closed in order, attributes are quoted, and nothing stands bare that must be escaped.
testing::AssertionResult is_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  bool root_seen = false;
  for (std::size_t i = 0; i < xml.size();) {
    if (xml[i] == '&') {
      const std::string entity = xml.substr(i, xml.find(';', i) - i + 1);
      if (!std::set<std::string>{"&amp;", "&lt;", "&gt;", "&quot;"}.count(entity))
        return testing::AssertionFailure() << "a bare & at " << i;
      i += entity.size();
      continue;
    }
    if (xml[i] != '<') {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    char quote = 0;
    for (; end < xml.size() && (quote != 0 || xml[end] != '>'); ++end) {
      if (xml[end] == '<') return testing::AssertionFailure() << "< inside a tag at " << end;
      if (xml[end] == '"') quote = quote == 0 ? '"' : '\0';
    }
    if (end >= xml.size()) return testing::AssertionFailure() << "a tag without an end at " << i;
    std::string tag = xml.substr(i + 1, end - i - 1);
    i = end + 1;
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1))
        return testing::AssertionFailure() << "</" << tag.substr(1) << "> closes nothing";
      open.pop_back();
      continue;
    }
    if (open.empty() && root_seen) return testing::AssertionFailure() << "a second root";
    root_seen = true;
    const bool closed = tag.back() == '/';
    const std::string name = tag.substr(0, tag.find_first_of(" /\n"));
    if (!closed) open.push_back(name);
  }
  if (!open.empty()) return testing::AssertionFailure() << "<" << open.back() << "> is not closed";
  return root_seen ? testing::AssertionSuccess() : testing::AssertionFailure() << "nothing there";
}

TEST(Tune, WritesAConfigurationThatTrainTakesUnchanged) {
  const Scratch scratch;
  const std::string out = scratch.path("tuned.json");
  const Outcome tuned =
      run_program(tune_in(scratch.root(), {"--out", out, "--json", scratch.path("rows.json")}));
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err << tuned.out;
  EXPECT_EQ(tuned.err, "");
  EXPECT_EQ(scratch.names(), (std::vector<std::string>{scratch.path("rows.json"), out, out + ".svg"}));
  EXPECT_TRUE(is_well_formed(read_file(out + ".svg")));

  const json file = json::parse(read_file(out));
  EXPECT_TRUE(holds(tuned.out, read_file(out)));  // printed too
  EXPECT_TRUE(file.at("aio").at("single_submit").is_boolean());
  EXPECT_EQ(file.at("aio").at("overlap_events"), true);
  EXPECT_EQ(file.at("aio").at("intra_op_parallelism"), 1);
  EXPECT_EQ(file.at("_format_version"), 1);
  EXPECT_EQ(file.at("spillway").count("nvme_bandwidth"), 0u);  // one drive has no shares

  const std::string text = scratch.write("README.md", sample_text());
  const std::vector<std::string> train{"train",  "--config", out,       "--model", "decoder-tiny",
                                       "--data", text,       "--steps", "2",       "--json"};
  const auto run = [&](const std::string& result, const std::vector<std::string>& more) {
    std::vector<std::string> all = train;
    all.push_back(scratch.path(result));
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = run_program(all);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(read_file(scratch.path(result))).at(0);
  };
  const json plain = run("plain.json", {});
  EXPECT_EQ(plain.at("config").at("zero_optimization").at("offload_optimizer").at("device"), "device")
      << "a tuned file must not move anything";
  EXPECT_EQ(plain.at("config").at("aio").at("block_size"), file.at("aio").at("block_size"));
  EXPECT_EQ(plain.at("config").at("aio").at("queue_depth"), file.at("aio").at("queue_depth"));
  const json offloaded = run("offloaded.json", {"--offload-optimizer", "nvme", "--offload-param", "nvme"});
  EXPECT_EQ(offloaded.at("weights_xxh3"), plain.at("weights_xxh3"));
}

TEST(Tune, GivesAFlatRowForEverySettingItTried) {
  const Scratch scratch;
  const Outcome tuned = run_program(tune_in(scratch.root(), {"--json", scratch.path("rows.json")}));
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  const json rows = json::parse(read_file(scratch.path("rows.json")));
  ASSERT_FALSE(rows.empty());
  int chosen = 0;
  std::set<std::string> settings;
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump(1));
    for (const auto& [name, value] : row.items())
      EXPECT_TRUE(value.is_primitive() || name == "machine") << name;
    EXPECT_EQ(row.at("command"), "tune");
    EXPECT_EQ(row.at("version"), SPILLWAY_VERSION);
    EXPECT_GT(row.at("gb_per_s"), 0.0);
    EXPECT_LE(row.at("gb_per_s_low"), row.at("gb_per_s"));
    EXPECT_GE(row.at("gb_per_s_high"), row.at("gb_per_s"));
    EXPECT_GT(row.at("trials"), 0);
    EXPECT_LE(row.at("block_size").get<std::int64_t>() * row.at("queue_depth").get<std::int64_t>(), 4 << 20);
    EXPECT_GE(row.at("written_bytes"), 16 << 20);
    chosen += row.at("chosen").get<bool>();
    settings.insert(row.at("engine").get<std::string>() + row.at("block_size").dump() + "x" +
                    row.at("queue_depth").dump() + row.at("overlap").dump());
  }
  EXPECT_EQ(chosen, 1);
  EXPECT_EQ(settings.size(), rows.size()) << "each once";
}

TEST(Tune, SeveralDirectoriesAndJobsComeWithABandwidthEach) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch.path("a"));
  std::filesystem::create_directories(scratch.path("b"));
  const std::string out = scratch.path("tuned.json");
  const Outcome tuned =
      run_program(tune_in(scratch.path("a"), {"--path", scratch.path("b"), "--jobs", "2", "--out", out}));
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  const json file = json::parse(read_file(out));
  ASSERT_EQ(file.at("spillway").at("nvme_bandwidth").size(), 2u);
  for (const json& one : file.at("spillway").at("nvme_bandwidth")) EXPECT_GT(one, 0.0);
  EXPECT_EQ(file.at("zero_optimization").at("offload_optimizer").at("nvme_path").size(), 2u);
  EXPECT_LE(file.at("aio").at("block_size"), 1 << 20);
  const std::string text = scratch.write("text.txt", sample_text());
  const Outcome trained = run_program({"train", "--config", out, "--model", "decoder-tiny", "--data", text,
                                       "--steps", "1", "--offload-optimizer", "nvme"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
}

TEST(Tune, CtrlCPrintsWhatItHasAndLeavesNothing) {
  const Scratch scratch;
  for (const char* after : {"1", "3"}) {
    const std::string command = std::string("exec timeout --preserve-status -s INT ") + after +
                                " " SPILLWAY_PROGRAM " tune --path '" + scratch.root() +
                                "' --size 16M --seconds 60 --out '" + scratch.path("tuned.json") +
                                "' --json '" + scratch.path("rows.json") + "'";
    const Outcome outcome = run_command({"bash", "-c", command});
    EXPECT_EQ(outcome.exit_code, 130) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.err, "");
    EXPECT_TRUE(holds(outcome.out, "incomplete")) << outcome.out;
    const bool before = holds(outcome.out, "before anything was measured");
    EXPECT_NE(before, holds(outcome.out, "The search took")) << outcome.out;
    EXPECT_EQ(scratch.names(), std::vector<std::string>{});
  }
}

void refused(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& parts) {
  const Outcome outcome = run_program(arguments);
  SCOPED_TRACE(outcome.err);
  EXPECT_EQ(outcome.exit_code, code);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u);
  EXPECT_TRUE(holds(outcome.err, "\nhint: "));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 2);
  for (const auto& part : parts) EXPECT_TRUE(holds(outcome.err, part)) << "missing: " << part;
}

TEST(Tune, RefusesInOneLineWhatItCannotTune) {
  const Scratch scratch;
  refused({"tune"}, 2, {"--path"});
  refused({"tune", "--path", scratch.path("none")}, 4, {scratch.path("none")});
  refused({"tune", "--path", scratch.root(), "--path", scratch.root()}, 2, {"twice"});
  refused({"tune", "--path", scratch.root(), "--seconds", "0"}, 2, {"--seconds"});
  refused({"tune", "--path", scratch.root(), "--seconds", "nan"}, 2, {"--seconds"});
  refused({"tune", "--path", scratch.root(), "--jobs", "0"}, 2, {"--jobs"});
  refused({"tune", "--path", scratch.root(), "--size", "128K"}, 2, {"128 KiB", "--size 16M"});
  refused({"tune", "--path", scratch.root(), "--size", "900T"}, 3, {"--size"});
  refused({"tune", "--path", scratch.root(), "--out", scratch.path("none/tuned.json")}, 4, {"--out"});
  refused({"tune", "--path", scratch.root(), "--out", scratch.path("x"), "--json", scratch.path("x.svg")}, 2,
          {"--json"});
  EXPECT_EQ(scratch.names(), std::vector<std::string>{});
}

TEST(Tune, RefusesMemoryAsARunWould) {
  if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no /dev/shm here";
  refused({"tune", "--path", "/dev/shm"}, 4, {"/dev/shm"});
}

// What is told of a search that is made up
// ------------------------------------------------------------------------

TuneRun made_up() {
  TuneRun run{.paths = {"/mnt/nvme"}, .drive = "A <fast> & \"odd\" drive \xff, ext4", .file_system = "ext4"};
  run.options.block_sizes = {1 << 20, 2 << 20};
  run.options.depths = {4, 8};
  aio::TuneResult& r = run.result;
  r.complete = true;
  r.chosen = {.block_bytes = 1 << 20, .depth = 4};
  r.best = {.block_bytes = 2 << 20, .depth = 4};
  r.estimates = {
      {.setting = r.chosen, .bytes_per_s = 3.1e9, .low = 3.0e9, .high = 3.2e9, .of_best = 0.99},
      {.setting = r.best, .bytes_per_s = 3.13e9, .low = 3.0e9, .high = 3.3e9, .of_best = 1},
      {.setting = {.block_bytes = 1 << 20, .depth = 8, .engine = IoEngine::posix}, .bytes_per_s = 9e9}};
  r.duplex = {.ratio = {1.8, 1.7, 1.9, 9}, .verdict = aio::OverlapVerdict::helps};
  r.sustained = {.first_bytes_per_s = 3e9,
                 .last_bytes_per_s = 1e9,
                 .written_bytes = std::int64_t{9} << 30,
                 .fell = true,
                 .bytes_before_fall = std::int64_t{4} << 30,
                 .fell_to = 0.33};
  r.written_bytes = 250'000'000'000;
  return run;
}

TEST(TuneReport, TheTableHoldsTheChosenEngineAndMarksTheChosenSetting) {
  const std::string table = tune_table(made_up());
  EXPECT_TRUE(holds(table, "3.10*")) << table;
  EXPECT_TRUE(holds(table, "3.13 ")) << table;
  EXPECT_FALSE(holds(table, "9.00")) << "of the other engine\n" << table;
  EXPECT_TRUE(holds(table, "- ")) << table;
}

TEST(TuneReport, TheSentencesSayWhatWasFound) {
  TuneRun run = made_up();
  const auto all = [&] {
    std::string text;
    for (const auto& one : tune_findings(run)) text += one + "\n";
    return text;
  };
  for (const char* part :
       {"Chosen: blocks of 1 MiB, 4 at a time (4 MiB under way), io_uring", "99% of the best", "1.80 times",
        "1.70 to 1.90", "full duplex", "fall to 33% after 4 GiB", "0.2500 TB"}) {
    EXPECT_TRUE(holds(all(), part)) << part << "\n" << all();
  }
  run.result.duplex = {.ratio = {1.01, 0.99, 1.02, 9}, .verdict = aio::OverlapVerdict::no_difference};
  EXPECT_TRUE(holds(all(), "half duplex")) << all();
  run.result.duplex.verdict = aio::OverlapVerdict::hurts;
  EXPECT_TRUE(holds(all(), "hurt")) << all();
  run.result.sustained.fell = false;
  EXPECT_TRUE(holds(all(), "did not fall")) << all();
  run.result.complete = false;
  EXPECT_TRUE(holds(all(), "Best so far")) << all();
  run.result.estimates.clear();
  EXPECT_TRUE(holds(all(), "Nothing is known yet")) << all();
}

TEST(TuneReport, SeveralPathsGiveAListAndTheirBandwidthInGBPerSecond) {
  TuneRun run = made_up();
  run.paths = {"/mnt/a", "/mnt/b"};
  run.bandwidth = {7.0004e9, 3.5e9};
  const json file = json::parse(tuned_configuration(run));
  EXPECT_EQ(file.at("spillway").at("nvme_bandwidth"), json::parse("[7.0, 3.5]"));
  EXPECT_EQ(file.at("spillway").at("io_engine"), "io_uring");
  EXPECT_EQ(file.at("zero_optimization").at("offload_param").at("nvme_path"),
            json::parse(R"(["/mnt/a", "/mnt/b"])"));
  EXPECT_EQ(file.at("aio").at("block_size"), 1 << 20);
  EXPECT_EQ(file.at("aio").at("queue_depth"), 4);
}

TEST(TunePicture, IsWellFormedWhateverADriveIsCalledAndMarksTheChosenSetting) {
  const std::string svg = tune_picture(made_up());
  EXPECT_TRUE(is_well_formed(svg)) << svg;
  EXPECT_TRUE(holds(svg, "A &lt;fast&gt; &amp; &quot;odd&quot; drive ?, ext4")) << svg;
  EXPECT_TRUE(holds(svg, "3.10 *"));
  EXPECT_TRUE(holds(svg, "95% interval 3.00 to 3.20"));
  EXPECT_TRUE(holds(svg, "prefers-color-scheme: dark"));
  EXPECT_FALSE(holds(svg, "9.00")) << "of the other engine";
  std::size_t frames = 0, dashed = 0;
  for (std::size_t at = 0; (at = svg.find("class=\"chosen\"", at)) != std::string::npos; ++at) ++frames;
  for (std::size_t at = 0; (at = svg.find("class=\"none\"", at)) != std::string::npos; ++at) ++dashed;
  EXPECT_EQ(frames, 1u);
  EXPECT_EQ(dashed, 2u);
}

TEST(TunePicture, TheCheckOfXmlFindsWhatIsWrong) {
  EXPECT_TRUE(is_well_formed("<a><b c=\"d\"/>&amp;</a>"));
  for (const char* broken : {"<a>", "<a></b>", "<a>&</a>", "<a b=\"<\"/>", "<a/><b/>", "", "<a"}) {
    EXPECT_FALSE(is_well_formed(broken)) << broken;
  }
}

}  // namespace
}  // namespace spillway::cli
