#include "../../core/config.h"

#include "../../core/error.h"
#include "../../core/json_document.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace spillway {
namespace {

Config parse(std::string_view text, std::vector<ConfigOverride> overrides = {}) {
  return parse_config(text, "run.json", {.overrides = overrides});
}

/// The error line for a text that must be refused, then " | " and the hint where there is one.
std::string refusal(std::string_view text, std::vector<ConfigOverride> overrides = {}) {
  try {
    parse(text, std::move(overrides));
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.detail().hint.empty() ? error.what() : std::string(error.what()) + " | " + error.detail().hint;
  }
  return "accepted";
}

TEST(Config, DefaultsOfAnEmptyObjectAreNamedAsAssumed) {
  const Config config = parse("{}");
  EXPECT_EQ(config.micro_batch, 1);
  EXPECT_EQ(config.accumulation, 1);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.optimizer.optimizer, Optimizer::adamw);
  EXPECT_EQ(config.precision, DType::bf16);
  EXPECT_EQ(config.device_memory, -1);
  EXPECT_NE(std::find(config.assumed.begin(), config.assumed.end(), "optimizer.params.lr = 0.001"),
            config.assumed.end());
}

TEST(Config, EveryKeyHasItsEffect) {
  const Config config = parse(R"({
    // a comment, /* and another */
    "_note": {"anything": 1}, "//": "as some write comments",
    "train_batch_size": 24, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 6,
    "gradient_clipping": 0.5, "steps_per_print": 10,
    "optimizer": {"type": "Adam", "params": {"lr": 2e-4, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1,
                                            "adam_w_mode": false}},
    "bf16": {"enabled": false},
    "zero_optimization": {
      "stage": 2,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/a", "pin_memory": true},
      "offload_param": {"device": "cpu", "nvme_path": "/b", "pin_memory": false}
    },
    "spillway": {"model": {"n_layer": 3}, "sequence_length": 5e2, "seed": 7, "steps": 12, "state_format": "fp32",
                 "precision": "fp32", "device_memory": "40M", "host_memory": 5e8, "update_threads": 3,
                 "device_threads": 2, "check_finite": false, "no_decay": ["*.bias"]}
  })");
  EXPECT_EQ(config.micro_batch, 4);
  EXPECT_EQ(config.accumulation, 6);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_EQ(config.optimizer.optimizer, Optimizer::adam);
  EXPECT_EQ(config.optimizer.learning_rate, 2e-4);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.optimizer.eps, 1e-6);
  EXPECT_EQ(config.optimizer.weight_decay, 0.1);
  EXPECT_EQ(config.stage, 2);
  EXPECT_EQ(config.optimizer_tier, Tier::nvme);
  EXPECT_EQ(config.optimizer_nvme_paths, std::vector<std::string>{"/a"});
  EXPECT_EQ(config.parameter_tier, Tier::host);
  EXPECT_EQ(config.parameter_nvme_paths, std::vector<std::string>{"/b"});
  EXPECT_EQ(config.model, R"({"n_layer":3})");
  EXPECT_EQ(config.sequence_length, 500);
  EXPECT_EQ(config.seed, 7u);
  EXPECT_EQ(config.steps, 12);
  EXPECT_EQ(config.precision, DType::fp32);
  EXPECT_EQ(config.device_memory, 40 << 20);
  EXPECT_EQ(config.host_memory, 500'000'000);
  EXPECT_EQ(config.update_threads, 3);
  EXPECT_EQ(config.device_threads, 2);
  EXPECT_FALSE(config.check_finite);
  EXPECT_TRUE(config.assumed.empty()) << config.assumed.front();
}

TEST(Config, WrittenAndReadBackItIsTheSame) {
  const std::vector<std::string> texts = {
      "{}",
      R"({"train_batch_size": 24, "gradient_accumulation_steps": 6, "gradient_clipping": 0,
          "optimizer": {"type": "Adam", "params": {"lr": 0.1, "betas": [0.123456789012345, 0.5], "adam_w_mode": false}},
          "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "a b"}},
          "spillway": {"model": {"n_layer": 3}, "sequence_length": 9, "seed": 9223372036854775807,
                       "precision": "fp32", "device_memory": "1.5GiB", "steps": 3, "check_finite": false}})"};
  for (const auto& text : texts) {
    const std::string written = to_json(parse(text));
    const Config again = parse(written);
    EXPECT_EQ(to_json(again), written);
    // Each of the two differs from the other in nearly every key: equal texts are no accident.
    EXPECT_EQ(again.seed, parse(text).seed);
    EXPECT_EQ(again.device_memory, parse(text).device_memory);
    EXPECT_EQ(again.optimizer.beta1, parse(text).optimizer.beta1);
  }
  EXPECT_NE(to_json(parse(texts[0])), to_json(parse(texts[1])));
}

TEST(Config, BatchSizesFollowFromOneAnother) {
  const auto sizes = [](std::string_view text) {
    const Config config = parse(text);
    return std::pair(config.micro_batch, config.accumulation);
  };
  EXPECT_EQ(sizes(R"({"train_batch_size": 12})"), std::pair(12, 1));
  EXPECT_EQ(sizes(R"({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 4})"), std::pair(4, 3));
  EXPECT_EQ(sizes(R"({"train_batch_size": 12, "gradient_accumulation_steps": 4})"), std::pair(3, 4));
  EXPECT_EQ(sizes(R"({"gradient_accumulation_steps": 4})"), std::pair(1, 4));
  EXPECT_EQ(sizes(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": null})"), std::pair(1, 1));
}

TEST(Config, AdamIsAdamWUnlessItSaysOtherwise) {
  EXPECT_EQ(parse(R"({"optimizer": {"type": "Adam"}})").optimizer.optimizer, Optimizer::adamw);
  EXPECT_NE(parse(R"({"optimizer": {"type": "Adam"}})").assumed.front().find("adam_w_mode = true"),
            std::string::npos);
  EXPECT_EQ(parse(R"({"optimizer": {"type": "adamw", "params": {"adam_w_mode": true}}})").optimizer.optimizer,
            Optimizer::adamw);
  EXPECT_EQ(parse(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})").optimizer.optimizer,
            Optimizer::adam);
}

TEST(Config, PlacesInOurWordsAndDeepSpeeds) {
  EXPECT_EQ(parse_tier("none", "x"), Tier::device);
  EXPECT_EQ(parse_tier("device", "x"), Tier::device);
  EXPECT_EQ(parse_tier("cpu", "x"), Tier::host);
  EXPECT_EQ(parse_tier("host", "x"), Tier::host);
  EXPECT_EQ(parse_tier("nvme", "x"), Tier::nvme);
  EXPECT_THROW(parse_tier("NVME", "x"), Error);
}

TEST(Config, RefusalsNameKeyValueAndWhatIsAllowed) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"[]", "run.json: [] is not an object with the configuration's keys"},
      {R"({"train_batch_size": "eight"})",
       "run.json: train_batch_size: \"eight\" is not a whole number from 1 to 1048576"},
      {R"({"train_batch_size": 0})", "run.json: train_batch_size: 0 is not a whole number from 1 to 1048576"},
      {R"({"train_batch_size": 2.5})",
       "run.json: train_batch_size: 2.5 is not a whole number from 1 to 1048576"},
      {R"({"train_batch_size": true})",
       "run.json: train_batch_size: true is not a whole number from 1 to 1048576"},
      {R"({"gradient_accumulation_steps": -2})",
       "run.json: gradient_accumulation_steps: -2 is not a whole number from 1 to 1048576"},
      {R"({"gradient_clipping": -1})", "run.json: gradient_clipping: -1 is not a number from 0 to 1000000"},
      {R"({"optimizer": {"params": {"lr": "fast"}}})",
       "run.json: optimizer.params.lr: \"fast\" is not a number from 0 to 1000"},
      {R"({"optimizer": {"params": {"betas": [0.9, 1.0]}}})",
       "run.json: optimizer.params.betas: 1.0 is not a number from 0 to below 1"},
      {R"({"optimizer": {"params": {"betas": 0.9}}})",
       "run.json: optimizer.params.betas: 0.9 is not two numbers from 0 to below 1"},
      {R"({"optimizer": {"type": "Lamb"}})",
       "run.json: optimizer.type: \"Lamb\" is not an optimizer that is built in | the optimizers are Adam, "
       "AdamW, "
       "Lion and SGD"},
      {R"({"optimizer": "AdamW"})", "run.json: optimizer: \"AdamW\" is not an object"},
      {R"({"bf16": {"enabled": 1}})", "run.json: bf16.enabled: 1 is not true or false"},
      {R"({"zero_optimization": {"stage": 4}})",
       "run.json: zero_optimization.stage: 4 is not a whole number from 0 to 3"},
      {R"({"zero_optimization": {"offload_param": {"device": "disk"}}})",
       "run.json: zero_optimization.offload_param.device: 'disk' is not a place: device, host or nvme | "
       "device (or none), host (or cpu), or nvme"},
      {R"({"spillway": {"seed": 18446744073709551615}})",
       "run.json: spillway.seed: 18446744073709551615 is not a whole number from 0"},
      {R"({"spillway": {"device_memory": -5}})",
       "run.json: spillway.device_memory: -5 is not a whole number from 0 to 4611686018427387904"},
      {R"({"spillway": {"device_memory": []}})",
       "run.json: spillway.device_memory: [] is not a size | a size is a number with a unit, such as \"40M\" "
       "or "
       "\"1.5GiB\""},
      {R"({"spillway": {"state_format": "fp23"}})",
       "run.json: spillway.state_format: \"fp23\" is not fp32 or bf16 or compact8"},
      {R"({"spillway": {"state_format": "bf16", "precision": "fp32"}})",
       "run.json: spillway.state_format bf16 with spillway.precision fp32: the reference keeps its state in "
       "fp32 | "
       "use the state format fp32, or precision bf16"},
      {R"({"optimizer": {"type": "Lion"}, "spillway": {"state_format": "compact8"}})",
       "run.json: spillway.state_format compact8 is made for the moments of Adam, not for optimizer.type Lion "
       "| use "
       "the state format bf16 or fp32"},
      {R"({"optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.99]}}})",
       "run.json: optimizer.params.betas is no parameter of SGD | it belongs to AdamW, Adam and Lion"},
      {R"({"optimizer": {"params": {"momentum": 0.9}}})",
       "run.json: optimizer.params.momentum is no parameter of AdamW | it belongs to SGD"},
      {R"({"optimizer": {"type": "SGD", "params": {"nesterov": true}}})",
       "run.json: optimizer.params.nesterov without a momentum has nothing to look ahead with | give "
       "optimizer.params.momentum, such as 0.9"},
      {R"({"optimizer": {"params": {"betas": [0.9, 0.99999999999]}}})",
       "run.json: optimizer.params.betas: 0.99999999999 is not a number from 0 to below 1"},
      {R"({"optimizer": {"type": "SGD", "params": {"momentum": 1}}})",
       "run.json: optimizer.params.momentum: 1 is not a number from 0 to below 1"},
      {R"({"optimizer": {"type": "SGD", "params": {"dampening": 0.1}}})",
       "run.json: optimizer.params.dampening: 0.1 is not 0 | dampening is not built in: SGD adds the whole "
       "gradient to "
       "its momentum"},
      {R"({"optimizer": {"type": "Lion", "params": {"eps": 1e-8}}})",
       "run.json: optimizer.params.eps is no parameter of Lion | it belongs to AdamW and Adam"},
      {R"({"spillway": {"precision": "fp16"}})", "run.json: spillway.precision: \"fp16\" is not bf16 or fp32"},
      {R"({"spillway": {"precision": "auto"}})", "run.json: spillway.precision: \"auto\" is not bf16 or fp32"},
      {R"({"spillway": {"model": 3}})",
       "run.json: spillway.model: 3 is not a model's name, a path, or an object with the model's keys"},
  };
  for (const auto& [text, message] : table) EXPECT_EQ(refusal(text), message);
}

TEST(Config, EachOptimizerHasItsOwnParameters) {
  const Config lion = parse(R"({"optimizer": {"type": "lion", "params": {"lr": 1e-4, "weight_decay": 0.3}}})");
  EXPECT_EQ(lion.optimizer.optimizer, Optimizer::lion);
  EXPECT_EQ(lion.optimizer.beta1, 0.9);
  EXPECT_EQ(lion.optimizer.beta2, 0.99);
  EXPECT_EQ(lion.optimizer.weight_decay, 0.3);
  EXPECT_EQ(parse(R"({"optimizer": {"type": "Lion", "params": {"betas": [0.95, 0.98]}}})").optimizer.beta2,
            0.98);
  const Config sgd =
      parse(R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.9, "nesterov": true, "dampening": 0}}})");
  EXPECT_EQ(sgd.optimizer.optimizer, Optimizer::sgd);
  EXPECT_EQ(sgd.optimizer.momentum, 0.9);
  EXPECT_TRUE(sgd.optimizer.nesterov);
  EXPECT_EQ(parse(R"({"optimizer": {"type": "SGD"}})").optimizer.momentum, 0.0);
  for (const Config& config : {lion, sgd}) {
    const Config again = parse(to_json(config));
    EXPECT_EQ(again.optimizer, config.optimizer);
    EXPECT_TRUE(again.assumed.empty());
  }
}

TEST(Config, StateFormats) {
  EXPECT_EQ(parse("{}").state_format, StateFormat::fp32);
  for (const StateFormat format : {StateFormat::fp32, StateFormat::bf16, StateFormat::compact8}) {
    const std::string text = R"({"spillway": {"state_format": ")" + std::string(name_of(format)) + R"("}})";
    EXPECT_EQ(parse(text).state_format, format);
    EXPECT_EQ(parse(to_json(parse(text))).state_format, format);
  }
  EXPECT_EQ(parse(R"({"optimizer": {"type": "Lion"}, "spillway": {"state_format": "bf16"}})").state_format,
            StateFormat::bf16);
}

TEST(Config, UnknownKeysAreRefusedWithTheNearestOrTheirPlace) {
  EXPECT_EQ(refusal(R"({"spillway": {"device_memry": "4M"}})"),
            "run.json: unknown key spillway.device_memry | did you mean device_memory?");
  EXPECT_EQ(refusal(R"({"offload_param": {}})"),
            "run.json: unknown key offload_param | its place is zero_optimization.offload_param");
  EXPECT_EQ(refusal(R"({"lr": 1})"), "run.json: unknown key lr | its place is optimizer.params.lr");
  EXPECT_EQ(refusal(R"({"optimizer": {"params": {"centered": true}}})"),
            "run.json: unknown key optimizer.params.centered");
  EXPECT_EQ(refusal(R"({"bf16.enabled": true})"),
            "run.json: unknown key \"bf16.enabled\" | write objects in objects, not names with dots");
}

TEST(Config, AKeyGivenTwiceIsRefusedAtAnyDepth) {
  EXPECT_EQ(refusal(R"({"bf16": {"enabled": true}, "optimizer": {"params": {"lr": 1, "eps": 0, "lr": 1}}})"),
            "run.json: optimizer.params.lr is given twice | keep one of the two");
  EXPECT_EQ(refusal(R"({"bf16": null, "bf16": null})"), "run.json: bf16 is given twice | keep one of the two");
  // The same name in two objects is not the same key.
  EXPECT_EQ(refusal(R"({"zero_optimization": {"offload_param": {"device": "cpu"},
                                             "offload_optimizer": {"device": "cpu"}}})"),
            "accepted");
}

TEST(Config, TextThatIsNoJsonIsRefusedWithItsPlace) {
  for (const std::string text : {"", "{", "{\"a\" 1}", "nonsense\nand more", "{\"gradient_clipping\": 1e999}",
                                 "{\"gradient_clipping\": NaN}", "{\"\xff\": 1}"}) {
    EXPECT_EQ(refusal(text).rfind("run.json: not JSON: ", 0), 0u) << refusal(text);
  }
  EXPECT_NE(refusal("{\n  \"a\" 1}").find("line 2, column"), std::string::npos);
}

TEST(Config, ContradictionsAreRefusedWithBothSides) {
  const std::string batch = refusal(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
                                        "gradient_accumulation_steps": 8})");
  EXPECT_EQ(batch,
            "run.json: train_batch_size 64 disagrees with train_micro_batch_size_per_gpu 4 x "
            "gradient_accumulation_steps 8 x 1 rank = 32 | give two of the three; the third follows");
  EXPECT_NE(refusal(R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4})").find("4 x"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"train_batch_size": 2, "train_micro_batch_size_per_gpu": 4})").find("= 4"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"train_micro_batch_size_per_gpu": 1024, "gradient_accumulation_steps": 1025})"),
            "accepted");
  EXPECT_EQ(refusal(R"({"train_micro_batch_size_per_gpu": 1024, "gradient_accumulation_steps": 1024})"),
            "accepted");
  EXPECT_NE(refusal(R"({"train_micro_batch_size_per_gpu": 4096, "gradient_accumulation_steps": 1048576})")
                .find("is more than"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})").find("contradict"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"bf16": {"enabled": true}, "spillway": {"precision": "fp32"}})").find("contradict"),
            std::string::npos);
}

TEST(Config, NvmeNeedsADirectoryAndTheMessageSaysWhereToGiveIt) {
  const std::string message = refusal(R"({"zero_optimization": {"offload_param": {"device": "nvme"}}})");
  EXPECT_NE(message.find("zero_optimization.offload_param.nvme_path"), std::string::npos) << message;
  EXPECT_NE(message.find("--nvme-path"), std::string::npos) << message;
  // A path for the other one does not help.
  EXPECT_NE(refusal(R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"},
                                             "offload_param": {"nvme_path": "/x"}}})"),
            "accepted");
}

TEST(Config, TheCommandLineStandsBeforeTheFileAndIsNamedInMessages) {
  const std::string file = R"({"zero_optimization": {"offload_param": {"device": "nvme"}},
                               "spillway": {"steps": "many", "device_memory": "1M"}})";
  const std::vector<ConfigOverride> flags = {
      {"spillway.steps", "5", "--steps"},
      {"spillway.device_memory", "40M", "--device-memory"},
      {"zero_optimization.offload_param.nvme_path", "123", "--nvme-path"},
      {"zero_optimization.offload_param.device", "nvme", "--offload-parameters"}};
  // A directory may have a number for a name; as typed, it is a path all the same.
  EXPECT_EQ(parse(file, flags).parameter_nvme_paths, std::vector<std::string>{"123"});
  const Config config = parse(file, flags);
  EXPECT_EQ(config.steps, 5);
  EXPECT_EQ(config.device_memory, 40 << 20);

  EXPECT_EQ(refusal("{}", {{"spillway.steps", "-5", "--steps"}}),
            "--steps: -5 is not a whole number from 1 to 1000000000");
  EXPECT_EQ(refusal("{}", {{"spillway.steps", "ten", "--steps"}}),
            "--steps: \"ten\" is not a whole number from 1 to 1000000000");
  EXPECT_EQ(
      refusal("{}", {{"spillway.device_memory", "-40M", "--device-memory"}}),
      "--device-memory: '-40M' is not a size: it is negative | a size is a number with a unit, such as 40M, "
      "1.5GiB or 2GB");
  EXPECT_EQ(parse("{}", {{"spillway.device_memory", "4096", "--device-memory"}}).device_memory, 4096);
}

class ConfigFiles : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("spillway-config-" + std::to_string(getpid()));
    std::filesystem::create_directories(directory_ / "models");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = (directory_ / name).string();
    std::ofstream(path) << text;
    return path;
  }
  std::filesystem::path directory_;
};

TEST_F(ConfigFiles, TheModelsPathIsRelativeToTheConfiguration) {
  write("models/small.json", "{\"n_layer\": 2 /* few */}");
  const std::string path = write("run.json", R"({"spillway": {"model": "models/small.json"}})");
  const Config config = read_config(path);
  EXPECT_EQ(config.model, R"({"n_layer":2})");
  EXPECT_EQ(config.model_source, (directory_ / "models/small.json").string());
}

TEST_F(ConfigFiles, FilesThatCannotBeReadAreNamedWithTheReason) {
  const auto kind_and_text = [](const std::string& path) {
    try {
      read_config(path);
    } catch (const Error& error) {
      return std::to_string(exit_code(error.kind())) + " " + error.what();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(
      kind_and_text("/nowhere/run.json"),
      "4 cannot read the configuration (operation: open, path: /nowhere/run.json, errno 2: No such file or "
      "directory)");
  EXPECT_NE(kind_and_text(directory_.string()).find("Is a directory"), std::string::npos);
  EXPECT_NE(kind_and_text("/dev/zero").find("larger than"), std::string::npos);
  const std::string path = write("run.json", R"({"spillway": {"model": "gone.json"}})");
  EXPECT_NE(kind_and_text(path).find((directory_ / "gone.json").string()), std::string::npos)
      << kind_and_text(path);
  write("gone.json", "{\"a\": 1, \"a\": 2}");
  EXPECT_NE(kind_and_text(path).find("a is given twice"), std::string::npos) << kind_and_text(path);
}

TEST(Nearest, OnlyWhatIsCloseEnough) {
  EXPECT_EQ(nearest("gradient_cliping", {"gradient_clipping", "steps"}), "gradient_clipping");
  EXPECT_EQ(nearest("LR", {"lr", "eps"}), "lr");
  EXPECT_EQ(nearest("banana", {"lr", "eps", "steps"}), "");
}

TEST(Config, NestingHasALimit) {
  const auto nested = [](std::size_t levels, const std::string& open, const std::string& close) {
    std::string text;
    for (std::size_t i = 0; i < levels; ++i) text += open;
    text += "0";
    for (std::size_t i = 0; i < levels; ++i) text += close;
    return text;
  };
  EXPECT_EQ(parse_json(nested(64, "[", "]"), "x").dump().size(), 129u);
  for (const std::size_t levels : {std::size_t{65}, std::size_t{100'000}}) {
    for (const std::string& text : {nested(levels, "[", "]"), nested(levels, "{\"a\":", "}")}) {
      EXPECT_NE(refusal(text).find("run.json: objects and lists are more than 64 deep"), std::string::npos);
      EXPECT_NE(refusal("{\"spillway\": {\"model\": " + text + "}}").find("64 deep"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace spillway
