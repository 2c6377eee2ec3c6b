// One table of keys says how each is read and written. What one value has to say about another is settled in
// resolve(), after the command line's values have taken the place of the file's.
#include "config.h"

#include "error.h"
#include "json_document.h"
#include "size.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace spillway {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaximum = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostSequences = 1 << 20;
constexpr std::int64_t kMostThreads = 1024;

Error refuse(const std::string& message, std::string hint = {}) {
  return Error(ErrorKind::configuration, message, {.hint = std::move(hint)});
}

/// A value of the file or of the command line, and what to call it in messages.
struct Value {
  json value;
  std::string where;                                // "run.json: optimizer.params.lr", or "--steps"
  std::optional<std::string> typed = std::nullopt;  // of the command line: a word may look like a number

  Error not_a(std::string_view what, std::string hint = {}) const {
    std::string shown = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
    return refuse(fmt::format("{}: {} is not {}", where, shown, what), std::move(hint));
  }

  std::int64_t integer(std::int64_t least, std::int64_t most) const {
    const auto wrong = [&] {
      return not_a(most == kMaximum ? fmt::format("a whole number from {}", least)
                                    : fmt::format("a whole number from {} to {}", least, most));
    };
    std::int64_t number = 0;
    if (value.is_number_unsigned()) {
      if (value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaximum)) throw wrong();
      number = value.get<std::int64_t>();
    } else if (value.is_number_integer()) {
      number = value.get<std::int64_t>();
    } else if (value.is_number_float()) {  // 5e8: exact below 2^53
      const double x = value.get<double>();
      if (x != std::floor(x) || std::fabs(x) > 0x1p53) throw wrong();
      number = static_cast<std::int64_t>(x);
    } else {
      throw wrong();
    }
    if (number < least || number > most) throw wrong();
    return number;
  }
  int small(std::int64_t least, std::int64_t most) const { return static_cast<int>(integer(least, most)); }

  /// In [0, most], or [0, most) where `below` is set.
  double number(double most, bool below = false) const {
    const double x = value.is_number() ? value.get<double>() : -1.0;
    if (!(x >= 0.0 && (below ? x < most : x <= most))) {
      throw not_a(fmt::format("a number from 0 to {}{}", below ? "below " : "", most));
    }
    return x;
  }

  bool boolean() const {
    if (!value.is_boolean()) throw not_a("true or false");
    return value.get<bool>();
  }

  const std::string& string(std::string_view what) const {
    if (typed && !typed->empty()) return *typed;
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) throw not_a(what);
    return value.get_ref<const std::string&>();
  }

  std::int64_t size() const {
    if (typed || value.is_string())
      return parse_size(typed ? *typed : value.get_ref<const std::string&>(), where);
    if (!value.is_number())
      throw not_a("a size", "a size is a number with a unit, such as \"40M\" or \"1.5GiB\"");
    return integer(0, std::int64_t{1} << 62);
  }

  Tier tier() const { return parse_tier(string("device, host or nvme"), where); }
};

/// What has been read so far: values that others complete are kept apart until all are known.
struct Draft {
  Config config;
  std::optional<std::int64_t> train_batch, micro_batch, accumulation;
  std::optional<bool> bf16, adam_w_mode;
  std::optional<DType> precision;
  std::string optimizer_type = "AdamW";
  std::string source;
};

struct Key {
  std::string path;  // dotted
  std::function<void(const Value&, Draft&)> read;
  std::function<json(const Config&)> write = {};  // empty: nothing to write; null: left out
  bool assumed = false;                           // a default is worth telling
};

void read_optimizer_type(const Value& v, Draft& d) {
  d.optimizer_type = v.string("an optimizer: Adam or AdamW");
  std::string lower;
  for (const char c : d.optimizer_type) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower != "adam" && lower != "adamw") throw v.not_a("an optimizer that is built in: Adam or AdamW");
  d.optimizer_type = lower;
}

void read_betas(const Value& v, Draft& d) {
  if (!v.value.is_array() || v.value.size() != 2) throw v.not_a("two numbers from 0 to below 1");
  d.config.optimizer.beta1 = Value{v.value[0], v.where}.number(1, true);
  d.config.optimizer.beta2 = Value{v.value[1], v.where}.number(1, true);
}

void read_model(const Value& v, Draft& d) {
  if (v.value.is_object()) {
    d.config.model = v.value.dump();
    d.config.model_source = v.where;
    return;
  }
  const std::filesystem::path path = v.string("a path, or an object with the model's keys");
  // An absolute path stays what it is.
  d.config.model_source = (std::filesystem::path(d.source).parent_path() / path).string();
  const std::string text =
      read_text_file(d.config.model_source, "model's configuration that " + v.where + " names");
  d.config.model = parse_json(text, d.config.model_source).dump();
}

void read_state_format(const Value& v, Draft& d) {
  d.config.state_format = v.string("a state format: fp32");
  if (d.config.state_format == "bf16" || d.config.state_format == "compact8") {
    throw v.not_a("built yet", "use the state format fp32");
  }
  if (d.config.state_format != "fp32") throw v.not_a("a state format: fp32");
}

void read_precision(const Value& v, Draft& d) {
  const std::string& word = v.string("bf16 or fp32");
  if (word != "bf16" && word != "fp32") throw v.not_a("bf16 or fp32");
  d.precision = word == "bf16" ? DType::bf16 : DType::fp32;
}

json limit_or_null(std::int64_t bytes) {
  return bytes < 0 ? json() : json(bytes);
}
json text_or_null(const std::string& text) {
  return text.empty() ? json() : json(text);
}

const std::vector<Key>& keys() {
  static const std::vector<Key> table = {
      {"train_batch_size", [](const Value& v, Draft& d) { d.train_batch = v.integer(1, kMostSequences); },
       [](const Config& c) { return json(std::int64_t{c.micro_batch} * c.accumulation); }},
      {"train_micro_batch_size_per_gpu",
       [](const Value& v, Draft& d) { d.micro_batch = v.integer(1, kMostSequences); },
       [](const Config& c) { return json(c.micro_batch); }, true},
      {"gradient_accumulation_steps",
       [](const Value& v, Draft& d) { d.accumulation = v.integer(1, kMostSequences); },
       [](const Config& c) { return json(c.accumulation); }, true},
      {"gradient_clipping", [](const Value& v, Draft& d) { d.config.gradient_clipping = v.number(1e6); },
       [](const Config& c) { return json(c.gradient_clipping); }, true},
      {"steps_per_print",
       [](const Value& v, Draft&) { v.number(1e18); }},  // the progress line sees to that itself

      {"optimizer.type", read_optimizer_type,
       [](const Config& c) { return json(c.optimizer.decoupled ? "AdamW" : "Adam"); }, true},
      {"optimizer.params.lr",
       [](const Value& v, Draft& d) { d.config.optimizer.learning_rate = v.number(1e3); },
       [](const Config& c) { return json(c.optimizer.learning_rate); }, true},
      {"optimizer.params.betas", read_betas,
       [](const Config& c) {
         return json::array({c.optimizer.beta1, c.optimizer.beta2});
       },
       true},
      {"optimizer.params.eps", [](const Value& v, Draft& d) { d.config.optimizer.eps = v.number(1); },
       [](const Config& c) { return json(c.optimizer.eps); }, true},
      {"optimizer.params.weight_decay",
       [](const Value& v, Draft& d) { d.config.optimizer.weight_decay = v.number(1e3); },
       [](const Config& c) { return json(c.optimizer.weight_decay); }, true},
      {"optimizer.params.adam_w_mode", [](const Value& v, Draft& d) { d.adam_w_mode = v.boolean(); },
       [](const Config& c) { return json(c.optimizer.decoupled); }},

      {"bf16.enabled", [](const Value& v, Draft& d) { d.bf16 = v.boolean(); },
       [](const Config& c) { return json(c.precision == DType::bf16); }},

      {"zero_optimization.stage", [](const Value& v, Draft& d) { d.config.stage = v.small(0, 3); },
       [](const Config& c) { return json(c.stage); }},
      {"zero_optimization.offload_optimizer.device",
       [](const Value& v, Draft& d) { d.config.optimizer_tier = v.tier(); },
       [](const Config& c) { return json(name_of(c.optimizer_tier)); }, true},
      {"zero_optimization.offload_optimizer.nvme_path",
       [](const Value& v, Draft& d) { d.config.optimizer_nvme_path = v.string("the path of a directory"); },
       [](const Config& c) { return text_or_null(c.optimizer_nvme_path); }},
      // Pinning is for the copies of a GPU: the host device has nothing to pin for.
      {"zero_optimization.offload_optimizer.pin_memory", [](const Value& v, Draft&) { v.boolean(); }},
      {"zero_optimization.offload_param.device",
       [](const Value& v, Draft& d) { d.config.parameter_tier = v.tier(); },
       [](const Config& c) { return json(name_of(c.parameter_tier)); }, true},
      {"zero_optimization.offload_param.nvme_path",
       [](const Value& v, Draft& d) { d.config.parameter_nvme_path = v.string("the path of a directory"); },
       [](const Config& c) { return text_or_null(c.parameter_nvme_path); }},
      {"zero_optimization.offload_param.pin_memory", [](const Value& v, Draft&) { v.boolean(); }},

      {"spillway.model", read_model,
       [](const Config& c) { return c.model.empty() ? json() : parse_json(c.model, c.model_source); }},
      {"spillway.sequence_length",
       [](const Value& v, Draft& d) { d.config.sequence_length = v.integer(1, 1 << 24); },
       [](const Config& c) { return c.sequence_length == 0 ? json() : json(c.sequence_length); }},
      {"spillway.steps", [](const Value& v, Draft& d) { d.config.steps = v.integer(1, 1'000'000'000); },
       [](const Config& c) { return json(c.steps); }, true},
      {"spillway.seed",
       [](const Value& v, Draft& d) { d.config.seed = static_cast<std::uint64_t>(v.integer(0, kMaximum)); },
       [](const Config& c) { return json(c.seed); }, true},
      {"spillway.state_format", read_state_format, [](const Config& c) { return json(c.state_format); }},
      {"spillway.precision", read_precision, [](const Config& c) { return json(name_of(c.precision)); }},
      {"spillway.device_memory", [](const Value& v, Draft& d) { d.config.device_memory = v.size(); },
       [](const Config& c) { return limit_or_null(c.device_memory); }},
      {"spillway.host_memory", [](const Value& v, Draft& d) { d.config.host_memory = v.size(); },
       [](const Config& c) { return limit_or_null(c.host_memory); }},
      {"spillway.update_threads",
       [](const Value& v, Draft& d) { d.config.update_threads = v.small(0, kMostThreads); },
       [](const Config& c) { return json(c.update_threads); }},
      {"spillway.device_threads",
       [](const Value& v, Draft& d) { d.config.device_threads = v.small(0, kMostThreads); },
       [](const Config& c) { return json(c.device_threads); }},
      {"spillway.check_finite", [](const Value& v, Draft& d) { d.config.check_finite = v.boolean(); },
       [](const Config& c) { return json(c.check_finite); }},
  };
  return table;
}

const Key* find_key(std::string_view path) {
  for (const Key& key : keys()) {
    if (key.path == path) return &key;
  }
  return nullptr;
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
const std::vector<std::string>& sections() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> found;
    for (const Key& key : keys()) {
      for (std::string section = parent_of(key.path); !section.empty(); section = parent_of(section)) {
        if (std::find(found.begin(), found.end(), section) == found.end()) found.push_back(section);
      }
    }
    return found;
  }();
  return all;
}

bool is_section(const std::string& path) {
  return std::find(sections().begin(), sections().end(), path) != sections().end();
}

/// What someone who wrote the unknown key `path` may have meant.
std::string hint_for_unknown(const std::string& path) {
  std::vector<std::string> known;
  for (const Key& key : keys()) known.push_back(key.path);
  known.insert(known.end(), sections().begin(), sections().end());

  std::vector<std::string> beside;  // the names in the same section
  for (const auto& candidate : known) {
    if (parent_of(candidate) == parent_of(path)) beside.push_back(last_of(candidate));
  }
  if (const std::string close = nearest(last_of(path), beside); !close.empty()) {
    return fmt::format("did you mean {}?", close);
  }
  std::vector<std::string> places;
  for (const auto& candidate : known) {
    if (last_of(candidate) == last_of(path)) places.push_back(candidate);
  }
  if (!places.empty()) return fmt::format("its place is {}", fmt::join(places, " or "));
  return {};
}

using Values = std::map<std::string, Value>;

/// All values of an object and the objects in it, by dotted key.
void collect(const json& object, const std::string& section, const std::string& source, Values& values) {
  for (const auto& [name, value] : object.items()) {
    if (name.starts_with('_') || name.starts_with("//")) continue;
    const std::string path = section.empty() ? name : section + "." + name;
    const std::string where = fmt::format("{}: {}", source, path);
    const bool known = find_key(path) != nullptr;
    if (name.find('.') != std::string::npos) {  // it would look like a key of another object
      throw refuse(fmt::format("{}: unknown key \"{}\"", source, path),
                   "write objects in objects, not names with dots");
    }
    if (!known && !is_section(path)) {
      throw refuse(fmt::format("{}: unknown key {}", source, path), hint_for_unknown(path));
    }
    // DeepSpeed's "auto" is an absent key; our own keys have no such word.
    if (value.is_null() || (value == "auto" && !path.starts_with("spillway."))) continue;
    if (known) {
      values.insert_or_assign(path, Value{value, where});
    } else if (value.is_object()) {
      collect(value, path, source, values);
    } else {
      throw Value{value, where}.not_a("an object");
    }
  }
}

/// What was typed: a number where it is one, else a word.
Value from_flag(const ConfigOverride& given) {
  json value = json::parse(given.value, nullptr, /*allow_exceptions=*/false);
  if (!value.is_number() && !value.is_boolean()) value = given.value;
  return {std::move(value), given.flag, given.value};
}

void resolve_batch(Draft& d) {
  Config& c = d.config;
  // train = micro x accumulation x world, the world being one rank.
  const std::int64_t accumulation = d.accumulation.value_or(
      d.train_batch && d.micro_batch ? std::max<std::int64_t>(*d.train_batch / *d.micro_batch, 1) : 1);
  const std::int64_t micro =
      d.micro_batch.value_or(d.train_batch ? std::max<std::int64_t>(*d.train_batch / accumulation, 1) : 1);
  const std::int64_t product = micro * accumulation;
  if (d.train_batch && *d.train_batch != product) {
    throw refuse(fmt::format("{}: train_batch_size {} disagrees with train_micro_batch_size_per_gpu {} x "
                             "gradient_accumulation_steps {} x 1 rank = {}",
                             d.source, *d.train_batch, micro, accumulation, product),
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

void resolve(Draft& d) {
  Config& c = d.config;
  resolve_batch(d);

  // As in DeepSpeed: "Adam" is AdamW unless adam_w_mode says otherwise.
  c.optimizer.decoupled = d.adam_w_mode.value_or(true);
  if (d.optimizer_type == "adamw" && !c.optimizer.decoupled) {
    throw refuse(
        fmt::format("{}: optimizer.type AdamW and optimizer.params.adam_w_mode false contradict each other",
                    d.source),
        "for L2 regularisation write optimizer.type Adam with adam_w_mode false");
  }

  c.precision = d.precision.value_or(DType::bf16);
  if (d.bf16 == true && c.precision == DType::fp32) {
    throw refuse(
        fmt::format("{}: bf16.enabled true and spillway.precision fp32 contradict each other", d.source),
        "leave one of the two out");
  }
  if (d.bf16 == false && !d.precision) {
    c.assumed.push_back("spillway.precision = bf16 (bf16 is off in the file, and the engine computes in it)");
  }

  for (const auto& [name, flag, tier, path] :
       {std::tuple{"offload_optimizer", "--offload-optimizer", c.optimizer_tier, &c.optimizer_nvme_path},
        std::tuple{"offload_param", "--offload-parameters", c.parameter_tier, &c.parameter_nvme_path}}) {
    if (tier == Tier::nvme && path->empty()) {
      throw refuse(
          fmt::format("{}: zero_optimization.{}.device is nvme, but no directory for it is given", d.source,
                      name),
          fmt::format("set zero_optimization.{}.nvme_path or give --nvme-path DIR, or place it elsewhere with "
                      "{} host",
                      name, flag));
    }
  }
}

}  // namespace

Config parse_config(std::string_view text, std::string_view source, const ConfigOptions& options) {
  const json document = parse_json(text, source);
  Draft draft;
  draft.source = source;
  if (!document.is_object())
    throw Value{document, draft.source}.not_a("an object with the configuration's keys");
  Values values;
  collect(document, "", draft.source, values);
  for (const auto& given : options.overrides) {
    if (find_key(given.key) == nullptr) throw std::logic_error("parse_config: no key " + given.key);
    values.insert_or_assign(given.key, from_flag(given));
  }

  for (const Key& key : keys()) {
    if (const auto found = values.find(key.path); found != values.end()) key.read(found->second, draft);
  }
  resolve(draft);
  // Batch sizes follow from one another: with train_batch_size given, neither of the others was assumed.
  for (const Key& key : keys()) {
    const bool follows = draft.train_batch && (key.path == "train_micro_batch_size_per_gpu" ||
                                               key.path == "gradient_accumulation_steps");
    if (!key.assumed || follows || values.contains(key.path)) continue;
    draft.config.assumed.push_back(fmt::format("{} = {}", key.path, key.write(draft.config).dump()));
  }
  return draft.config;
}

Config read_config(const std::string& path, const ConfigOptions& options) {
  return parse_config(read_text_file(path, "configuration"), path, options);
}

std::string to_json(const Config& config) {
  json document = json::object();
  for (const Key& key : keys()) {
    const json value = key.write ? key.write(config) : json();
    if (value.is_null()) continue;
    std::string pointer = "/" + key.path;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    document[json::json_pointer(pointer)] = value;
  }
  return document.dump(2);
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
