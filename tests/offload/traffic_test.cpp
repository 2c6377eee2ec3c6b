#include "../../offload/traffic.h"

#include "../../core/error.h"
#include "../../offload/engine.h"
#include "engine_rig.h"

#include <string>

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(Traffic, WhatIsWrittenIsWhatTheEngineWrites) {
  const Directory directory;
  for (const Tier parameters : kTiers) {
    for (const Tier optimizer : kTiers) {
      for (const DType precision : {DType::bf16, DType::fp32}) {
        toy::Run run = make_run(parameters, optimizer, directory);
        run.config.precision = precision;
        run.config.accumulation = 2;
        toy::Trainer trainer(run);
        const std::int64_t before = trainer.engine->counters().nvme_written_bytes;
        trainer.step();
        trainer.step();
        trainer.engine->drain();
        EXPECT_EQ(trainer.engine->counters().nvme_written_bytes - before,
                  2 * step_traffic(trainer.engine->layout(), run.config).nvme_written)
            << placement_flags(run.config);
      }
    }
  }
}

TEST(Traffic, GathersAreReadEachTimeAndRecordsOnce) {
  const Layout layout({{"unit", {{"a", {4096}}}}});
  Config config;
  config.parameter_tier = config.optimizer_tier = Tier::nvme;
  const StepTraffic once = step_traffic(layout, config, 1);
  EXPECT_EQ(once.nvme_written, 12 * 4096);
  EXPECT_EQ(once.nvme_read, 12 * 4096 + 2 * 4096);
  config.accumulation = 3;
  EXPECT_EQ(step_traffic(layout, config, 2).nvme_read, 12 * 4096 + 6 * 2 * 4096);
  config.parameter_tier = config.optimizer_tier = Tier::device;
  const StepTraffic none = step_traffic(layout, config);
  EXPECT_EQ(none.nvme_read + none.nvme_written + none.copied, 0);
}

class Cheapest : public testing::Test {
 protected:
  Cheapest() { config_.parameter_nvme_paths = config_.optimizer_nvme_paths = {"/drive"}; }
  std::string flags(const Limits& limits) const {
    const auto best = cheapest_placement(layout_, config_, limits);
    return best ? placement_flags(*best) : "none";
  }
  std::int64_t needed(Tier parameters, Tier optimizer, Tier tier) const {
    Config config = config_;
    config.parameter_tier = parameters;
    config.optimizer_tier = optimizer;
    return least_plan(layout_, config).of(tier).total();
  }
  Layout layout_{{{"a", {{"a", {1 << 20}}}}, {"b", {{"b", {1 << 20}}}}, {"c", {{"c", {1 << 20}}}}},
                 {.live_units = 1}};
  Config config_;
  Config nvme_ = [] {
    Config config;
    config.parameter_tier = config.optimizer_tier = Tier::nvme;
    return config;
  }();
};

TEST_F(Cheapest, StaysOnTheDeviceWhereItCanAndGoesToTheDriveLast) {
  const std::string device_only = "--offload-parameters device --offload-optimizer device";
  EXPECT_EQ(flags({}), device_only);
  const std::int64_t all = needed(Tier::device, Tier::device, Tier::device);
  EXPECT_EQ(flags({.device = all}), device_only);
  EXPECT_EQ(flags({.device = all - 1}), "--offload-parameters device --offload-optimizer host");
  EXPECT_EQ(flags({.device = needed(Tier::device, Tier::host, Tier::device) - 1}),
            "--offload-parameters host --offload-optimizer host");
  // Too little host memory for both: the parameters are the smaller part to move.
  const std::int64_t device = needed(Tier::nvme, Tier::host, Tier::device);
  EXPECT_EQ(flags({.device = device, .host = needed(Tier::nvme, Tier::host, Tier::host)}),
            "--offload-parameters nvme --offload-optimizer host");
  EXPECT_EQ(flags({.device = device, .host = needed(Tier::nvme, Tier::nvme, Tier::host)}),
            "--offload-parameters nvme --offload-optimizer nvme");
}

TEST_F(Cheapest, IsNothingWhereNothingFits) {
  EXPECT_EQ(flags({.device = 1}), "none");
  EXPECT_EQ(flags({.host = 1}), "none");
  EXPECT_EQ(flags({.memory = 1}), "none");
  const std::int64_t device = needed(Tier::nvme, Tier::nvme, Tier::device);
  const std::int64_t host = needed(Tier::nvme, Tier::nvme, Tier::host);
  EXPECT_EQ(flags({.device = device, .host = host}), "--offload-parameters nvme --offload-optimizer nvme");
  EXPECT_EQ(flags({.device = device, .host = host, .parameter_drive = 1}), "none");
  const Limits apart{
      .device = device, .host = host, .parameter_drive = 1 << 30, .optimizer_drive = 1, .is_one_drive = false};
  EXPECT_EQ(flags(apart), "none");
  EXPECT_THROW(check_plan(layout_, nvme_, apart), Error);
  const Limits enough{.device = device,
                      .host = host,
                      .parameter_drive = 1 << 30,
                      .optimizer_drive = 1 << 30,
                      .is_one_drive = false};
  EXPECT_EQ(flags(enough), "--offload-parameters nvme --offload-optimizer nvme");
  EXPECT_NO_THROW(check_plan(layout_, nvme_, enough));
  config_.parameter_nvme_paths = config_.optimizer_nvme_paths = {};
  EXPECT_EQ(flags({.device = device, .host = host}), "none");
}

TEST_F(Cheapest, CountsOneMemoryForBothTiersWhereItIsOne) {
  const std::int64_t all =
      needed(Tier::device, Tier::device, Tier::device) + needed(Tier::device, Tier::device, Tier::host);
  EXPECT_EQ(flags({.memory = all}), "--offload-parameters device --offload-optimizer device");
  EXPECT_NE(flags({.memory = all - 1}), "--offload-parameters device --offload-optimizer device");
  try {
    check_plan(layout_, config_, {.memory = all - 1});
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resources);
    EXPECT_NE(std::string(error.what()).find("device and host memory"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace spillway
