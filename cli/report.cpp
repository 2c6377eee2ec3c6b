#include "report.h"

#include "../core/size.h"
#include "machine.h"
#include "text.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using nlohmann::json;

constexpr int kReportFormatVersion = 1;
constexpr std::size_t kWidth = 100;
constexpr std::size_t kIndent = 12;

/// "model       decoder, 14 layers"; what does not fit in the width goes on below, broken at spaces.
std::string entry(std::string_view name, std::string_view text) {
  std::string block = fmt::format("{:<{}}", name, kIndent);
  while (kIndent + text.size() > kWidth) {
    const auto space = text.rfind(' ', kWidth - kIndent);
    if (space == std::string_view::npos) break;
    block += fmt::format("{}\n{:{}}", text.substr(0, space), "", kIndent);
    text.remove_prefix(space + 1);
  }
  return block + std::string(text) + "\n";
}

std::string plural(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(count), noun, count == 1 ? "" : "s");
}

std::string place(Tier tier, const std::string& path) {
  return tier == Tier::nvme ? fmt::format("nvme ({})", path) : std::string(name_of(tier));
}

/// What stands behind the bytes of a tier. A drive's limit is its free space, which was reserved before the
/// start.
std::string budget_text(const Config& config, Tier tier) {
  if (tier == Tier::nvme) return "";
  const std::int64_t limit = limit_of(config, tier);
  return limit < 0 ? "   no limit" : "   budget " + format_size(limit);
}

/// The names of a tier in the plan's order, then those that were used without being planned.
std::vector<std::string> names_of(const TierPlan& plan, const std::map<std::string, std::int64_t>& peaks) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const auto& planned : plan.entries) add(planned.name);
  for (const auto& [name, bytes] : peaks) add(name);
  return names;
}

std::int64_t planned(const TierPlan& plan, const std::string& name) {
  std::int64_t bytes = 0;
  for (const auto& planned_entry : plan.entries) {
    if (planned_entry.name == name) bytes += planned_entry.bytes;
  }
  return bytes;
}

json tier_json(const RunSetting& setting, Tier tier) {
  const TierPlan& plan = setting.engine.plan().of(tier);
  const Budget& budget = setting.engine.budget(tier);
  const std::int64_t limit = limit_of(setting.config, tier);
  json by_name = json::object(), planned_by_name = json::object();
  for (const auto& [name, bytes] : budget.peaks_by_name()) by_name[name] = bytes;
  for (const auto& planned_entry : plan.entries)
    planned_by_name[planned_entry.name] = planned(plan, planned_entry.name);
  return {{"budget_bytes", limit < 0 ? json() : json(limit)},
          {"planned_bytes", plan.total()},
          {"peak_bytes", budget.peak()},
          {"by_name", std::move(by_name)},
          {"planned_by_name", std::move(planned_by_name)}};
}

double tokens_per_second(const RunSetting& setting, const RunResult& result) {
  return static_cast<double>(setting.config.steps * setting.tokens_a_step()) / std::max(result.seconds, 1e-9);
}

std::string skipped_text(std::int64_t steps, std::int64_t skipped) {
  if (skipped == 0) return plural(0, "step");
  if (skipped < steps) return plural(skipped, "step") + " with a gradient that was not finite";
  return "every step: no gradient was finite, and the weights are the first ones. A smaller initializer_range "
         "in the "
         "model's configuration, or spillway.precision fp32, may help";
}

}  // namespace

std::int64_t RunSetting::tokens_a_step() const {
  return config.sequence_length * config.micro_batch * config.accumulation;
}

std::int64_t limit_of(const Config& config, Tier tier) {
  return tier == Tier::device ? config.device_memory : tier == Tier::host ? config.host_memory : -1;
}

std::string start_block(const RunSetting& setting) {
  const Config& c = setting.config;
  const models::DecoderConfig& m = setting.model;
  const Layout& layout = setting.engine.layout();
  const std::int64_t weights = layout.parameter_count() * size_of(c.precision);

  std::string text = fmt::format("spillway {}\n\n", SPILLWAY_VERSION);
  text += entry(
      "model", fmt::format("decoder, {}, hidden {}, {}, {} positions, vocabulary {}", plural(m.layers, "layer"),
                           m.hidden, plural(m.heads, "head"), m.positions, m.vocabulary));
  text += entry("parameters", fmt::format("{} in {}, {} in {}", grouped(layout.parameter_count()),
                                          plural(static_cast<std::int64_t>(layout.units().size()), "unit"),
                                          format_size(weights), name_of(c.precision)));
  text += entry("data", fmt::format("{}, {}, unigram entropy {:.4f} nats",
                                    plural(static_cast<std::int64_t>(setting.data_files.size()), "file"),
                                    format_size(setting.data_bytes), setting.unigram_entropy));
  text += entry("training",
                fmt::format("{} of {} x {} tokens ({} of {}), seed {}", plural(c.steps, "step"),
                            plural(std::int64_t{c.micro_batch} * c.accumulation, "sequence"), c.sequence_length,
                            c.accumulation == 1 ? "1 micro-batch" : grouped(c.accumulation) + " micro-batches",
                            c.micro_batch, c.seed));
  text +=
      entry("optimizer",
            fmt::format("{}, learning rate {}, weight decay {}, {}", c.optimizer.decoupled ? "AdamW" : "Adam",
                        c.optimizer.learning_rate, c.optimizer.weight_decay,
                        c.gradient_clipping > 0 ? fmt::format("clipped to norm {}", c.gradient_clipping)
                                                : std::string("no clipping")));
  text +=
      entry("places", fmt::format("optimizer {}, parameters {}", place(c.optimizer_tier, c.optimizer_nvme_path),
                                  place(c.parameter_tier, c.parameter_nvme_path)));
  text += entry("threads", fmt::format("host device {}, update {}", c.device_threads, c.update_threads));
  if (!c.assumed.empty()) {
    std::string assumed;
    for (const auto& one : c.assumed) assumed += (assumed.empty() ? "" : ", ") + one;
    text += entry("assumed", assumed);
  }

  text += fmt::format("\n{:<32} {:>12}\n", "plan", "bytes");
  for (const Tier tier : kTiers) {
    const TierPlan& plan = setting.engine.plan().of(tier);
    text += fmt::format("  {:<30} {:>12}{}\n", name_of(tier), format_size(plan.total()), budget_text(c, tier));
    for (const auto& name : names_of(plan, {})) {
      text += fmt::format("    {:<28} {:>12}\n", name, format_size(planned(plan, name)));
    }
  }
  return text + "\n";
}

std::string end_block(const RunSetting& setting, const RunResult& result) {
  const Config& c = setting.config;
  std::string text = fmt::format("\n{:<32} {:>12} {:>12}\n", "memory", "peak", "plan");
  for (const Tier tier : kTiers) {
    const TierPlan& plan = setting.engine.plan().of(tier);
    const Budget& budget = setting.engine.budget(tier);
    const auto peaks = budget.peaks_by_name();
    text += fmt::format("  {:<30} {:>12} {:>12}{}\n", name_of(tier), format_size(budget.peak()),
                        format_size(plan.total()), budget_text(c, tier));
    for (const auto& name : names_of(plan, peaks)) {
      const auto peak = peaks.find(name);
      text +=
          fmt::format("    {:<28} {:>12} {:>12}\n", name, format_size(peak == peaks.end() ? 0 : peak->second),
                      format_size(planned(plan, name)));
    }
  }

  text +=
      "\n" + entry("trained", fmt::format("{}, {} tokens in {}, {} tokens/s", plural(c.steps, "step"),
                                          grouped(c.steps * setting.tokens_a_step()), duration(result.seconds),
                                          grouped(std::llround(tokens_per_second(setting, result)))));
  text += entry("skipped", skipped_text(c.steps, result.counters.skipped_steps));
  text += entry("loss",
                fmt::format("{} nats at the first step, {} at the last; unigram entropy {:.4f}",
                            fixed(result.loss_first, 4), fixed(result.loss_last, 4), setting.unigram_entropy));
  text += entry("nvme", fmt::format("{} read, {} written", format_size(result.counters.nvme_read_bytes),
                                    format_size(result.counters.nvme_written_bytes)));
  text += entry("weights", "xxh3 " + result.weights_xxh3);
  if (!result.no_sample.empty()) return text + "\n" + entry("sample", "none: " + result.no_sample);
  text += "\nsample\n";
  for (const auto& line : lines_of(result.sample, kWidth - 4)) text += "  | " + line + "\n";
  return text;
}

std::string json_report(const RunSetting& setting, const RunResult& result) {
  const Machine machine = this_machine();
  json tiers = json::object();
  for (const Tier tier : kTiers) tiers[std::string(name_of(tier))] = tier_json(setting, tier);
  const json row = {{"version", SPILLWAY_VERSION},
                    {"format_version", kReportFormatVersion},
                    {"command", "train"},
                    {"config", json::parse(to_json(setting.config))},
                    {"assumed", setting.config.assumed},
                    {"data", setting.data_files},
                    {"data_bytes", setting.data_bytes},
                    {"params", setting.engine.layout().parameter_count()},
                    {"units", setting.engine.layout().units().size()},
                    {"steps", setting.config.steps},
                    {"tokens", setting.config.steps * setting.tokens_a_step()},
                    {"loss_first", result.loss_first},
                    {"loss_last", result.loss_last},
                    {"unigram_entropy", setting.unigram_entropy},
                    {"seconds", result.seconds},
                    {"tokens_per_s", tokens_per_second(setting, result)},
                    {"tiers", std::move(tiers)},
                    {"nvme_read_bytes", result.counters.nvme_read_bytes},
                    {"nvme_written_bytes", result.counters.nvme_written_bytes},
                    {"skipped_steps", result.counters.skipped_steps},
                    {"weights_xxh3", result.weights_xxh3},
                    {"sample", result.no_sample.empty() ? json(result.sample) : json()},
                    {"no_sample", result.no_sample.empty() ? json() : json(result.no_sample)},
                    {"machine",
                     {{"processor", machine.processor},
                      {"processors", machine.processors},
                      {"memory_bytes", machine.memory_bytes},
                      {"system", machine.system}}}};
  // Names of files need not be UTF-8.
  return json::array({row}).dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace spillway::cli
