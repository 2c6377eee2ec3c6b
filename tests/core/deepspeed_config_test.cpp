// DeepSpeed's configuration as its users write it: what has an effect, what is accepted without one, what is
// refused, and what "auto" means.
#include "../../core/config.h"
#include "../../core/error.h"

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace spillway {
namespace {

Config parse(std::string_view text, std::vector<ConfigOverride> flags = {}, bool allow_unknown = false) {
  return parse_config(text, "ds.json", {.overrides = flags, .allow_unknown_keys = allow_unknown});
}

/// The error line for a text that must be refused, then " | " and the hint where there is one.
std::string refusal(std::string_view text, std::vector<ConfigOverride> flags = {}) {
  try {
    parse(text, std::move(flags));
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 2) << error.what();
    return std::string(error.what()) + (error.detail().hint.empty() ? "" : " | " + error.detail().hint);
  }
  return "accepted";
}

bool any_contains(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const auto& line) { return line.find(part) != std::string::npos; });
}

/// {"a": {"b": VALUE}} for "a.b".
std::string at(const std::string& path, const std::string& value) {
  std::string text = value;
  for (std::size_t end = path.size();;) {
    const auto dot = path.rfind('.', end - 1);
    const auto begin = dot == std::string::npos ? 0 : dot + 1;
    text = "{\"" + path.substr(begin, end - begin) + "\": " + text + "}";
    if (dot == std::string::npos) return text;
    end = dot;
  }
}

// The key sets of the four files that fine-tuning tools ship: the values that only their program knows are
// "auto".
constexpr const char* kHead = R"(
  "bf16": {"enabled": "auto"},
  "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
           "min_loss_scale": 1},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                "warmup_num_steps": "auto", "total_num_steps": "auto"}},
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto", "steps_per_print": 2000, "wall_clock_breakdown": false,
  "zero_allow_untested_optimizer": true,)";
struct Template {
  const char* name;
  const char* zero;
};
void PrintTo(const Template& one, std::ostream* stream) {
  *stream << one.name;
}
const std::vector<Template> kTemplates = {
    {"Stage2", R"("zero_optimization": {"stage": 2, "allgather_partitions": true, "allgather_bucket_size": 5e8,
       "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 5e8, "contiguous_gradients": true,
       "round_robin_gradients": true}})"},
    {"Stage2WithOffload",
     R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true},
       "allgather_partitions": true, "allgather_bucket_size": 2e8, "overlap_comm": true, "reduce_scatter": true,
       "reduce_bucket_size": "auto", "contiguous_gradients": true}})"},
    {"Stage3",
     R"("zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9,
       "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
       "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
       "stage3_gather_16bit_weights_on_model_save": true}})"},
    {"Stage3WithOffload",
     R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
       "offload_param": {"device": "cpu", "pin_memory": true}, "overlap_comm": true, "contiguous_gradients": true,
       "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
       "stage3_param_persistence_threshold": "auto", "max_live_parameters": 1e9, "max_reuse_distance": 1e9,
       "gather_16bit_weights_on_model_save": true}})"},
};

class DeepSpeedTemplates : public testing::TestWithParam<Template> {};

TEST_P(DeepSpeedTemplates, TrainsAsItIsWithTheFlagsValuesForAuto) {
  const auto& [name, zero] = GetParam();
  const Config c =
      parse("{" + std::string(kHead) + zero, {{"optimizer.params.lr", "2e-5", "--lr"},
                                              {"spillway.steps", "50", "--steps"},
                                              {"train_micro_batch_size_per_gpu", "2", "--batch-size"},
                                              {"gradient_accumulation_steps", "4", "--accumulation"}});
  EXPECT_EQ(c.micro_batch, 2);
  EXPECT_EQ(c.accumulation, 4);
  EXPECT_EQ(c.optimizer.learning_rate, 2e-5);
  EXPECT_EQ(c.gradient_clipping, 1.0);
  EXPECT_EQ(c.precision, DType::bf16);
  EXPECT_EQ(c.schedule.kind, ScheduleKind::warmup_decay);
  EXPECT_EQ(c.schedule.maximum, 2e-5);
  EXPECT_EQ(c.schedule.minimum, 0.0);
  EXPECT_EQ(c.schedule.total_steps, 50);
  EXPECT_EQ(c.schedule.warmup_steps, 0);
  const bool offload = std::string(name).find("Offload") != std::string::npos;
  EXPECT_EQ(c.optimizer_tier, offload ? Tier::host : Tier::device);
  EXPECT_EQ(c.parameter_tier, offload && c.stage == 3 ? Tier::host : Tier::device);
  EXPECT_EQ(c.stage, std::string(name)[5] - '0');
  for (const char* assumed : {"gradient_clipping = 1.0", "scheduler.params.warmup_max_lr = 2e-05",
                              "scheduler.params.total_num_steps = 50", "optimizer.params.betas"}) {
    EXPECT_TRUE(any_contains(c.assumed, assumed)) << assumed;
  }
  EXPECT_FALSE(any_contains(c.assumed, "optimizer.params.lr"));
  EXPECT_TRUE(any_contains(c.notes, "steps_per_print"));
  EXPECT_FALSE(any_contains(c.notes, "unknown"));
  // Resolved, it is read back with nothing assumed.
  const Config again = parse(to_json(c));
  EXPECT_EQ(to_json(again), to_json(c));
  EXPECT_TRUE(again.assumed.empty());
}

INSTANTIATE_TEST_SUITE_P(Tools, DeepSpeedTemplates, testing::ValuesIn(kTemplates),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(DeepSpeedConfig, ReadsTheStageThreeKeysUnderBothNames) {
  for (const char* key : {"param_persistence_threshold", "max_live_parameters", "max_reuse_distance",
                          "prefetch_bucket_size", "model_persistence_threshold"}) {
    for (const std::string prefix : {"", "stage3_"}) {
      EXPECT_EQ(refusal(at("zero_optimization." + prefix + key, "1e5")), "accepted") << prefix << key;
    }
  }
  EXPECT_EQ(
      refusal(
          R"({"zero_optimization": {"param_persistence_threshold": 1, "stage3_param_persistence_threshold": 2}})"),
      "ds.json: zero_optimization.param_persistence_threshold and "
      "zero_optimization.stage3_param_persistence_threshold "
      "are two names of one thing | keep one of the two");
  EXPECT_NE(refusal(at("zero_optimization.param_persistence_threshold", "\"many\"")), "accepted");
}

TEST(DeepSpeedConfig, KnowsTheOldNames) {
  EXPECT_EQ(parse(at("bfloat16.enabled", "true")).precision, DType::bf16);
  EXPECT_NE(refusal(R"({"bfloat16": {"enabled": true}, "bf16": {"enabled": true}})"), "accepted");
  EXPECT_EQ(refusal(at("aio.thread_count", "2")), "accepted");
  EXPECT_EQ(refusal(at("aio.num_threads", "2")), "accepted");
  EXPECT_EQ(refusal(at("zero_optimization.stage3_gather_fp16_weights_on_model_save", "false")), "accepted");
  const Config old = parse(
      R"({"zero_optimization": {"cpu_offload": true, "cpu_offload_param": true, "cpu_offload_use_pin_memory": true}})");
  EXPECT_EQ(old.optimizer_tier, Tier::host);
  EXPECT_EQ(old.parameter_tier, Tier::host);
  const Config off =
      parse(R"({"zero_optimization": {"cpu_offload": false, "offload_param": {"device": "none"}}})");
  EXPECT_EQ(off.optimizer_tier, Tier::device);
  EXPECT_NE(refusal(R"({"zero_optimization": {"cpu_offload": true, "offload_optimizer": {"device": "cpu"}}})")
                .find("two names"),
            std::string::npos);
  EXPECT_NE(refusal(at("zero_optimization.cpu_offload", "\"yes\"")), "accepted");
}

TEST(DeepSpeedConfig, ReadsAioWithWordsForBooleans) {
  const Config c = parse(
      R"({"aio": {"block_size": 262144, "queue_depth": 16, "single_submit": "false", "overlap_events": "true", "intra_op_parallelism": 8}})");
  EXPECT_EQ(c.block_bytes, 262144);
  EXPECT_EQ(c.queue_depth, 16);
  EXPECT_NE(refusal(at("aio.block_size", "5000")).find("multiple of 4096"), std::string::npos);
  EXPECT_NE(refusal(at("aio.queue_depth", "0")), "accepted");
}

TEST(DeepSpeedConfig, ReadsNumbersInAnyForm) {
  EXPECT_EQ(parse(at("train_batch_size", "1.6e1")).micro_batch, 16);
  EXPECT_EQ(refusal(at("zero_optimization.reduce_bucket_size", "5e8")), "accepted");
  EXPECT_NE(refusal(at("zero_optimization.reduce_bucket_size", "-1")), "accepted");
  // What a double cannot count is no whole number.
  EXPECT_NE(refusal(at("zero_optimization.reduce_bucket_size", "1e17")), "accepted");
}

TEST(DeepSpeedConfig, ReplacesWhatStandsForTheRankInPaths) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const Config c = parse(
      R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": ["/drive/{rank}/{local_rank}"]},
                              "offload_param": {"device": "nvme", "nvme_path": "/{host}/{host}"}}})");
  EXPECT_EQ(c.optimizer_nvme_paths, std::vector<std::string>{"/drive/0/0"});
  EXPECT_EQ(c.parameter_nvme_paths, std::vector<std::string>{"/" + std::string(host) + "/" + host});
  EXPECT_EQ(parse(at("zero_optimization.offload_param.nvme_path", R"(["/a/{rank}", "/b/{rank}"])"))
                .parameter_nvme_paths,
            (std::vector<std::string>{"/a/0", "/b/0"}));
  EXPECT_NE(refusal(at("zero_optimization.offload_optimizer.nvme_path", "[]")), "accepted");
  EXPECT_NE(refusal(at("zero_optimization.offload_optimizer.nvme_path", "[3]")), "accepted");
  std::string endless = "\"";
  for (int i = 0; i < 1'000'000; ++i) endless += "{rank}";
  EXPECT_NE(refusal(at("zero_optimization.offload_optimizer.nvme_path", endless + "\"")).find("too long"),
            std::string::npos);
}

TEST(DeepSpeedConfig, SchedulersHaveDeepSpeedsDefaults) {
  const auto schedule = [](const std::string& type, const std::string& parameters) {
    return parse(
               R"({"optimizer": {"params": {"lr": 0.5}}, "spillway": {"steps": 70}, "scheduler": {"type": ")" +
               type + R"(", "params": {)" + parameters + "}}}")
        .schedule;
  };
  const ScheduleConfig warmup = schedule("WarmupLR", "");
  EXPECT_EQ(warmup.kind, ScheduleKind::warmup);
  EXPECT_TRUE(warmup.logarithmic);
  EXPECT_EQ(warmup.minimum, 0.0);
  EXPECT_EQ(warmup.maximum, 0.5);
  EXPECT_FALSE(schedule("WarmupLR", R"("warmup_type": "linear")").logarithmic);
  EXPECT_EQ(schedule("WarmupLR", R"("warmup_max_lr": 0.25, "warmup_min_lr": 0.125, "warmup_num_steps": 9)")
                .warmup_steps,
            9);
  EXPECT_EQ(schedule("WarmupDecayLR", "").total_steps, 70);
  const ScheduleConfig cosine = schedule("WarmupCosineLR", R"("total_num_steps": 30, "warmup_min_ratio": 0.5)");
  EXPECT_EQ(cosine.kind, ScheduleKind::warmup_cosine);
  EXPECT_EQ(cosine.total_steps, 30);
  EXPECT_EQ(cosine.warmup_minimum_ratio, 0.5);
  EXPECT_EQ(cosine.cosine_minimum_ratio, 1e-4);
  EXPECT_EQ(parse("{}").schedule.kind, ScheduleKind::constant);
  const auto refused = [](const std::string& scheduler) {
    return refusal(R"({"scheduler": )" + scheduler + "}");
  };
  for (const std::string type : {"LRRangeTest", "OneCycle", "cosine"}) {
    EXPECT_NE(refused(R"({"type": ")" + type + "\"}").find("WarmupLR, WarmupDecayLR and WarmupCosineLR"),
              std::string::npos);
  }
  EXPECT_NE(
      refused(R"({"type": "WarmupLR", "params": {"total_num_steps": 3}})").find("no parameter of WarmupLR"),
      std::string::npos);
  EXPECT_NE(refused(R"({"type": "WarmupCosineLR", "params": {"warmup_max_lr": 3}})")
                .find("no parameter of WarmupCosineLR"),
            std::string::npos);
  EXPECT_NE(refused(R"({"type": "WarmupDecayLR", "params": {"cos_min_ratio": 0.3}})")
                .find("no parameter of WarmupDecayLR"),
            std::string::npos);
  EXPECT_EQ(refused(R"({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9, "total_num_steps": 9}})"),
            "accepted");
  EXPECT_NE(refused(R"({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 101}})")
                .find("spillway.steps (--steps) 100 is less"),
            std::string::npos);
  const Config cosine_assumed = parse(R"({"scheduler": {"type": "WarmupCosineLR"}})");
  for (const char* one : {"warmup_type = \"log\"", "warmup_min_ratio = 0.0", "cos_min_ratio = 0.0001"}) {
    EXPECT_TRUE(any_contains(cosine_assumed.assumed, one)) << one;
  }
  EXPECT_NE(refused(R"({"params": {"warmup_num_steps": 3}})").find("without scheduler.type"),
            std::string::npos);
  EXPECT_NE(refused(R"({"type": "WarmupLR", "params": {"warmup_max_lr": 0}})").find("zero"), std::string::npos);
  EXPECT_NE(refused(R"({"type": "WarmupLR", "params": {"warmup_type": "cubic"}})").find("log or linear"),
            std::string::npos);
  EXPECT_NE(refused(R"({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9, "total_num_steps": 8}})")
                .find("total_num_steps 8 is less than scheduler.params.warmup_num_steps 9"),
            std::string::npos);
}

TEST(DeepSpeedConfig, ComputesInBf16WhateverIsAskedForAndSaysSo) {
  for (const char* text : {"{}", R"({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}})",
                           R"({"bf16": {"enabled": false}})", R"({"fp16": {"enabled": true, "loss_scale": 0}})",
                           R"({"bf16": {"enabled": true}, "fp16": {"enabled": false}})"}) {
    EXPECT_EQ(parse(text).precision, DType::bf16) << text;
  }
  EXPECT_TRUE(any_contains(parse(at("fp16.enabled", "true")).notes, "asked for fp16"));
  EXPECT_TRUE(any_contains(parse(at("bf16.enabled", "false")).notes, "asked for fp32"));
  EXPECT_TRUE(any_contains(parse("{}").assumed, "spillway.precision"));
  EXPECT_FALSE(any_contains(parse(at("bf16.enabled", "true")).assumed, "spillway.precision"));
  EXPECT_NE(refusal(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})").find("both true"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"fp16": {"enabled": true}, "spillway": {"precision": "fp32"}})").find("contradict"),
            std::string::npos);
}

TEST(DeepSpeedConfig, AcceptsHintsOfOtherEngines) {
  for (const std::string key : {"zero_optimization.contiguous_gradients",
                                "zero_optimization.reduce_scatter",
                                "zero_optimization.allgather_partitions",
                                "zero_optimization.round_robin_gradients",
                                "zero_optimization.sub_group_size",
                                "zero_optimization.stage3_max_live_parameters",
                                "zero_optimization.stage3_max_reuse_distance",
                                "zero_optimization.stage3_prefetch_bucket_size",
                                "zero_optimization.stage3_model_persistence_threshold",
                                "zero_optimization.load_from_fp32_weights",
                                "zero_optimization.offload_optimizer.buffer_count",
                                "zero_optimization.offload_optimizer.buffer_size",
                                "zero_optimization.offload_optimizer.pipeline_read",
                                "zero_optimization.offload_optimizer.pipeline_write",
                                "zero_optimization.offload_optimizer.pipeline",
                                "zero_optimization.offload_optimizer.fast_init",
                                "zero_optimization.offload_optimizer.ratio",
                                "zero_optimization.offload_optimizer.super_offload",
                                "zero_optimization.offload_optimizer.cpuadam_cores_perc",
                                "zero_optimization.offload_param.buffer_count",
                                "zero_optimization.offload_param.buffer_size",
                                "aio.single_submit",
                                "aio.overlap_events",
                                "aio.intra_op_parallelism",
                                "aio.use_gds",
                                "zero_allow_untested_optimizer",
                                "zero_force_ds_cpu_optimizer",
                                "optimizer.params.torch_adam",
                                "fp16.auto_cast",
                                "fp16.opt_level",
                                "steps_per_print",
                                "wall_clock_breakdown",
                                "dump_state",
                                "memory_breakdown",
                                "tensorboard",
                                "wandb",
                                "csv_monitor",
                                "comet",
                                "comms_logger",
                                "flops_profiler",
                                "autotuning",
                                "checkpoint",
                                "communication_data_type",
                                "bf16.bf16_master_weights_and_grads",
                                "bf16.bf16_optimizer_states"}) {
    for (const std::string value :
         {"true", "\"true\"", "5e8", R"({"enabled": true, "anything": {"inside": [1]}})"}) {
      EXPECT_EQ(refusal(at(key, value)), "accepted") << key << " " << value;
      EXPECT_TRUE(any_contains(parse(at(key, value)).notes, key)) << key;
    }
    EXPECT_TRUE(parse(at(key, "null")).notes.empty() || key.find('.') == std::string::npos ||
                !any_contains(parse(at(key, "null")).notes, key));
  }
}

TEST(DeepSpeedConfig, RefusesWhatWouldChangeResultsOnlyWhenItIsSwitchedOn) {
  const std::vector<std::pair<std::string, std::string>> switched_on = {
      {"amp", R"({"enabled": true})"},
      {"torch_autocast", R"({"enabled": true, "dtype": "bfloat16"})"},
      {"zero_optimization.zenflow", R"({"topk_ratio": 0.1})"},
      {"zero_optimization.zero_quantized_weights", "true"},
      {"zero_optimization.zero_quantized_gradients", "true"},
      {"zero_optimization.zero_hpz_partition_size", "8"},
      {"zero_optimization.mics_shard_size", "4"},
      {"zero_optimization.mics_hierarchical_params_gather", "true"},
      {"tensor_parallel", R"({"autotp_size": 4})"},
      {"sequence_parallel_size", "2"},
      {"data_efficiency", R"({"enabled": true})"},
      {"curriculum_learning", R"({"enabled": true})"},
      {"progressive_layer_drop", R"({"enabled": true, "theta": 0.5})"},
      {"compression_training", R"({"weight_quantization": {"shared_parameters": {"enabled": true}}})"},
      {"sparse_attention", R"({"mode": "fixed", "block": 16})"},
      {"quantize_training", R"({"enabled": true})"},
      {"elasticity", R"({"enabled": true})"},
      {"prescale_gradients", "true"},
      {"gradient_predivide_factor", "2.0"}};
  for (const auto& [key, value] : switched_on) {
    const std::string message = refusal(at(key, value));
    EXPECT_NE(message.find(key + " is switched on"), std::string::npos) << message;
    for (const std::string off :
         {"false", "null", "\"none\"", "\"false\"", "1", "0", "-1", "{}", R"({"enabled": false, "theta": 0.5})",
          R"({"enabled": false, "inside": {"enabled": true}})"}) {
      EXPECT_EQ(refusal(at(key, off)), "accepted") << key << " " << off;
    }
  }
  EXPECT_EQ(refusal(at("compression_training",
                       R"({"weight_quantization": {"shared_parameters": {"enabled": false, "bits": 8}}})")),
            "accepted");
  for (const std::string type : {"OneBitAdam", "OneBitLamb", "ZeroOneAdam", "Lamb", "Muon", "Adagrad"}) {
    const std::string message =
        refusal(R"({"optimizer": {"type": ")" + type + R"(", "params": {"lr": 1e-3, "freeze_step": 5}}})");
    EXPECT_NE(message.find("Adam, AdamW, Lion and SGD"), std::string::npos) << message;
  }
  EXPECT_NE(refusal(at("optimizer.params.amsgrad", "true")), "accepted");
  EXPECT_NE(refusal(at("optimizer.params.bias_correction", "false")), "accepted");
  EXPECT_EQ(refusal(at("optimizer.params.amsgrad", "false")), "accepted");
}

TEST(DeepSpeedConfig, WhatComesLaterIsCheckedAndNamed) {
  for (const std::string key :
       {"zero_optimization.overlap_comm", "sparse_gradients", "activation_checkpointing.partition_activations",
        "zero_optimization.offload_optimizer.pin_memory",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save"}) {
    EXPECT_TRUE(any_contains(parse(at(key, "true")).notes, "without an effect as yet: " + key)) << key;
    EXPECT_TRUE(parse(at(key, "false")).notes.empty()) << key;
    EXPECT_NE(refusal(at(key, "3")), "accepted") << key;
  }
  for (const std::string key :
       {"zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold", "zero_optimization.offload_param.max_in_cpu"}) {
    EXPECT_TRUE(any_contains(parse(at(key, "1e6")).notes, key)) << key;
    EXPECT_NE(refusal(at(key, "\"large\"")), "accepted") << key;
  }
}

TEST(DeepSpeedConfig, CheckpointsInHostMemoryAreActivationsOnHost) {
  const std::string on = R"("activation_checkpointing": {"cpu_checkpointing": true, "number_checkpoints": 4,
                            "contiguous_memory_optimization": true, "synchronize_checkpoint_boundary": true,
                            "profile": true})";
  const Config host = parse("{" + on + "}");
  EXPECT_EQ(host.activations, ActivationPolicy::host);
  EXPECT_TRUE(any_contains(host.notes, "cpu_checkpointing: spillway.activations is host"));
  for (const char* key :
       {"number_checkpoints", "contiguous_memory_optimization", "synchronize_checkpoint_boundary", "profile"}) {
    EXPECT_TRUE(any_contains(host.notes, std::string("activation_checkpointing.") + key)) << key;
  }
  EXPECT_EQ(parse(to_json(host)).activations, ActivationPolicy::host);

  const Config off = parse(at("activation_checkpointing.cpu_checkpointing", "false"));
  EXPECT_EQ(off.activations, ActivationPolicy::automatic);
  EXPECT_TRUE(off.notes.empty());
  EXPECT_EQ(parse("{" + on + R"(, "spillway": {"activations": "host"}})").activations, ActivationPolicy::host);
  for (const std::string other : {"auto", "keep", "recompute", "nvme"}) {
    const std::string both = "{" + on + R"(, "spillway": {"activations": ")" + other + R"("}})";
    EXPECT_EQ(refusal(both),
              "ds.json: activation_checkpointing.cpu_checkpointing true puts layer inputs into host "
              "memory, and spillway.activations is " +
                  other + " | leave one of the two out, or write spillway.activations \"host\"");
  }
  // What is typed stands before the file.
  const Config typed = parse("{" + on + "}", {{"spillway.activations", "recompute", "--activations"}});
  EXPECT_EQ(typed.activations, ActivationPolicy::recompute);
  EXPECT_TRUE(any_contains(typed.notes, "gives way to --activations recompute"));
  EXPECT_NE(refusal(at("activation_checkpointing.cpu_checkpointing", "3")), "accepted");
}

TEST(DeepSpeedConfig, UnknownKeysAreNamedWithTheNearestOrTheRightPlace) {
  EXPECT_EQ(refusal(R"({"zero_optimization": {"aio": {"queue_depth": 8}}})"),
            "ds.json: unknown key zero_optimization.aio | its place is aio");
  EXPECT_EQ(refusal(R"({"offload_optimizer": {"device": "cpu"}})"),
            "ds.json: unknown key offload_optimizer | its place is zero_optimization.offload_optimizer");
  EXPECT_EQ(refusal(R"({"zero_optimization": {"overlap_com": true}})"),
            "ds.json: unknown key zero_optimization.overlap_com | did you mean overlap_comm?");
  EXPECT_EQ(
      refusal(R"({"train_microbatch_size_per_gpu": 3})"),
      "ds.json: unknown key train_microbatch_size_per_gpu | did you mean train_micro_batch_size_per_gpu?");
  EXPECT_EQ(refusal(R"({"quux": 3})"), "ds.json: unknown key quux");
  EXPECT_EQ(refusal(R"({"quux": 3, "quuy": 3, "bf16": {"on": 1}})"),
            "ds.json: unknown key bf16.on, and 2 more");
  EXPECT_EQ(refusal(R"({"": 3})"), "ds.json: unknown key \"\"");
  EXPECT_NE(refusal(R"({"zero_optimization": true})").find("write {\"stage\": 3}"), std::string::npos);
  EXPECT_NE(refusal(R"({"zero_optimization": {"offload_param": "cpu"}})").find("write {\"device\": \"cpu\"}"),
            std::string::npos);
  EXPECT_THROW(parse(R"({"spillway": {"stepz": 5}})", {}, true),
               Error);  // our own section has no second reader
  const Config allowed = parse(R"({"quux": 3, "bf16": {"quux": 1}, "gradient_clipping": 0.25})", {}, true);
  EXPECT_TRUE(any_contains(allowed.notes, "unknown keys, allowed: bf16.quux, quux"));
  EXPECT_EQ(allowed.gradient_clipping, 0.25);
  const Config broken = parse(R"({"line\nfeed": 3})", {}, true);
  EXPECT_TRUE(any_contains(broken.notes, R"(line\x0afeed)"));
  // However long it is, it costs no time and fits a line.
  const std::string message = refusal("{\"" + std::string(1 << 20, 'x') + "\": 1}");
  EXPECT_LT(message.size(), 400u);
}

TEST(DeepSpeedConfig, BatchSizesFollowFromFileAndFlags) {
  const auto sizes = [](std::string_view text, std::vector<ConfigOverride> flags = {}) {
    const Config c = parse(text, std::move(flags));
    return std::pair(c.micro_batch, c.accumulation);
  };
  const ConfigOverride batch{"train_micro_batch_size_per_gpu", "6", "--batch-size"},
      accumulation{"gradient_accumulation_steps", "5", "--accumulation"};
  EXPECT_EQ(sizes(R"({"train_batch_size": "auto"})"), std::pair(1, 1));
  EXPECT_EQ(sizes(R"({"train_batch_size": "auto"})", {batch, accumulation}), std::pair(6, 5));
  EXPECT_EQ(sizes(R"({"train_batch_size": 24})", {batch}), std::pair(6, 4));
  EXPECT_EQ(sizes(R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2})", {batch}),
            std::pair(6, 2));
  EXPECT_EQ(refusal(R"({"train_batch_size": 24, "gradient_accumulation_steps": 2})", {batch}),
            "ds.json: train_batch_size 24 disagrees with --batch-size 6 x gradient_accumulation_steps 2 x 1 "
            "rank = 12 | give two of "
            "the three; the third follows");
  EXPECT_NE(refusal(R"({"train_batch_size": 24})", {accumulation}).find("--accumulation 5"), std::string::npos);
}

TEST(DeepSpeedConfig, ListsOfOurOwnComeFromTheFileOrFromFlagsGivenSeveralTimes) {
  EXPECT_EQ(parse(at("spillway.data", "\"a\"")).data, std::vector<std::string>{"a"});
  EXPECT_EQ(parse(at("spillway.data", R"(["a", "b"])")).data, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(
      parse(at("spillway.data", "\"a\""), {{"spillway.data", "1", "--data"}, {"spillway.data", "c", "--data"}})
          .data,
      (std::vector<std::string>{"1", "c"}));
  EXPECT_FALSE(parse("{}").no_decay.has_value());
  EXPECT_FALSE(parse(at("spillway.no_decay", "\"biases and norms\"")).no_decay.has_value());
  EXPECT_TRUE(any_contains(parse("{}").assumed, "spillway.no_decay = \"biases and norms\""));
  EXPECT_EQ(parse(at("spillway.no_decay", "[]")).no_decay, std::vector<std::string>{});
  EXPECT_EQ(parse(at("spillway.no_decay", R"(["*.bias"])")).no_decay, std::vector<std::string>{"*.bias"});
  for (const std::string bad : {"[3]", "3", "[\"\"]", "{}"}) {
    EXPECT_NE(refusal(at("spillway.data", bad)), "accepted") << bad;
    EXPECT_NE(refusal(at("spillway.no_decay", bad)), "accepted") << bad;
  }
}

TEST(DeepSpeedConfig, ModelsAreNamedOrDescribed) {
  const std::vector<NamedModel> models{{"small", R"({"n_layer": 1})"}, {"large", R"({"n_layer": 9})"}};
  const auto model = [&](const std::string& text) {
    return parse_config(at("spillway.model", text), "ds.json", {.models = models}).model;
  };
  EXPECT_EQ(model("\"large\""), R"({"n_layer":9})");
  EXPECT_EQ(model(R"({"n_layer": 4})"), R"({"n_layer":4})");
  try {
    model("\"smal\"");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::configuration);
    EXPECT_EQ(error.detail().hint, "did you mean small?");
  }
}

}  // namespace
}  // namespace spillway
