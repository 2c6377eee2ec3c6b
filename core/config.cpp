// Reads a configuration: collects the values of the file and of the command line, each by its key's own name,
// and settles what one value has to say about another. The keys themselves are in config_keys.cpp.
#include "config.h"

#include "config_keys.h"
#include "error.h"
#include "json_document.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway {
namespace {

using namespace config_detail;
using nlohmann::json;

const Key* find_key(std::string_view path) {
  const auto& all = used_keys();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Key& key) { return key.info.path == path; });
  return found == all.end() ? nullptr : &*found;
}

const KeyInfo* find_other(std::string_view path) {
  const auto& all = other_keys();
  const auto found = std::find_if(all.begin(), all.end(), [&](const KeyInfo& key) { return key.path == path; });
  return found == all.end() ? nullptr : &*found;
}

/// "optimizer.params" for "optimizer.params.lr"; empty at the top level.
std::string parent_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? "" : std::string(path.substr(0, dot));
}
std::string last_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return std::string(dot == std::string_view::npos ? path : path.substr(dot + 1));
}

/// The objects that hold keys: "optimizer", "optimizer.params", ...
const std::set<std::string>& sections() {
  static const std::set<std::string> all = [] {
    std::set<std::string> found;
    for (const KeyInfo& key : config_keys()) {
      for (std::string section = parent_of(key.path); !section.empty(); section = parent_of(section)) {
        found.insert(section);
      }
    }
    return found;
  }();
  return all;
}

/// The path under a name's own section where the name is another name of something.
std::string canonical(const std::string& path) {
  for (const Alias& alias : aliases()) {
    if (path == alias.path) return alias.stands_for;
  }
  return path;
}

/// What someone who wrote the unknown key `path` may have meant.
std::string hint_for_unknown(const std::string& path) {
  std::vector<std::string> known(sections().begin(), sections().end());
  for (const KeyInfo& key : config_keys()) known.push_back(key.path);
  for (const Alias& alias : aliases()) known.push_back(alias.path);

  std::vector<std::string> places, beside;
  for (const auto& candidate : known) {
    if (last_of(candidate) == last_of(path)) places.push_back(candidate);
    if (parent_of(candidate) == parent_of(path)) beside.push_back(last_of(candidate));
  }
  if (!places.empty()) return fmt::format("its place is {}", fmt::join(places, " or "));
  const std::string close = nearest(last_of(path), beside);
  return close.empty() ? "" : fmt::format("did you mean {}?", close);
}

std::string counted(std::size_t count, std::string_view one, std::string_view several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

/// How a section is written that old files, or guesses, give as a single value.
std::string form_of(const std::string& section) {
  if (section == "zero_optimization") return "write {\"stage\": 3}";
  if (section.starts_with("zero_optimization.offload_")) return "write {\"device\": \"cpu\"}";
  return {};
}

/// Everything that a file and a command line give.
struct Given {
  std::map<std::string, Value> values;               // by the key's own name
  std::map<std::string, std::string> names;          // under which name the file gave it
  std::vector<std::string> ignored, later, unknown;  // as they were written
};

class Collector {
 public:
  Collector(std::string source, Given& given) : source_(std::move(source)), given_(given) {}

  /// All values of an object and the objects in it. `section` is its own name, `written` what stands in the
  /// file.
  void collect(const json& object, const std::string& section, const std::string& written) {
    for (const auto& [name, value] : object.items()) {
      if (name.starts_with('_') || name.starts_with("//")) continue;
      const std::string name_written = written.empty() ? name : written + "." + name;
      if (name.find('.') != std::string::npos) {  // it would look like a key of another object
        throw refuse(fmt::format("{}: unknown key \"{}\"", source_, name_written),
                     "write objects in objects, not names with dots");
      }
      take(value, canonical(section.empty() ? name : section + "." + name), name_written);
    }
  }

 private:
  void take(const json& value, const std::string& path, const std::string& written) {
    const std::string where = fmt::format("{}: {}", source_, written);
    // DeepSpeed's "auto" is an absent key; our own keys have no such word, but for one of their values.
    const bool absent = value.is_null() || (value == "auto" && !path.starts_with("spillway."));
    if (take_old_switch(value, path, where, absent)) return;
    if (const KeyInfo* other = find_other(path)) {
      if (absent) return;
      if (other->effect == KeyEffect::ignored) {
        given_.ignored.push_back(written);
      } else if (is_switched_on(value)) {
        throw refuse(fmt::format("{} is switched on, and not supported: {}", where, other->help),
                     "switch it off or leave it out");
      }
    } else if (const Key* key = find_key(path)) {
      if (absent) return;
      add(path, Value{value, where}, written);
      if (key->info.effect == KeyEffect::later && is_switched_on(value)) given_.later.push_back(written);
    } else if (sections().contains(path)) {
      if (absent) return;
      if (!value.is_object()) throw Value{value, where}.not_a("an object", form_of(path));
      collect(value, path, written);
    } else {
      given_.unknown.push_back(written);
    }
  }

  /// "cpu_offload": true of old files.
  bool take_old_switch(const json& value, const std::string& path, const std::string& where, bool absent) {
    const bool optimizer = path == "zero_optimization.cpu_offload";
    if (!optimizer && path != "zero_optimization.cpu_offload_param" &&
        path != "zero_optimization.cpu_offload_params") {
      return false;
    }
    if (absent || !Value{value, where}.boolean()) return true;
    add(optimizer ? "zero_optimization.offload_optimizer.device" : "zero_optimization.offload_param.device",
        Value{"cpu", where}, path);
    return true;
  }

  void add(const std::string& path, Value value, const std::string& written) {
    const auto [before, fresh] = given_.names.emplace(path, written);
    if (!fresh) {
      throw refuse(fmt::format("{}: {} and {} are two names of one thing", source_, before->second, written),
                   "keep one of the two");
    }
    given_.values.insert_or_assign(path, std::move(value));
  }

  std::string source_;
  Given& given_;
};

/// What was typed stands before the file's; a list key typed several times is a list.
void take_flags(std::span<const ConfigOverride> overrides, Given& given) {
  std::set<std::string> typed_before;
  for (const ConfigOverride& one : overrides) {
    const Key* key = find_key(one.key);
    if (key == nullptr) throw std::logic_error("parse_config: no key " + one.key);
    const bool again = !typed_before.insert(one.key).second;
    if (key->list == ListOf::nothing) {
      given.values.insert_or_assign(one.key, from_flag(one));
      continue;
    }
    if (!again) given.values.insert_or_assign(one.key, Value{json::array(), one.flag});
    given.values.at(one.key).value.push_back(key->list == ListOf::numbers ? from_flag(one).value
                                                                          : json(one.value));
  }
}

void resolve_batch(Draft& d) {
  Config& c = d.config;
  const auto number = [](const std::optional<Value>& v) { return v->integer(1, kMostSequences); };
  // train = micro x accumulation x world, the world being one rank.
  const std::int64_t accumulation =
      d.accumulation ? number(d.accumulation)
      : d.train_batch && d.micro_batch
          ? std::max<std::int64_t>(number(d.train_batch) / number(d.micro_batch), 1)
          : 1;
  const std::int64_t micro = d.micro_batch   ? number(d.micro_batch)
                             : d.train_batch ? std::max<std::int64_t>(number(d.train_batch) / accumulation, 1)
                                             : 1;
  const std::int64_t product = micro * accumulation;
  if (d.train_batch && number(d.train_batch) != product) {
    // A flag that disagrees with the file is named as it was typed.
    const auto name = [&](const std::optional<Value>& v, std::string_view key) {
      return v && v->typed ? v->where : std::string(key);
    };
    throw refuse(fmt::format("{}: train_batch_size {} disagrees with {} {} x {} {} x 1 rank = {}", d.source,
                             number(d.train_batch), name(d.micro_batch, "train_micro_batch_size_per_gpu"),
                             micro, name(d.accumulation, "gradient_accumulation_steps"), accumulation, product),
                 "give two of the three; the third follows");
  }
  if (product > kMostSequences) {
    throw refuse(
        fmt::format("{}: train_micro_batch_size_per_gpu {} x gradient_accumulation_steps {} = {} is more than "
                    "{} sequences a step",
                    d.source, micro, accumulation, product, kMostSequences));
  }
  c.micro_batch = static_cast<int>(micro);
  c.accumulation = static_cast<int>(accumulation);
}

void resolve_precision(Draft& d) {
  Config& c = d.config;
  c.precision = d.precision.value_or(DType::bf16);
  if (d.bf16 == true && d.fp16 == true) {
    throw refuse(fmt::format("{}: bf16.enabled and fp16.enabled are both true", d.source),
                 "keep one of the two");
  }
  if ((d.bf16 == true || d.fp16 == true) && c.precision == DType::fp32) {
    throw refuse(fmt::format("{}: {} true and spillway.precision fp32 contradict each other", d.source,
                             d.bf16 == true ? "bf16.enabled" : "fp16.enabled"),
                 "leave one of the two out");
  }
  if (d.precision || d.bf16 == true) return;
  if (d.fp16 == true) {
    c.notes.push_back(
        "asked for fp16: the engine computes in bf16, which has the range of fp32 and needs no loss scale");
  } else if (d.bf16 == false) {
    c.notes.push_back(
        "asked for fp32 (bf16 is off): the engine computes in bf16, with fp32 masters and sums; "
        "spillway.precision fp32 is the slow reference");
  }
  c.assumed.push_back("spillway.precision = \"bf16\"");
}

void resolve_schedule(Draft& d) {
  ScheduleConfig& s = d.config.schedule;
  if (!d.scheduler) return;
  s.kind = *d.scheduler;
  const bool cosine = s.kind == ScheduleKind::warmup_cosine, decays = s.kind != ScheduleKind::warmup;
  const auto settle = [&]<class T>(std::string_view name, const std::optional<T>& given, T otherwise) {
    if (!given)
      d.config.assumed.push_back(fmt::format("scheduler.params.{} = {}", name, json(otherwise).dump()));
    return given.value_or(otherwise);
  };
  s.warmup_steps = settle("warmup_num_steps", d.warmup_steps, std::int64_t{0});
  s.logarithmic = settle("warmup_type", d.warmup_type, std::string("log")) == "log";
  if (cosine) {
    s.warmup_minimum_ratio = settle("warmup_min_ratio", d.warmup_minimum_ratio, 0.0);
    s.cosine_minimum_ratio = settle("cos_min_ratio", d.cosine_minimum_ratio, 1e-4);
  } else {
    s.minimum = settle("warmup_min_lr", d.warmup_minimum, 0.0);
    s.maximum = settle("warmup_max_lr", d.warmup_maximum, d.config.optimizer.learning_rate);
  }
  if (decays) {
    s.total_steps = settle("total_num_steps", d.total_steps, d.config.steps);
    if (s.total_steps < s.warmup_steps) {
      throw refuse(fmt::format("{}: {} {} is less than scheduler.params.warmup_num_steps {}", d.source,
                               d.total_steps ? "scheduler.params.total_num_steps" : "spillway.steps (--steps)",
                               s.total_steps, s.warmup_steps),
                   "train for more steps, or warm up for fewer");
    }
  }
}

/// As in DeepSpeed: "Adam" is AdamW unless adam_w_mode says otherwise.
void resolve_optimizer(Draft& d) {
  const HyperParameters& settings = d.config.optimizer;
  if (settings.optimizer == Optimizer::sgd && settings.nesterov && settings.momentum == 0) {
    throw refuse(fmt::format("{}: optimizer.params.nesterov without a momentum has nothing to look ahead with",
                             d.source),
                 "give optimizer.params.momentum, such as 0.9");
  }
  Optimizer& optimizer = d.config.optimizer.optimizer;
  if (!has_second_moment(optimizer)) return;
  if (d.optimizer_type == "adam" && !d.adam_w_mode) {
    d.config.assumed.push_back("optimizer.params.adam_w_mode = true (Adam means AdamW)");
  }
  optimizer = d.adam_w_mode.value_or(true) ? Optimizer::adamw : Optimizer::adam;
  if (d.optimizer_type == "adamw" && optimizer == Optimizer::adam) {
    throw refuse(
        fmt::format("{}: optimizer.type AdamW and optimizer.params.adam_w_mode false contradict each other",
                    d.source),
        "for L2 regularisation write optimizer.type Adam with adam_w_mode false");
  }
}

/// What cpu_adam's record format cannot hold, said with the keys that ask for it.
void check_state_format(const Draft& d) {
  const Config& c = d.config;
  if (c.precision == DType::fp32 && c.state_format != StateFormat::fp32) {
    throw refuse(
        fmt::format("{}: spillway.state_format {} with spillway.precision fp32: the reference keeps its "
                    "state in fp32",
                    d.source, name_of(c.state_format)),
        "use the state format fp32, or precision bf16");
  }
  if (c.state_format == StateFormat::compact8 && !has_second_moment(c.optimizer.optimizer)) {
    throw refuse(fmt::format("{}: spillway.state_format compact8 is made for the moments of Adam, not for "
                             "optimizer.type {}",
                             d.source, optimizer_type(c.optimizer.optimizer)),
                 "use the state format bf16 or fp32");
  }
}

/// DeepSpeed's switch and our own key say the same, or one of them was typed.
void resolve_activations(Draft& d) {
  Config& c = d.config;
  if (d.cpu_checkpointing != true) return;
  if (!d.activations) {
    c.activations = ActivationPolicy::host;
    c.notes.push_back("activation_checkpointing.cpu_checkpointing: spillway.activations is host");
  } else if (c.activations == ActivationPolicy::host) {
    return;
  } else if (d.activations->typed) {
    c.notes.push_back(fmt::format("activation_checkpointing.cpu_checkpointing gives way to {} {}",
                                  d.activations->where, activations_word(c.activations)));
  } else {
    throw refuse(
        fmt::format(
            "{}: activation_checkpointing.cpu_checkpointing true puts layer inputs into host memory, and "
            "spillway.activations is {}",
            d.source, activations_word(c.activations)),
        "leave one of the two out, or write spillway.activations \"host\"");
  }
}

/// What asks for nothing in this placement.
void note_placement(Config& c) {
  if (c.resident_fraction.value_or(0) > 0 && c.optimizer_tier != Tier::nvme) {
    c.notes.push_back(
        fmt::format("spillway.resident_fraction {}: no optimizer state lies on nvme, so there is nothing to "
                    "keep back from it",
                    *c.resident_fraction));
  }
  if (c.parameter_cache.value_or(0) > 0 && c.parameter_tier != Tier::nvme) {
    c.notes.push_back(
        "spillway.parameter_cache: no parameters lie on nvme, so there is nothing to keep of them");
  }
}

/// What lies on NVMe needs directories, and what is said about them has to fit.
void resolve_nvme(const Draft& d) {
  const Config& c = d.config;
  for (const auto& [name, flag, tier, paths] :
       {std::tuple{"offload_optimizer", "--offload-optimizer", c.optimizer_tier, &c.optimizer_nvme_paths},
        std::tuple{"offload_param", "--offload-parameters", c.parameter_tier, &c.parameter_nvme_paths}}) {
    if (tier != Tier::nvme) continue;
    if (paths->empty()) {
      throw refuse(fmt::format("{}: zero_optimization.{}.device is nvme, but no directory for it is given",
                               d.source, name),
                   fmt::format("set zero_optimization.{}.nvme_path or give --nvme-path DIR, or place it "
                               "elsewhere with {} host",
                               name, flag));
    }
    if (!c.nvme_bandwidth.empty() && c.nvme_bandwidth.size() != paths->size()) {
      throw refuse(fmt::format("{}: spillway.nvme_bandwidth (--nvme-bandwidth) has {} for {} in "
                               "zero_optimization.{}.nvme_path (--nvme-path)",
                               d.source, counted(c.nvme_bandwidth.size(), "number", "numbers"),
                               counted(paths->size(), "directory", "directories"), name),
                   "give one number for each directory, in their order; without any they are measured");
    }
  }
  if (c.activations == ActivationPolicy::nvme && c.parameter_nvme_paths.empty() &&
      c.optimizer_nvme_paths.empty()) {
    throw refuse(
        fmt::format("{}: spillway.activations is nvme, but no directory on a drive is given", d.source),
        "give --nvme-path DIR, or set zero_optimization.offload_param.nvme_path; or keep them in host "
        "memory with --activations host");
  }
  if (c.io_iopoll && !c.direct_io) {
    throw refuse(fmt::format("{}: spillway.io_iopoll (--io-iopoll) polls the drive, and with "
                             "spillway.direct_io false (--direct-io) the page cache is between",
                             d.source),
                 "leave one of the two out");
  }
  if (c.io_engine == "posix" && (c.io_sqpoll || c.io_iopoll)) {
    throw refuse(fmt::format("{}: spillway.{} is an option of io_uring, and spillway.io_engine (--io-engine) "
                             "is posix",
                             d.source, c.io_sqpoll ? "io_sqpoll (--io-sqpoll)" : "io_iopoll (--io-iopoll)"),
                 "leave one of the two out");
  }
}

void resolve(Draft& d) {
  resolve_batch(d);
  resolve_optimizer(d);
  resolve_precision(d);
  check_state_format(d);
  resolve_schedule(d);
  resolve_activations(d);
  resolve_nvme(d);
  note_placement(d.config);
}

void note_without_effect(const Given& given, Config& config) {
  const auto note = [&](const std::vector<std::string>& keys, std::string_view what) {
    if (!keys.empty()) config.notes.push_back(on_one_line(fmt::format("{}: {}", what, fmt::join(keys, ", "))));
  };
  note(given.later, "without an effect as yet");
  note(given.ignored, "without an effect here");
  note(given.unknown, "unknown keys, allowed");
}

}  // namespace

Config parse_config(std::string_view text, std::string_view source, const ConfigOptions& options) {
  const json document = parse_json(text, source);
  Draft draft;
  draft.source = source;
  draft.models = options.models;
  if (!document.is_object())
    throw Value{document, draft.source}.not_a("an object with the configuration's keys");
  Given given;
  Collector(draft.source, given).collect(document, "", "");
  take_flags(options.overrides, given);

  for (const Key& key : used_keys()) {
    if (const auto found = given.values.find(key.info.path); found != given.values.end()) {
      key.read(found->second, draft);
    }
  }
  // After the values: where an optimizer is not known, its parameters are not either, and matter less.
  for (const std::string& key : given.unknown) {
    // Our own section has no second reader.
    if (options.allow_unknown_keys && !key.starts_with("spillway.")) continue;
    const std::size_t more = given.unknown.size() - 1;
    throw refuse(fmt::format("{}: unknown key {:.200}{}", source, key.empty() ? "\"\"" : key,
                             more == 0 ? "" : fmt::format(", and {} more", more)),
                 hint_for_unknown(key));
  }
  resolve(draft);
  // Batch sizes follow from one another: with train_batch_size given, neither of the others was assumed.
  for (const Key& key : used_keys()) {
    const std::string& path = key.info.path;
    const bool follows = draft.train_batch &&
                         (path == "train_micro_batch_size_per_gpu" || path == "gradient_accumulation_steps");
    if (!key.assumed || follows || given.values.contains(path)) continue;
    const json value = key.write(draft.config);
    if (!value.is_null()) draft.config.assumed.push_back(fmt::format("{} = {}", path, value.dump()));
  }
  note_without_effect(given, draft.config);
  return draft.config;
}

Config read_config(const std::string& path, const ConfigOptions& options) {
  return parse_config(read_text_file(path, "configuration"), path, options);
}

std::string to_json(const Config& config) {
  json document = json::object();
  for (const Key& key : used_keys()) {
    const json value = key.write ? key.write(config) : json();
    if (value.is_null()) continue;
    std::string pointer = "/" + key.info.path;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    document[json::json_pointer(pointer)] = value;
  }
  return document.dump(2);
}

std::vector<KeyInfo> config_keys() {
  std::vector<KeyInfo> keys;
  for (const Key& key : used_keys()) keys.push_back(key.info);
  keys.insert(keys.end(), other_keys().begin(), other_keys().end());
  return keys;
}

Tier parse_tier(std::string_view word, std::string_view what) {
  for (const Tier tier : kTiers) {
    if (word == name_of(tier)) return tier;
  }
  if (word == "none") return Tier::device;
  if (word == "cpu") return Tier::host;
  throw Error(ErrorKind::usage, fmt::format("{}: '{}' is not a place: device, host or nvme", what, word),
              {.hint = "device (or none), host (or cpu), or nvme"});
}

}  // namespace spillway
