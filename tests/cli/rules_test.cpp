// The program trains as documented: the same weights, bit by bit, as the library gives when it is driven by the
// rules. AdamW or Adam on all weights, no decay of biases and norms, sequences of the data in order of their
// number, gradients averaged over micro-batches.
#include "../../core/communicator.h"
#include "../../core/config.h"
#include "../../core/host_device.h"
#include "../../models/decoder.h"
#include "../../models/token_data.h"
#include "../../offload/engine.h"
#include "../../offload/weights_hash.h"
#include "program.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using nlohmann::json;

constexpr std::int64_t kSteps = 3, kLength = 16;
constexpr int kSequences = 2, kMicroBatches = 2;

class Rules : public testing::Test {
 protected:
  void SetUp() override { text_ = scratch_.write("text.txt", sample_text()); }

  /// Numbers far from the defaults, so that one that is not passed on shows.
  static json small() {
    return {{"train_micro_batch_size_per_gpu", kSequences},
            {"gradient_accumulation_steps", kMicroBatches},
            {"gradient_clipping", 0.5},
            {"optimizer",
             {{"type", "AdamW"},
              {"params", {{"lr", 0.01}, {"betas", {0.8, 0.9}}, {"eps", 1e-4}, {"weight_decay", 0.5}}}}},
            {"spillway",
             {{"model",
               {{"model_type", "gpt2"},
                {"n_layer", 1},
                {"n_head", 2},
                {"n_embd", 16},
                {"n_positions", kLength},
                {"vocab_size", 256}}},
              {"steps", kSteps},
              {"seed", 77}}}};
  }

  std::string by_program(const json& config) {
    const std::string file = scratch_.write("run.json", config.dump()), result = scratch_.path("result.json");
    const Outcome outcome = run_program({"train", "--config", file, "--data", text_, "--json", result});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(read_file(result)).at(0).at("weights_xxh3");
  }

  std::string by_library(bool decoupled) {
    const models::DecoderConfig model{
        .layers = 1, .heads = 2, .hidden = 16, .positions = kLength, .vocabulary = 256, .inner = 64};
    Config config;
    config.micro_batch = kSequences;
    config.accumulation = kMicroBatches;
    config.gradient_clipping = 0.5;
    config.sequence_length = kLength;
    config.device_threads = config.update_threads = 1;
    const models::Batch batch{.sequences = kSequences, .length = kLength};
    HostDevice device(HostDeviceOptions{.threads = 1});
    SingleRankCommunicator communicator;
    Engine engine(config, models::decoder_layout(model, {.batch = batch}), device, communicator);
    models::Decoder decoder(model, {.batch = batch}, device, engine);
    decoder.initialize(77);

    const HyperParameters weights{.optimizer = decoupled ? Optimizer::adamw : Optimizer::adam,
                                  .learning_rate = 0.01,
                                  .beta1 = 0.8,
                                  .beta2 = 0.9,
                                  .eps = 1e-4,
                                  .weight_decay = 0.5};
    HyperParameters biases_and_norms = weights;
    biases_and_norms.weight_decay = 0;
    const models::TokenData data({text_}, {.length = kLength, .vocabulary = 256});
    std::vector<std::int32_t> tokens(kSequences * kLength), targets(tokens.size());
    std::int64_t next = 0;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      engine.begin_step({.groups = {weights, biases_and_norms}, .micro_batches = kMicroBatches});
      for (int micro = 0; micro < kMicroBatches; ++micro, next += kSequences) {
        data.batch(77, next, tokens, targets);
        decoder.train(tokens, targets);
      }
      EXPECT_FALSE(engine.step().wait().skipped);
    }
    engine.drain();
    return weights_xxh3(engine);
  }

  Scratch scratch_;
  std::string text_;
};

TEST_F(Rules, TheProgramTrainsWhatTheLibraryTrains) {
  EXPECT_EQ(by_program(small()), by_library(true));
  json coupled = small();
  coupled["optimizer"]["type"] = "Adam";
  coupled["optimizer"]["params"]["adam_w_mode"] = false;
  EXPECT_EQ(by_program(coupled), by_library(false));
}

TEST_F(Rules, EveryKeyOfTheResultChangesIt) {
  const std::map<std::string, std::function<void(json&)>> changes{
      {"nothing", [](json&) {}},
      {"lr", [](json& c) { c["optimizer"]["params"]["lr"] = 0.02; }},
      {"beta1", [](json& c) { c["optimizer"]["params"]["betas"][0] = 0.7; }},
      {"beta2", [](json& c) { c["optimizer"]["params"]["betas"][1] = 0.95; }},
      {"eps", [](json& c) { c["optimizer"]["params"]["eps"] = 1e-3; }},
      {"weight_decay", [](json& c) { c["optimizer"]["params"]["weight_decay"] = 0.25; }},
      {"type",
       [](json& c) {
         c["optimizer"]["type"] = "Adam";
         c["optimizer"]["params"]["adam_w_mode"] = false;
       }},
      {"gradient_clipping", [](json& c) { c["gradient_clipping"] = 0.25; }},
      {"no gradient_clipping", [](json& c) { c["gradient_clipping"] = 0; }},
      {"seed", [](json& c) { c["spillway"]["seed"] = 78; }},
      {"gradient_accumulation_steps", [](json& c) { c["gradient_accumulation_steps"] = 3; }},
      {"train_micro_batch_size_per_gpu", [](json& c) { c["train_micro_batch_size_per_gpu"] = 3; }},
      {"steps", [](json& c) { c["spillway"]["steps"] = kSteps + 1; }}};
  std::map<std::string, std::string> seen;  // by hash
  for (const auto& [name, change] : changes) {
    json config = small();
    change(config);
    const auto [other, added] = seen.emplace(by_program(config), name);
    EXPECT_TRUE(added) << name << " gives the weights of " << other->second;
  }
}

}  // namespace
}  // namespace spillway::cli
