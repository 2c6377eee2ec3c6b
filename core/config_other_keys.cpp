// Keys of DeepSpeed's file that this engine has no use for, and those that it must refuse.
#include "config_keys.h"

#include <algorithm>

namespace spillway::config_detail {
namespace {

using nlohmann::json;

struct Group {
  KeyEffect effect;
  const char* section;
  const char* help;
  std::vector<const char*> names;
};

std::vector<Group> groups() {
  const auto ignored = KeyEffect::ignored, refused = KeyEffect::refused;
  return {
      {ignored,
       "",
       "a hint for another engine's reports",
       {"steps_per_print", "wall_clock_breakdown", "dump_state", "memory_breakdown", "tensorboard", "wandb",
        "csv_monitor", "comet", "comms_logger", "flops_profiler", "autotuning"}},
      {ignored,
       "",
       "the optimizer is always the CPU's own",
       {"zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"}},
      {ignored,
       "",
       "gradients travel in bf16 and are summed in fp32",
       {"communication_data_type", "seq_parallel_communication_data_type", "fp32_allreduce", "data_types"}},
      {ignored,
       "",
       "there is nothing here that it could change",
       {"checkpoint", "disable_allgather", "dataloader_drop_last", "pipeline", "compile", "nebula",
        "load_universal_checkpoint", "timers", "graph_harvesting", "use_node_local_storage", "vocabulary_size",
        "zero_allow_comm_data_type_fp32", "use_data_before_expert_parallelism"}},
      {ignored,
       "zero_optimization",
       "a hint about buffers and order: the plan and the schedule see to that",
       {"contiguous_gradients",
        "reduce_scatter",
        "allgather_partitions",
        "round_robin_gradients",
        "sub_group_size",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_prefetch_bucket_size",
        "stage3_model_persistence_threshold",
        "stage3_module_granularity_threshold",
        "stage3_use_all_reduce_for_fetch_params",
        "memory_efficient_linear",
        "enable_sanity_checks",
        "stage3_allgather_sequential",
        "use_multi_rank_bucket_allreduce",
        "stage3_partition_stream_chunk_size",
        "save_muon_momentum_buffer_in_memory",
        "allgather_size",
        "leaf_module",
        "override_module_apply",
        "log_trace_cache_warnings",
        "ignore_unused_parameters",
        "cpu_offload_use_pin_memory"}},
      {ignored,
       "zero_optimization",
       "about another engine's checkpoints",
       {"load_from_fp32_weights", "elastic_checkpoint", "pipeline_loading_checkpoint", "legacy_stage1"}},
      {ignored,
       "zero_optimization.offload_optimizer",
       "a hint about buffers: the plan sees to that",
       {"buffer_count", "buffer_size", "pipeline_read", "pipeline_write", "pipeline", "fast_init", "ratio",
        "super_offload", "cpuadam_cores_perc"}},
      {ignored,
       "zero_optimization.offload_param",
       "a hint about buffers: the plan sees to that",
       {"buffer_count", "buffer_size", "pipeline_read", "pipeline_write", "pipeline", "fast_init", "ratio"}},
      {ignored,
       "aio",
       "requests are many at once, and one thread submits them",
       {"single_submit", "overlap_events", "intra_op_parallelism", "use_gds"}},
      {ignored,
       "activation_checkpointing",
       "what is kept of a layer is its whole input, in one piece; see spillway.activations",
       {"number_checkpoints", "contiguous_memory_optimization"}},
      {ignored,
       "activation_checkpointing",
       "layers wait for one another where they must, and for nothing else",
       {"synchronize_checkpoint_boundary"}},
      {ignored, "activation_checkpointing", "spillway train --trace shows when what happened", {"profile"}},
      {ignored, "optimizer", "a choice between implementations that are not here", {"legacy_fusion"}},
      {ignored,
       "optimizer.params",
       "a choice between implementations that are not here",
       {"torch_adam", "fused", "foreach", "capturable", "fp32_optimizer_states"}},
      {ignored,
       "fp16",
       "bf16 needs no scaling of the loss",
       {"auto_cast", "opt_level", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
        "consecutive_hysteresis", "min_loss_scale", "fp16_master_weights_and_grads"}},
      {ignored,
       "bf16",
       "masters are kept without loss; see spillway.state_format",
       {"bf16_master_weights_and_grads", "bf16_optimizer_states", "immediate_grad_update",
        "check_grad_overflow", "auto_cast"}},
      {ignored, "scheduler.params", "a run begins at its first step", {"last_batch_iteration"}},
      {refused, "", "another precision than bf16 with fp32 sums", {"amp", "torch_autocast"}},
      {refused, "", "not built", {"tensor_parallel", "sequence_parallel_size", "hybrid_engine"}},
      {refused,
       "",
       "it would change what is trained, and is not built",
       {"data_efficiency", "curriculum_learning", "progressive_layer_drop", "compression_training",
        "sparse_attention", "quantize_training", "elasticity", "eigenvalue"}},
      {refused,
       "",
       "it would change how gradients are averaged",
       {"prescale_gradients", "gradient_predivide_factor"}},
      {refused,
       "zero_optimization",
       "it would change the results, and is not built",
       {"zenflow", "zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients",
        "zeropp_loco_param"}},
      {refused,
       "zero_optimization",
       "not built",
       {"zero_hpz_partition_size", "mics_shard_size", "mics_hierarchical_params_gather"}},
      {refused, "optimizer.params", "another optimizer", {"amsgrad", "maximize"}},
  };
}

/// Every value of a key "enabled", at any depth.
void collect_enabled(const json& value, std::vector<json>& found) {
  if (!value.is_structured()) return;
  for (const auto& [key, inner] : value.items()) {
    if (value.is_object() && key == "enabled") found.push_back(inner);
    collect_enabled(inner, found);
  }
}

}  // namespace

const std::vector<KeyInfo>& other_keys() {
  static const std::vector<KeyInfo> all = [] {
    std::vector<KeyInfo> keys;
    for (const Group& group : groups()) {
      for (const char* name : group.names) {
        const std::string section = group.section;
        keys.push_back({.path = section.empty() ? name : section + "." + name,
                        .effect = group.effect,
                        .values = group.effect == KeyEffect::ignored ? "anything" : "off",
                        .help = group.help});
      }
    }
    return keys;
  }();
  return all;
}

const std::vector<Alias>& aliases() {
  static const std::vector<Alias> all = [] {
    std::vector<Alias> names = {
        {"bfloat16", "bf16"},
        {"aio.thread_count", "aio.intra_op_parallelism"},
        {"aio.num_threads", "aio.intra_op_parallelism"},
        {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
         "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    };
    const auto add_short_name = [&](const KeyInfo& key) {
      constexpr std::string_view prefix = "zero_optimization.stage3_";
      if (key.path.starts_with(prefix)) {
        names.push_back({"zero_optimization." + key.path.substr(prefix.size()), key.path});
      }
    };
    for (const Key& key : used_keys()) add_short_name(key.info);
    for (const KeyInfo& key : other_keys()) add_short_name(key);
    return names;
  }();
  return all;
}

bool is_switched_on(const json& value) {
  if (value.is_object() && value.contains("enabled")) return is_switched_on(value.at("enabled"));
  if (value.is_structured()) {
    std::vector<json> members;
    collect_enabled(value, members);
    if (members.empty()) members.assign(value.begin(), value.end());
    return std::any_of(members.begin(), members.end(), is_switched_on);
  }
  if (value.is_string()) return value != "none" && value != "auto" && value != "false";
  if (value.is_number()) return value != 0 && value != 1 && value != -1;
  return value.is_boolean() && value.get<bool>();
}

}  // namespace spillway::config_detail
