#include "tune_report.h"

#include "../core/size.h"
#include "text.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

/// Of the configuration that is written.
constexpr int kTunedFormatVersion = 1;

using aio::TuneEstimate;
using aio::TuneResult;
using aio::TuneSetting;
using nlohmann::json;

constexpr double kGB = 1e9;

std::string rate(double bytes_per_s) {
  return fmt::format("{:.2f} GB/s", bytes_per_s / kGB);
}

std::string percent(double share) {
  return fmt::format("{:.0f}%", 100 * share);
}

std::string overlap_text(bool overlap) {
  return overlap ? "reads and writes at the same time" : "reads and writes by turns";
}

std::string chosen_sentence(const TuneRun& run) {
  const TuneResult& r = run.result;
  const TuneEstimate* const chosen = r.find(r.chosen);
  const auto paths = static_cast<std::int64_t>(run.paths.size());
  std::string text = fmt::format(
      "{}: blocks of {}, {} at a time{} ({} under way), {}, {}", r.complete ? "Chosen" : "Best so far",
      format_size(r.chosen.block_bytes), r.chosen.depth, paths > 1 ? " in each directory" : "",
      format_size(r.chosen.memory_bytes() * paths), name_of(r.chosen.engine), overlap_text(r.chosen.overlap));
  if (chosen != nullptr) {
    text += fmt::format(
        ". {} read and written (95%: {:.2f} to {:.2f}), {} of the best, which was {}; {:.2f} CPU "
        "seconds a GB",
        rate(chosen->bytes_per_s), chosen->low / kGB, chosen->high / kGB, percent(chosen->of_best),
        setting_text(r.best), chosen->cpu_s_per_gb);
  }
  return text + ".";
}

/// On a full duplex drive the ratio is near 2.
constexpr double kSurelyHalf = 1.2;

std::string duplex_sentence(const TuneRun& run) {
  const aio::DuplexFinding& duplex = run.result.duplex;
  if (duplex.verdict == aio::OverlapVerdict::unknown) return "Whether overlap helps was not found out.";
  const std::string ratio = fmt::format("{:.2f} times the bytes a second (95%: {:.2f} to {:.2f})",
                                        duplex.ratio.value, duplex.ratio.low, duplex.ratio.high);
  switch (duplex.verdict) {
    case aio::OverlapVerdict::helps:
      return fmt::format(
          "Reads and writes at the same time help: {} of reads and writes by turns, so the drive is {} "
          "duplex.",
          ratio, duplex.ratio.value > 1.5 ? "full" : "partly full");
    case aio::OverlapVerdict::hurts:
      return fmt::format("Reads and writes at the same time hurt: {} of reads and writes by turns.", ratio);
    default:
      // Only an interval that is narrow enough says what the drive is.
      return duplex.ratio.high < kSurelyHalf && duplex.ratio.low > 1 / kSurelyHalf
                 ? fmt::format(
                       "Reads and writes at the same time make no difference: {} of reads and writes by turns, "
                       "so the drive is half duplex.",
                       ratio)
                 : fmt::format(
                       "Whether reads and writes at the same time help is not settled: {} of reads and writes "
                       "by turns.",
                       ratio);
  }
}

std::string sustained_sentence(const TuneRun& run) {
  const aio::SustainedFinding& s = run.result.sustained;
  if (s.written_bytes == 0) return "Sustained writes were not looked at.";
  const std::string thirds =
      fmt::format("{} in the first third of {} written without a pause, {} in the last",
                  rate(s.first_bytes_per_s), format_size(s.written_bytes), rate(s.last_bytes_per_s));
  if (s.fell) {
    return fmt::format(
        "Sustained writes fall to {} after {}{}: as where a cache of the drive is full ({}). What is chosen "
        "was measured {}.",
        percent(s.fell_to), s.later ? "more than " : "", format_size(s.bytes_before_fall), thirds,
        s.later ? "partly before" : "after that");
  }
  const bool slower = s.last_bytes_per_s < 0.8 * s.first_bytes_per_s;
  return fmt::format("Sustained writes did not fall against reads: {}{}.", thirds,
                     slower ? ", and reads slowed down as well" : "");
}

std::string noise_sentence(const TuneRun& run) {
  const TuneResult& r = run.result;
  return fmt::format(
      "Noise: the same trial twice in a row differs by {} (quartiles); {} of {} trials were put aside, "
      "because the drive changed its speed meanwhile.",
      percent(r.noise), r.put_aside, r.trials);
}

std::string wear_sentence(const TuneRun& run) {
  const double written = static_cast<double>(run.result.written_bytes + run.written_before);
  return fmt::format("The search took {} and wrote {:.4f} TB.", duration(run.result.seconds), written * 1e-12);
}

json list_or_one(const std::vector<std::string>& paths) {
  return paths.size() == 1 ? json(paths.front()) : json(paths);
}

}  // namespace

std::string setting_text(const TuneSetting& setting) {
  return fmt::format("{} x {}", format_size(setting.block_bytes), setting.depth);
}

std::string tune_table(const TuneRun& run) {
  const TuneResult& r = run.result;
  std::string text = fmt::format("GB/s by depth (rows) and block size, {}, {}\n", name_of(r.chosen.engine),
                                 overlap_text(r.chosen.overlap));
  text += fmt::format("{:>6}", "");
  for (const std::int64_t block : run.options.block_sizes) text += fmt::format(" {:>8} ", format_size(block));
  text += "\n";
  for (const unsigned depth : run.options.depths) {
    text += fmt::format("{:>6}", depth);
    for (const std::int64_t block : run.options.block_sizes) {
      TuneSetting setting = r.chosen;
      setting.block_bytes = block;
      setting.depth = depth;
      const TuneEstimate* const one = r.find(setting);
      text += fmt::format(" {:>8}{}", one == nullptr ? "-" : fmt::format("{:.2f}", one->bytes_per_s / kGB),
                          setting == r.chosen ? '*' : ' ');
    }
    text += "\n";
  }
  return text +
         fmt::format("* {}   - not tried: more than {} under way, or no time\n",
                     r.complete ? "chosen" : "the best so far",
                     format_size(run.options.most_memory_bytes * static_cast<std::int64_t>(run.paths.size())));
}

std::vector<std::string> tune_findings(const TuneRun& run) {
  std::vector<std::string> all;
  const TuneResult& r = run.result;
  if (r.estimates.empty()) {
    all.push_back("Nothing is known yet: no setting was measured.");
  } else {
    all.push_back(chosen_sentence(run));
    if (r.undecided > 0) {
      all.push_back(fmt::format(
          "Not settled: {} cheaper {} may be as fast, which the noise hides. More --seconds would tell.",
          r.undecided, r.undecided == 1 ? "setting" : "settings"));
    }
  }
  all.push_back(duplex_sentence(run));
  all.push_back(sustained_sentence(run));
  all.push_back(noise_sentence(run));
  all.push_back(wear_sentence(run));
  return all;
}

std::string tuned_configuration(const TuneRun& run) {
  using Ordered = nlohmann::ordered_json;
  const TuneSetting& chosen = run.result.chosen;
  Ordered spillway{{"io_engine", name_of(chosen.engine)}};
  if (run.paths.size() > 1) {
    Ordered bandwidth = Ordered::array();
    for (const double one : run.bandwidth) bandwidth.push_back(std::round(one / kGB * 1000) / 1000);
    spillway["nvme_bandwidth"] = bandwidth;
  }
  const Ordered places{{"nvme_path", Ordered(list_or_one(run.paths))}};
  // Readers of the configuration pass by keys that begin with an underscore.
  const Ordered all{{"_format_version", kTunedFormatVersion},
                    {"aio",
                     {{"block_size", chosen.block_bytes},
                      {"queue_depth", chosen.depth},
                      {"intra_op_parallelism", 1},
                      {"single_submit", false},
                      {"overlap_events", true}}},
                    {"zero_optimization", {{"offload_optimizer", places}, {"offload_param", places}}},
                    {"spillway", spillway}};
  return all.dump(2, ' ', false, Ordered::error_handler_t::replace) + "\n";
}

}  // namespace spillway::cli
