// What a run tells while it goes on: metrics, validation, schedules.
#include "program.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using nlohmann::json;

class Metrics : public testing::Test {
 protected:
  void SetUp() override { text_ = scratch_.write("text.txt", sample_text()); }

  /// Trains the tiny decoder and gives the lines of --metrics.
  std::vector<json> lines(const json& changes, std::vector<std::string> more = {}) {
    json config = json::parse(read_file(example("decoder-tiny.json")), nullptr, true, true);
    if (!changes.is_null()) config.merge_patch(changes);
    std::vector<std::string> arguments{"train",
                                       "--config",
                                       scratch_.write("run.json", config.dump()),
                                       "--data",
                                       text_,
                                       "--nvme-path",
                                       scratch_.root(),
                                       "--metrics",
                                       scratch_.path("metrics.jsonl"),
                                       "--json",
                                       scratch_.path("result.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::istringstream text(read_file(scratch_.path("metrics.jsonl")));
    std::vector<json> all;
    for (std::string line; std::getline(text, line);) all.push_back(json::parse(line));
    return all;
  }
  json row() const { return json::parse(read_file(scratch_.path("result.json"))).at(0); }

  Scratch scratch_;
  std::string text_;
};

TEST_F(Metrics, ALineForEveryStepWithLanesThatFitIntoIt) {
  const auto all = lines({}, {"--steps", "5"});
  ASSERT_EQ(all.size(), 5u);
  double seconds = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const json& line = all[i];
    EXPECT_EQ(line.at("step"), i + 1);
    EXPECT_GT(line.at("loss"), 0.0);
    EXPECT_GT(line.at("grad_norm"), 0.0);
    EXPECT_EQ(line.at("learning_rate"), 1e-3);
    EXPECT_EQ(line.at("skipped"), false);
    const double step = line.at("step_s");
    seconds += step;
    EXPECT_NEAR(line.at("tokens_per_s").get<double>() * step, 512, 1e-6);
    EXPECT_GT(line.at("lane_s").at("compute"), 0.0);
    // A step's update goes on under the next one.
    for (const std::string lane : {"adam", "read", "write"}) {
      if (i > 0) {
        EXPECT_GT(line.at("lane_s").at(lane), 0.0) << lane;
      }
    }
    const double floor = line.at("floor_s"), compute = line.at("lane_s").at("compute");
    for (const auto& [lane, busy] : line.at("lane_s").items()) {
      EXPECT_LE(busy, step * 1.001) << lane;
      EXPECT_LE(busy, floor * 1.001) << lane;
    }
    EXPECT_TRUE(line.at("lane_s").contains(line.at("bound")));
    double stood_still = 0;
    for (const auto& [lane, exposed] : line.at("exposed_s").items()) stood_still += exposed.get<double>();
    EXPECT_NEAR(stood_still + compute, step, 1e-6);
  }
  EXPECT_LE(row().at("of_floor"), 1.001);
  EXPECT_NEAR(row().at("floor_s").get<double>(),
              row().at("of_floor").get<double>() * row().at("step_s").get<double>(), 1e-9);
  double mean = 0;
  for (std::size_t i = 1; i < all.size(); ++i) mean += all[i].at("lane_s").at("adam").get<double>() / 4;
  EXPECT_NEAR(row().at("lane_s").at("adam"), mean, 1e-9);
  EXPECT_EQ(all.front().at("loss"), row().at("loss_first"));
  EXPECT_EQ(all.back().at("loss"), row().at("loss_last"));
  EXPECT_NEAR(seconds, row().at("seconds").get<double>(), 0.1 * seconds + 0.05);
}

TEST_F(Metrics, WhatIsNotFiniteIsNullAndTheLineStays) {
  json config = json::parse(read_file(example("decoder-tiny.json")), nullptr, true, true);
  config["spillway"]["model"]["initializer_range"] = 1e37;
  config["scheduler"] = {{"type", "WarmupLR"}, {"params", {{"warmup_min_lr", 1e-4}, {"warmup_num_steps", 4}}}};
  const Outcome outcome =
      run_program({"train", "--config", scratch_.write("wild.json", config.dump()), "--data", text_, "--steps",
                   "2", "--nvme-path", scratch_.root(), "--metrics", scratch_.path("metrics.jsonl")});
  EXPECT_EQ(outcome.exit_code, 6);
  std::istringstream text(read_file(scratch_.path("metrics.jsonl")));
  int count = 0;
  for (std::string line; std::getline(text, line); ++count) {
    const json one = json::parse(line);
    EXPECT_TRUE(one.at("loss").is_null());
    EXPECT_EQ(one.at("skipped"), true);
    EXPECT_EQ(one.at("learning_rate"), 1e-4);  // the schedule waits for an update
  }
  EXPECT_EQ(count, 2);
}

TEST_F(Metrics, TheScheduleReachesEveryStep) {
  // WarmupLR, linear over 4 steps: the first has the minimum.
  const json schedule = {
      {"type", "WarmupLR"},
      {"params",
       {{"warmup_min_lr", 1e-4}, {"warmup_max_lr", 5e-4}, {"warmup_num_steps", 4}, {"warmup_type", "linear"}}}};
  const auto all = lines({{"scheduler", schedule}}, {"--steps", "6"});
  ASSERT_EQ(all.size(), 6u);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_NEAR(all[i].at("learning_rate").get<double>(),
                1e-4 + 1e-4 * static_cast<double>(std::min<std::size_t>(i, 4)), 1e-12);
  }
  const std::string warmed = row().at("weights_xxh3");
  lines({}, {"--steps", "6", "--lr", "5e-4"});
  EXPECT_NE(row().at("weights_xxh3"), warmed);
  // A decay that has reached 0 changes nothing any more.
  const json decay = {{"type", "WarmupDecayLR"}, {"params", {{"warmup_num_steps", 2}, {"total_num_steps", 4}}}};
  lines({{"scheduler", decay}}, {"--steps", "5"});
  const std::string after = row().at("weights_xxh3");
  EXPECT_EQ(lines({{"scheduler", decay}}, {"--steps", "7"}).back().at("learning_rate"), 0.0);
  EXPECT_EQ(row().at("weights_xxh3"), after);
}

TEST_F(Metrics, WeightDecayLeavesOffWhatThePatternsName) {
  const auto hash = [&](const json& no_decay) {
    lines({{"spillway", {{"no_decay", no_decay}}}, {"optimizer", {{"params", {{"weight_decay", 0.5}}}}}},
          {"--steps", "2"});
    return row().at("weights_xxh3").get<std::string>();
  };
  const std::string by_default = hash(nullptr);
  EXPECT_EQ(hash({"*.bias", "*ln_?.weight"}), by_default);
  EXPECT_NE(hash(json::array()), by_default);
  EXPECT_NE(hash({"*"}), by_default);
}

TEST_F(Metrics, ValidationIsMeasuredAndLeavesNoTrace) {
  const std::string eval = scratch_.write("eval.txt", sample_text().substr(0, 1000));
  lines({}, {"--steps", "5"});
  const std::string alone = row().at("weights_xxh3");
  const json sample = row().at("sample");
  const auto all = lines({}, {"--steps", "5", "--eval-data", eval, "--eval-every", "2"});
  EXPECT_EQ(row().at("weights_xxh3"), alone);
  EXPECT_EQ(row().at("sample"), sample);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].contains("eval_loss"), i == 1 || i == 3 || i == 4) << i;
  }
  EXPECT_EQ(row().at("eval_loss"), all.back().at("eval_loss"));
  EXPECT_LT(all.back().at("eval_loss"), all[1].at("eval_loss"));  // it learns
  // 1,000 bytes are 15 sequences of 64, and however many are computed at once, their mean is one number. At a
  // rate that changes nothing the weights are the first ones.
  std::vector<double> losses;
  for (const std::string at_once : {"1", "2", "4", "8"}) {
    const std::string accumulation = std::to_string(8 / std::stoi(at_once));
    lines({}, {"--steps", "1", "--lr", "1e-30", "--eval-data", eval, "--batch-size", at_once, "--accumulation",
               accumulation});
    losses.push_back(row().at("eval_loss"));
  }
  for (const double one : losses) EXPECT_NEAR(one, losses.front(), 1e-12 * losses.front());
  EXPECT_EQ(lines({}, {"--steps", "5", "--eval-data", eval}).at(1).contains("eval_loss"), false);
}

TEST_F(Metrics, TokenFilesTrainWithTheirVocabulary) {
  // Tokens of llm.c: 1,024 bytes of header, then uint16.
  std::string file(1024, '\0');
  const auto put = [&](std::size_t index, std::int32_t value) {
    std::memcpy(file.data() + 4 * index, &value, 4);
  };
  put(0, 20240520);
  put(1, 1);
  put(2, 2000);
  for (int i = 0; i < 2000; ++i) {
    const auto token = static_cast<std::uint16_t>((i * 7919) % 1000);
    file.append(reinterpret_cast<const char*>(&token), 2);
  }
  const std::string tokens = scratch_.write("tokens.bin", file);
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{
        "train", "--model", "decoder-tiny", "--steps", "2", "--json", scratch_.path("result.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  };
  const Outcome outcome = run({"--data", tokens, "--vocab", "1000"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(row().at("data_tokens"), 2000);
  EXPECT_NEAR(row().at("loss_first").get<double>(), std::log(1000.0), 0.4);
  EXPECT_TRUE(row().at("sample").is_null());
  const std::string weights = row().at("weights_xxh3");
  // The same without a header.
  const std::string raw = scratch_.write("raw.bin", file.substr(1024));
  EXPECT_EQ(run({"--data", raw, "--vocab", "1000", "--tokens", "uint16"}).exit_code, 0);
  EXPECT_EQ(row().at("weights_xxh3"), weights);
  // A token that the vocabulary has not.
  const Outcome outside = run({"--data", tokens, "--vocab", "999"});
  EXPECT_EQ(outside.exit_code, 2);
  for (const std::string word : {"tokens.bin", "999"}) {
    EXPECT_NE(outside.err.find(word), std::string::npos) << outside.err;
  }
  EXPECT_EQ(run({"--data", raw, "--vocab", "1000"}).exit_code, 2);  // neither header nor type
}

TEST_F(Metrics, AreDrawn) {
  std::string python;
  for (const std::string one : {"python3", "/usr/bin/python3"}) {
    if (run_command({one, "-c", "import matplotlib"}).exit_code == 0) python = one;
  }
  if (python.empty()) GTEST_SKIP() << "python3-matplotlib is missing";
  const std::string eval = scratch_.write("eval.txt", sample_text().substr(0, 500));
  lines({}, {"--steps", "4", "--eval-data", eval, "--eval-every", "2"});
  const std::string script = SPILLWAY_SCRIPTS "/plot_metrics.py", metrics = scratch_.path("metrics.jsonl");
  for (const auto& [name, begin] :
       {std::pair<std::string, std::string>{"a.svg", "<?xml"}, {"a.png", "\x89PNG"}}) {
    const Outcome outcome = run_command({python, script, metrics, "-o", scratch_.path(name)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::string picture = read_file(scratch_.path(name));
    EXPECT_EQ(picture.rfind(begin, 0), 0u);
    EXPECT_GT(picture.size(), 10'000u);
  }
  for (const auto& [text, word] : {std::pair<std::string, std::string>{"", "no step"},
                                   {"{\"step\": 1}\n", "line 1"},
                                   {"hello\n", "line 1"}}) {
    const Outcome outcome =
        run_command({python, script, scratch_.write("bad.jsonl", text), "-o", scratch_.path("b.svg")});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("Traceback"), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace spillway::cli
