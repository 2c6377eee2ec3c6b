// What the configuration says about how a step runs: what stays in host memory, in which order micro-batches
// pass, what is kept for the backward pass.
#include "../../core/config.h"
#include "../../core/error.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway {
namespace {

using nlohmann::json;

Config parse(const json& own, std::vector<ConfigOverride> overrides = {}) {
  return parse_config(json{{"spillway", own}}.dump(), "run.json", {.overrides = overrides});
}

std::string refusal_of(const json& own, std::vector<ConfigOverride> overrides = {}) {
  try {
    parse(own, std::move(overrides));
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2) << error.what();
    return error.detail().hint.empty() ? error.what() : std::string(error.what()) + " | " + error.detail().hint;
  }
  return "accepted";
}

bool any_contains(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const auto& line) { return line.find(part) != std::string::npos; });
}

/// A value that a flag and the file give alike, as it stands in the resolved file.
struct Spelling {
  const char* key;
  const char* flag;
  const char* typed;
  json value;
};
const std::vector<Spelling>& spellings() {
  static const std::vector<Spelling> all = {
      {"resident_fraction", "--resident-fraction", "0.25", 0.25},
      {"resident_fraction", "--resident-fraction", "0", 0.0},
      {"resident_fraction", "--resident-fraction", "1", 1.0},
      {"parameter_cache", "--parameter-cache", "3M", 3 << 20},
      {"parameter_cache", "--parameter-cache", "0", 0},
      {"update_slots", "--update-slots", "64", 64},
      {"update_slots", "--update-slots", "0", 0},
      {"accumulation_order", "--accumulation-order", "layer", "layer"},
      {"accumulation_order", "--accumulation-order", "micro_batch", "micro_batch"},
      {"activations", "--activations", "auto", "auto"},
      {"activations", "--activations", "keep", "keep"},
      {"activations", "--activations", "recompute", "recompute"},
      {"activations", "--activations", "host", "host"},
      {"delayed_update", "--delayed-update", "true", true},
      {"delayed_update", "--delayed-update", "false", false},
  };
  return all;
}

TEST(StepConfig, AFlagAndTheFileSayTheSameAndItComesBackAsItWasWritten) {
  for (const auto& [key, flag, typed, value] : spellings()) {
    const std::string in_file = to_json(parse({{key, value}}));
    EXPECT_EQ(to_json(parse(json::object(), {{std::string("spillway.") + key, typed, flag}})), in_file) << key;
    EXPECT_EQ(json::parse(in_file).at("spillway").at(key), value) << key;
    EXPECT_EQ(to_json(parse_config(in_file, "again.json")), in_file) << key;
  }
}

TEST(StepConfig, EveryKeyHasItsEffect) {
  const Config none = parse(json::object());
  EXPECT_FALSE(none.resident_fraction);
  EXPECT_FALSE(none.parameter_cache);
  EXPECT_EQ(none.update_slots, 0);
  EXPECT_EQ(none.accumulation_order, AccumulationOrder::micro_batch);
  EXPECT_EQ(none.activations, ActivationPolicy::automatic);
  EXPECT_FALSE(none.delayed_update);
  const Config all = parse({{"resident_fraction", 0.5},
                            {"parameter_cache", "1.5MiB"},
                            {"update_slots", 7},
                            {"accumulation_order", "layer"},
                            {"activations", "recompute"},
                            {"delayed_update", true}});
  EXPECT_EQ(all.resident_fraction, 0.5);
  EXPECT_EQ(all.parameter_cache, 3 << 19);
  EXPECT_EQ(all.update_slots, 7);
  EXPECT_EQ(all.accumulation_order, AccumulationOrder::layer);
  EXPECT_EQ(all.activations, ActivationPolicy::recompute);
  EXPECT_TRUE(all.delayed_update);
  for (const auto& [word, policy] : {std::pair{"auto", ActivationPolicy::automatic},
                                     {"keep", ActivationPolicy::keep},
                                     {"host", ActivationPolicy::host}}) {
    EXPECT_EQ(parse({{"activations", word}}).activations, policy) << word;
  }
  // What is left open stays open when it is written and read back.
  EXPECT_FALSE(parse_config(to_json(none), "again.json").resident_fraction);
  EXPECT_FALSE(parse_config(to_json(none), "again.json").parameter_cache);
}

TEST(StepConfig, RefusalsNameKeyValueAndWhatIsAllowed) {
  const std::vector<std::pair<json, std::string>> table = {
      {{{"resident_fraction", 1.01}}, "run.json: spillway.resident_fraction: 1.01 is not a number from 0 to 1"},
      {{{"resident_fraction", -0.5}}, "run.json: spillway.resident_fraction: -0.5 is not a number from 0 to 1"},
      {{{"resident_fraction", "half"}},
       "run.json: spillway.resident_fraction: \"half\" is not a number from 0 to 1"},
      {{{"parameter_cache", -1}},
       "run.json: spillway.parameter_cache: -1 is not a whole number from 0 to 4611686018427387904"},
      {{{"update_slots", 65}}, "run.json: spillway.update_slots: 65 is not a whole number from 0 to 64"},
      {{{"update_slots", 2.5}}, "run.json: spillway.update_slots: 2.5 is not a whole number from 0 to 64"},
      {{{"accumulation_order", "unit"}},
       "run.json: spillway.accumulation_order: \"unit\" is not micro_batch or layer"},
      {{{"activations", "cpu"}},
       "run.json: spillway.activations: \"cpu\" is not auto or keep or recompute or host or nvme"},
      {{{"activations", true}},
       "run.json: spillway.activations: true is not auto or keep or recompute or host or nvme"},
      {{{"delayed_update", 1}}, "run.json: spillway.delayed_update: 1 is not true or false"},
      {{{"activations", "nvme"}},
       "run.json: spillway.activations is nvme, but no directory on a drive is given | give --nvme-path DIR, "
       "or "
       "set zero_optimization.offload_param.nvme_path; or keep them in host memory with --activations host"},
  };
  for (const auto& [own, message] : table) EXPECT_EQ(refusal_of(own), message);
  EXPECT_NE(refusal_of({{"parameter_cache", "much"}}), "accepted");
}

TEST(StepConfig, ActivationsOnNvmeNeedOneDirectoryOfEither) {
  for (const char* place : {"offload_param", "offload_optimizer"}) {
    const json file = {{"spillway", {{"activations", "nvme"}}},
                       {"zero_optimization", {{place, {{"nvme_path", "/a"}}}}}};
    EXPECT_EQ(parse_config(file.dump(), "run.json").activations, ActivationPolicy::nvme) << place;
  }
}

TEST(StepConfig, WhatHasNothingToKeepIsNoted) {
  const std::vector<std::string> resident = parse({{"resident_fraction", 0.5}}).notes;
  EXPECT_TRUE(any_contains(resident, "spillway.resident_fraction 0.5: no optimizer state lies on nvme"));
  EXPECT_TRUE(any_contains(parse({{"parameter_cache", "1M"}}).notes,
                           "spillway.parameter_cache: no parameters lie on nvme"));
  EXPECT_TRUE(parse({{"resident_fraction", 0}, {"parameter_cache", 0}}).notes.empty());
  const json on_nvme = {{"spillway", {{"resident_fraction", 0.5}, {"parameter_cache", "1M"}}},
                        {"zero_optimization",
                         {{"offload_optimizer", {{"device", "nvme"}, {"nvme_path", "/a"}}},
                          {"offload_param", {{"device", "nvme"}, {"nvme_path", "/a"}}}}}};
  EXPECT_TRUE(parse_config(on_nvme.dump(), "run.json").notes.empty());
}

}  // namespace
}  // namespace spillway
