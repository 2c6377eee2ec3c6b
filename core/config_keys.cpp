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

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

double positive_rate(const Value& v) {
  const double rate = v.number(1e3);
  if (rate == 0) throw refuse(fmt::format("{}: a learning rate of zero trains nothing", v.where));
  return rate;
}

struct NamedOptimizer {
  Optimizer optimizer;
  std::string_view name;
};
constexpr NamedOptimizer kOptimizers[] = {
    {Optimizer::adamw, "AdamW"}, {Optimizer::adam, "Adam"}, {Optimizer::lion, "Lion"}, {Optimizer::sgd, "SGD"}};
constexpr const char* kWhichOptimizers = "the optimizers are Adam, AdamW, Lion and SGD";

/// What the type stands for until adam_w_mode, which follows, may say otherwise.
void read_optimizer_type(const Value& v, Draft& d) {
  d.optimizer_type = lower(v.string("an optimizer: Adam, AdamW, Lion or SGD"));
  const auto found = std::find_if(
      std::begin(kOptimizers), std::end(kOptimizers),
      [&](const NamedOptimizer& one) { return lower(std::string(one.name)) == *d.optimizer_type; });
  if (found == std::end(kOptimizers)) throw v.not_a("an optimizer that is built in", kWhichOptimizers);
  d.config.optimizer.optimizer = found->optimizer;
  if (found->optimizer == Optimizer::lion) d.config.optimizer.beta2 = 0.99;  // as its authors recommend
}

constexpr Optimizer kAdams[] = {Optimizer::adamw, Optimizer::adam};
constexpr Optimizer kWithBetas[] = {Optimizer::adamw, Optimizer::adam, Optimizer::lion};
constexpr Optimizer kSgd[] = {Optimizer::sgd};

/// "a, b and c"
std::string in_words(const std::vector<std::string_view>& names) {
  const auto first = std::span(names).first(names.size() - 1);
  return first.empty() ? std::string(names.back())
                       : fmt::format("{} and {}", fmt::join(first, ", "), names.back());
}

/// A parameter of those optimizers: refused for others, and written where the optimizer has it. The table has
/// it behind optimizer.type, which has been read before.
Key optimizer_parameter(const char* name, const char* values, const char* help,
                        std::span<const Optimizer> owners, std::function<void(const Value&, Draft&)> read,
                        std::function<json(const HyperParameters&)> write, bool assumed = true) {
  const auto has = [owners](Optimizer optimizer) {
    return std::find(owners.begin(), owners.end(), optimizer) != owners.end();
  };
  return {.info = {.path = fmt::format("optimizer.params.{}", name), .values = values, .help = help},
          .read =
              [has, owners, read](const Value& v, Draft& d) {
                const Optimizer optimizer = d.config.optimizer.optimizer;
                if (!has(optimizer)) {
                  std::vector<std::string_view> names;
                  for (const Optimizer owner : owners) names.push_back(optimizer_type(owner));
                  throw refuse(fmt::format("{} is no parameter of {}", v.where, optimizer_type(optimizer)),
                               fmt::format("it belongs to {}", in_words(names)));
                }
                read(v, d);
              },
          .write =
              [has, write](const Config& c) {
                return has(c.optimizer.optimizer) && write ? write(c.optimizer) : json();
              },
          .assumed = assumed};
}

void read_betas(const Value& v, Draft& d) {
  if (!v.value.is_array() || v.value.size() != 2) throw v.not_a("two numbers from 0 to below 1");
  d.config.optimizer.beta1 = Value{v.value[0], v.where}.number_below(1);
  d.config.optimizer.beta2 = Value{v.value[1], v.where}.number_below(1);
}

void read_bias_correction(const Value& v, Draft&) {
  if (!v.boolean()) throw v.not_a("true", "Adam corrects the bias of its moments here");
}

void read_dampening(const Value& v, Draft&) {
  if (v.number(1) != 0)
    throw v.not_a("0", "dampening is not built in: SGD adds the whole gradient to its momentum");
}

constexpr std::pair<ScheduleKind, std::string_view> kSchedulers[] = {
    {ScheduleKind::warmup, "WarmupLR"},
    {ScheduleKind::warmup_decay, "WarmupDecayLR"},
    {ScheduleKind::warmup_cosine, "WarmupCosineLR"}};
constexpr const char* kWhichSchedulers = "the schedulers are WarmupLR, WarmupDecayLR and WarmupCosineLR";

/// Empty for none.
std::string_view scheduler_name(ScheduleKind kind) {
  for (const auto& [one, name] : kSchedulers) {
    if (one == kind) return name;
  }
  return {};
}

void read_scheduler(const Value& v, Draft& d) {
  const std::string& type = v.string("a scheduler");
  for (const auto& [kind, name] : kSchedulers) {
    if (type == name) d.scheduler = kind;
  }
  if (!d.scheduler) throw v.not_a("a scheduler that is built in", kWhichSchedulers);
}

/// A parameter of the schedulers of those kinds: refused for others, and written where the kind has it. The
/// table has it behind scheduler.type, which has been read before.
Key scheduler_parameter(const char* name, const char* values, const char* help, std::vector<ScheduleKind> kinds,
                        std::function<void(const Value&, Draft&)> read,
                        std::function<json(const ScheduleConfig&)> write) {
  const auto has = [kinds](ScheduleKind kind) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  };
  return {.info = {.path = fmt::format("scheduler.params.{}", name), .values = values, .help = help},
          .read =
              [has, kinds, read](const Value& v, Draft& d) {
                if (!d.scheduler)
                  throw refuse(fmt::format("{} without scheduler.type", v.where), kWhichSchedulers);
                if (!has(*d.scheduler)) {
                  std::vector<std::string_view> owners;
                  for (const ScheduleKind kind : kinds) owners.push_back(scheduler_name(kind));
                  throw refuse(fmt::format("{} is no parameter of {}", v.where, scheduler_name(*d.scheduler)),
                               fmt::format("it belongs to {}", in_words(owners)));
                }
                read(v, d);
              },
          .write = [has, write](const Config& c) { return has(c.schedule.kind) ? write(c.schedule) : json(); }};
}

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
json list_or_null(const std::vector<std::string>& list) {
  return list.empty() ? json() : json(list);
}

std::vector<Key> deepspeed_keys() {
  const auto boolean = [](const Value& v, Draft&) { v.boolean(); };
  const auto bytes = [](const Value& v, Draft&) { v.integer(0); };
  const auto later = KeyEffect::later;
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
      {{"sparse_gradients", later, "true, false",
        "Only the rows of an embedding that a batch touched travel between ranks"},
       boolean},

      {{"optimizer.type", KeyEffect::used, "Adam, AdamW, Lion, SGD",
        "Adam means AdamW too, unless adam_w_mode is false (AdamW)"},
       read_optimizer_type,
       [](const Config& c) { return json(optimizer_type(c.optimizer.optimizer)); },
       true},
      {{"optimizer.params.lr", KeyEffect::used, "a number above 0", "The learning rate (0.001)"},
       [](const Value& v, Draft& d) { d.config.optimizer.learning_rate = positive_rate(v); },
       [](const Config& c) { return json(c.optimizer.learning_rate); },
       true},
      optimizer_parameter("betas", "two numbers below 1",
                          "Decay of the first and second moment (0.9, 0.999); of Lion the share of the "
                          "momentum in the direction, and "
                          "its decay (0.9, 0.99)",
                          kWithBetas, read_betas,
                          [](const HyperParameters& h) {
                            return json::array({h.beta1, h.beta2});
                          }),
      optimizer_parameter(
          "eps", "a number", "Added to the root of the second moment (1e-8). Adam", kAdams,
          [](const Value& v, Draft& d) { d.config.optimizer.eps = v.number(1); },
          [](const HyperParameters& h) { return json(h.eps); }),
      {{"optimizer.params.weight_decay", KeyEffect::used, "a number",
        "Of all parameters but those of spillway.no_decay (0). SGD adds it to the gradient"},
       [](const Value& v, Draft& d) { d.config.optimizer.weight_decay = v.number(1e3); },
       [](const Config& c) { return json(c.optimizer.weight_decay); },
       true},
      optimizer_parameter(
          "adam_w_mode", "true, false", "false: the decay is added to the gradient (true). Adam", kAdams,
          [](const Value& v, Draft& d) { d.adam_w_mode = v.boolean(); },
          [](const HyperParameters& h) { return json(h.optimizer == Optimizer::adamw); }, false),
      optimizer_parameter("bias_correction", "true", "Adam corrects the bias of its moments", kAdams,
                          read_bias_correction, {}, false),
      optimizer_parameter(
          "momentum", "a number below 1", "Of the earlier gradients (0). SGD", kSgd,
          [](const Value& v, Draft& d) { d.config.optimizer.momentum = v.number_below(1); },
          [](const HyperParameters& h) { return json(h.momentum); }),
      optimizer_parameter(
          "nesterov", "true, false", "The gradient is looked at after the momentum's step (false). SGD", kSgd,
          [](const Value& v, Draft& d) { d.config.optimizer.nesterov = v.boolean(); },
          [](const HyperParameters& h) { return json(h.nesterov); }),
      optimizer_parameter("dampening", "0", "Of the gradient in the momentum; only none is built in. SGD", kSgd,
                          read_dampening, {}, false),

      {{"scheduler.type", KeyEffect::used, "WarmupLR, WarmupDecayLR, WarmupCosineLR",
        "The learning rate over the steps (constant)"},
       read_scheduler,
       [](const Config& c) { return text_or_null(std::string(scheduler_name(c.schedule.kind))); }},
      scheduler_parameter(
          "warmup_min_lr", "a number", "Rate of the first step (0). WarmupLR, WarmupDecayLR",
          {ScheduleKind::warmup, ScheduleKind::warmup_decay},
          [](const Value& v, Draft& d) { d.warmup_minimum = v.number(1e3); },
          [](const ScheduleConfig& s) { return json(s.minimum); }),
      scheduler_parameter(
          "warmup_max_lr", "a number above 0",
          "Rate after the warm-up (the optimizer's). WarmupLR, WarmupDecayLR",
          {ScheduleKind::warmup, ScheduleKind::warmup_decay},
          [](const Value& v, Draft& d) { d.warmup_maximum = positive_rate(v); },
          [](const ScheduleConfig& s) { return json(s.maximum); }),
      scheduler_parameter(
          "warmup_num_steps", "steps", "Of the warm-up (0; what is below 2 counts as 2)",
          {ScheduleKind::warmup, ScheduleKind::warmup_decay, ScheduleKind::warmup_cosine},
          [](const Value& v, Draft& d) { d.warmup_steps = v.integer(0, kMostSteps); },
          [](const ScheduleConfig& s) { return json(s.warmup_steps); }),
      scheduler_parameter(
          "warmup_type", "log, linear", "How the rate rises (log)",
          {ScheduleKind::warmup, ScheduleKind::warmup_decay, ScheduleKind::warmup_cosine},
          [](const Value& v, Draft& d) {
            d.warmup_type = v.word({"log", "linear"});
          },
          [](const ScheduleConfig& s) { return json(s.logarithmic ? "log" : "linear"); }),
      scheduler_parameter(
          "total_num_steps", "steps",
          "After which the decay is done (spillway.steps). WarmupDecayLR, WarmupCosineLR",
          {ScheduleKind::warmup_decay, ScheduleKind::warmup_cosine},
          [](const Value& v, Draft& d) { d.total_steps = v.integer(1, kMostSteps); },
          [](const ScheduleConfig& s) { return json(s.total_steps); }),
      scheduler_parameter(
          "warmup_min_ratio", "a number up to 1", "Share of the rate at the first step (0). WarmupCosineLR",
          {ScheduleKind::warmup_cosine}, [](const Value& v, Draft& d) { d.warmup_minimum_ratio = v.number(1); },
          [](const ScheduleConfig& s) { return json(s.warmup_minimum_ratio); }),
      scheduler_parameter(
          "cos_min_ratio", "a number up to 1", "Share of the rate in the end (0.0001). WarmupCosineLR",
          {ScheduleKind::warmup_cosine}, [](const Value& v, Draft& d) { d.cosine_minimum_ratio = v.number(1); },
          [](const ScheduleConfig& s) { return json(s.cosine_minimum_ratio); }),

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
      {{"zero_optimization.offload_optimizer.nvme_path", KeyEffect::used, "a directory",
        "On the drive for nvme; {rank}, {local_rank} and {host} in it are replaced"},
       [](const Value& v, Draft& d) { d.config.optimizer_nvme_path = v.directory(); },
       [](const Config& c) { return text_or_null(c.optimizer_nvme_path); }},
      {{"zero_optimization.offload_optimizer.pin_memory", later, "true, false",
        "Pinned memory is for the copies of a GPU"},
       boolean},
      {{"zero_optimization.offload_param.device", KeyEffect::used, "device, host, nvme; or none, cpu, nvme",
        "Where parameters live while no layer needs them (device)"},
       [](const Value& v, Draft& d) { d.config.parameter_tier = v.tier(); },
       [](const Config& c) { return json(name_of(c.parameter_tier)); },
       true},
      {{"zero_optimization.offload_param.nvme_path", KeyEffect::used, "a directory",
        "As for the optimizer; both may be the same"},
       [](const Value& v, Draft& d) { d.config.parameter_nvme_path = v.directory(); },
       [](const Config& c) { return text_or_null(c.parameter_nvme_path); }},
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
        "Into which a transfer to or from the drive is cut (1048576)"},
       read_block_size,
       [](const Config& c) { return json(c.block_bytes); }},
      {{"aio.queue_depth", KeyEffect::used, "1 to 4096", "Operations of the drive at the same time (32)"},
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
       true},
      {{"spillway.eval_data", KeyEffect::used, "a path, or a list of them", "What to measure the loss on"},
       [](const Value& v, Draft& d) { d.config.eval_data = v.strings("the path of a data file"); },
       [](const Config& c) { return list_or_null(c.eval_data); },
       false,
       true},
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
      {{"spillway.checksums", later, "false", not_built}, only(false)},
      {{"spillway.direct_io", KeyEffect::used, "true", "Transfers pass by the page cache"}, only(true)},
      {{"spillway.communication_timeout", later, "seconds", "Of a collective between ranks"},
       [](const Value& v, Draft&) { v.number(1e9); }},
  };
}

}  // namespace
}  // namespace spillway::config_detail

std::string_view spillway::optimizer_type(Optimizer optimizer) {
  using config_detail::kOptimizers;
  return std::find_if(std::begin(kOptimizers), std::end(kOptimizers),
                      [&](const auto& one) { return one.optimizer == optimizer; })
      ->name;
}

namespace spillway::config_detail {

const std::vector<Key>& used_keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> keys = deepspeed_keys();
    for (Key& key : own_keys()) keys.push_back(std::move(key));
    return keys;
  }();
  return all;
}

}  // namespace spillway::config_detail
