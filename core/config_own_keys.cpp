// Our own keys, under "spillway".
#include "config_keys.h"
#include "json_document.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::config_detail {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::int64_t kMostThreads = 1024;
constexpr const char* kBiasesAndNorms = "biases and norms";

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

void read_accumulation_order(const Value& v, Draft& d) {
  const bool by_layer = v.word({"micro_batch", "layer"}) == "layer";
  d.config.accumulation_order = by_layer ? AccumulationOrder::layer : AccumulationOrder::micro_batch;
}

constexpr std::pair<ActivationPolicy, std::string_view> kActivations[] = {
    {ActivationPolicy::automatic, "auto"},
    {ActivationPolicy::keep, "keep"},
    {ActivationPolicy::recompute, "recompute"},
    {ActivationPolicy::host, "host"},
    {ActivationPolicy::nvme, "nvme"}};

void read_activations(const Value& v, Draft& d) {
  const std::string& word = v.word({"auto", "keep", "recompute", "host", "nvme"});
  for (const auto& [policy, name] : kActivations) {
    if (word == name) d.config.activations = policy;
  }
  d.activations = v;
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
}  // namespace

std::string_view activations_word(ActivationPolicy policy) {
  return std::find_if(std::begin(kActivations), std::end(kActivations),
                      [&](const auto& one) { return one.first == policy; })
      ->second;
}

std::vector<Key> own_keys() {
  const auto later = KeyEffect::later;
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
      {{"spillway.resident_fraction", KeyEffect::used, "0 to 1",
        "Share of the optimizer records of nvme that stays in host memory, and is neither read nor written "
        "(what "
        "fits, where spillway.host_memory is given; else 0)"},
       [](const Value& v, Draft& d) { d.config.resident_fraction = v.number(1); },
       [](const Config& c) { return c.resident_fraction ? json(*c.resident_fraction) : json(); }},
      {{"spillway.parameter_cache", KeyEffect::used, "a size",
        "Of host memory in which parameters of nvme stay once they are read, those that are needed soonest "
        "(what "
        "fits, where spillway.host_memory is given; else 0, which is two units)"},
       [](const Value& v, Draft& d) { d.config.parameter_cache = v.size(); },
       [](const Config& c) { return c.parameter_cache ? json(*c.parameter_cache) : json(); }},
      {{"spillway.update_slots", KeyEffect::used, "0 to 64",
        "Pieces of optimizer state that are read, updated and written at the same time, each with its own host "
        "memory; 1 and 2 count as 3 (0: about 16 MiB of them, fewer where spillway.host_memory is tight)"},
       [](const Value& v, Draft& d) { d.config.update_slots = v.small(0, 64); },
       [](const Config& c) { return json(c.update_slots); }},
      {{"spillway.accumulation_order", KeyEffect::used, "micro_batch, layer",
        "Of a step with several micro-batches: one after another through the whole model, or all through one "
        "layer before the next, which moves its parameters twice a step, not twice a micro-batch, and keeps "
        "every "
        "micro-batch's layer inputs. The result is the same (micro_batch)"},
       read_accumulation_order,
       [](const Config& c) {
         return json(c.accumulation_order == AccumulationOrder::layer ? "layer" : "micro_batch");
       }},
      {{"spillway.activations", KeyEffect::used, "auto, keep, recompute, host, nvme",
        "What is kept of a layer for its backward pass: everything; its input on the device, with the rest "
        "computed "
        "again; or its input in host memory or on nvme. auto: as much as the device's memory leaves, layer by "
        "layer. "
        "The result is the same (auto)"},
       read_activations,
       [](const Config& c) { return json(activations_word(c.activations)); }},
      {{"spillway.delayed_update", KeyEffect::used, "true, false",
        "Gradients are applied one step late, so that an update has a whole step's time: another training run, "
        "with "
        "a second copy of the gradients in memory (false)"},
       [](const Value& v, Draft& d) { d.config.delayed_update = v.boolean(); },
       [](const Config& c) { return json(c.delayed_update); }},
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
        "Faults that are put into reads and writes on purpose, to see what a run does; section \"Faults on "
        "purpose\" (none)"},
       [](const Value& v, Draft& d) { d.config.io_faults = v.string("a list of faults"); },
       [](const Config& c) { return text_or_null(c.io_faults); }},
      {{"spillway.communication_timeout", later, "seconds", "Of a collective between ranks"},
       [](const Value& v, Draft&) { v.number(1e9); }},
  };
}

}  // namespace spillway::config_detail
