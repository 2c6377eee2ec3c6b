// One table of keys says how each is read, written and explained. What one value has to say about another is
// settled in config.cpp, when all are known.
#include "config_keys.h"

namespace spillway::config_detail {
namespace {

using nlohmann::json;

void read_block_size(const Value& v, Draft& d) {
  d.config.block_bytes = v.integer(4096, std::int64_t{1} << 30);
  if (d.config.block_bytes % 4096 != 0) throw v.not_a("a multiple of 4096, which direct transfers are");
}

/// As most files have it: one path is no list.
json paths_or_null(const std::vector<std::string>& paths) {
  if (paths.empty()) return {};
  return paths.size() == 1 ? json(paths.front()) : json(paths);
}

std::vector<Key> batch_keys() {
  return {
      {{"train_batch_size", KeyEffect::used, "sequences",
        "Of a step: micro-batch x accumulation x ranks. Two of the three are enough; with one, accumulation is "
        "1"},
       [](const Value& v, Draft& d) {
         v.integer(1, kMostSequences);
         d.train_batch = v;
       },
       [](const Config& c) { return json(std::int64_t{c.micro_batch} * c.accumulation); }},
      {{"train_micro_batch_size_per_gpu", KeyEffect::used, "sequences", "Computed at once (1)"},
       [](const Value& v, Draft& d) {
         v.integer(1, kMostSequences);
         d.micro_batch = v;
       },
       [](const Config& c) { return json(c.micro_batch); },
       true},
      {{"gradient_accumulation_steps", KeyEffect::used, "micro-batches", "That make a step (1)"},
       [](const Value& v, Draft& d) {
         v.integer(1, kMostSequences);
         d.accumulation = v;
       },
       [](const Config& c) { return json(c.accumulation); },
       true},
      {{"gradient_clipping", KeyEffect::used, "a norm", "Gradients are scaled down to it (1.0); 0: off"},
       [](const Value& v, Draft& d) { d.config.gradient_clipping = v.number(1e6); },
       [](const Config& c) { return json(c.gradient_clipping); },
       true},
      {{"sparse_gradients", KeyEffect::later, "true, false",
        "Only the rows of an embedding that a batch touched travel between ranks"},
       [](const Value& v, Draft&) { v.boolean(); }},
  };
}

std::vector<Key> deepspeed_keys() {
  const auto boolean = [](const Value& v, Draft&) { v.boolean(); };
  const auto bytes = [](const Value& v, Draft&) { v.integer(0); };
  const auto later = KeyEffect::later;
  return {
      {{"bf16.enabled", KeyEffect::used, "true, false",
        "The engine computes in bf16 in any case, and says so where the file asks for something else"},
       [](const Value& v, Draft& d) { d.bf16 = v.boolean(); },
       [](const Config& c) { return json(c.precision == DType::bf16); }},
      {{"fp16.enabled", KeyEffect::used, "true, false",
        "true: runs in bf16, which needs no loss scale, and says so"},
       [](const Value& v, Draft& d) { d.fp16 = v.boolean(); }},

      {{"zero_optimization.stage", KeyEffect::used, "0 to 3",
        "What several ranks partition: 1 optimizer state, 2 also gradients, 3 also parameters (3)"},
       [](const Value& v, Draft& d) { d.config.stage = v.small(0, 3); },
       [](const Config& c) { return json(c.stage); },
       true},
      {{"zero_optimization.offload_optimizer.device", KeyEffect::used, "device, host, nvme; or none, cpu, nvme",
        "Where the optimizer's state lives (device)"},
       [](const Value& v, Draft& d) { d.config.optimizer_tier = v.tier(); },
       [](const Config& c) { return json(name_of(c.optimizer_tier)); },
       true},
      {{"zero_optimization.offload_optimizer.nvme_path", KeyEffect::used, "a directory, or a list of them",
        "On the drive for nvme; several, each on a drive of its own, are striped over. {rank}, {local_rank} "
        "and {host} in it are replaced"},
       [](const Value& v, Draft& d) { d.config.optimizer_nvme_paths = v.directories(); },
       [](const Config& c) { return paths_or_null(c.optimizer_nvme_paths); },
       false,
       ListOf::words},
      {{"zero_optimization.offload_optimizer.pin_memory", later, "true, false",
        "Pinned memory is for the copies of a GPU"},
       boolean},
      {{"zero_optimization.offload_param.device", KeyEffect::used, "device, host, nvme; or none, cpu, nvme",
        "Where parameters live while no layer needs them (device)"},
       [](const Value& v, Draft& d) { d.config.parameter_tier = v.tier(); },
       [](const Config& c) { return json(name_of(c.parameter_tier)); },
       true},
      {{"zero_optimization.offload_param.nvme_path", KeyEffect::used, "a directory, or a list of them",
        "As for the optimizer; both may be the same"},
       [](const Value& v, Draft& d) { d.config.parameter_nvme_paths = v.directories(); },
       [](const Config& c) { return paths_or_null(c.parameter_nvme_paths); },
       false,
       ListOf::words},
      {{"zero_optimization.offload_param.pin_memory", later, "true, false",
        "Pinned memory is for the copies of a GPU"},
       boolean},
      {{"zero_optimization.offload_param.max_in_cpu", later, "parameters",
        "How many stay in host memory when the tier is nvme"},
       bytes},
      {{"zero_optimization.overlap_comm", later, "true, false", "Collectives beside the computation"}, boolean},
      {{"zero_optimization.reduce_bucket_size", later, "elements", "Of a collective that sums gradients"},
       bytes},
      {{"zero_optimization.allgather_bucket_size", later, "elements",
        "Of a collective that gathers parameters"},
       bytes},
      {{"zero_optimization.stage3_param_persistence_threshold", later, "elements",
        "Parameters below it stay whole on each device"},
       bytes},
      {{"zero_optimization.stage3_gather_16bit_weights_on_model_save", later, "true, false",
        "Weights are exported at the end of the run"},
       boolean},

      {{"activation_checkpointing.cpu_checkpointing", KeyEffect::used, "true, false",
        "true: spillway.activations is host where it is not given (false)"},
       [](const Value& v, Draft& d) { d.cpu_checkpointing = v.boolean(); }},
      {{"activation_checkpointing.partition_activations", later, "true, false",
        "Of ranks that share a layer, each keeps a part of its input"},
       boolean},

      {{"aio.block_size", KeyEffect::used, "bytes, a multiple of 4096",
        "Into which a transfer to or from the drive is cut (1048576). With several directories at most "
        "1048576"},
       read_block_size,
       [](const Config& c) { return json(c.block_bytes); }},
      {{"aio.queue_depth", KeyEffect::used, "1 to 4096", "Operations at the same time for each directory (32)"},
       [](const Value& v, Draft& d) { d.config.queue_depth = v.small(1, 4096); },
       [](const Config& c) { return json(c.queue_depth); }},
  };
}

}  // namespace

const std::vector<Key>& used_keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> keys = batch_keys();
    for (const auto& more : {training_keys, deepspeed_keys, own_keys}) {
      for (Key& key : more()) keys.push_back(std::move(key));
    }
    return keys;
  }();
  return all;
}

}  // namespace spillway::config_detail
