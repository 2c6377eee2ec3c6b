// spillway train, from its configuration to its reports.
#include "program.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using nlohmann::json;

class Train : public testing::Test {
 protected:
  void SetUp() override { text_ = scratch_.write("text.txt", sample_text()); }

  Outcome train(const std::vector<std::string>& more, const std::string& steps = "3") {
    std::vector<std::string> all{"train",   "--config", example("decoder-tiny.json"), "--data", text_,
                                 "--steps", steps};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all);
  }
  /// The one row of the report.
  json row(const std::vector<std::string>& more, const std::string& steps = "3") {
    auto all = more;
    all.insert(all.end(), {"--json", scratch_.path("result.json")});
    const Outcome outcome = train(all, steps);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    const json list = json::parse(read_file(scratch_.path("result.json")));
    EXPECT_TRUE(list.is_array() && list.size() == 1);
    return list.at(0);
  }

  Scratch scratch_;
  std::string text_;
};

TEST_F(Train, TheReportHoldsEverythingAndTheDirectoryNothing) {
  const json result = row({"--nvme-path", scratch_.root(), "--device-memory", "64M", "--update-threads", "1"});
  EXPECT_EQ(result.at("version"), SPILLWAY_VERSION);
  EXPECT_EQ(result.at("format_version"), 1);
  EXPECT_LT(result.at("params"), 1'000'000);
  EXPECT_GT(result.at("params"), 500'000);
  EXPECT_EQ(result.at("steps"), 3);
  EXPECT_EQ(result.at("tokens"), 3 * 2 * 4 * 64);
  // The first loss is that of a model that knows nothing of 256 bytes.
  EXPECT_NEAR(result.at("loss_first").get<double>(), std::log(256.0), 0.3);
  EXPECT_LT(result.at("loss_last"), result.at("loss_first"));
  EXPECT_GT(result.at("unigram_entropy"), 2.0);
  EXPECT_LT(result.at("unigram_entropy"), 4.0);
  EXPECT_GT(result.at("seconds"), 0.0);
  EXPECT_GT(result.at("tokens_per_s"), 0.0);
  EXPECT_EQ(result.at("skipped_steps"), 0);
  EXPECT_EQ(result.at("weights_xxh3").get<std::string>().size(), 16u);
  EXPECT_GE(result.at("sample").get<std::string>().size(), 200u);
  EXPECT_GT(result.at("machine").at("processors"), 0);

  const json& config = result.at("config");
  EXPECT_EQ(config.at("train_batch_size"), 8);
  EXPECT_EQ(config.at("spillway").at("steps"), 3);  // the flag, not the file
  EXPECT_EQ(config.at("spillway").at("device_memory"), 64 << 20);
  EXPECT_EQ(config.at("spillway").at("update_threads"), 1);
  EXPECT_GT(config.at("spillway").at("device_threads"), 0);
  EXPECT_EQ(config.at("zero_optimization").at("offload_param").at("nvme_path"), scratch_.root());
  EXPECT_EQ(config.at("spillway").at("model").at("n_layer"), 4);

  // At least the moments and the low halves went to the drive, each step, and came back.
  const std::int64_t state = 10 * result.at("params").get<std::int64_t>();
  EXPECT_GE(result.at("nvme_written_bytes"), 3 * state);
  EXPECT_GE(result.at("nvme_read_bytes"), 2 * state);
  EXPECT_EQ(scratch_.names(), (std::vector<std::string>{scratch_.path("result.json"), text_}));
}

TEST_F(Train, WhatIsKeptAndTheOrderOfMicroBatchesAreSaidAndChangeNoWeight) {
  struct Way {
    const char *activations, *order, *words;
  };
  std::string hash, loss;
  for (const Way& way :
       {Way{"keep", "micro_batch", "4 layers kept"}, Way{"recompute", "layer", "4 layers recomputed:"},
        Way{"host", "micro_batch", "from inputs in host memory"}, Way{"nvme", "layer", "from inputs on nvme"},
        Way{"auto", "layer", "4 layers kept"}}) {
    const json result = row(
        {"--nvme-path", scratch_.root(), "--activations", way.activations, "--accumulation-order", way.order});
    EXPECT_NE(result.at("activations").get<std::string>().find(way.words), std::string::npos)
        << result.at("activations");
    if (hash.empty()) hash = result.at("weights_xxh3");
    if (loss.empty()) loss = result.at("loss_last").dump();
    EXPECT_EQ(result.at("weights_xxh3"), hash) << way.activations;
    EXPECT_EQ(result.at("loss_last").dump(), loss) << way.activations;
  }
  const Outcome dry = train({"--nvme-path", scratch_.root(), "--activations", "nvme", "--dry-run"});
  EXPECT_NE(dry.out.find("from inputs on nvme"), std::string::npos) << dry.out;
  EXPECT_NE(dry.out.find("activation staging"), std::string::npos) << dry.out;
}

TEST_F(Train, PeaksAreThePlanByName) {
  for (const std::string place : {"device", "host", "nvme"}) {
    const json result =
        row({"--offload-optimizer", place, "--offload-parameters", place, "--nvme-path", scratch_.root()});
    for (const std::string tier : {"device", "host", "nvme"}) {
      const json& measured = result.at("tiers").at(tier);
      EXPECT_EQ(measured.at("by_name"), measured.at("planned_by_name")) << place << " " << tier;
      EXPECT_EQ(measured.at("peak_bytes"), measured.at("planned_bytes")) << place << " " << tier;
      // What is free on the machine; a drive has been asked when the space was reserved.
      EXPECT_EQ(measured.at("budget_bytes").is_null(), tier == "nvme");
    }
    EXPECT_EQ(result.at("tiers").at("nvme").at("peak_bytes") > 0, place == "nvme");
  }
}

TEST_F(Train, PlacesAndThreadsLeaveTheWeightsAlone) {
  const json spilled = row({"--nvme-path", scratch_.root()});
  const json resident = row({"--offload-optimizer", "device", "--offload-parameters", "none",
                             "--update-threads", "2", "--device-threads", "3"});
  EXPECT_EQ(spilled.at("weights_xxh3"), resident.at("weights_xxh3"));
  EXPECT_EQ(spilled.at("loss_last"), resident.at("loss_last"));
  EXPECT_EQ(spilled.at("sample"), resident.at("sample"));
  const json other = row({"--nvme-path", scratch_.root(), "--seed", "4"});
  EXPECT_NE(spilled.at("weights_xxh3"), other.at("weights_xxh3"));
}

TEST_F(Train, TheResolvedConfigurationTrainsTheSameModel) {
  const json first = row({"--nvme-path", scratch_.root(), "--seed", "9"});
  const std::string config = scratch_.write("resolved.json", first.at("config").dump());
  const Outcome outcome =
      run_program({"train", "--config", config, "--data", text_, "--json", scratch_.path("result.json")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json again = json::parse(read_file(scratch_.path("result.json"))).at(0);
  EXPECT_EQ(again.at("weights_xxh3"), first.at("weights_xxh3"));
  EXPECT_EQ(again.at("config"), first.at("config"));
  EXPECT_TRUE(again.at("assumed").empty());
}

TEST_F(Train, TheTraceHoldsSpansAndBuffers) {
  const Outcome outcome = train({"--nvme-path", scratch_.root(), "--trace", scratch_.path("trace.json")}, "2");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json trace = json::parse(read_file(scratch_.path("trace.json")));
  std::vector<std::string> lanes;
  for (const json& span : trace.at("spillway").at("spans")) {
    EXPECT_LE(span.at("begin_ns"), span.at("end_ns"));
    lanes.push_back(span.at("lane"));
  }
  for (const std::string lane : {"compute", "adam", "read", "write"}) {
    EXPECT_NE(std::find(lanes.begin(), lanes.end(), lane), lanes.end()) << lane;
  }
  std::int64_t allocated = 0, freed = 0;
  for (const json& event : trace.at("spillway").at("buffers")) {
    if (event.at("action") == "allocate") ++allocated;
    if (event.at("action") == "free") ++freed;
  }
  EXPECT_GT(allocated, 0);
  EXPECT_LE(freed, allocated);
  EXPECT_FALSE(trace.at("traceEvents").empty());
}

TEST_F(Train, WhatIsPrintedIsCompleteAndNarrow) {
  const Outcome outcome = train({"--nvme-path", scratch_.root()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const std::string part :
       {"parameters", "unigram entropy", "plan", "peak", "tokens/s", "xxh3", "sample", "skipped"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);  // no terminal, no control sequences
  EXPECT_EQ(outcome.out.find('\r'), std::string::npos);
  std::istringstream lines(outcome.out);
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(scratch_.root()) == std::string::npos) {
      EXPECT_LE(line.size(), 100u) << line;
    }
    EXPECT_FALSE(line.ends_with(' ')) << "'" << line << "'";
    std::istringstream words(line);
    std::int64_t step = 0;
    double loss = 0, norm = 0;
    if (words >> step >> loss >> norm) {
      EXPECT_EQ(step, ++rows);
    }
  }
  EXPECT_EQ(rows, 3);
}

TEST_F(Train, ALongRunPrintsFewRows) {
  const Outcome outcome = train({"--offload-optimizer", "host", "--offload-parameters", "host"}, "60");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::vector<std::int64_t> steps;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::int64_t step = 0;
    double loss = 0, norm = 0;
    if (words >> step >> loss >> norm) steps.push_back(step);
  }
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), 60);
  EXPECT_LE(steps.size(), 24u);
}

TEST_F(Train, AReportReplacesTheOldOneAndDevicesAreWrittenDirectly) {
  scratch_.write("result.json", "old");
  EXPECT_EQ(row({"--nvme-path", scratch_.root()}).at("steps"), 3);
  EXPECT_EQ(train({"--nvme-path", scratch_.root(), "--json", "/dev/null"}).exit_code, 0);
}

TEST_F(Train, ALinkStaysAndWhatItLeadsToIsReplaced) {
  const std::string old = scratch_.write("old.json", "old");
  for (const std::string target : {"old.json", "new.json"}) {
    const std::string link = scratch_.path("link-to-" + target);
    std::filesystem::create_symlink(target, link);
    ASSERT_EQ(
        train({"--offload-optimizer", "host", "--offload-parameters", "host", "--json", link}, "1").exit_code,
        0);
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    EXPECT_EQ(json::parse(read_file(scratch_.path(target))).at(0).at("steps"), 1);
  }
  // As a shell gives it: a link to a link to the file, or to a pipe.
  const std::string out = scratch_.path("out.json");
  const std::string device = scratch_.path("stdout");
  std::filesystem::create_symlink("/proc/self/fd/1", device);
  const std::string command = SPILLWAY_PROGRAM " train --config '" + example("decoder-tiny.json") +
                              "' --data '" + text_ + "' --steps 1 --nvme-path '" + scratch_.root() +
                              "' --json '" + device + "'";
  EXPECT_EQ(run_command({"sh", "-c", command + " > '" + out + "'"}).exit_code, 0);
  EXPECT_EQ(json::parse(read_file(out)).at(0).at("steps"), 1);
  const Outcome piped = run_command({"sh", "-c", command + " | cat"});
  EXPECT_NE(piped.out.find("\"weights_xxh3\""), std::string::npos) << piped.err;
  EXPECT_TRUE(std::filesystem::is_symlink(device));
}

TEST_F(Train, AModelThatIsNotFiniteIsReportedAsFarAsItWent) {
  json config = json::parse(read_file(example("decoder-tiny.json")), nullptr, true, true);
  config["spillway"]["model"]["initializer_range"] = 1e37;
  const std::string result = scratch_.path("result.json"), trace = scratch_.path("trace.json");
  const Outcome outcome =
      run_program({"train", "--config", scratch_.write("wild.json", config.dump()), "--data", text_, "--steps",
                   "2", "--nvme-path", scratch_.root(), "--json", result, "--trace", trace});
  EXPECT_EQ(outcome.exit_code, 6);
  EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u) << outcome.err;
  EXPECT_NE(outcome.err.find("not finite"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("sample      none: "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("every step"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("initializer_range"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("not finite nats"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("nan"), std::string::npos) << outcome.out;
  const json row = json::parse(read_file(result)).at(0);
  EXPECT_TRUE(row.at("sample").is_null());
  EXPECT_NE(row.at("no_sample").get<std::string>().find("not finite"), std::string::npos);
  EXPECT_EQ(row.at("skipped_steps"), 2);
  EXPECT_EQ(row.at("weights_xxh3").get<std::string>().size(), 16u);
  EXPECT_FALSE(json::parse(read_file(trace)).at("traceEvents").empty());
}

TEST_F(Train, TheLineOnATerminalFitsItsWidth) {
  if (run_command({"script", "--version"}).exit_code != 0) GTEST_SKIP() << "no program gives a terminal here";
  for (const std::size_t width : {12u, 40u, 80u, 100u, 200u}) {
    const Outcome outcome =
        run_command({"script", "-qec",
                     "stty cols " + std::to_string(width) +
                         "; TERM=xterm " SPILLWAY_PROGRAM " train --config '" + example("decoder-tiny.json") +
                         "' --data '" + text_ + "' --steps 2 --nvme-path '" + scratch_.root() + "'",
                     "/dev/null"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out;
    const std::string begin = "\r\x1b[K";
    std::string longest;
    for (auto at = outcome.out.find(begin); at != std::string::npos; at = outcome.out.find(begin, at + 1)) {
      const auto from = at + begin.size();
      const std::string line = outcome.out.substr(from, outcome.out.find('\r', from) - from);
      if (line.starts_with("spillway ")) continue;  // the start block, behind a line that was cleared away
      EXPECT_LT(line.size(), width) << line;
      if (line.size() > longest.size()) longest = line;
    }
    EXPECT_FALSE(longest.empty());
    if (width >= 40) {
      EXPECT_NE(outcome.out.find("loss "), std::string::npos);
    }
    if (width == 200) {
      EXPECT_NE(longest.find("  nvme "), std::string::npos) << longest;
    }
  }
}

TEST_F(Train, AReportThatCannotBeWrittenInTheEndIsAnError) {
  const Outcome outcome = train({"--nvme-path", scratch_.root(), "--json", "/dev/full"}, "1");
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u);
  EXPECT_NE(outcome.err.find("/dev/full"), std::string::npos);
}

}  // namespace
}  // namespace spillway::cli
