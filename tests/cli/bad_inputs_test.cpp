// Inputs that someone gets wrong, each with the exit code and the words that a stranger needs to put it right.
#include "program.h"

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using nlohmann::json;

struct BadInput {
  std::string name;  ///< of the test
  /// Changes a configuration that works.
  std::function<void(json&)> change;
  std::vector<std::string> arguments;  ///< beside --config, --data and --nvme-path
  int exit_code = 2;
  std::vector<std::string> words;  ///< of the error line or its hint
};

void PrintTo(const BadInput& bad, std::ostream* stream) {
  *stream << bad.name;
}

json& zero(json& c) {
  return c["zero_optimization"];
}
json& own(json& c) {
  return c["spillway"];
}
json& parameters(json& c) {
  return c["optimizer"]["params"];
}
void nothing(json&) {}

const std::vector<BadInput>& bad_inputs() {
  static const std::vector<BadInput> all = {
      // Wrong types
      {"ClippingAsAWord",
       [](json& c) { c["gradient_clipping"] = "tight"; },
       {},
       2,
       {"gradient_clipping", "\"tight\""}},
      {"BatchSizeAsAList",
       [](json& c) {
         c["train_batch_size"] = {1, 2};
       },
       {},
       2,
       {"train_batch_size", "[1,2]"}},
      {"BatchSizeBroken",
       [](json& c) { c["train_micro_batch_size_per_gpu"] = 1.5; },
       {},
       2,
       {"train_micro_batch_size_per_gpu", "1.5", "whole number"}},
      {"BatchSizeNegative",
       [](json& c) { c["train_micro_batch_size_per_gpu"] = -4; },
       {},
       2,
       {"train_micro_batch_size_per_gpu", "-4"}},
      {"BatchSizeZero",
       [](json& c) { c["gradient_accumulation_steps"] = 0; },
       {},
       2,
       {"gradient_accumulation_steps", "0 is not"}},
      {"PrecisionAsANumber", [](json& c) { c["bf16"]["enabled"] = 3; }, {}, 2, {"bf16.enabled", "3 is not"}},
      {"SectionAsAWord",
       [](json& c) { c["zero_optimization"] = "stage3"; },
       {},
       2,
       {"zero_optimization", "\"stage3\""}},
      {"OptimizerWithoutParameters",
       [](json& c) { c["optimizer"]["params"] = 1; },
       {},
       2,
       {"optimizer.params"}},
      {"StageFour", [](json& c) { zero(c)["stage"] = 4; }, {}, 2, {"zero_optimization.stage", "0 to 3"}},
      {"OneBeta",
       [](json& c) { parameters(c)["betas"] = {0.9}; },
       {},
       2,
       {"optimizer.params.betas", "two numbers"}},
      {"BetaOfOne",
       [](json& c) {
         parameters(c)["betas"] = {0.9, 1.0};
       },
       {},
       2,
       {"optimizer.params.betas", "below 1"}},
      {"SizeWithoutUnit",
       [](json& c) { own(c)["device_memory"] = "much"; },
       {},
       2,
       {"spillway.device_memory", "much"}},
      // Misspelt, misplaced, given twice
      {"Misspelt",
       [](json& c) { c["gradient_cliping"] = 1.0; },
       {},
       2,
       {"gradient_cliping", "did you mean gradient_clipping?"}},
      {"MisspeltSection",
       [](json& c) {
         c["zero_optimisation"] = {{"stage", 3}};
       },
       {},
       2,
       {"zero_optimisation", "did you mean zero_optimization?"}},
      {"MisspeltOwnKey",
       [](json& c) { own(c)["sequense_length"] = 32; },
       {},
       2,
       {"sequense_length", "did you mean sequence_length?"}},
      {"AioInTheWrongSection",
       [](json& c) {
         zero(c)["aio"] = {{"queue_depth", 8}};
       },
       {},
       2,
       {"zero_optimization.aio", "its place is aio"}},
      {"OffloadInTheWrongSection",
       [](json& c) {
         c["offload_optimizer"] = {{"device", "cpu"}};
       },
       {},
       2,
       {"offload_optimizer", "zero_optimization.offload_optimizer"}},
      {"RateAtTheTop", [](json& c) { c["lr"] = 1e-3; }, {}, 2, {"lr", "optimizer.params.lr"}},
      {"DottedKey", [](json& c) { c["optimizer.params.lr"] = 1e-3; }, {}, 2, {"optimizer.params.lr", "dots"}},
      {"TwoNamesForOneThing",
       [](json& c) { zero(c)["cpu_offload"] = true; },
       {},
       2,
       {"cpu_offload", "offload_optimizer"}},
      // What contradicts itself
      {"BatchSizesDisagree",
       [](json& c) {
         c["train_batch_size"] = 7;
         c["train_micro_batch_size_per_gpu"] = 2;
         c["gradient_accumulation_steps"] = 3;
       },
       {},
       2,
       {"7", "2 x", "3 x", "= 6"}},
      {"AFlagContradictsTheFile",
       [](json& c) {
         c["train_batch_size"] = 8;
         c["train_micro_batch_size_per_gpu"] = 4;
         c["gradient_accumulation_steps"] = 2;
       },
       {"--batch-size", "3"},
       2,
       {"--batch-size", "8", "= 6"}},
      {"AnotherFlagContradictsTheFile",
       [](json& c) { c["train_batch_size"] = 8; },
       {"--accumulation", "3"},
       2,
       {"--accumulation", "8"}},
      {"BothPrecisions",
       [](json& c) {
         c["bf16"]["enabled"] = true;
         c["fp16"]["enabled"] = true;
       },
       {},
       2,
       {"bf16.enabled", "fp16.enabled"}},
      {"AdamWThatIsNone",
       [](json& c) {
         c["optimizer"]["type"] = "AdamW";
         parameters(c)["adam_w_mode"] = false;
       },
       {},
       2,
       {"AdamW", "adam_w_mode"}},
      {"NvmeWithoutAPath",
       [](json& c) {
         zero(c)["offload_param"].erase("nvme_path");
         zero(c)["offload_optimizer"].erase("nvme_path");
       },
       {"no --nvme-path"},
       2,
       {"nvme_path", "--nvme-path DIR"}},
      {"WarmUpLongerThanTheRun",
       [](json& c) {
         c["scheduler"] = {{"type", "WarmupDecayLR"},
                           {"params", {{"warmup_num_steps", 30}, {"total_num_steps", 20}}}};
       },
       {},
       2,
       {"total_num_steps", "20", "30"}},
      {"SequenceLongerThanTheModel",
       nothing,
       {"--sequence-length", "65"},
       2,
       {"65", "64 positions", "--sequence-length"}},
      {"EvaluationOfNothing", nothing, {"--eval-every", "2"}, 2, {"--eval-every", "--eval-data"}},
      {"CheckpointsInTwoPlaces",
       [](json& c) {
         c["activation_checkpointing"] = {{"cpu_checkpointing", true}};
         own(c)["activations"] = "keep";
       },
       {},
       2,
       {"cpu_checkpointing", "spillway.activations is keep", "leave one"}},
      {"ActivationsOnNoDrive",
       [](json& c) {
         for (const char* place : {"offload_param", "offload_optimizer"}) zero(c)[place] = {{"device", "cpu"}};
         own(c)["activations"] = "nvme";
       },
       {"no --nvme-path"},
       2,
       {"spillway.activations", "--nvme-path DIR", "--activations host"}},
      // What does not exist here
      {"OptimizerUnknown",
       [](json& c) { c["optimizer"]["type"] = "OneBitAdam"; },
       {},
       2,
       {"OneBitAdam", "AdamW"}},
      {"SchedulerUnknown",
       [](json& c) {
         c["scheduler"] = {{"type", "OneCycle"}, {"params", json::object()}};
       },
       {},
       2,
       {"OneCycle", "WarmupLR"}},
      {"CompressionSwitchedOn",
       [](json& c) {
         c["compression_training"] = {{"enabled", true}};
       },
       {},
       2,
       {"compression_training"}},
      {"QuantizedWeights",
       [](json& c) { zero(c)["zero_quantized_weights"] = true; },
       {},
       2,
       {"zero_quantized_weights"}},
      {"TierUnknown",
       [](json& c) { zero(c)["offload_param"]["device"] = "disk"; },
       {},
       2,
       {"offload_param.device", "disk", "nvme"}},
      {"StateFormatUnknown", nothing, {"--state-format", "int4"}, 2, {"--state-format", "int4", "fp32"}},
      {"StageNine", nothing, {"--stage", "9"}, 2, {"--stage", "9"}},
      {"TokensOfAnUnknownType", nothing, {"--tokens", "uint8"}, 2, {"--tokens", "uint8", "uint16"}},
      {"ModelUnknown", nothing, {"--model", "decoder-tinny"}, 2, {"decoder-tinny", "decoder-tiny"}},
      {"ActivationsUnknown", nothing, {"--activations", "cpu"}, 2, {"--activations", "cpu", "recompute"}},
      {"AccumulationOrderUnknown",
       nothing,
       {"--accumulation-order", "unit"},
       2,
       {"--accumulation-order", "unit", "layer"}},
      // Values without a use
      {"MoreThanAllResident",
       nothing,
       {"--resident-fraction", "1.5"},
       2,
       {"--resident-fraction", "1.5", "0 to 1"}},
      {"LessThanNothingResident",
       [](json& c) { own(c)["resident_fraction"] = -0.1; },
       {},
       2,
       {"spillway.resident_fraction", "-0.1"}},
      {"ParameterCacheAsAWord", nothing, {"--parameter-cache", "much"}, 2, {"--parameter-cache", "much"}},
      {"TooManyUpdateSlots", nothing, {"--update-slots", "65"}, 2, {"--update-slots", "65", "0 to 64"}},
      {"DelayByANumber", nothing, {"--delayed-update", "1"}, 2, {"--delayed-update", "true or false"}},
      {"RateOfZero", [](json& c) { parameters(c)["lr"] = 0; }, {}, 2, {"optimizer.params.lr", "zero"}},
      {"RateFlagOfZero", nothing, {"--lr", "0"}, 2, {"--lr", "zero"}},
      {"RateNegative", nothing, {"--lr=-0.1"}, 2, {"--lr", "-0.1"}},
      {"RateAsAWord", nothing, {"--lr", "fast"}, 2, {"--lr", "fast"}},
      {"RateInfinite", nothing, {"--lr", "1e999"}, 2, {"--lr", "1e999"}},
      {"NoSteps", nothing, {"--steps", "0"}, 2, {"--steps", "0 is not"}},
      {"VocabularySmallerThanAByte", nothing, {"--vocab", "100"}, 2, {"100", "256"}},
      {"VocabularyOfOne", nothing, {"--vocab", "1"}, 2, {"--vocab", "1 is not"}},
      {"NoDecayOfNothing", [](json& c) { own(c)["no_decay"] = {"*.bais"}; }, {}, 2, {"no_decay", "*.bais"}},
      // Models
      {"NoLayers", [](json& c) { own(c)["model"]["n_layer"] = 0; }, {}, 2, {"n_layer", "from 1"}},
      {"HeadsThatDoNotDivide",
       [](json& c) { own(c)["model"]["n_head"] = 5; },
       {},
       2,
       {"n_head", "5", "n_embd (128)"}},
      {"ModelOfAnotherFamily",
       [](json& c) { own(c)["model"]["model_type"] = "bert"; },
       {},
       2,
       {"model_type", "gpt2", "bert"}},
      {"ModelWithoutWidth", [](json& c) { own(c)["model"].erase("n_embd"); }, {}, 2, {"n_embd", "missing"}},
      {"ModelFileGone",
       [](json& c) { own(c)["model"] = "gone/model.json"; },
       {},
       4,
       {"gone/model.json", "No such file"}},
      {"NoModel", [](json& c) { own(c).erase("model"); }, {}, 2, {"spillway.model", "--model"}},
      // Resources
      {"TooLittleDeviceMemory",
       nothing,
       {"--device-memory", "100K"},
       3,
       {"device memory", "100 KiB", "--device-memory"}},
      {"TooLittleHostMemory",
       nothing,
       {"--host-memory", "100K"},
       3,
       {"host memory", "100 KiB", "--host-memory"}},
  };
  return all;
}

class BadInputs : public testing::TestWithParam<BadInput> {};

TEST_P(BadInputs, IsRefusedInOneLine) {
  const BadInput& bad = GetParam();
  const Scratch scratch;
  const std::string text = scratch.write("text.txt", sample_text());
  std::filesystem::create_directory(scratch.path("nvme"));
  json config = json::parse(read_file(example("decoder-tiny.json")), nullptr, true, true);
  bad.change(config);
  std::vector<std::string> command{"train", "--config", scratch.write("run.json", config.dump()), "--data",
                                   text};
  auto arguments = bad.arguments;
  if (arguments == std::vector<std::string>{"no --nvme-path"}) {
    arguments.clear();
  } else {
    command.insert(command.end(), {"--nvme-path", scratch.path("nvme")});
  }
  command.insert(command.end(), arguments.begin(), arguments.end());

  const auto before = scratch.names();
  const Outcome outcome = run_program(command);
  SCOPED_TRACE(outcome.err);
  EXPECT_EQ(outcome.exit_code, bad.exit_code);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u);
  const bool hint = outcome.err.find("\nhint: ") != std::string::npos;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), hint ? 2 : 1);
  EXPECT_EQ(outcome.err.find("internal"), std::string::npos);
  for (const auto& word : bad.words)
    EXPECT_NE(outcome.err.find(word), std::string::npos) << "missing: " << word;
  EXPECT_EQ(scratch.names(), before);
}

INSTANTIATE_TEST_SUITE_P(Table, BadInputs, testing::ValuesIn(bad_inputs()),
                         [](const auto& one) { return one.param.name; });

TEST(BadInputTable, HoldsAtLeastFortyInputs) {
  EXPECT_GE(bad_inputs().size(), 40u);
}

}  // namespace
}  // namespace spillway::cli
