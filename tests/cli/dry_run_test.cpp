// spillway train --dry-run says what a run would be, and a run is that.
#include "program.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using nlohmann::json;

class DryRun : public testing::Test {
 protected:
  Outcome run(std::vector<std::string> arguments, bool dry = true) {
    arguments.insert(arguments.begin(), "train");
    if (dry) arguments.push_back("--dry-run");
    arguments.insert(arguments.end(), {"--json", scratch_.path("result.json")});
    return run_program(arguments);
  }
  json row() const { return json::parse(read_file(scratch_.path("result.json"))).at(0); }

  Scratch scratch_;
};

TEST_F(DryRun, PlansWhatTheRunOccupiesAndWrites) {
  const std::vector<std::string> arguments{
      "--config", example("decoder-tiny.json"), "--nvme-path", scratch_.root(), "--steps", "3"};
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json planned = row();
  EXPECT_EQ(scratch_.names(), std::vector<std::string>{scratch_.path("result.json")});
  auto with_data = arguments;
  with_data.insert(with_data.end(), {"--data", scratch_.write("text.txt", sample_text())});
  ASSERT_EQ(run(with_data, false).exit_code, 0);
  const json measured = row();

  EXPECT_EQ(planned.at("command"), "train --dry-run");
  EXPECT_EQ(planned.at("fits"), true);
  EXPECT_EQ(planned.at("params"), measured.at("params"));
  for (const std::string tier : {"device", "host", "nvme"}) {
    EXPECT_EQ(planned.at("tiers").at(tier).at("planned_by_name"), measured.at("tiers").at(tier).at("by_name"))
        << tier;
    EXPECT_EQ(planned.at("tiers").at(tier).at("planned_bytes"), measured.at("tiers").at(tier).at("peak_bytes"))
        << tier;
  }
  // Beside the steps, the first weights are written once: all of it, as a step does.
  const std::int64_t step = planned.at("nvme_written_bytes_a_step");
  EXPECT_GE(step, 12 * planned.at("params").get<std::int64_t>());
  EXPECT_GE(measured.at("nvme_written_bytes"), 3 * step);
  EXPECT_DOUBLE_EQ(planned.at("nvme_written_tb_a_1000_steps").get<double>(), static_cast<double>(step) / 1e9);
  // All of it would fit in memory.
  EXPECT_EQ(planned.at("cheapest").at("offload_parameters"), "device");
  EXPECT_EQ(planned.at("cheapest").at("offload_optimizer"), "device");
  EXPECT_EQ(planned.at("cheapest").at("state_format"), "fp32");
  for (const std::string part :
       {"TB for every 1,000 steps", "largest", "unit layer.", "cheapest",
        "--offload-parameters device --offload-optimizer device --state-format fp32", "nothing was trained"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part;
  }
}

TEST_F(DryRun, NeedsNoDataAndNoConfiguration) {
  const Outcome outcome = run({"--model", "gpt2", "--sequence-length", "64"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(row().at("params"), 124'439'808);
}

TEST_F(DryRun, NamesThePlacementThatFitsWhereTheChosenOneDoesNot) {
  const std::vector<std::string> limited{"--config",      example("decoder-25m.json"), "--nvme-path",
                                         scratch_.root(), "--device-memory",           "36M"};
  EXPECT_EQ(run(limited).exit_code, 0);
  auto chosen = limited;
  chosen.insert(chosen.end(), {"--offload-optimizer", "none", "--offload-param", "none"});
  const Outcome outcome = run(chosen);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.err.find("device memory"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("--offload-parameters host --offload-optimizer host fits"), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.out.find("fits        no"), std::string::npos) << outcome.out;
  EXPECT_EQ(row().at("fits"), false);
  EXPECT_EQ(row().at("cheapest").at("offload_optimizer"), "host");
  // And that one does.
  auto other = limited;
  other.insert(other.end(), {"--offload-optimizer", "host", "--offload-parameters", "host"});
  EXPECT_EQ(run(other).exit_code, 0);
}

TEST_F(DryRun, SaysWhatWouldDoWhereNothingFits) {
  const Outcome outcome =
      run({"--config", example("decoder-25m.json"), "--nvme-path", scratch_.root(), "--device-memory", "1M"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.out.find("no placement fits"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err.find("the smallest of all placements is"), std::string::npos) << outcome.err;
  EXPECT_TRUE(row().at("cheapest").is_null());
}

TEST_F(DryRun, NamesANarrowerStateFormatWhereOnlyThatFits) {
  // There is room for the slots of compact8, and not for those of fp32, wherever the gradients are.
  std::vector<std::string> limited{"--model", "decoder-25m", "--device-threads",
                                   "2",       "--nvme-path", scratch_.root()};
  limited.insert(limited.end(), {"--device-memory", "40M", "--host-memory", "15M"});
  limited.insert(limited.end(), {"--offload-optimizer", "nvme", "--offload-parameters", "nvme"});
  const Outcome refused = run(limited);
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.err.find("--state-format compact8 fits"), std::string::npos) << refused.err;
  EXPECT_EQ(row().at("cheapest").at("state_format"), "compact8");
  limited.insert(limited.end(), {"--state-format", "compact8"});
  EXPECT_EQ(run(limited).exit_code, 0);
}

TEST_F(DryRun, ADriveWithoutSpaceDoesNotFit) {
  // 1.5 TB of state at least, which no drive of a test has free.
  const Outcome outcome =
      run({"--config", example("decoder-tiny.json"), "--nvme-path", scratch_.root(), "--vocab", "1000000000"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.out;
}

TEST_F(DryRun, NamesADriveWhereNothingElseFits) {
  // Both tiers fill what is free: only a drive helps, and none was named.
  const Outcome outcome =
      run({"--config", example("decoder-25m.json"), "--offload-optimizer", "host", "--offload-parameters",
           "host", "--device-memory", "36M", "--host-memory", "70M"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.err.find("--offload-optimizer nvme"), std::string::npos) << outcome.err;
  const Outcome unnamed = run(
      {"--model", "decoder-25m", "--device-threads", "2", "--device-memory", "60M", "--host-memory", "70M"});
  EXPECT_EQ(unnamed.exit_code, 3);
  EXPECT_NE(unnamed.err.find("--offload-optimizer nvme --nvme-path DIR fits"), std::string::npos)
      << unnamed.err;
  EXPECT_NE(unnamed.out.find("--nvme-path DIR"), std::string::npos) << unnamed.out;
}

TEST_F(DryRun, ADriveThatARunWouldRefuseIsRefused) {
  for (const std::string& path : {std::string("/dev/shm"), scratch_.write("file", "x")}) {
    const Outcome outcome = run({"--config", example("decoder-tiny.json"), "--nvme-path", path});
    EXPECT_EQ(outcome.exit_code, 4) << path << outcome.err;
  }
}

TEST_F(DryRun, ADirectoryThatIsNotThereIsAnError) {
  const Outcome outcome = run({"--config", example("decoder-tiny.json"), "--nvme-path", scratch_.path("gone")});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_NE(outcome.err.find("gone"), std::string::npos) << outcome.err;
}

TEST_F(DryRun, KeepsStateBackFromADriveOnlyInMemoryThatSomebodyGave) {
  const std::vector<std::string> spilled{"--config", example("decoder-tiny.json"), "--nvme-path",
                                         scratch_.root()};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), spilled.begin(), spilled.end());
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string nothing_given = with({});
  for (const std::string key : {"resident_fraction", "parameter_cache"}) {
    EXPECT_NE(nothing_given.find("spillway." + key + " = 0 (with --host-memory SIZE"), std::string::npos)
        << nothing_given;
    EXPECT_EQ(row().at("config").at("spillway").at(key), 0) << key;
  }
  const auto planned = [&] { return row().at("tiers").at("host").at("planned_bytes").get<std::int64_t>(); };
  const std::int64_t least = planned();

  EXPECT_EQ(with({"--host-memory", "1G"}).find("resident_fraction"), std::string::npos);
  EXPECT_FALSE(row().at("config").at("spillway").contains("resident_fraction"));
  EXPECT_GT(planned(), least);

  EXPECT_EQ(with({"--resident-fraction", "0.5"}).find("resident_fraction = 0"), std::string::npos);
  EXPECT_EQ(row().at("config").at("spillway").at("resident_fraction"), 0.5);
  EXPECT_EQ(row().at("config").at("spillway").at("parameter_cache"), 0);
  EXPECT_GT(planned(), least);
  // Nobody wonders about caches where nothing lies on a drive.
  EXPECT_EQ(with({"--offload-optimizer", "host", "--offload-parameters", "host"}).find("with --host-memory"),
            std::string::npos);
}

/// A flag with its value, and the same in a file.
struct FlagAndKey {
  std::vector<std::string> flag;
  std::string key;  ///< JSON pointer
  json value;
};

/// --nvme-path stands for two keys.
json nvme_paths(const std::string& one, const std::string& other) {
  const json place = {{"nvme_path", {one, other}}};
  return {{"zero_optimization", {{"offload_optimizer", place}, {"offload_param", place}}}};
}

TEST_F(DryRun, EveryFlagIsItsKey) {
  const std::string text = scratch_.write("text.txt", sample_text()),
                    other = scratch_.write("other.txt", sample_text());
  const std::vector<FlagAndKey> all = {
      {{"--lr", "0.25"}, "/optimizer/params/lr", 0.25},
      {{"--batch-size", "3"}, "/train_micro_batch_size_per_gpu", 3},
      {{"--accumulation", "5"}, "/gradient_accumulation_steps", 5},
      {{"--stage", "1"}, "/zero_optimization/stage", 1},
      {{"--state-format", "bf16"}, "/spillway/state_format", "bf16"},
      {{"--steps", "7"}, "/spillway/steps", 7},
      {{"--seed", "9"}, "/spillway/seed", 9},
      {{"--sequence-length", "16"}, "/spillway/sequence_length", 16},
      {{"--vocab", "300"}, "/spillway/vocab", 300},
      {{"--tokens", "bytes"}, "/spillway/tokens", "bytes"},
      {{"--data", text, "--data", other}, "/spillway/data", {text, other}},
      {{"--eval-data", text, other}, "/spillway/eval_data", {text, other}},
      {{"--eval-every", "4"}, "/spillway/eval_every", 4},
      {{"--offload-optimizer", "cpu"}, "/zero_optimization/offload_optimizer/device", "host"},
      {{"--offload-parameters", "cpu"}, "/zero_optimization/offload_param/device", "host"},
      {{"--offload-param", "host"}, "/zero_optimization/offload_param/device", "host"},
      {{"--device-memory", "1G"}, "/spillway/device_memory", "1GiB"},
      {{"--host-memory", "2GB"}, "/spillway/host_memory", 2'000'000'000},
      {{"--nvme-path", scratch_.root(), "/elsewhere"}, "", nvme_paths(scratch_.root(), "/elsewhere")},
      {{"--nvme-bandwidth", "2", "--nvme-bandwidth", "3.5"}, "/spillway/nvme_bandwidth", {2, 3.5}},
      {{"--block-size", "8192"}, "/aio/block_size", 8192},
      {{"--queue-depth", "5"}, "/aio/queue_depth", 5},
      {{"--io-engine", "posix"}, "/spillway/io_engine", "posix"},
      {{"--io-sqpoll", "true"}, "/spillway/io_sqpoll", true},
      {{"--io-iopoll", "true"}, "/spillway/io_iopoll", true},
      {{"--checksums", "true"}, "/spillway/checksums", true},
      {{"--direct-io", "false"}, "/spillway/direct_io", false},
      {{"--io-faults", "short=0.5"}, "/spillway/io_faults", "short=0.5"},
      {{"--resident-fraction", "0.5"}, "/spillway/resident_fraction", 0.5},
      {{"--parameter-cache", "5M"}, "/spillway/parameter_cache", 5 << 20},
      {{"--update-slots", "7"}, "/spillway/update_slots", 7},
      {{"--accumulation-order", "layer"}, "/spillway/accumulation_order", "layer"},
      {{"--activations", "recompute"}, "/spillway/activations", "recompute"},
      {{"--delayed-update", "true"}, "/spillway/delayed_update", true},
      {{"--update-threads", "3"}, "/spillway/update_threads", 3},
      {{"--device-threads", "3"}, "/spillway/device_threads", 3},
      {{"--pin-threads", "true"}, "/spillway/pin_threads", true},
      {{"--model", "decoder-25m"}, "/spillway/model", "decoder-25m"},
  };
  // What is free changes from one run to the next.
  const json base = {{"spillway",
                      {{"pin_threads", false},
                       {"model", "decoder-tiny"},
                       {"device_memory", "3G"},
                       {"host_memory", "3G"},
                       {"eval_data", other}}}};
  const auto config_of = [&](const json& file, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--config", scratch_.write("run.json", file.dump())});
    const Outcome outcome = run(flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return row().at("config");
  };
  const json plain = config_of(base, {});
  for (const auto& [flag, key, value] : all) {
    json file = base;
    if (key.empty()) {
      file.update(value);
    } else {
      file[json::json_pointer(key)] = value;
    }
    const json by_flag = config_of(base, flag);
    EXPECT_EQ(by_flag, config_of(file, {})) << flag[0];
    EXPECT_NE(by_flag, plain) << flag[0];
  }
}

}  // namespace
}  // namespace spillway::cli
