// One table of keys says how each is read, written and explained. What one value has to say about another is
// settled in config.cpp, when all are known.
#include "config_keys.h"

#include "json_document.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::config_detail {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::int64_t kMostThreads = 1024;
constexpr const char* kBiasesAndNorms = "biases and norms";
constexpr std::int64_t kMostSteps = 1'000'000'000;

/// What the path of a model names: a file, or a directory with a config.json as Hugging Face lays it out.
fs::path model_file(const Value& v, const Draft& d) {
  const std::string& text = v.string("a model's name, a path, or an object with the model's keys");
  // A path of the file starts where the file is, one of the command line where the program was called; an
  // absolute path stays what it is.
  fs::path path = v.typed ? fs::path(text) : fs::path(d.source).parent_path() / text;
  std::error_code unreadable;
  if (fs::is_directory(path, unreadable)) path /= "config.json";
  if (!fs::exists(path, unreadable) && text.find_first_of("/.") == std::string::npos) {
    std::vector<std::string> names;
    for (const NamedModel& model : d.models) names.push_back(model.name);
    const std::string close = nearest(text, names);
    throw refuse(fmt::format("{}: there is no model and no file named {}", v.where, text),
                 close.empty() ? fmt::format("the models are {}", fmt::join(names, ", "))
                               : fmt::format("did you mean {}?", close));
  }
  return path;
}

void read_model(const Value& v, Draft& d) {
  if (v.value.is_object()) {
    d.config.model = v.value.dump();
    d.config.model_source = v.where;
    return;
  }
  for (const NamedModel& model : d.models) {
    if (v.value != model.name) continue;
    d.config.model = parse_json(model.json, model.name).dump();
    d.config.model_source = "the model " + model.name;
    return;
  }
  d.config.model_source = model_file(v, d).string();
  const std::string text =
      read_text_file(d.config.model_source, "model's configuration that " + v.where + " names");
  d.config.model = parse_json(text, d.config.model_source).dump();
}

void read_state_format(const Value& v, Draft& d) {
  const std::string& word = v.word({"fp32", "bf16", "compact8"});
  for (const StateFormat format : {StateFormat::fp32, StateFormat::bf16, StateFormat::compact8}) {
    if (word == name_of(format)) d.config.state_format = format;
  }
}

void read_block_size(const Value& v, Draft& d) {
  d.config.block_bytes = v.integer(4096, std::int64_t{1} << 30);
  if (d.config.block_bytes % 4096 != 0) throw v.not_a("a multiple of 4096, which direct transfers are");
}

/// A key of a part that is not built: the value that asks for nothing passes.
std::function<void(const Value&, Draft&)> only(json value) {
  return [value](const Value& v, Draft&) {
    if (v.value != value) throw v.not_a("built yet", fmt::format("leave it away, or write {}", value.dump()));
  };
}

json limit_or_null(std::int64_t bytes) {
  return bytes < 0 ? json() : json(bytes);
}
json text_or_null(const std::string& text) {
  return text.empty() ? json() : json(text);
}
template <class T>
json list_or_null(const std::vector<T>& list) {
  return list.empty() ? json() : json(list);
}
/// As most files have it: one path is no list.
json paths_or_null(const std::vector<std::string>& paths) {
  return paths.size() == 1 ? json(paths.front()) : list_or_null(paths);
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

      {{"activation_checkpointing.partition_activations", later, "true, false",
        "Layer inputs are kept, and the rest of a layer is computed again"},
       boolean},
      {{"activation_checkpointing.cpu_checkpointing", later, "true, false", "Layer inputs in host memory"},
       boolean},
      {{"activation_checkpointing.contiguous_memory_optimization", later, "true, false",
        "They are contiguous in any case"},
       boolean},
      {{"activation_checkpointing.number_checkpoints", later, "layers", "One a layer in any case"}, bytes},
      {{"activation_checkpointing.synchronize_checkpoint_boundary", later, "true, false",
        "Layers wait for one another where they must"},
       boolean},
      {{"activation_checkpointing.profile", later, "true, false", "See spillway train --trace"}, boolean},

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

std::vector<Key> own_keys() {
  const auto later = KeyEffect::later;
  const char* const not_built = "Not built yet";
  return {
      {{"spillway.model", KeyEffect::used, "a name, a path, or an object",
        "A built-in model; a file in Hugging Face's style or a directory that holds one as config.json; or its "
        "keys. A relative path starts where the file is"},
       read_model,
       [](const Config& c) { return c.model.empty() ? json() : parse_json(c.model, c.model_source); }},
      {{"spillway.vocab", KeyEffect::used, "tokens", "The vocabulary, in the place of the model's vocab_size"},
       [](const Value& v, Draft& d) { d.config.vocabulary = v.integer(2, (std::int64_t{1} << 31) - 1); },
       [](const Config& c) { return c.vocabulary == 0 ? json() : json(c.vocabulary); }},
      {{"spillway.data", KeyEffect::used, "a path, or a list of them",
        "What to train on: text or token files, or patterns. Relative to the working directory"},
       [](const Value& v, Draft& d) { d.config.data = v.strings("the path of a data file"); },
       [](const Config& c) { return list_or_null(c.data); },
       false,
       ListOf::words},
      {{"spillway.eval_data", KeyEffect::used, "a path, or a list of them", "What to measure the loss on"},
       [](const Value& v, Draft& d) { d.config.eval_data = v.strings("the path of a data file"); },
       [](const Config& c) { return list_or_null(c.eval_data); },
       false,
       ListOf::words},
      {{"spillway.eval_every", KeyEffect::used, "steps",
        "After which it is measured (after the last one only)"},
       [](const Value& v, Draft& d) { d.config.eval_every = v.integer(1, kMostSteps); },
       [](const Config& c) { return c.eval_every == 0 ? json() : json(c.eval_every); }},
      {{"spillway.tokens", KeyEffect::used, "uint16, uint32, bytes",
        "What data files without llm.c's header hold (bytes)"},
       [](const Value& v, Draft& d) {
         d.config.tokens = v.word({"uint16", "uint32", "bytes"});
       },
       [](const Config& c) { return text_or_null(c.tokens); }},
      {{"spillway.sequence_length", KeyEffect::used, "tokens", "Of a sequence (the model's positions)"},
       [](const Value& v, Draft& d) { d.config.sequence_length = v.integer(1, 1 << 24); },
       [](const Config& c) { return c.sequence_length == 0 ? json() : json(c.sequence_length); }},
      {{"spillway.steps", KeyEffect::used, "updates", "To make (100)"},
       [](const Value& v, Draft& d) { d.config.steps = v.integer(1, kMostSteps); },
       [](const Config& c) { return json(c.steps); },
       true},
      {{"spillway.seed", KeyEffect::used, "a whole number",
        "Of the first weights, the order of the data, the rounding of narrow state and the sample (1234)"},
       [](const Value& v, Draft& d) { d.config.seed = static_cast<std::uint64_t>(v.integer(0)); },
       [](const Config& c) { return json(c.seed); },
       true},
      {{"spillway.state_format", KeyEffect::used, "fp32, bf16, compact8",
        "How the optimizer's state is stored: 12, 8 or 5.125 bytes a parameter with Adam, the weight included "
        "(fp32)"},
       read_state_format,
       [](const Config& c) { return json(name_of(c.state_format)); },
       true},
      {{"spillway.precision", KeyEffect::used, "bf16, fp32",
        "What is computed in; fp32 is the reference of the host device (bf16)"},
       [](const Value& v, Draft& d) {
         d.precision = v.word({"bf16", "fp32"}) == "bf16" ? DType::bf16 : DType::fp32;
       },
       [](const Config& c) { return json(name_of(c.precision)); }},
      {{"spillway.no_decay", KeyEffect::used, "\"biases and norms\", or a list of patterns",
        "Parameters without weight decay: those of one dimension, or those whose names match, such as "
        "[\"*.bias\"] "
        "(biases and norms)"},
       [](const Value& v, Draft& d) {
         if (v.value == kBiasesAndNorms) return;
         d.config.no_decay = v.value.is_array() && v.value.empty() ? std::vector<std::string>()
                                                                   : v.strings("a pattern of parameter names");
       },
       [](const Config& c) { return c.no_decay ? json(*c.no_decay) : json(kBiasesAndNorms); },
       true},
      {{"spillway.device_memory", KeyEffect::used, "a size",
        "What may be used of the device's memory (what is free, less a margin)"},
       [](const Value& v, Draft& d) { d.config.device_memory = v.size(); },
       [](const Config& c) { return limit_or_null(c.device_memory); }},
      {{"spillway.host_memory", KeyEffect::used, "a size", "The same for host memory"},
       [](const Value& v, Draft& d) { d.config.host_memory = v.size(); },
       [](const Config& c) { return limit_or_null(c.host_memory); }},
      {{"spillway.update_threads", KeyEffect::used, "threads",
        "Of the optimizer (the processors of this process)"},
       [](const Value& v, Draft& d) { d.config.update_threads = v.small(0, kMostThreads); },
       [](const Config& c) { return json(c.update_threads); }},
      {{"spillway.device_threads", KeyEffect::used, "threads",
        "Of the host device (the processors of this process)"},
       [](const Value& v, Draft& d) { d.config.device_threads = v.small(0, kMostThreads); },
       [](const Config& c) { return json(c.device_threads); }},
      {{"spillway.pin_threads", KeyEffect::used, "true, false",
        "Each of those threads is bound to a processor (on a machine with several NUMA nodes)"},
       [](const Value& v, Draft& d) { d.config.pin_threads = v.boolean(); },
       [](const Config& c) { return c.pin_threads ? json(*c.pin_threads) : json(); }},
      {{"spillway.io_cores", KeyEffect::used, "cores", "Which they leave to what waits for the drive (0)"},
       [](const Value& v, Draft& d) { d.config.io_cores = v.small(0, kMostThreads); },
       [](const Config& c) { return json(c.io_cores); }},
      {{"spillway.check_finite", KeyEffect::used, "true, false",
        "A step with a gradient that is not finite is skipped (true)"},
       [](const Value& v, Draft& d) { d.config.check_finite = v.boolean(); },
       [](const Config& c) { return json(c.check_finite); }},
      {{"spillway.resident_fraction", later, "0", not_built}, only(0)},
      {{"spillway.accumulation_order", later, "\"micro_batch\"", not_built}, only("micro_batch")},
      {{"spillway.activations", KeyEffect::used, "\"auto\"",
        "Layer inputs are kept, and the rest of a layer is computed again"},
       only("auto")},
      {{"spillway.delayed_update", later, "false", not_built}, only(false)},
      {{"spillway.nvme_bandwidth", KeyEffect::used, "a number, or a list of them",
        "How fast the drive behind each directory is, such as in GB/s: bytes are spread in this proportion "
        "(measured at the start where there are several)"},
       [](const Value& v, Draft& d) { d.config.nvme_bandwidth = v.positive_numbers(); },
       [](const Config& c) { return list_or_null(c.nvme_bandwidth); },
       false,
       ListOf::numbers},
      {{"spillway.io_engine", KeyEffect::used, "auto, io_uring, posix",
        "What reads and writes drives; posix is a pool of threads (auto: io_uring where it is allowed, and a "
        "line in the start block where not)"},
       [](const Value& v, Draft& d) {
         d.config.io_engine = v.word({"auto", "io_uring", "posix"});
       },
       [](const Config& c) { return json(c.io_engine); }},
      {{"spillway.io_sqpoll", KeyEffect::used, "true, false",
        "A thread of the kernel takes operations over without system calls, and needs a processor (false)"},
       [](const Value& v, Draft& d) { d.config.io_sqpoll = v.boolean(); },
       [](const Config& c) { return json(c.io_sqpoll); }},
      {{"spillway.io_iopoll", KeyEffect::used, "true, false",
        "Completions are polled for; for drives whose driver has queues for that (false)"},
       [](const Value& v, Draft& d) { d.config.io_iopoll = v.boolean(); },
       [](const Config& c) { return json(c.io_iopoll); }},
      {{"spillway.checksums", KeyEffect::used, "true, false",
        "What is written to NVMe leaves an XXH3 in memory, and what is read is held against it (false)"},
       [](const Value& v, Draft& d) { d.config.checksums = v.boolean(); },
       [](const Config& c) { return json(c.checksums); }},
      {{"spillway.direct_io", KeyEffect::used, "true, false",
        "Transfers pass by the page cache (true); false: for file systems without direct I/O"},
       [](const Value& v, Draft& d) { d.config.direct_io = v.boolean(); },
       [](const Config& c) { return json(c.direct_io); }},
      {{"spillway.io_faults", KeyEffect::used, "a list such as short=0.2,delay=0.1,fail=100:EIO",
        "Faults that are put into reads and writes on purpose, to see what a run does; section \"Faults on purpose\" (none)"},
       [](const Value& v, Draft& d) { d.config.io_faults = v.string("a list of faults"); },
       [](const Config& c) { return text_or_null(c.io_faults); }},
      {{"spillway.communication_timeout", later, "seconds", "Of a collective between ranks"},
       [](const Value& v, Draft&) { v.number(1e9); }},
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
