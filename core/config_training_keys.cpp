// The keys of the optimizer and of the learning rate's scheduler: each optimizer and each scheduler has its
// own.
#include "config_keys.h"

#include <algorithm>
#include <cctype>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway {
namespace config_detail {
namespace {

using nlohmann::json;

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

}  // namespace

std::vector<Key> training_keys() {
  return {
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
       [](const Config& c) {
         const std::string_view name = scheduler_name(c.schedule.kind);
         return name.empty() ? json() : json(name);
       }},
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
  };
}

}  // namespace config_detail

std::string_view optimizer_type(Optimizer optimizer) {
  using config_detail::kOptimizers;
  return std::find_if(std::begin(kOptimizers), std::end(kOptimizers),
                      [&](const auto& one) { return one.optimizer == optimizer; })
      ->name;
}

}  // namespace spillway
