// What the configuration says about drives: where they are, how they are read and written.
#include "../../core/config.h"
#include "../../core/error.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway {
namespace {

using nlohmann::json;
using Paths = std::vector<std::string>;

Config parse(const std::string& text, std::vector<ConfigOverride> overrides = {}) {
  return parse_config(text, "run.json", {.overrides = overrides});
}

/// The error line for what must be refused, then " | " and the hint where there is one.
std::string refusal(const std::string& text, std::vector<ConfigOverride> overrides = {}) {
  try {
    parse(text, std::move(overrides));
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2) << error.what();
    return error.detail().hint.empty() ? error.what() : std::string(error.what()) + " | " + error.detail().hint;
  }
  return "accepted";
}

std::string refusal_of(const std::string& key, const json& value) {
  return refusal(json{{"spillway", {{key, value}}}}.dump());
}

/// Both places on nvme, with these directories for the optimizer and for the parameters.
json placed(const json& optimizer, const json& parameters) {
  return {{"zero_optimization",
           {{"offload_optimizer", {{"device", "nvme"}, {"nvme_path", optimizer}}},
            {"offload_param", {{"device", "nvme"}, {"nvme_path", parameters}}}}}};
}

TEST(NvmeConfig, EveryKeyHasItsEffectAndComesBackAsItWasWritten) {
  json file = placed({"/a", "/b"}, {"/c", "/d"});
  file["aio"] = {{"block_size", 8 << 20}, {"queue_depth", 7}};
  file["spillway"] = {{"nvme_bandwidth", {3.5, 7}}, {"io_engine", "io_uring"}, {"io_sqpoll", true},
                      {"io_iopoll", true},          {"checksums", true},       {"io_faults", "short=0.5"}};
  const Config c = parse(file.dump());
  EXPECT_EQ(c.optimizer_nvme_paths, (Paths{"/a", "/b"}));
  EXPECT_EQ(c.parameter_nvme_paths, (Paths{"/c", "/d"}));
  EXPECT_EQ(c.nvme_bandwidth, (std::vector<double>{3.5, 7}));
  EXPECT_EQ(c.io_engine, "io_uring");
  EXPECT_TRUE(c.io_sqpoll);
  EXPECT_TRUE(c.io_iopoll);
  EXPECT_TRUE(c.checksums);
  EXPECT_TRUE(c.direct_io);
  EXPECT_EQ(c.io_faults, "short=0.5");
  const json written = json::parse(to_json(c));
  for (const auto& [key, value] : file["spillway"].items()) EXPECT_EQ(written.at("spillway").at(key), value);
  EXPECT_EQ(written.at("zero_optimization").at("offload_param").at("nvme_path"), json({"/c", "/d"}));
  EXPECT_EQ(to_json(parse(written.dump())), written.dump(2));

  EXPECT_FALSE(parse(R"({"spillway": {"direct_io": false}})").direct_io);
  EXPECT_FALSE(parse(to_json(parse(R"({"spillway": {"direct_io": false}})"))).direct_io);
  // One directory is written as DeepSpeed's files have it.
  const json one = json::parse(to_json(parse(placed("/a", {"/a"}).dump())));
  EXPECT_EQ(one.at("zero_optimization").at("offload_optimizer").at("nvme_path"), "/a");
  EXPECT_EQ(one.at("zero_optimization").at("offload_param").at("nvme_path"), "/a");
}

TEST(NvmeConfig, DefaultsAskForNothing) {
  const Config c = parse("{}");
  EXPECT_TRUE(c.optimizer_nvme_paths.empty());
  EXPECT_TRUE(c.parameter_nvme_paths.empty());
  EXPECT_TRUE(c.nvme_bandwidth.empty());
  EXPECT_EQ(c.io_engine, "auto");
  EXPECT_FALSE(c.io_sqpoll || c.io_iopoll || c.checksums);
  EXPECT_TRUE(c.direct_io);
  EXPECT_EQ(c.io_faults, "");
}

TEST(NvmeConfig, FlagsGivenSeveralTimesAreAListThatReplacesTheFiles) {
  const std::string file = placed({"/x", "/y", "/z"}, "/w").dump();
  const std::string optimizer = "zero_optimization.offload_optimizer.nvme_path";
  const std::string parameters = "zero_optimization.offload_param.nvme_path";
  std::vector<ConfigOverride> flags;
  for (const char* path : {"7", "b"}) {
    for (const auto& key : {optimizer, parameters}) flags.push_back({key, path, "--nvme-path"});
  }
  for (const char* number : {"2", "0.5"})
    flags.push_back({"spillway.nvme_bandwidth", number, "--nvme-bandwidth"});
  const Config c = parse(file, flags);
  EXPECT_EQ(c.optimizer_nvme_paths, (Paths{"7", "b"}));
  EXPECT_EQ(c.parameter_nvme_paths, (Paths{"7", "b"}));
  EXPECT_EQ(c.nvme_bandwidth, (std::vector<double>{2, 0.5}));
  flags.push_back({"spillway.nvme_bandwidth", "fast", "--nvme-bandwidth"});
  EXPECT_EQ(refusal(file, flags), "--nvme-bandwidth: \"fast\" is not a number above 0, at most 1000000");
}

TEST(NvmeConfig, ADirectoryGivenTwiceIsRefusedHoweverItIsSpelled) {
  for (const json& twice : {json{"/a", "/b", "/a"}, json{"/a", "/b/../a/"}, json{"d/{rank}", "./d//0/"}}) {
    const std::string message = refusal(placed(twice, "/c").dump());
    EXPECT_NE(message.find("run.json: zero_optimization.offload_optimizer.nvme_path: the directory "),
              std::string::npos)
        << message;
    EXPECT_NE(message.find(" is given twice | name each drive once"), std::string::npos) << message;
  }
  // Optimizer and parameters may share theirs.
  EXPECT_EQ(refusal(placed({"/a", "/b"}, {"/a", "/b"}).dump()), "accepted");
  EXPECT_NE(refusal(placed(json(Paths(33, "/a")), "/c").dump()).find("at most 32 directories"),
            std::string::npos);
}

TEST(NvmeConfig, BandwidthsAreAsManyAsTheDirectoriesOfWhatLiesOnNvme) {
  json file = placed({"/a", "/b"}, "/c");
  file["spillway"]["nvme_bandwidth"] = {1, 2};
  EXPECT_EQ(refusal(file.dump()),
            "run.json: spillway.nvme_bandwidth (--nvme-bandwidth) has 2 numbers for 1 directory in "
            "zero_optimization.offload_param.nvme_path (--nvme-path) | give one number for each directory, in "
            "their order; without any they are measured");
  file["zero_optimization"]["offload_param"]["device"] = "cpu";
  EXPECT_EQ(refusal(file.dump()), "accepted");
  file["spillway"]["nvme_bandwidth"] = 3;
  EXPECT_NE(refusal(file.dump()).find("has 1 number for 2 directories in zero_optimization.offload_optimizer"),
            std::string::npos);
}

TEST(NvmeConfig, WrongValuesAreNamed) {
  for (const json& value : {json(0), json(-1), json("3"), json({1, 0}), json({1, nullptr}), json(1e7)}) {
    EXPECT_NE(refusal_of("nvme_bandwidth", value).find("is not a number above 0"), std::string::npos) << value;
  }
  EXPECT_EQ(refusal_of("nvme_bandwidth", json::array()),
            "run.json: spillway.nvme_bandwidth: [] is not a number, or a list of them");
  EXPECT_EQ(refusal_of("io_engine", "libaio"),
            "run.json: spillway.io_engine: \"libaio\" is not auto or io_uring or posix");
  for (const char* key : {"io_sqpoll", "io_iopoll", "checksums", "direct_io"}) {
    EXPECT_EQ(refusal_of(key, "on"),
              "run.json: spillway." + std::string(key) + ": \"on\" is not true or false");
  }
  EXPECT_EQ(refusal_of("io_faults", 3), "run.json: spillway.io_faults: 3 is not a list of faults");
}

TEST(NvmeConfig, OptionsThatContradictOneAnotherAreRefusedWithBothSides) {
  const std::string polled = refusal(R"({"spillway": {"io_iopoll": true, "direct_io": false}})");
  EXPECT_NE(polled.find("--io-iopoll"), std::string::npos) << polled;
  EXPECT_NE(polled.find("--direct-io"), std::string::npos) << polled;
  for (const std::string option : {"io_sqpoll", "io_iopoll"}) {
    const json file = {{"spillway", {{option, true}, {"io_engine", "posix"}}}};
    EXPECT_NE(refusal(file.dump()).find("spillway." + option), std::string::npos) << refusal(file.dump());
    EXPECT_NE(refusal(file.dump()).find("--io-engine"), std::string::npos);
    EXPECT_EQ(refusal(json{{"spillway", {{option, true}}}}.dump()), "accepted");
  }
}

TEST(NvmeConfig, WhatTuneWritesIsAcceptedAsItIs) {
  const json tuned = {{"aio",
                       {{"block_size", 1 << 20},
                        {"queue_depth", 16},
                        {"intra_op_parallelism", 1},
                        {"single_submit", false},
                        {"overlap_events", true}}},
                      {"spillway", {{"io_engine", "io_uring"}, {"nvme_bandwidth", {2.5, 3.5}}}}};
  const Config elsewhere = parse(tuned.dump());  // also where nothing lies on a drive
  EXPECT_EQ(elsewhere.queue_depth, 16);
  json file = placed({"/a", "/b"}, {"/a", "/b"});
  file.update(tuned);
  const Config c = parse(file.dump());
  EXPECT_EQ(c.block_bytes, 1 << 20);
  EXPECT_EQ(c.io_engine, "io_uring");
  EXPECT_EQ(c.nvme_bandwidth, (std::vector<double>{2.5, 3.5}));
}

}  // namespace
}  // namespace spillway
