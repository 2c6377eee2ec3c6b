// spillway bench step: its figures follow from one another, it runs in every placement and verifies itself, and
// what cannot be measured is refused. Speeds are not tested.
#include "../../cli/step_floor.h"
#include "../../cli/step_measurement.h"
#include "../../cli/step_model.h"
#include "../../core/communicator.h"
#include "../../core/host_device.h"
#include "../../offload/weights_hash.h"
#include "program.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using nlohmann::json;

/// Small and short where `more` does not say otherwise.
std::vector<std::string> bench_with(const std::vector<std::string>& more) {
  std::vector<std::string> all{"bench", "step"};
  const std::vector<std::pair<std::string, std::string>> usual{{"--params", "1000003"},
                                                               {"--layers", "3"},
                                                               {"--compute-ms", "0.3"},
                                                               {"--pairs", "2"},
                                                               {"--update-threads", "1"}};
  for (const auto& [flag, value] : usual) {
    if (std::find(more.begin(), more.end(), flag) == more.end()) all.insert(all.end(), {flag, value});
  }
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class BenchStep : public testing::Test {
 protected:
  /// Runs it, expects success and gives the row of --json.
  json row(std::vector<std::string> more) {
    more.insert(more.end(), {"--json", scratch_.path("row.json")});
    outcome_ = run_program(bench_with(more));
    EXPECT_EQ(outcome_.exit_code, 0) << outcome_.err;
    EXPECT_EQ(outcome_.err, "");
    if (outcome_.exit_code != 0) return json::object();
    const json rows = json::parse(read_file(scratch_.path("row.json")));
    EXPECT_EQ(rows.size(), 1u);
    return rows.at(0);
  }
  json row_at(const std::string& optimizer, const std::string& parameters, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--offload-optimizer", optimizer, "--offload-parameters", parameters});
    if (optimizer == "nvme" || parameters == "nvme") more.insert(more.end(), {"--nvme-path", scratch_.root()});
    return row(std::move(more));
  }
  void refused(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& parts) {
    const Outcome outcome = run_program(arguments);
    std::string command;
    for (const auto& argument : arguments) command += argument + " ";
    SCOPED_TRACE(command + "\n" + outcome.err);
    EXPECT_EQ(outcome.exit_code, code);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u);
    // Where the message says what can be given, there is no hint.
    const bool hints = outcome.err.find("\nhint: ") != std::string::npos;
    EXPECT_TRUE(hints || outcome.err.find(" is not ") != std::string::npos);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), hints ? 2 : 1);
    for (const auto& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << "missing: " << part;
  }

  Scratch scratch_;
  Outcome outcome_;
};

TEST_F(BenchStep, GivesARowWhoseFiguresFollowFromOneAnother) {
  for (const std::string clip : {"0", "1"}) {
    const json r = row_at("nvme", "device", {"--clip", clip, "--micro-batches", "2"});
    SCOPED_TRACE(r.dump(1));
    EXPECT_EQ(r.at("version"), SPILLWAY_VERSION);
    EXPECT_EQ(r.at("format_version"), 1);
    EXPECT_EQ(r.at("command"), "bench step");
    EXPECT_GT(r.at("machine").at("processors"), 0);
    EXPECT_EQ(r.at("params"), 1'000'003);
    EXPECT_EQ(r.at("layers"), 3);
    EXPECT_EQ(r.at("micro_batches"), 2);
    EXPECT_EQ(r.at("state_format"), "fp32");
    EXPECT_EQ(r.at("clip"), clip == "1" ? 1.0 : 0.0);
    EXPECT_EQ(r.at("updates_wait"), clip == "1");
    EXPECT_EQ(r.at("config").at("spillway").at("check_finite"), clip == "1");
    EXPECT_EQ(r.at("pairs"), 2);
    EXPECT_EQ(r.at("verified"), true);
    EXPECT_EQ(r.at("verified_params"), 1'000'003);
    EXPECT_GE(r.at("verified_steps"), 1 + 2 * 2);
    EXPECT_EQ(r.at("weights_xxh3").get<std::string>().size(), 16u);
    EXPECT_GT(r.at("first_step_s"), 0.0);
    EXPECT_GT(r.at("adam_s"), 0.0);
    EXPECT_GT(r.at("drive_s"), 0.0);
    EXPECT_GE(r.at("control_spread"), 0.0);
    EXPECT_NEAR(r.at("compute_s"), 3 * 2 * 0.3e-3, 1e-12);
    EXPECT_NEAR(r.at("forward_s"), 3 * 0.1e-3, 1e-12);

    // The floor of two pairs is the mean of their floors, each by its own parts: between that of the least and
    // of the most of them, which their medians bound from neither side. What holds is the order.
    const double step = r.at("step_s"), floor = r.at("floor_s"), compute = r.at("compute_s");
    EXPECT_GE(floor, compute);
    EXPECT_LE(floor, compute + r.at("adam_s").get<double>() + r.at("drive_s").get<double>());
    EXPECT_GE(step, compute);
    EXPECT_GT(r.at("of_floor").get<double>(), floor / step / 10);
    EXPECT_LT(r.at("of_floor").get<double>(), floor / step * 10);

    double exposed = 0;
    for (const auto& [lane, seconds] : r.at("exposed_s").items()) exposed += seconds.get<double>();
    EXPECT_GT(r.at("lane_s").at("compute").get<double>(), 0.9 * compute);
    for (const std::string lane : {"adam", "read", "write", "copy_down"})
      EXPECT_GT(r.at("lane_s").at(lane), 0.0) << lane;
    EXPECT_GT(exposed, 0.0);
    EXPECT_TRUE(r.at("exposed_s").contains("other"));
    EXPECT_GT(r.at("cpu_s"), 0.0);
    EXPECT_GT(r.at("host_peak_bytes"), 0);
    EXPECT_EQ(r.at("host_peak_bytes"), r.at("host_planned_bytes"));
    EXPECT_EQ(r.at("device_peak_bytes"), r.at("device_planned_bytes"));
    EXPECT_TRUE(r.at("io").is_object());
  }
}

TEST_F(BenchStep, MovesTheBytesOfTheFormat) {
  const std::map<std::string, double> bytes{{"fp32", 10.0}, {"bf16", 6.0}, {"compact8", 3.125}};
  for (const auto& [format, expected] : bytes) {
    SCOPED_TRACE(format);
    const json r = row_at("nvme", "device", {"--state-format", format, "--params", "4M", "--compute-ms", "0"});
    const double noise = r.at("counted_by_kernel") == true ? 0.5 : 0.02 * expected;
    EXPECT_NEAR(r.at("format_read_bytes_per_param"), expected, 0.02 * expected);
    EXPECT_NEAR(r.at("format_written_bytes_per_param"), expected, 0.02 * expected);
    EXPECT_NEAR(r.at("read_bytes_per_param"), expected, noise);
    EXPECT_NEAR(r.at("written_bytes_per_param"), expected, noise);
  }
}

TEST_F(BenchStep, WhatStaysInHostMemoryIsNotMoved) {
  const json r = row_at("nvme", "device",
                        {"--resident-fraction", "0.5", "--params", "4M", "--layers", "2", "--compute-ms", "0"});
  for (const std::string way : {"read", "written"}) {
    EXPECT_NEAR(r.at(way + "_bytes_per_param"), 5, 1);
    EXPECT_NEAR(r.at("format_" + way + "_bytes_per_param"), 5, 0.6);  // of 20 chunks, whole ones
  }
}

TEST_F(BenchStep, EveryPlacementHasTheSameWeights) {
  std::set<std::string> weights;
  for (const std::string optimizer : {"device", "host", "nvme"}) {
    for (const std::string parameters : {"device", "host", "nvme"}) {
      SCOPED_TRACE(optimizer + " " + parameters);
      const json r = row_at(optimizer, parameters, {"--pairs", "1"});
      EXPECT_EQ(r.at("optimizer_tier"), optimizer);
      EXPECT_EQ(r.at("parameter_tier"), parameters);
      EXPECT_EQ(r.at("verified"), true);
      EXPECT_EQ(r.at("drive_s") == 0.0, optimizer != "nvme" && parameters != "nvme");
      EXPECT_EQ(r.at("io").is_null(), optimizer != "nvme" && parameters != "nvme");
      weights.insert(r.at("weights_xxh3"));
    }
  }
  EXPECT_EQ(weights.size(), 1u);
}

TEST_F(BenchStep, TheOrderOfMicroBatchesChangesNoWeight) {
  const json one = row_at("host", "host", {"--micro-batches", "3", "--pairs", "1"});
  const json other =
      row_at("host", "host", {"--micro-batches", "3", "--pairs", "1", "--accumulation-order", "layer"});
  EXPECT_EQ(one.at("weights_xxh3"), other.at("weights_xxh3"));
  EXPECT_EQ(other.at("accumulation_order"), "layer");
  EXPECT_NEAR(one.at("forward_s").get<double>() * 3, other.at("forward_s"), 1e-12);
  EXPECT_NE(row_at("host", "host", {"--micro-batches", "2", "--pairs", "1"}).at("weights_xxh3"),
            one.at("weights_xxh3"));
}

TEST_F(BenchStep, SaysWhatItDoesInOrder) {
  row_at("nvme", "device", {"--trace", scratch_.path("trace.json")});
  std::size_t place = 0;
  for (const std::string part :
       {"spillway " SPILLWAY_VERSION, "1,000,003 parameters in 3 layers", "clipped to norm 1", "optimizer nvme",
        "step ", "floor ", "backward + max(forward, Adam, drive)", "Adam alone", "drive", "first step",
        "of floor:", "lane", "compute", "adam", "other", "bytes read", "verified", "bound by", "next"}) {
    place = outcome_.out.find(part, place);
    ASSERT_NE(place, std::string::npos) << part << " is missing, or not after the one before it:\n"
                                        << outcome_.out;
  }
  EXPECT_EQ(outcome_.out.find('\r'), std::string::npos);  // no line of progress where there is no terminal
  const json trace = json::parse(read_file(scratch_.path("trace.json"))).at("spillway");
  std::set<std::string> lanes, marks;
  for (const json& span : trace.at("spans")) lanes.insert(span.at("lane"));
  for (const json& mark : trace.at("marks")) marks.insert(mark.at("name"));
  EXPECT_TRUE(lanes.contains("compute") && lanes.contains("read") && lanes.contains("adam") &&
              lanes.contains("write"));
  EXPECT_EQ(marks, (std::set<std::string>{"backward", "step"}));

  row({"--clip", "0"});
  EXPECT_NE(outcome_.out.find("assumed     --offload-optimizer host (there is no --nvme-path)"),
            std::string::npos);
  EXPECT_NE(outcome_.out.find("  floor"), std::string::npos);
  EXPECT_NE(outcome_.out.find("max(compute, Adam, drive)"), std::string::npos);
}

TEST_F(BenchStep, SettingsOfAConfigurationCount) {
  const std::string config =
      scratch_.write("config.json", R"({"gradient_clipping": 0.5, "gradient_accumulation_steps": 2,
                         "spillway": {"state_format": "bf16"}, "aio": {"block_size": 65536},
                         "zero_optimization": {"offload_optimizer": {"device": "cpu"}}})");
  const json r = row({"--config", config, "--pairs", "1"});
  EXPECT_EQ(r.at("clip"), 0.5);
  EXPECT_EQ(r.at("micro_batches"), 2);
  EXPECT_EQ(r.at("state_format"), "bf16");
  EXPECT_EQ(r.at("optimizer_tier"), "host");
  EXPECT_EQ(r.at("config").at("aio").at("block_size"), 65536);
  EXPECT_EQ(row({"--config", config, "--pairs", "1", "--state-format", "fp32"}).at("state_format"), "fp32");
}

TEST_F(BenchStep, ADelayedUpdateIsVerifiedToo) {
  const json r = row_at("nvme", "device", {"--delayed-update", "true", "--pairs", "1"});
  EXPECT_EQ(r.at("updates_wait"), false);
  EXPECT_EQ(r.at("verified"), true);
}

TEST_F(BenchStep, RefusesWhatCannotBeMeasured) {
  struct Bad {
    std::vector<std::string> flags;
    int code;
    std::vector<std::string> parts;
  };
  const std::vector<Bad> table{
      {{"--params", "0"}, 2, {"--params"}},
      {{"--params", "ten"}, 2, {"--params", "ten"}},
      {{"--params", "1GB"}, 2, {"--params", "bytes"}},
      {{"--params", "2"}, 2, {"--params", "3 layers"}},
      {{"--params", "1T"}, 3, {"--params", "fits"}},
      {{"--layers", "0"}, 2, {"--layers", "0"}},
      {{"--layers", "100001"}, 2, {"--layers"}},
      {{"--layers", "few"}, 2, {"--layers"}},
      {{"--compute-ms", "-1"}, 2, {"--compute-ms", "-1"}},
      {{"--compute-ms", "nan"}, 2, {"--compute-ms"}},
      {{"--compute-ms", "60001"}, 2, {"--compute-ms"}},
      {{"--clip", "2"}, 2, {"--clip", "'2'", "0 nor 1"}},
      {{"--clip", ""}, 2, {"--clip"}},
      {{"--pairs", "0"}, 2, {"--pairs"}},
      {{"--steps", "0"}, 2, {"--steps"}},
      {{"--seconds", "-1"}, 2, {"--seconds"}},
      {{"--seconds", "3601"}, 2, {"--seconds"}},
      {{"--micro-batches", "0"}, 2, {"--micro-batches"}},
      {{"--state-format", "fp8"}, 2, {"--state-format", "fp8"}},
      {{"--offload-optimizer", "tape"}, 2, {"--offload-optimizer", "tape"}},
      {{"--offload-parameters", "nvme"}, 2, {"nvme"}},
      {{"--offload-optimizer", "nvme"}, 2, {"--nvme-path"}},
      {{"--nvme-path", scratch_.path("gone")}, 4, {"gone"}},
      {{"--host-memory", "some"}, 2, {"--host-memory", "some"}},
      {{"--host-memory", "1M"}, 3, {"host"}},
      {{"--resident-fraction", "1.5"}, 2, {"--resident-fraction"}},
      {{"--device-bandwidth", "fast"}, 2, {"--device-bandwidth", "fast"}},
      {{"--device-bandwidth", "0"}, 2, {"--device-bandwidth"}},
      {{"--update-slots", "65"}, 2, {"--update-slots"}},
      {{"--config", scratch_.path("none.json")}, 4, {"none.json"}},
      {{"--json", scratch_.path("gone/x.json")}, 4, {"--json", "gone/x.json"}},
      {{"--json", ""}, 2, {"--json"}},
      {{"--trace", ""}, 2, {"--trace"}},
      {{"--json", scratch_.path("x"), "--trace", scratch_.path("x")}, 2, {"--json", "--trace"}},
      {{"--speed", "1"}, 2, {"--speed", "spillway bench step --help"}},
  };
  for (const Bad& bad : table) refused(bench_with(bad.flags), bad.code, bad.parts);
  EXPECT_TRUE(scratch_.names().empty());
}

TEST_F(BenchStep, HelpExplainsFlagsAndFloor) {
  const Outcome help = run_program({"bench", "step", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const std::string part : {"--params",
                                 "--layers",
                                 "--state-format",
                                 "--offload-optimizer",
                                 "--offload-parameters",
                                 "--host-memory",
                                 "--resident-fraction",
                                 "--compute-ms",
                                 "--micro-batches",
                                 "--clip",
                                 "--nvme-path",
                                 "--json",
                                 "--trace",
                                 "--update-slots",
                                 "--block-size",
                                 "--queue-depth",
                                 "--device-bandwidth",
                                 "--accumulation-order",
                                 "The floor",
                                 "backward + max(forward",
                                 "Examples"}) {
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
  }
  EXPECT_NE(run_program({"bench"}).out.find("step"), std::string::npos);
}

TEST(StepFloor, WithoutAConditionIsTheSlowestLane) {
  const std::vector<LaneWork> beside{{"adam", 2}, {"drive", 5}};
  EXPECT_EQ(step_floor(3, 1, false, beside).seconds, 5);
  EXPECT_EQ(step_floor(3, 1, false, beside).bound, "drive");
  EXPECT_EQ(step_floor(6, 2, false, beside).seconds, 6);
  EXPECT_EQ(step_floor(6, 2, false, beside).bound, "compute");
  EXPECT_EQ(step_floor(5, 2, false, beside).bound, "compute");  // hides it exactly
  EXPECT_EQ(step_floor(1, 1, false, {}).seconds, 1);
}

TEST(StepFloor, WithAConditionOnlyTheForwardPassHidesAnything) {
  const std::vector<LaneWork> beside{{"adam", 2.5}, {"drive", 2}};
  EXPECT_EQ(step_floor(6, 2, true, beside).seconds, 6.5);
  EXPECT_EQ(step_floor(6, 2, true, beside).bound, "adam");
  EXPECT_EQ(step_floor(9, 3, true, beside).seconds, 9);
  EXPECT_EQ(step_floor(9, 3, true, beside).bound, "compute");
}

TEST(StepFloor, OfLanesIsTheBusiestOneOfEachPass) {
  LaneTimes times;
  times.busy = {4, 1, 2, 3, 5, 7, 6};
  times.forward = {1, 0, 0, 3, 5, 6, 6};  // compute has the longest backward pass
  EXPECT_EQ(step_floor(times, false).seconds, 7);
  EXPECT_EQ(step_floor(times, false).bound, "read");
  EXPECT_EQ(step_floor(times, true).seconds, 6 + 3);
  EXPECT_EQ(step_floor(times, true).bound, "read");
  times.busy[static_cast<std::size_t>(Lane::copy_down)] = 30;
  EXPECT_EQ(step_floor(times, true).seconds, 6 + 30);
  EXPECT_EQ(step_floor(times, true).bound, "copy_down");
  times.busy = {4, 4};
  times.forward = {1, 1};
  EXPECT_EQ(step_floor(times, false).bound, "compute");
  EXPECT_EQ(step_floor(times, true).seconds, 4);
}

TEST(StepFloor, IsSetByWhatAnUpdateWaitsFor) {
  Config config;
  EXPECT_TRUE(updates_wait(config));
  config.gradient_clipping = 0;
  EXPECT_TRUE(updates_wait(config));  // for the check for finite gradients
  config.check_finite = false;
  EXPECT_FALSE(updates_wait(config));
  config.gradient_clipping = 1;
  EXPECT_TRUE(updates_wait(config));
  config.delayed_update = true;
  EXPECT_FALSE(updates_wait(config));
}

StepFigures summarized(const Config& config, const std::vector<StepSample>& samples, double moved) {
  StepFigures figures;
  figures.compute = 3;
  figures.forward = 1;
  summarize(figures, config, samples, moved);
  return figures;
}

TEST(StepFigures, AreMediansOverPairs) {
  Config config;
  config.optimizer_tier = Tier::nvme;
  config.gradient_clipping = 0;
  config.check_finite = false;
  // The transfers are half of what a step moves: the drive takes 4, 8 and 10 s.
  const std::vector<StepSample> samples{{5, 2, 1}, {8, 4, 1}, {12.5, 5, 1}};
  StepFigures f = summarized(config, samples, 2);
  EXPECT_EQ(f.step, 8);
  EXPECT_EQ(f.drive, 8);
  EXPECT_EQ(f.adam, 1);
  EXPECT_EQ(f.floor, 8);
  EXPECT_EQ(f.bound, "drive");
  EXPECT_NEAR(f.of_floor.median, 0.8, 1e-12);
  EXPECT_NEAR(f.of_floor.spread, 0.1 / 0.8, 1e-12);  // quartiles of 0.8, 0.8, 1.0
  EXPECT_EQ(f.pairs, 3);
  ASSERT_TRUE(f.control);
  EXPECT_NEAR(f.control->median, 0.5, 1e-12);  // the first two stood side by side

  config.gradient_clipping = 1;  // two seconds of backward pass come before anything else
  f = summarized(config, samples, 2);
  EXPECT_EQ(f.floor, 10);
  config.optimizer_tier = Tier::device;  // Adam is a part of what the device computes
  f = summarized(config, {{10, 0, 2.5}}, 0);
  EXPECT_EQ(f.floor, 5.5);
  EXPECT_EQ(f.bound, "compute");
  EXPECT_FALSE(f.control);
  EXPECT_EQ(summarized(config, {{10, 0, 4}}, 0).bound, "adam");
}

TEST(StepFigures, BytesMayDifferByTwoHundredthsAndWhatTheProgramReads) {
  constexpr double kStep = 1e9;
  EXPECT_TRUE(bytes_agree(kStep * 1.019, kStep, 10));
  EXPECT_TRUE(bytes_agree(kStep * 0.981, kStep, 10));
  EXPECT_FALSE(bytes_agree(kStep * 1.03, kStep, 10));
  EXPECT_FALSE(bytes_agree(kStep * 0.97, kStep, 10));
  EXPECT_TRUE(bytes_agree(1e6, 0, 4));
  EXPECT_FALSE(bytes_agree(3e6, 0, 4));
}

/// The weights after so many steps with everything on the device.
std::string weights_after(const StepModelShape& shape, int steps, int micro_batches, bool loses_one = false) {
  Config config;
  config.update_threads = 1;
  config.accumulation = micro_batches;
  SingleRankCommunicator communicator;
  HostDevice device(HostDeviceOptions{});
  Engine engine(config, step_layout(shape), device, communicator);
  StepModel model(engine, device, shape);
  model.load();
  for (int i = 0; i < steps; ++i) model.step().wait();
  if (loses_one) {
    // As if one element of one unit had missed its update.
    std::vector<float> weights;
    engine.read(1, [&](std::int64_t, std::span<const float> values) {
      weights.insert(weights.end(), values.begin(), values.end());
    });
    weights.back() *= 1.0001f;
    engine.load(1, [&](std::int64_t first, std::span<float> values) {
      std::copy_n(weights.begin() + first, values.size(), values.begin());
    });
  }
  return weights_xxh3(engine);
}

TEST(StepModel, EveryStepChangesEveryWeight) {
  const StepModelShape shape{.parameters = 5'003, .units = 2};
  Config config;
  config.update_threads = 1;
  SingleRankCommunicator communicator;
  HostDevice device(HostDeviceOptions{});
  Engine engine(config, step_layout(shape), device, communicator);
  StepModel model(engine, device, shape);
  model.load();
  const auto weights = [&] {
    std::vector<float> all;
    for (int unit = 0; unit < 2; ++unit) {
      engine.read(unit, [&](std::int64_t, std::span<const float> values) {
        all.insert(all.end(), values.begin(), values.end());
      });
    }
    return all;
  };
  std::vector<float> before = weights();
  ASSERT_EQ(before.size(), 5'003u);
  for (int step = 0; step < 3; ++step) {
    const StepResult result = model.step().wait();
    EXPECT_GT(result.gradient_norm, 1.0);  // it is clipped
    EXPECT_FALSE(result.skipped);
    const std::vector<float> after = weights();
    for (std::size_t i = 0; i < after.size(); ++i) EXPECT_NE(before[i], after[i]) << i;
    before = after;
  }
  EXPECT_EQ(model.steps(), 3);
}

TEST(StepModel, WeightsTellStepsAndMicroBatchesApart) {
  const StepModelShape shape{.parameters = 5'003, .units = 2};
  const std::string weights = weights_after(shape, 2, 1);
  EXPECT_EQ(weights_after(shape, 2, 1), weights);
  EXPECT_NE(weights_after(shape, 3, 1), weights);
  EXPECT_NE(weights_after(shape, 2, 2), weights);
  EXPECT_NE(weights_after(shape, 2, 1, true), weights);
}

TEST(StepModel, LayoutHasTheParametersThatWereAskedFor) {
  const Layout layout = step_layout({.parameters = 1'000'003, .units = 7});
  EXPECT_EQ(layout.parameter_count(), 1'000'003);
  EXPECT_EQ(layout.units().size(), 7u);
  EXPECT_EQ(layout.parameters()[0].elements, 142'858);
  EXPECT_EQ(layout.parameters()[6].elements, 142'857);
}

}  // namespace
}  // namespace spillway::cli
