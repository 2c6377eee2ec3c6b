#include "report.h"

#include "../core/size.h"
#include "../cpu_adam/isa.h"
#include "machine.h"
#include "text.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using nlohmann::json;

constexpr int kReportFormatVersion = 1;
constexpr std::size_t kWidth = 100;
constexpr std::size_t kIndent = 12;

bool is_on_nvme(const Config& c) {
  return c.optimizer_tier == Tier::nvme || c.parameter_tier == Tier::nvme;
}

/// What each of several directories got: "/a 67%, /b 33%".
std::string shares_text(const IoReport& io) {
  std::int64_t all = 0;
  for (const auto& one : io.places) all += one.bytes;
  std::vector<std::string> shares;
  for (const auto& one : io.places) {
    shares.push_back(fmt::format("{} {:.0f}%", one.directory,
                                 100 * static_cast<double>(one.bytes) / static_cast<double>(all)));
  }
  return fmt::format("{}", fmt::join(shares, ", "));
}

/// What stands behind the bytes of a tier. A drive's limit is its free space, which was reserved before the
/// start.
std::string budget_text(const Limits& limits, Tier tier) {
  if (tier == Tier::nvme) return "";
  const std::int64_t limit = tier == Tier::device ? limits.device : limits.host;
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

json limit_of(const Limits& limits, Tier tier) {
  const std::int64_t limit = tier == Tier::device ? limits.device : tier == Tier::host ? limits.host : -1;
  return limit < 0 ? json() : json(limit);
}

json tier_json(const RunSetting& setting, Tier tier) {
  const TierPlan& plan = setting.engine.plan().of(tier);
  const Budget& budget = setting.engine.budget(tier);
  json by_name = json::object();
  for (const auto& [name, bytes] : budget.peaks_by_name()) by_name[name] = bytes;
  return {{"budget_bytes", limit_of(setting.setup.limits, tier)},
          {"planned_bytes", plan.total()},
          {"peak_bytes", budget.peak()},
          {"by_name", std::move(by_name)},
          {"planned_by_name", planned_by_name(plan)}};
}

double tokens_per_second(const RunSetting& setting, const RunResult& result) {
  const std::int64_t tokens = setting.setup.config.steps * setting.setup.tokens_a_step();
  return static_cast<double>(tokens) / std::max(result.seconds, 1e-9);
}

std::string data_text(const models::TokenData& data) {
  return fmt::format("{}, {} in {}, unigram entropy {:.4f} nats",
                     plural(static_cast<std::int64_t>(data.files().size()), "file"),
                     data.is_text() ? format_size(data.tokens()) + " of text" : plural(data.tokens(), "token"),
                     plural(data.sequences(), "sequence"), data.unigram_entropy());
}

double epochs(const RunSetting& setting) {
  const Config& c = setting.setup.config;
  return static_cast<double>(c.steps * c.micro_batch * c.accumulation) /
         static_cast<double>(setting.data.sequences());
}

std::string optimizer_text(const HyperParameters& h) {
  const std::string_view type = optimizer_type(h.optimizer);
  if (h.optimizer != Optimizer::sgd) return std::string(type);
  return fmt::format("{} with {}momentum {}", type, h.nesterov ? "Nesterov's " : "", h.momentum);
}

std::string schedule_text(const Config& config) {
  const ScheduleConfig& s = config.schedule;
  const double rate = config.optimizer.learning_rate;
  const auto warmup = fmt::format("{} {} of warm-up", std::max<std::int64_t>(2, s.warmup_steps),
                                  s.logarithmic ? "logarithmic steps" : "linear steps");
  switch (s.kind) {
    case ScheduleKind::constant:
      return fmt::format("learning rate {}", rate);
    case ScheduleKind::warmup:
      return fmt::format("learning rate {:.4g} to {:.4g} in {}", s.minimum, s.maximum, warmup);
    case ScheduleKind::warmup_decay:
      return fmt::format("learning rate {:.4g} to {:.4g} in {}, then linearly to {:.4g} at step {}", s.minimum,
                         s.maximum, warmup, s.minimum, s.total_steps);
    case ScheduleKind::warmup_cosine:
      return fmt::format("learning rate {:.4g} to {:.4g} in {}, then by cosine to {:.4g} at step {}",
                         s.warmup_minimum_ratio * rate, rate, warmup, s.cosine_minimum_ratio * rate,
                         s.total_steps);
  }
  return {};
}

std::string block(std::string_view title, const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  std::string text = fmt::format("\n{}\n", title);
  for (const auto& line : lines) {
    for (const auto& part : broken_at_spaces(line, kWidth - 4)) text += "  " + part + "\n";
  }
  return text;
}

/// "0.8120 s; floor 0.7811 s (96.2%), bound by read; compute waited 0.0310 s for read, 0.0040 s for adam".
std::string step_text(const RunResult& result) {
  const LaneTimes& t = result.lanes;
  std::string text =
      fmt::format("{:.4f} s; floor {:.4f} s ({:.1f}%), bound by {}", t.seconds, result.floor.seconds,
                  100 * result.floor.seconds / std::max(t.seconds, 1e-9), result.floor.bound);
  std::vector<std::pair<double, std::string_view>> waits;
  for (std::size_t i = 0; i < t.exposed.size(); ++i) {
    if (t.exposed[i] >= 0.005 * t.seconds) waits.emplace_back(t.exposed[i], name_of(static_cast<Lane>(i)));
  }
  std::sort(waits.rbegin(), waits.rend());
  for (std::size_t i = 0; i < waits.size(); ++i) {
    text +=
        fmt::format("{} {:.4f} s for {}", i == 0 ? "; compute waited" : ",", waits[i].first, waits[i].second);
  }
  return text;
}

std::string skipped_text(std::int64_t steps, std::int64_t skipped) {
  if (skipped == 0) return plural(0, "step");
  if (skipped < steps) return plural(skipped, "step") + " with a gradient that was not finite";
  return "every step: no gradient was finite, and the weights are the first ones. A smaller initializer_range "
         "in the "
         "model's configuration, or spillway.precision fp32, may help";
}

}  // namespace

std::string place(Tier tier, const std::vector<std::string>& paths) {
  return tier == Tier::nvme ? fmt::format("nvme ({})", fmt::join(paths, ", ")) : std::string(name_of(tier));
}

std::string io_text(const Config& c, const IoReport& io) {
  std::string text = io.engine == "posix" ? "threads" : io.engine;
  if (io.registered_files || io.registered_memory) {
    text += fmt::format(", registered {}{}{}", io.registered_files ? "files" : "",
                        io.registered_files && io.registered_memory ? " and " : "",
                        io.registered_memory ? "memory" : "");
  }
  if (io.sqpoll) text += ", submitted by a thread of the kernel";
  if (io.iopoll) text += ", polled";
  text += fmt::format(", up to {} of {} at a time", plural(io.depth, "operation"), format_size(io.block_bytes));
  if (!c.direct_io) text += ", through the page cache";
  if (c.checksums) text += ", with checksums";
  return text;
}

json io_json(const IoReport& io) {
  json places = json::array();
  for (const auto& one : io.places) places.push_back({{"directory", one.directory}, {"bytes", one.bytes}});
  return {{"engine", io.engine},
          {"registered_files", io.registered_files},
          {"registered_memory", io.registered_memory},
          {"single_issuer", io.single_issuer},
          {"deferred_task_run", io.deferred_task_run},
          {"sqpoll", io.sqpoll},
          {"iopoll", io.iopoll},
          {"direct", io.direct},
          {"queue_depth", io.depth},
          {"block_size", io.block_bytes},
          {"places", std::move(places)},
          {"notes", io.notes}};
}

json lanes_json(const std::array<double, kLanes>& seconds, std::optional<double> other) {
  json lanes = json::object();
  for (std::size_t i = 0; i < seconds.size(); ++i)
    lanes[std::string(name_of(static_cast<Lane>(i)))] = seconds[i];
  if (other) lanes["other"] = *other;
  return lanes;
}

std::string entry(std::string_view name, std::string_view text) {
  std::string whole;
  for (const auto& line : broken_at_spaces(text, kWidth - kIndent)) {
    whole += fmt::format("{:<{}}{}\n", whole.empty() ? name : "", kIndent, line);
  }
  return whole;
}

std::string description(const Setup& setup, const models::TokenData* data, const models::TokenData* eval_data,
                        const std::optional<IoReport>& io) {
  const Config& c = setup.config;
  const models::DecoderConfig& m = setup.model;
  const Layout& layout = setup.layout;
  const std::int64_t weights = layout.parameter_count() * size_of(c.precision);

  std::string text = fmt::format("spillway {}\n\n", SPILLWAY_VERSION);
  text += entry(
      "model", fmt::format("decoder, {}, hidden {}, {}, {} positions, vocabulary {}", plural(m.layers, "layer"),
                           m.hidden, plural(m.heads, "head"), m.positions, m.vocabulary));
  text += entry("parameters", fmt::format("{} in {}, {} in {}", grouped(layout.parameter_count()),
                                          plural(static_cast<std::int64_t>(layout.units().size()), "unit"),
                                          format_size(weights), name_of(c.precision)));
  if (data != nullptr) text += entry("data", data_text(*data));
  if (eval_data != nullptr) text += entry("validation", data_text(*eval_data));
  text += entry("training",
                fmt::format("{} of {} x {} tokens ({} of {}), seed {}", plural(c.steps, "step"),
                            plural(std::int64_t{c.micro_batch} * c.accumulation, "sequence"), c.sequence_length,
                            c.accumulation == 1 ? "1 micro-batch" : grouped(c.accumulation) + " micro-batches",
                            c.micro_batch, c.seed));
  text += entry("optimizer",
                fmt::format("{}, state in {}, {}, weight decay {}, {}", optimizer_text(c.optimizer),
                            name_of(c.state_format), schedule_text(c), c.optimizer.weight_decay,
                            c.gradient_clipping > 0 ? fmt::format("clipped to norm {}", c.gradient_clipping)
                                                    : std::string("no clipping")));
  text += entry("places",
                fmt::format("optimizer {}, parameters {}", place(c.optimizer_tier, c.optimizer_nvme_paths),
                            place(c.parameter_tier, c.parameter_nvme_paths)));
  text += entry("activations",
                models::describe(models::decoder_chain(setup.model, setup.run), setup.run.activations));
  if (io) text += entry("drive", io_text(c, *io));
  if (io && io->places.size() > 1) text += entry("shares", shares_text(*io));
  if (!c.io_faults.empty() && (is_on_nvme(c) || ActivationBytes(setup.layout).nvme > 0)) {
    text += entry("FAULTS", fmt::format("THE DRIVE FAILS ON PURPOSE (spillway.io_faults): {}", c.io_faults));
  }
  text += entry("threads", fmt::format("host device {}, update {} ({}){}{}", c.device_threads, c.update_threads,
                                       cpu_adam::name_of(cpu_adam::chosen_isa()),
                                       c.pin_threads.value_or(false) ? ", bound to processors" : "",
                                       c.io_cores > 0 && c.pin_threads.value_or(false)
                                           ? fmt::format(", {} left to the drive", plural(c.io_cores, "core"))
                                           : ""));
  std::vector<std::string> notes = c.notes;
  if (io) notes.insert(notes.end(), io->notes.begin(), io->notes.end());
  return text + block("assumed:", c.assumed) + block("notes:", notes);
}

std::string plan_block(const Setup& setup, const Plan& plan) {
  std::string text = fmt::format("\n{:<32} {:>12}\n", "plan", "bytes");
  for (const Tier tier : kTiers) {
    text += fmt::format("  {:<30} {:>12}{}\n", name_of(tier), format_size(plan.of(tier).total()),
                        budget_text(setup.limits, tier));
    for (const auto& name : names_of(plan.of(tier), {})) {
      text += fmt::format("    {:<28} {:>12}\n", name, format_size(planned(plan.of(tier), name)));
    }
  }
  return text + "\n";
}

std::string end_block(const RunSetting& setting, const RunResult& result) {
  const Config& c = setting.setup.config;
  const double flops = models::flops_per_token(setting.setup.model, c.sequence_length);
  std::string text = fmt::format("\n{:<32} {:>12} {:>12}\n", "memory", "peak", "plan");
  for (const Tier tier : kTiers) {
    const TierPlan& plan = setting.engine.plan().of(tier);
    const Budget& budget = setting.engine.budget(tier);
    const auto peaks = budget.peaks_by_name();
    text += fmt::format("  {:<30} {:>12} {:>12}{}\n", name_of(tier), format_size(budget.peak()),
                        format_size(plan.total()), budget_text(setting.setup.limits, tier));
    for (const auto& name : names_of(plan, peaks)) {
      const auto peak = peaks.find(name);
      text +=
          fmt::format("    {:<28} {:>12} {:>12}\n", name, format_size(peak == peaks.end() ? 0 : peak->second),
                      format_size(planned(plan, name)));
    }
  }

  text += "\n" + entry("trained",
                       fmt::format("{}, {} tokens ({:.3g} epochs) in {}, {} tokens/s, {} TFLOP/s",
                                   plural(c.steps, "step"), grouped(c.steps * setting.setup.tokens_a_step()),
                                   epochs(setting), duration(result.seconds),
                                   grouped(std::llround(tokens_per_second(setting, result))),
                                   tera(flops * tokens_per_second(setting, result))));
  text += entry("step", step_text(result));
  text += entry("skipped", skipped_text(c.steps, result.counters.skipped_steps));
  text += entry("loss", fmt::format("{} nats at the first step, {} at the last; unigram entropy {:.4f}",
                                    fixed(result.loss_first, 4), fixed(result.loss_last, 4),
                                    setting.data.unigram_entropy()));
  if (result.eval_loss) {
    text += entry("validation", fmt::format("{} nats after the last step; unigram entropy {:.4f}",
                                            fixed(*result.eval_loss, 4), setting.eval_data->unigram_entropy()));
  }
  text += entry("nvme", fmt::format("{} read, {} written", format_size(result.counters.nvme_read_bytes),
                                    format_size(result.counters.nvme_written_bytes)));
  text += entry("weights", "xxh3 " + result.weights_xxh3);
  if (!result.no_sample.empty()) return text + "\n" + entry("sample", "none: " + result.no_sample);
  text += "\nsample\n";
  for (const auto& line : lines_of(result.sample, kWidth - 4)) text += "  | " + line + "\n";
  return text;
}

json planned_by_name(const TierPlan& plan) {
  json names = json::object();
  for (const auto& one : plan.entries) names[one.name] = planned(plan, one.name);
  return names;
}

json row_of(const Setup& setup, std::string_view command) {
  return {
      {"version", SPILLWAY_VERSION},
      {"format_version", kReportFormatVersion},
      {"command", command},
      {"config", json::parse(to_json(setup.config))},
      {"assumed", setup.config.assumed},
      {"notes", setup.config.notes},
      {"activations", models::describe(models::decoder_chain(setup.model, setup.run), setup.run.activations)},
      {"params", setup.layout.parameter_count()},
      {"units", setup.layout.units().size()},
      {"machine", machine_json()}};
}

std::string list_of(json row) {
  return json::array({std::move(row)}).dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string json_report(const RunSetting& setting, const RunResult& result) {
  const Config& c = setting.setup.config;
  json tiers = json::object();
  for (const Tier tier : kTiers) tiers[std::string(name_of(tier))] = tier_json(setting, tier);
  json row = row_of(setting.setup, "train");
  const double rate = tokens_per_second(setting, result);
  row.update({{"data", setting.data.files()},
              {"data_tokens", setting.data.tokens()},
              {"steps", c.steps},
              {"tokens", c.steps * setting.setup.tokens_a_step()},
              {"epochs", epochs(setting)},
              {"loss_first", result.loss_first},
              {"loss_last", result.loss_last},
              {"eval_loss", result.eval_loss ? json(*result.eval_loss) : json()},
              {"unigram_entropy", setting.data.unigram_entropy()},
              {"seconds", result.seconds},
              {"tokens_per_s", rate},
              {"flops_per_s", rate * models::flops_per_token(setting.setup.model, c.sequence_length)},
              {"step_s", result.lanes.seconds},
              {"lane_s", lanes_json(result.lanes.busy)},
              {"exposed_s", lanes_json(result.lanes.exposed, result.lanes.other)},
              {"floor_s", result.floor.seconds},
              {"of_floor", result.floor.seconds / std::max(result.lanes.seconds, 1e-9)},
              {"bound", result.floor.bound},
              {"tiers", std::move(tiers)},
              {"io", setting.engine.io() ? io_json(*setting.engine.io()) : json()},
              {"nvme_read_bytes", result.counters.nvme_read_bytes},
              {"nvme_written_bytes", result.counters.nvme_written_bytes},
              {"nvme_copied_bytes", result.counters.nvme_copied_bytes},
              {"nvme_resubmissions", result.counters.nvme_resubmissions},
              {"skipped_steps", result.counters.skipped_steps},
              {"weights_xxh3", result.weights_xxh3},
              {"sample", result.no_sample.empty() ? json(result.sample) : json()},
              {"no_sample", result.no_sample.empty() ? json() : json(result.no_sample)}});
  return list_of(std::move(row));
}

}  // namespace spillway::cli
