#include "bench_step_report.h"

#include "../core/size.h"
#include "../cpu_adam/isa.h"
#include "../offload/plan.h"
#include "bench.h"
#include "bench_support.h"
#include "machine.h"
#include "report.h"
#include "step_measurement.h"
#include "text.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using nlohmann::json;

bool is_on_nvme(const Config& c) {
  return c.optimizer_tier == Tier::nvme || c.parameter_tier == Tier::nvme;
}

std::string waits_text(const Config& c) {
  if (c.delayed_update) return "a gradient is applied one step late";
  if (!updates_wait(c)) return "no clipping: an update begins when its own gradient has landed";
  if (c.gradient_clipping > 0)
    return fmt::format("clipped to norm {}: updates wait for all gradients", c.gradient_clipping);
  return "no clipping, but a check for finite gradients: updates wait for all of them";
}

/// "    read    1.234 s   95.0%  text"
std::string line(std::string_view name, double seconds, double whole, std::string_view text) {
  return fmt::format("  {:<22} {:>9.4f} s {:>8}  {}\n", name, seconds,
                     whole > 0 ? percent(seconds / whole) : std::string("-"), text);
}

std::string gb_per_s(double bytes, double seconds) {
  return seconds > 0 ? fmt::format("{:.2f} GB/s", 1e-9 * bytes / seconds) : std::string("-");
}

std::string floor_text(const Config& c) {
  const bool on_device = c.optimizer_tier == Tier::device;
  if (!updates_wait(c)) return on_device ? "max(compute + Adam, drive)" : "max(compute, Adam, drive)";
  return on_device ? "backward + max(forward + Adam, drive)" : "backward + max(forward, Adam, drive)";
}

std::string seconds_block(const StepTask& task, const StepFigures& f) {
  const Config& c = task.config;
  const double moved = f.bytes.read_per_step() + f.bytes.written_per_step();
  std::string text = fmt::format("\n{:<24} {:>11} {:>8}\n", "a step", "seconds", "of step");
  text +=
      line("step", f.step, f.step,
           fmt::format("median of {}, {} in a row each", plural(f.pairs, "block"), plural(task.block, "step")));
  text += line("floor", f.floor, f.step, floor_text(c));
  text += line("  compute", f.compute, f.step,
               fmt::format("{:.4f} forward, {:.4f} backward", f.forward, f.compute - f.forward));
  text += line("  Adam alone", f.adam, f.step,
               fmt::format("{:.2f} Gparam/s", 1e-9 * static_cast<double>(task.shape.parameters) / f.adam));
  if (is_on_nvme(c)) {
    text += line("  drive", f.drive, f.step,
                 fmt::format("{} at {}", format_size(std::llround(moved)), gb_per_s(moved, f.drive)));
  }
  text += line("first step", f.first_step, 0, "with its update, alone");
  text += fmt::format("\n  of floor: {}, spread {}", percent(f.of_floor.median), percent(f.of_floor.spread));
  if (f.control)
    text += fmt::format("; control: {}, spread {}", percent(f.control->median), percent(f.control->spread));
  return text + "\n";
}

std::string lanes_block(const StepFigures& f) {
  std::string text =
      fmt::format("\n{:<14} {:>9} {:>9} {:>17}\n", "lane", "busy s", "of step", "compute waited s");
  const LaneTimes& t = f.lanes;
  const auto row = [&](std::string_view name, const std::string& busy, const std::string& share,
                       double exposed) {
    text += fmt::format("  {:<12} {:>9} {:>9} {:>17.4f}\n", name, busy, share, exposed);
  };
  for (std::size_t i = 0; i < t.busy.size(); ++i) {
    if (t.busy[i] == 0 && t.exposed[i] == 0) continue;
    row(name_of(static_cast<Lane>(i)), fmt::format("{:.4f}", t.busy[i]),
        t.seconds > 0 ? percent(t.busy[i] / t.seconds) : "-", t.exposed[i]);
  }
  row("other", "", "", t.other);
  return text + fmt::format("  processors   {:>9.4f} {:>9}\n", f.cpu_seconds,
                            t.seconds > 0 ? percent(f.cpu_seconds / t.seconds) : "-");
}

double per_parameter(const StepTask& task, double bytes) {
  return bytes / static_cast<double>(task.shape.parameters);
}

struct MovedBytes {
  double read, written;  ///< of a step: the kernel's count where there is one
};
MovedBytes moved_bytes(const StepFigures& f) {
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, f.bytes.steps));
  if (!f.kernel_counts) return {f.bytes.read_per_step(), f.bytes.written_per_step()};
  return {static_cast<double>(f.bytes.kernel_read) / steps,
          static_cast<double>(f.bytes.kernel_written) / steps};
}

/// What bounds the step, and what would change that.
std::string advice(const StepTask& task, const StepFigures& f) {
  const Config& c = task.config;
  std::string bound, next;
  if (f.bound == "drive") {
    bound = "the drive";
    std::vector<std::string> ways;
    if (c.state_format == StateFormat::fp32) ways.emplace_back("--state-format bf16 or compact8 moves less");
    if (c.state_format == StateFormat::bf16) ways.emplace_back("--state-format compact8 moves less");
    if (c.optimizer_tier == Tier::nvme) ways.emplace_back("--resident-fraction keeps a share in host memory");
    ways.emplace_back("several --nvme-path share the work");
    ways.emplace_back("more computing for each step (--micro-batches) hides more");
    next = fmt::format("{}", fmt::join(ways, "; "));
  } else if (f.bound == "adam") {
    bound = "Adam";
    next =
        c.optimizer_tier == Tier::device ? "--offload-optimizer host computes it beside the device's work"
        : c.state_format != StateFormat::compact8
            ? "more --update-threads, or a narrower --state-format; spillway bench adam holds it against memory"
            : "more --update-threads; spillway bench adam holds it against the speed of memory";
  } else {
    bound = "compute";
    next = f.of_floor.median > 0.95
               ? "nothing of the offload shows; a lower tier would cost nothing as long as "
                 "this stays so"
               : "the lanes above say what compute waited for";
  }
  constexpr double kGood = 0.9;
  if (f.of_floor.median < kGood) {
    const auto& exposed = f.lanes.exposed;
    const auto most = std::max_element(exposed.begin(), exposed.end());
    if (*most > f.lanes.other) {
      const std::string_view lane = name_of(static_cast<Lane>(most - exposed.begin()));
      next =
          fmt::format("compute waited {:.4f} s for {}; ", *most, lane) +
          (is_on_nvme(c) ? "spillway tune finds better settings for the drive, and --update-slots holds more "
                           "on its way; "
                         : "") +
          "--trace shows where; " + next;
    }
  }
  return entry("bound by", bound) + entry("next", next);
}

std::string noise_note(const StepFigures& f) {
  constexpr double kNoisy = 0.1;
  const double spread = std::max(f.of_floor.spread, f.control ? f.control->spread : 0);
  if (spread < kNoisy) return {};
  return entry("note", fmt::format("figures vary by {}: something else uses this machine or its drive, or the "
                                   "steps are short; more --pairs or --seconds say more",
                                   percent(spread)));
}

}  // namespace

std::string step_heading(const StepTask& task, const Engine& engine) {
  const Config& c = task.config;
  const Machine machine = this_machine();
  std::string text = fmt::format("spillway {}\n\n", SPILLWAY_VERSION);
  text += entry("machine", fmt::format("{}, {} of its processors available",
                                       machine.processor.empty() ? "unknown processor" : machine.processor,
                                       machine.processors));
  text += entry("model", fmt::format("{} parameters in {}, of which each computes for {:g} ms in a micro-batch",
                                     grouped(task.shape.parameters), plural(task.shape.units, "layer"),
                                     1e3 * task.shape.compute_seconds));
  text += entry("step", fmt::format("{}{}; {}", plural(c.accumulation, "micro-batch"),
                                    c.accumulation > 1 && c.accumulation_order == AccumulationOrder::layer
                                        ? ", together through each layer"
                                        : "",
                                    waits_text(c)));
  text += entry("optimizer",
                fmt::format("{}, state in {}", optimizer_type(c.optimizer.optimizer), name_of(c.state_format)));
  text += entry("places",
                fmt::format("optimizer {}, parameters {}", place(c.optimizer_tier, c.optimizer_nvme_paths),
                            place(c.parameter_tier, c.parameter_nvme_paths)));
  const Room room(engine.layout(), c);
  if (const auto io = engine.io()) {
    text += entry("drive", io_text(c, *io));
    text += entry("slots", fmt::format("{} of up to {} parameters under way in the update", room.update_slots,
                                       grouped(kChunkElements)));
  }
  text +=
      entry("memory", fmt::format("{} of the host, {} of the device", format_size(engine.plan().host.total()),
                                  format_size(engine.plan().device.total())));
  text += entry("threads", fmt::format("device {}, update {} ({})", c.device_threads, c.update_threads,
                                       cpu_adam::name_of(cpu_adam::chosen_isa())));
  if (task.copy_bandwidth > 0) {
    text += entry("bus",
                  fmt::format("{:.3g} GB/s in each direction, as was asked for", 1e-9 * task.copy_bandwidth));
  }
  std::vector<std::string> notes = c.notes;
  if (const auto io = engine.io()) notes.insert(notes.end(), io->notes.begin(), io->notes.end());
  for (const auto& one : c.assumed) {
    if (one.rfind("--", 0) == 0) text += entry("assumed", one);
  }
  for (const auto& note : notes) text += entry("note", note);
  return text;
}

std::string step_text(const StepTask& task, const StepFigures& f) {
  const MovedBytes moved = moved_bytes(f);
  std::string text = seconds_block(task, f) + lanes_block(f) + "\n";
  if (is_on_nvme(task.config)) {
    text += entry(
        "nvme",
        fmt::format("{:.3f} bytes read and {:.3f} written for a parameter and step{}; the format "
                    "has {:.3f} and {:.3f}",
                    per_parameter(task, moved.read), per_parameter(task, moved.written),
                    f.kernel_counts ? ", by the kernel's count" : " (the kernel does not count them here)",
                    per_parameter(task, f.expected_read), per_parameter(task, f.expected_written)));
  }
  text += entry("memory",
                fmt::format("host {} of {} planned, device {} of {}", format_size(f.host_peak),
                            format_size(f.host_plan), format_size(f.device_peak), format_size(f.device_plan)));
  text += entry("verified",
                fmt::format("xxh3 {}: the weights of {} parameters after {} are those of everything on "
                            "the device",
                            f.weights_xxh3, grouped(f.verified_parameters), plural(f.verified_steps, "step")));
  return text + noise_note(f) + advice(task, f);
}

json step_row(const StepTask& task, const StepFigures& f) {
  const Config& c = task.config;
  const MovedBytes moved = moved_bytes(f);
  json row = bench_row("bench step");
  row.update(
      {{"params", task.shape.parameters},
       {"layers", task.shape.units},
       {"compute_ms", 1e3 * task.shape.compute_seconds},
       {"micro_batches", c.accumulation},
       {"accumulation_order", c.accumulation_order == AccumulationOrder::layer ? "layer" : "micro_batch"},
       {"state_format", name_of(c.state_format)},
       {"clip", c.gradient_clipping},
       {"updates_wait", updates_wait(c)},
       {"optimizer_tier", name_of(c.optimizer_tier)},
       {"parameter_tier", name_of(c.parameter_tier)},
       {"device_bandwidth", task.copy_bandwidth > 0 ? json(task.copy_bandwidth) : json()},
       {"read_bytes_per_param", per_parameter(task, moved.read)},
       {"written_bytes_per_param", per_parameter(task, moved.written)},
       {"format_read_bytes_per_param", per_parameter(task, f.expected_read)},
       {"format_written_bytes_per_param", per_parameter(task, f.expected_written)},
       {"counted_by_kernel", f.kernel_counts},
       {"step_s", f.step},
       {"lane_s", lanes_json(f.lanes.busy)},
       {"floor_s", f.floor},
       {"of_floor", f.of_floor.median},
       {"spread", f.of_floor.spread},
       {"control", f.control ? json(f.control->median) : json()},
       {"control_spread", f.control ? json(f.control->spread) : json()},
       {"bound", f.bound},
       {"exposed_s", lanes_json(f.lanes.exposed, f.lanes.other)},
       {"first_step_s", f.first_step},
       {"drive_s", f.drive},
       {"adam_s", f.adam},
       {"compute_s", f.compute},
       {"forward_s", f.forward},
       {"cpu_s", f.cpu_seconds},
       {"pairs", f.pairs},
       {"steps", task.block},
       {"seconds", task.seconds},
       {"host_peak_bytes", f.host_peak},
       {"host_planned_bytes", f.host_plan},
       {"device_peak_bytes", f.device_peak},
       {"device_planned_bytes", f.device_plan},
       {"verified", true},
       {"verified_params", f.verified_parameters},
       {"verified_steps", f.verified_steps},
       {"weights_xxh3", f.weights_xxh3},
       {"io", f.io ? io_json(*f.io) : json()},
       {"assumed", c.assumed},
       {"notes", c.notes},
       {"config", json::parse(to_json(c))}});
  return row;
}

}  // namespace spillway::cli
