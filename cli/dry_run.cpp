#include "dry_run.h"

#include "../core/error.h"
#include "../core/size.h"
#include "../offload/traffic.h"
#include "output_file.h"
#include "report.h"
#include "text.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using nlohmann::json;

constexpr double kTerabyte = 1e12;

const Layout::Unit& largest_unit(const Layout& layout) {
  return *std::max_element(layout.units().begin(), layout.units().end(),
                           [](const auto& a, const auto& b) { return a.elements < b.elements; });
}

double written_tb(const StepTraffic& traffic) {
  return 1000 * static_cast<double>(traffic.nvme_written) / kTerabyte;
}

std::string cheapest_text(const Setup& setup, const std::optional<Config>& cheapest) {
  if (!cheapest) return "no placement fits";
  const StepTraffic traffic = step_traffic(setup.layout, *cheapest);
  const bool chosen = cheapest->optimizer_tier == setup.config.optimizer_tier &&
                      cheapest->parameter_tier == setup.config.parameter_tier &&
                      cheapest->state_format == setup.config.state_format;
  const bool same_format = cheapest->state_format == setup.config.state_format;  // else the flags name it
  return fmt::format("{}{}{}: {} a step over nvme, {} between host and device", flags_of(setup, *cheapest),
                     same_format ? fmt::format(" --state-format {}", name_of(cheapest->state_format)) : "",
                     chosen ? ", which is the one above" : "",
                     format_size(traffic.nvme_written + traffic.nvme_read), format_size(traffic.copied));
}

json report(const Setup& setup, const Plan& plan, const StepTraffic& traffic, bool fits,
            const std::optional<Config>& cheapest) {
  const std::int64_t drives =
      !setup.limits.is_one_drive && setup.limits.optimizer_drive >= 0
          ? setup.limits.optimizer_drive + std::max<std::int64_t>(setup.limits.parameter_drive, 0)
          : setup.limits.parameter_drive;
  json tiers = json::object();
  for (const auto& [tier, limit] : {std::pair{Tier::device, setup.limits.device},
                                    std::pair{Tier::host, setup.limits.host}, std::pair{Tier::nvme, drives}}) {
    tiers[std::string(name_of(tier))] = {{"budget_bytes", limit < 0 ? json() : json(limit)},
                                         {"planned_bytes", plan.of(tier).total()},
                                         {"planned_by_name", planned_by_name(plan.of(tier))}};
  }
  const Layout::Unit& largest = largest_unit(setup.layout);
  json row = row_of(setup, "train --dry-run");
  row.update({{"fits", fits},
              {"tiers", std::move(tiers)},
              {"largest_unit", {{"name", largest.name}, {"elements", largest.elements}}},
              {"nvme_written_bytes_a_step", traffic.nvme_written},
              {"nvme_written_tb_a_1000_steps", written_tb(traffic)},
              {"nvme_read_bytes_a_step", traffic.nvme_read},
              {"cheapest", json()}});
  if (cheapest) {
    row["cheapest"] = {{"offload_parameters", name_of(cheapest->parameter_tier)},
                       {"offload_optimizer", name_of(cheapest->optimizer_tier)},
                       {"state_format", name_of(cheapest->state_format)}};
  }
  return row;
}

}  // namespace

void dry_run(const Setup& setup, const OutputFile& output) {
  const Plan plan = make_plan(setup.layout, setup.config);
  const StepTraffic traffic = step_traffic(setup.layout, setup.config);
  const auto cheapest = cheapest_that_fits(setup);
  const Layout::Unit& largest = largest_unit(setup.layout);

  std::string text = description(setup, nullptr, nullptr) + plan_block(setup, plan);
  text += entry("largest",
                fmt::format("unit {} with {} elements, {} in {}", largest.name, grouped(largest.elements),
                            format_size(largest.elements * size_of(setup.config.precision)),
                            name_of(setup.config.precision)));
  text += entry(
      "nvme", fmt::format("{} ({} bytes) written a step, {:.3g} TB for every 1,000 steps; about {} read a step",
                          format_size(traffic.nvme_written), grouped(traffic.nvme_written), written_tb(traffic),
                          format_size(traffic.nvme_read)));
  text += entry("cheapest", cheapest_text(setup, cheapest));
  text += entry("fits", fits(plan, setup.limits) ? "yes; nothing was trained (--dry-run)" : "no");
  say(text);
  flush();
  if (output.wanted()) {
    output.replace_with(list_of(report(setup, plan, traffic, fits(plan, setup.limits), cheapest)));
  }
  check_fits(setup);
}

}  // namespace spillway::cli
