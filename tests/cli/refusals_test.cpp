// What can't be done ends at once, with one line that says why, the exit code of the design, and nothing left
// behind.
#include "program.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

class Refusals : public testing::Test {
 protected:
  void SetUp() override {
    text_ = scratch_.write("text.txt", sample_text());
    std::filesystem::create_directory(scratch_.path("nvme"));
  }

  std::vector<std::string> with(std::vector<std::string> more,
                                const std::string& config = example("decoder-tiny.json")) {
    std::vector<std::string> all{"train", "--config", config, "--steps", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// The tiny example with data and a directory, and more.
  std::vector<std::string> whole(const std::vector<std::string>& more,
                                 const std::string& config = example("decoder-tiny.json")) {
    auto all = with({"--data", text_, "--nvme-path", scratch_.path("nvme")}, config);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// The tiny example, changed.
  std::string config(const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json document =
        nlohmann::json::parse(read_file(example("decoder-tiny.json")), nullptr, true, true);
    change(document);
    return scratch_.write("changed.json", document.dump());
  }

  /// Runs it and expects the refusal. `parts` must stand in the error line or its hint.
  void refused(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& parts) {
    const auto before = scratch_.names();
    const Outcome outcome = run_program(arguments);
    std::string command;
    for (const auto& argument : arguments) command += argument + " ";
    SCOPED_TRACE(command + "\n" + outcome.err);
    EXPECT_EQ(outcome.exit_code, code);
    EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u);
    EXPECT_EQ(outcome.err.back(), '\n');
    const auto line_ends = std::count(outcome.err.begin(), outcome.err.end(), '\n');
    const bool hint = outcome.err.find("\nhint: ") != std::string::npos;
    EXPECT_EQ(line_ends, hint ? 2 : 1);
    EXPECT_EQ(outcome.err.find("internal"), std::string::npos);
    for (const auto& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << "missing: " << part;
    // Before the first step: no row of progress, not even the start block.
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(scratch_.names(), before);
  }

  Scratch scratch_;
  std::string text_;
};

TEST_F(Refusals, CommandLine) {
  refused({"train"}, 2, {"--model decoder-tiny", "--data"});
  refused({"train", "--data", text_}, 2, {"no model", "--model"});
  refused({"train", "--model", "decoder-tiny"}, 2, {"--data"});
  refused(with({}), 2, {"--data"});
  refused({"tran"}, 2, {"tran", "spillway --help"});
  refused(whole({"--stepz", "3"}), 2, {"--stepz", "spillway train --help"});
  refused(whole({"--seed"}), 2, {"--seed"});
  refused(whole({"--seed", "1", "--seed", "2"}), 2, {"--seed"});
  refused(whole({"--device", "cuda"}), 2, {"--device cuda", "not built yet", "--device host"});
  refused(whole({"--device", "abacus"}), 2, {"abacus"});
}

TEST_F(Refusals, Sizes) {
  for (const std::string flag : {"--device-memory", "--host-memory"}) {
    refused(whole({flag, "-40M"}), 2, {flag, "-40M", "negative"});
    refused(whole({flag + "=-1"}), 2, {flag, "-1", "negative"});
    refused(whole({flag, "99999999999T"}), 2, {flag, "larger than any memory"});
    refused(whole({flag, "plenty"}), 2, {flag, "plenty", "not a size"});
    refused(whole({flag, "40X"}), 2, {flag, "'x' is no unit"});
    refused(whole({flag, ""}), 2, {flag});
  }
}

TEST_F(Refusals, Numbers) {
  for (const std::string value : {"-1", "ten", "1.5", "99999999999999999999", "0x10", ""}) {
    refused({"train", "--config", example("decoder-tiny.json"), "--data", text_, "--steps", value}, 2,
            {"--steps"});
    refused(whole({"--seed", value}), 2, {"--seed"});
    refused(whole({"--device-threads", value}), 2, {"--device-threads"});
    refused(whole({"--update-threads", value}), 2, {"--update-threads"});
  }
  for (const std::string flag : {"--device-threads", "--update-threads"}) {
    refused(whole({flag, "100000"}), 2, {flag, "100000", "1024"});
    refused(whole({flag, "1025"}), 2, {flag, "1025", "1024"});
  }
  refused(whole({"--offload-optimizer", "disk"}), 2, {"--offload-optimizer", "disk", "device, host or nvme"});
  refused(whole({"--offload-parameters", "disk"}), 2, {"--offload-parameters", "disk", "device, host or nvme"});
}

TEST_F(Refusals, Data) {
  const std::string nvme = scratch_.path("nvme");
  refused(with({"--data", scratch_.path("gone.txt"), "--nvme-path", nvme}), 4, {"gone.txt", "No such file"});
  refused(with({"--data", scratch_.root(), "--nvme-path", nvme}), 4, {scratch_.root(), "directory"});
  refused(with({"--data", scratch_.write("empty.txt", ""), "--nvme-path", nvme}), 2, {"0 bytes"});
  // A sequence of 64 tokens needs one more byte, the last target.
  refused(with({"--data", scratch_.write("short.txt", std::string(64, 'x')), "--nvme-path", nvme}), 2,
          {"64", "65"});
  refused(with({"--data", text_, "--data", scratch_.path("gone.txt"), "--nvme-path", nvme}), 4, {"gone.txt"});
}

TEST_F(Refusals, Directories) {
  refused(with({"--data", text_, "--nvme-path", scratch_.path("gone")}), 4,
          {scratch_.path("gone"), "No such file"});
  refused(with({"--data", text_, "--nvme-path", text_}), 4, {text_, "Not a directory"});
  refused(with({"--data", text_, "--nvme-path", "/proc"}), 4, {"/proc"});  // takes no files, from root either
  refused(with({"--data", text_, "--nvme-path", "/dev/shm"}), 4, {"/dev/shm", "tmpfs"});
  refused(with({"--data", text_, "--nvme-path", ""}), 2, {"--nvme-path"});
  const std::string placed =
      config([](auto& c) { c["zero_optimization"]["offload_param"].erase("nvme_path"); });
  refused({"train", "--config", placed, "--data", text_}, 2,
          {"zero_optimization.offload_param.nvme_path", "--nvme-path"});
}

TEST_F(Refusals, WhatIsSaidAboutDrives) {
  const std::string nvme = scratch_.path("nvme");
  refused(whole({"--nvme-path", nvme + "/"}), 2, {"--nvme-path", "given twice", nvme});
  refused(whole({"--nvme-bandwidth", "1", "2"}), 2, {"--nvme-bandwidth", "2 numbers", "1 directory"});
  refused(whole({"--nvme-bandwidth", "0"}), 2, {"--nvme-bandwidth", "above 0"});
  refused(whole({"--nvme-bandwidth", "fast"}), 2, {"--nvme-bandwidth", "fast"});
  refused(whole({"--io-engine", "libaio"}), 2, {"--io-engine", "libaio", "auto or io_uring or posix"});
  refused(whole({"--io-engine", "posix", "--io-sqpoll", "true"}), 2, {"--io-engine", "--io-sqpoll"});
  refused(whole({"--io-iopoll", "true", "--direct-io", "false"}), 2, {"--io-iopoll", "--direct-io"});
  refused(whole({"--checksums", "crc32"}), 2, {"--checksums", "true or false"});
  refused(whole({"--direct-io", "off"}), 2, {"--direct-io", "true or false"});
  refused(whole({"--queue-depth", "0"}), 2, {"--queue-depth", "1 to 4096"});
  refused(whole({"--block-size", "1000"}), 2, {"--block-size", "4096"});
  for (const std::string faults : {"shorts=0.5", "short=2", "fail=3:EWHAT", "reorder,"}) {
    refused(whole({"--io-faults", faults}), 2, {"spillway.io_faults", "--io-faults"});
    // Before anything starts, and also where there is no drive.
    refused(whole({"--io-faults", faults, "--offload-optimizer", "host", "--offload-parameters", "host"}), 2,
            {"--io-faults"});
  }
  // The second of two directories is tried like the first.
  refused(whole({"--nvme-path", scratch_.path("gone")}), 4, {scratch_.path("gone"), "No such file"});
  refused(whole({"--nvme-path", "/dev/shm", "--nvme-bandwidth", "1", "1"}), 4, {"/dev/shm", "tmpfs"});
}

TEST_F(Refusals, ADriveThatIsTooSmall) {
  // A drive of 8 MiB, seen by one process only; what is mounted there goes with it.
  const std::string image = scratch_.write("image", std::string(8 << 20, '\0'));
  const std::string drive = scratch_.path("nvme");
  const std::string mount = "mkfs.ext4 -q '" + image + "' && mount -o loop '" + image + "' '" + drive + "'";
  if (run_command({"unshare", "--mount", "sh", "-c", mount}).exit_code != 0) {
    GTEST_SKIP() << "this user may not mount a drive";
  }
  const Outcome outcome =
      run_command({"unshare", "--mount", "sh", "-c",
                   mount + " && { " SPILLWAY_PROGRAM " train --config '" + example("decoder-tiny.json") +
                       "' --data '" + text_ + "' --nvme-path '" + drive + "'; code=$?; ls -A '" + drive +
                       "' | grep -v lost+found; exit $code; }"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_EQ(outcome.out, "");  // neither progress nor a file
  EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u) << outcome.err;
  EXPECT_NE(outcome.err.find("bytes are free"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find(drive), std::string::npos) << outcome.err;
}

TEST_F(Refusals, MemoryThatIsTooSmallWithWhatWouldDo) {
  for (const std::string tier : {"device", "host"}) {
    const std::string flag = "--" + tier + "-memory";
    refused(whole({flag, "100K"}), 3, {tier, "100 KiB", flag});
    // What the message names works, and a little less is refused again.
    const std::string message = run_program(whole({flag, "100K"})).err;
    const auto number =
        message.find_first_of("0123456789", message.find(flag + " ", message.find("hint: ")) + flag.size());
    const std::string smallest =
        message.substr(number, message.find_first_not_of("0123456789", number) - number);
    ASSERT_FALSE(smallest.empty()) << message;
    refused(whole({flag, std::to_string(std::stoll(smallest) - 1)}), 3, {smallest});
    const Outcome works = run_program(whole({flag, smallest}));
    EXPECT_EQ(works.exit_code, 0) << works.err;
  }
}

TEST_F(Refusals, Configurations) {
  const auto file = [&](const std::string& text) { return whole({}, scratch_.write("run.json", text)); };
  refused(whole({}, scratch_.path("gone.json")), 4, {"gone.json", "No such file"});
  refused(whole({}, scratch_.root()), 4, {"Is a directory"});
  refused(file(""), 2, {"run.json", "not JSON"});
  refused(file("{\"spillway\": {"), 2, {"run.json", "line 1"});
  refused(file("{\"spilway\": {}}"), 2, {"spilway", "did you mean spillway?"});
  refused(file("{\"bf16\": {\"enabled\": true, \"enabled\": false}}"), 2, {"bf16.enabled", "given twice"});
  refused(file("{\"gradient_clipping\": \"tight\"}"), 2, {"gradient_clipping", "tight", "a number"});
  refused(file("{\"train_batch_size\": 7, \"train_micro_batch_size_per_gpu\": 2, "
               "\"gradient_accumulation_steps\": 3}"),
          2, {"7", "2 x", "3 x", "= 6"});
  refused(file("{}"), 2, {"spillway.model", "missing"});
  refused(file("{\"spillway\": {\"model\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}}"), 2,
          {"run.json", "64 deep"});
  refused(file("{\"spillway\": {\"model\": \"gone.json\"}}"), 4, {"gone.json", "No such file"});
}

TEST_F(Refusals, Models) {
  const auto model = [&](const std::string& key, const nlohmann::json& value) {
    return whole({}, config([&](auto& c) { c["spillway"]["model"][key] = value; }));
  };
  refused(model("n_layer", 0), 2, {"n_layer"});
  refused(model("n_layer", "four"), 2, {"n_layer"});
  refused(model("n_head", 5), 2, {"n_head"});
  refused(model("n_layers", 4), 2, {"n_layers"});
  refused(model("vocab_size", 100), 2, {"vocab_size", "100", "256"});
  refused(model("n_positions", 32), 2, {"sequence_length", "64", "32"});
  const auto larger = [&](int layers, int hidden) {
    return config([&](auto& c) {
      c["spillway"]["model"]["n_layer"] = layers;
      c["spillway"]["model"]["n_embd"] = hidden;
    });
  };
  refused(whole({}, larger(65536, 1 << 20)), 2, {"parameters", "35184372088832", "n_embd"});
  refused(whole({}, larger(1, 1 << 20)), 3, {"bytes"});
  refused(whole({"--offload-optimizer", "device", "--offload-parameters", "device"}, larger(1, 1 << 20)), 3,
          {});
  refused(whole({}, config([](auto& c) {
                  c["train_micro_batch_size_per_gpu"] = 1 << 19;
                  c["gradient_accumulation_steps"] = 1;
                })),
          2, {"33554432 tokens", "16777216", "train_micro_batch_size_per_gpu"});
  refused(model("model_type", "convnet"), 2, {"model_type"});
  refused(whole({}, config([](auto& c) { c["spillway"]["model"].erase("n_embd"); })), 2, {"n_embd"});
  refused(whole({}, config([](auto& c) { c["spillway"]["model"] = "{}"; })), 2, {"{}", "decoder-tiny"});
}

TEST_F(Refusals, OutputFilesBeforeAnythingElse) {
  for (const std::string flag : {"--json", "--trace", "--metrics", "--config"}) {
    refused({"train", "--model", "decoder-tiny", "--data", text_, flag, ""}, 2, {flag, "a name is missing"});
  }
  for (const std::string flag : {"--json", "--trace"}) {
    refused(whole({flag, scratch_.path("gone/x.json")}), 4, {flag, "gone/x.json", "No such file"});
    refused(whole({flag, scratch_.root()}), 4, {flag, "Is a directory"});
    refused(whole({flag, "/proc/x.json"}), 4, {flag, "/proc/x.json"});
    refused(whole({flag, text_ + "/x.json"}), 4, {flag, "Not a directory"});
  }
}

TEST_F(Refusals, AFileBeyondTheLimitIsAnErrorAndNothingIsLeft) {
  const auto before = scratch_.names();
  const Outcome outcome =
      run_command({"bash", "-c",
                   "ulimit -f 1; exec " SPILLWAY_PROGRAM " train --model decoder-tiny --data '" + text_ +
                       "' --steps 1 --json '" + scratch_.path("result.json") + "' > /dev/null"});
  EXPECT_EQ(outcome.exit_code, 4) << outcome.err;
  EXPECT_NE(outcome.err.find("File too large"), std::string::npos) << outcome.err;
  EXPECT_EQ(scratch_.names(), before);
}

TEST_F(Refusals, TextBesideTokens) {
  std::string header(1024, '\0');
  header[0] = '\x88', header[1] = '\xd8', header[2] = '\x34', header[3] = '\x01', header[4] = 1,
  header[8] = '\xc8';
  const std::string with_header = scratch_.write("tokens.bin", header + std::string(400, '\0'));
  refused(whole({"--eval-data", with_header}), 2, {"--data holds text", "--eval-data tokens"});
}

TEST_F(Refusals, ThreadsThatTheSystemDoesNotGive) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs more addresses than the limit leaves";
#endif
  for (const std::string flag : {"--device-threads", "--update-threads"}) {
    const Outcome outcome =
        run_command({"sh", "-c",
                     "ulimit -c 0; ulimit -v 1000000; exec " SPILLWAY_PROGRAM " train --config '" +
                         example("decoder-tiny.json") + "' --data '" + text_ + "' --steps 1 --nvme-path '" +
                         scratch_.path("nvme") + "' " + flag + " 1000"});
    EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
    EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u) << outcome.err;
    EXPECT_NE(outcome.err.find("threads"), std::string::npos) << outcome.err;
    EXPECT_TRUE(std::filesystem::is_empty(scratch_.path("nvme")));
  }
}

TEST_F(Refusals, OutputFilesThatAreInputsOrEachOther) {
  const std::string file = config([](auto& c) { c["spillway"]["model"] = "model.json"; });
  const std::string model = scratch_.write(
      "model.json",
      R"({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 16, "n_positions": 64, "vocab_size": 256})");
  std::filesystem::create_symlink(text_, scratch_.path("link.txt"));
  std::filesystem::create_hard_link(text_, scratch_.path("hard.txt"));
  std::filesystem::create_symlink("later.json", scratch_.path("later-link.json"));
  for (const std::string flag : {"--json", "--trace"}) {
    refused(whole({flag, text_}, file), 2, {flag, text_, "--data"});
    refused(whole({flag, scratch_.root() + "/nvme/../text.txt"}, file), 2, {flag, "--data"});
    refused(whole({flag, scratch_.path("link.txt")}, file), 2, {flag, "link.txt", "--data"});
    refused(whole({flag, scratch_.path("hard.txt")}, file), 2, {flag, "hard.txt", "--data"});
    refused(whole({flag, file}, file), 2, {flag, file, "--config"});
    refused(whole({flag, model}, file), 2, {flag, model, "the model's configuration"});
  }
  // A dry run reads no data, and must not lose them either.
  refused({"train", "--model", "decoder-tiny", "--data", scratch_.root() + "/te*.txt", "--dry-run", "--json",
           text_},
          2, {"--json", "--data"});
  refused({"train", "--config", file, "--dry-run", "--json", file}, 2, {"--json", "--config"});
  refused({"train", "--model", model, "--dry-run", "--json", model}, 2,
          {"--json", "the model's configuration"});
  // One file by two spellings, in the directory where the program is called.
  const Outcome spelt =
      run_command({"sh", "-c",
                   "cd '" + scratch_.root() +
                       "' && exec " SPILLWAY_PROGRAM
                       " train --model decoder-tiny --data text.txt --steps 1 --json j --trace ./j"});
  EXPECT_EQ(spelt.exit_code, 2) << spelt.err;
  const std::string both = scratch_.path("later.json");
  refused(whole({"--json", both, "--trace", both}, file), 2, {"--trace", "--json", both});
  refused(whole({"--json", both, "--trace", scratch_.path("later-link.json")}, file), 2, {"--trace", "--json"});
  EXPECT_EQ(read_file(text_), sample_text());
}

TEST(FirstContact, TheProgramAloneExplainsItself) {
  const Outcome outcome = run_program({});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("train"), std::string::npos);
  EXPECT_EQ(run_program({"--help"}).out, outcome.out);
}

TEST(FirstContact, HelpNamesEveryFlagWithExamples) {
  const Outcome outcome = run_program({"train", "--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const std::string flag : {"--config",
                                 "--data",
                                 "--steps",
                                 "--seed",
                                 "--device ",
                                 "--device-memory",
                                 "--host-memory",
                                 "--offload-optimizer",
                                 "--offload-parameters",
                                 "--nvme-path",
                                 "--nvme-bandwidth",
                                 "--block-size",
                                 "--queue-depth",
                                 "--io-engine",
                                 "--io-sqpoll",
                                 "--io-iopoll",
                                 "--checksums",
                                 "--direct-io",
                                 "--io-faults",
                                 "--update-threads",
                                 "--device-threads",
                                 "--trace",
                                 "--json",
                                 "Examples"}) {
    EXPECT_NE(outcome.out.find(flag), std::string::npos) << flag;
  }
  EXPECT_NE(outcome.out.find("A flag overrides the configuration file"), std::string::npos);
}

TEST(FirstContact, ClosedStandardStreamsTakeNoFileOfOurs) {
  const Scratch scratch;
  const std::string text = scratch.write("text.txt", sample_text()), json = scratch.path("result.json");
  const std::string command = SPILLWAY_PROGRAM " train --config '" + example("decoder-tiny.json") +
                              "' --data '" + text + "' --steps 2 --nvme-path '" + scratch.root() +
                              "' --json '" + json + "'";
  const auto hash = [&](const std::string& redirection) {
    const Outcome outcome = run_command({"sh", "-c", command + redirection});
    EXPECT_EQ(outcome.exit_code, 0) << redirection << outcome.err;
    return nlohmann::json::parse(read_file(json)).at(0).at("weights_xxh3");
  };
  const auto expected = hash("");
  EXPECT_EQ(hash(" >&-"), expected);
  EXPECT_EQ(hash(" <&- >&- 2>&-"), expected);
}

TEST(FirstContact, Version) {
  const Outcome outcome = run_program({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "spillway " SPILLWAY_VERSION "\n");
}

TEST(FirstContact, OutputThatCannotBeWrittenIsAnError) {
  const Outcome outcome = run_command({"sh", "-c", SPILLWAY_PROGRAM " --help > /dev/full"});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u);
  EXPECT_NE(outcome.err.find("No space left"), std::string::npos);
}

}  // namespace
}  // namespace spillway::cli
