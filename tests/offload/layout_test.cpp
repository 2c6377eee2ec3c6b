#include "../../offload/layout.h"

#include "../../core/error.h"
#include "../../offload/plan.h"

#include <stdexcept>

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(Layout, PutsTrainableParametersFirstAtMultiplesOf128) {
  const Layout layout({{"unit", {{"frozen", {5}, 0, false}, {"a", {3, 50}}, {"b", {128}}, {"c", {1}}}}});
  const auto& unit = layout.units()[0];
  EXPECT_EQ(layout.parameters()[1].offset, 0);
  EXPECT_EQ(layout.parameters()[2].offset, 256);
  EXPECT_EQ(layout.parameters()[3].offset, 384);
  EXPECT_EQ(unit.trainable, 512);
  EXPECT_EQ(layout.parameters()[0].offset, 512);
  EXPECT_EQ(unit.elements, 640);
  EXPECT_EQ(layout.parameter_count(), 5 + 150 + 128 + 1);
  EXPECT_EQ(unit.parameters, (std::vector<int>{1, 2, 3, 0}));
  EXPECT_EQ(layout.parameter("b"), 2);
  EXPECT_EQ(layout.unit("unit"), 0);
}

TEST(Layout, PadsUnitsToTheWorldSoThatShardsAreEqual) {
  for (const int world : {1, 2, 3, 7}) {
    const Layout layout({{"unit", {{"a", {1000}}, {"f", {10}, 0, false}}}, {"tiny", {{"b", {1}}}}},
                        {.world = world});
    for (const auto& unit : layout.units()) {
      EXPECT_EQ(unit.elements % (128 * world), 0);
      EXPECT_EQ(unit.trainable % (128 * world), 0);
    }
    EXPECT_EQ(layout.units()[1].trainable, 128 * world);
  }
}

TEST(Layout, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Layout(std::vector<UnitSpec>{}), std::logic_error);
  EXPECT_THROW(Layout({UnitSpec{"u", {}}}), std::logic_error);
  EXPECT_THROW(Layout({{"u", {{"a", {0}}}}}), std::logic_error);
  EXPECT_THROW(Layout({{"u", {{"a", {-3}}}}}), std::logic_error);
  EXPECT_THROW(Layout({{"u", {{"a", {std::int64_t{1} << 40, std::int64_t{1} << 40}}}}}), std::logic_error);
  EXPECT_THROW(Layout({{"u", {{"a", {1}}}}, {"v", {{"a", {1}}}}}), std::logic_error);
  EXPECT_THROW(Layout({{"u", {{"a", {1}}}, 0}}), std::logic_error);
  const std::int64_t large = std::int64_t{1} << 50;
  EXPECT_THROW(Layout({{"u", {{"a", {large}}}}, {"v", {{"b", {1}}}}}), std::logic_error);
  EXPECT_THROW(Layout({{"u", {{"a", {1}}}}}).parameter("b"), std::logic_error);
}

// A model of one unit of 1,000 trainable parameters (1,024 with padding), by hand.
TEST(Plan, AddsUpByHand) {
  const Layout layout({{"unit", {{"a", {1000}}}}}, {.live_units = 2, .model_memory = {{"activations", 777}}});
  Config config;
  config.optimizer_tier = config.parameter_tier = Tier::nvme;
  const Plan plan = make_plan(layout, config);
  EXPECT_EQ(plan.device.bytes_of("activations"), 777);
  EXPECT_EQ(plan.device.bytes_of("parameter slots"), 2 * 1024 * 2);
  EXPECT_EQ(plan.device.bytes_of("gradient slots"), 1024 * 4);
  EXPECT_EQ(plan.device.bytes_of("gradient wire"), 2 * 1024 * 2);
  EXPECT_EQ(plan.device.total(), 777 + 4096 + 4096 + 4096);
  EXPECT_EQ(plan.host.bytes_of("gradients"), 1024 * 2);
  EXPECT_EQ(plan.host.bytes_of("gradient staging"), 0);
  EXPECT_EQ(plan.host.bytes_of("parameter staging"), 2 * 4096);
  EXPECT_EQ(plan.host.bytes_of("optimizer slots"), 3 * 20480);  // a chunk of 2,048 elements of 10 B
  EXPECT_EQ(plan.nvme.bytes_of("parameters"), 4096);
  EXPECT_EQ(plan.nvme.bytes_of("optimizer records"), 12288);  // 10,240 B, rounded up to 4 KiB
  config.accumulation = 2;
  EXPECT_EQ(make_plan(layout, config).host.bytes_of("gradients"), 1024 * 4);
  EXPECT_EQ(make_plan(layout, config).host.bytes_of("gradient staging"), 2 * 1024 * 2);
}

TEST(Plan, HostMemoryGrowsByGradientsOnlyWhenAllIsOnNvme) {
  const auto host = [](int layers, Tier tier) {
    std::vector<UnitSpec> units;
    for (int i = 0; i < layers; ++i)
      units.push_back({"layer." + std::to_string(i), {{"w." + std::to_string(i), {1 << 20}}}});
    Config config;
    config.optimizer_tier = config.parameter_tier = tier;
    config.update_slots = 3;
    return make_plan(Layout(units), config).host.total();
  };
  EXPECT_EQ(host(16, Tier::nvme) - host(4, Tier::nvme), 12 * (std::int64_t{1} << 20) * 2);
  EXPECT_EQ(host(16, Tier::host) - host(4, Tier::host), 12 * (std::int64_t{1} << 20) * (2 + 2 + 10));
}

}  // namespace
}  // namespace spillway
