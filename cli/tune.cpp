#include "tune.h"

#include "../aio/file.h"
#include "../core/error.h"
#include "../core/machine.h"
#include "../core/size.h"
#include "bench.h"
#include "bench_support.h"
#include "interrupt.h"
#include "io_jobs.h"
#include "io_setting.h"
#include "machine.h"
#include "options.h"
#include "output_file.h"
#include "report.h"
#include "terminal_line.h"
#include "text.h"
#include "tune_picture.h"
#include "tune_report.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using aio::IoEngine;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr double kLeastSeconds = 1, kMostSeconds = 3600;
constexpr double kForPaths = 0.1;                               ///< of the time, where there are several
constexpr double kLeastSearch = 0.5;                            ///< of the time, whatever the preparation took
constexpr std::int64_t kTransferBytes = std::int64_t{4} << 20;  ///< about what a run moves at once
constexpr std::int64_t kMostUnderWay = std::int64_t{128} << 20;
constexpr std::int64_t kStripe = std::int64_t{1} << 20;
constexpr std::size_t kTextWidth = 100;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The engines that can serve here; `note` says why one cannot.
std::vector<IoEngine> engines_here(std::string& note) {
  try {
    aio::make_io_uring({.depth = 1, .engine = IoEngine::io_uring});
    return {IoEngine::io_uring, IoEngine::posix};
  } catch (const Error& error) {
    note = fmt::format("only posix is tried: {}", error.what());
    return {IoEngine::posix};
  }
}

/// The bar, the stage and the time left, on one line.
class TuneProgressLine {
 public:
  TuneProgressLine(Clock::time_point begin, double seconds) : begin_(begin), seconds_(seconds) {}

  void show(std::string_view stage, const std::string& figure = {}) {
    const double done = std::clamp(seconds_since(begin_) / seconds_, 0.0, 1.0);
    constexpr double kBar = 20;
    const auto full = static_cast<std::size_t>(kBar * done);
    std::vector<Field> fields{{fmt::format("[{:.<20}]", std::string(full, '#')), 3},
                              {duration(std::max(0.0, seconds_ - seconds_since(begin_))) + " left", 4},
                              {std::string(stage), 2}};
    if (!figure.empty()) fields.push_back({figure, 1});
    line_.show_sometimes(fitting(std::move(fields), TerminalLine::width()));
  }
  TerminalLine& line() { return line_; }
  Clock::time_point begin() const { return begin_; }

 private:
  Clock::time_point begin_;
  double seconds_;
  TerminalLine line_;
};

/// As in core/config: what is tuned must be a configuration.
constexpr std::size_t kMostPaths = 32;

struct Settled {
  IoTask task;
  TuneRun run;
  std::vector<std::string> notes;
  double seconds = 0;
};

/// Everything that can be refused is refused here; nothing is written.
Settled settle_tune(const TuneCommand& command) {
  if (command.paths.empty())
    throw usage("--path is missing", "name a directory on the drive that a run would swap to");
  if (command.paths.size() > kMostPaths) {
    throw usage(
        fmt::format("--path: {} directories, and a run takes at most {}", command.paths.size(), kMostPaths),
        "name fewer");
  }
  if (!(command.seconds >= kLeastSeconds && command.seconds <= kMostSeconds)) {
    throw usage(
        fmt::format("--seconds: {} is not between {} and {}", command.seconds, kLeastSeconds, kMostSeconds),
        "the time for everything, such as 60");
  }
  Settled settled{.seconds = command.seconds};
  for (const auto& path : command.paths) {
    aio::File::create(path, aio::direct_io_alignment);  // what a run would be refused for
    std::error_code unknown;
    std::string absolute = std::filesystem::canonical(path, unknown).string();
    if (unknown) absolute = path;
    auto& all = settled.run.paths;
    if (std::find(all.begin(), all.end(), absolute) != all.end())
      throw usage(fmt::format("--path: {} is named twice", path), "name each drive once");
    all.push_back(std::move(absolute));
  }
  const auto paths = static_cast<std::int64_t>(command.paths.size());

  aio::TuneOptions& options = settled.run.options;
  // A setting of little memory: whether more fits is looked at below.
  IoSetting io = settle({.paths = command.paths,
                         .size = command.size,
                         .block_size = "64K",
                         .transfer_size = "4M",
                         .queue_depth = 1,
                         .jobs = command.jobs});
  settled.task = io.task;
  settled.task.transfer_bytes = kTransferBytes;
  settled.task.setting.engine = IoEngine::automatic;
  settled.task.first = aio::Traffic::read;
  settled.task.only_first = false;
  settled.run.bytes = settled.task.bytes;
  settled.run.drive = io.drive;
  settled.run.file_system = io.file_system;
  settled.run.jobs = command.jobs;
  settled.notes = std::move(io.notes);

  // Half of a volume is read while the other is written, and each holds twice what is under way.
  std::int64_t most = std::min(kMostUnderWay, settled.task.bytes / 4);
  if (const MachineMemory memory = machine_memory(); memory.total > 0)
    most = std::min(most, memory.available / 4 / command.jobs);
  options.most_memory_bytes = most / paths;
  if (options.most_memory_bytes < options.block_sizes.front()) {
    throw Error(
        ErrorKind::usage,
        fmt::format("a volume of {} has room for no more than {} under way, and the smallest block is {}",
                    format_size(settled.task.bytes), format_size(options.most_memory_bytes),
                    format_size(options.block_sizes.front())),
        {.hint = "give --size 16M or more"});
  }
  // A run cuts what it moves at the borders of stripes.
  if (paths > 1) std::erase_if(options.block_sizes, [](std::int64_t block) { return block > kStripe; });
  std::string note;
  options.engines = engines_here(note);
  if (!note.empty()) settled.notes.push_back(note);
  return settled;
}

std::string heading(const Settled& settled) {
  const TuneRun& run = settled.run;
  std::string text = fmt::format("spillway {}\n\n", SPILLWAY_VERSION);
  text += entry("drive", run.drive);
  text += entry("machine", this_machine().system);
  text += entry("volume", fmt::format("{}{} in {}", format_size(run.bytes),
                                      run.jobs > 1 ? fmt::format(" for each of {} jobs", run.jobs) : "",
                                      fmt::join(run.paths, ", ")));
  for (const auto& note : settled.notes) text += entry("note", note);
  return text;
}

/// Before the search had begun.
struct StoppedEarly {};

void prepare(IoJobs& jobs, TuneProgressLine& line, TuneRun& run, const StopRequest& stop) {
  const IoReady ready = jobs.prepare([&](double done) {
    if (stop.signal_number() != 0) throw StoppedEarly{};
    line.show("writing the volume once", fmt::format("{:.0f}%", 100 * done));
  });
  run.written_before += ready.bytes * run.jobs;
}

/// Each directory alone, before the volume over all of them is made.
void measure_paths(Settled& settled, TuneProgressLine& line, const StopRequest& stop) {
  TuneRun& run = settled.run;
  std::vector<std::unique_ptr<IoJobs>> alone;
  const auto paths = static_cast<std::int64_t>(run.paths.size());
  for (const auto& path : run.paths) {
    IoTask task = settled.task;
    task.paths = {path};
    task.bytes = settled.task.bytes / paths;
    alone.push_back(std::make_unique<IoJobs>(task, run.jobs));
  }
  for (auto& one : alone) prepare(*one, line, run, stop);
  const auto block = std::int64_t{1} << 20;
  const auto depth =
      static_cast<unsigned>(std::clamp<std::int64_t>(run.options.most_memory_bytes / block, 1, 32));
  const aio::MeasureSetting setting{.block_bytes = std::min(block, run.options.most_memory_bytes),
                                    .depth = depth};
  run.bandwidth =
      aio::compare_paths(alone.size(), kForPaths * settled.seconds, [&](std::size_t path, double seconds) {
        if (stop.signal_number() != 0) throw StoppedEarly{};
        const aio::Sample sample = in_all(alone[path]->measure(setting, aio::Traffic::mixed, seconds, {}));
        run.written_before += sample.written_bytes;
        line.show("each directory alone", fmt::format("{:.2f} GB/s", sample.bytes_per_s() * 1e-9));
        return sample;
      });
  // A drive that moved nothing in its slices would have no share at all.
  const double most = *std::max_element(run.bandwidth.begin(), run.bandwidth.end());
  for (double& one : run.bandwidth) one = std::max(one, most / 64);
}

std::string bandwidth_text(const TuneRun& run) {
  std::string text;
  for (std::size_t i = 0; i < run.paths.size(); ++i) {
    text +=
        entry(i == 0 ? "bandwidth" : "", fmt::format("{:.2f} GB/s {}", run.bandwidth[i] * 1e-9, run.paths[i]));
  }
  return text;
}

std::string findings_text(const TuneRun& run) {
  std::string text;
  for (const auto& finding : tune_findings(run)) {
    text += fmt::format("- {}\n", fmt::join(broken_at_spaces(finding, kTextWidth), "\n  "));
  }
  return text;
}

/// A row for each setting.
json tune_rows(const TuneRun& run) {
  const aio::TuneResult& r = run.result;
  json rows = json::array();
  for (const aio::TuneEstimate& one : r.estimates) {
    json row = bench_row("tune");
    row.update(
        {{"engine", name_of(one.setting.engine)},
         {"block_size", one.setting.block_bytes},
         {"queue_depth", one.setting.depth},
         {"overlap", one.setting.overlap},
         {"jobs", run.jobs},
         {"paths", fmt::format("{}", fmt::join(run.paths, ", "))},
         {"volume_bytes", run.bytes},
         {"gb_per_s", one.bytes_per_s * 1e-9},
         {"gb_per_s_low", one.low * 1e-9},
         {"gb_per_s_high", one.high * 1e-9},
         {"of_best", one.of_best},
         {"cpu_s_per_gb", one.cpu_s_per_gb},
         {"trials", one.trials},
         {"finalist", one.finalist},
         {"chosen", one.setting == r.chosen},
         {"overlap_ratio", r.duplex.ratio.value},
         {"overlap_ratio_low", r.duplex.ratio.low},
         {"overlap_ratio_high", r.duplex.ratio.high},
         {"overlap_verdict", name_of(r.duplex.verdict)},
         {"sustained_first_gb_per_s", r.sustained.first_bytes_per_s * 1e-9},
         {"sustained_last_gb_per_s", r.sustained.last_bytes_per_s * 1e-9},
         {"sustained_fell", r.sustained.fell},
         {"sustained_bytes_before_fall", r.sustained.fell ? json(r.sustained.bytes_before_fall) : json()},
         {"noise", r.noise},
         {"undecided", r.undecided},
         {"written_bytes", r.written_bytes + run.written_before},
         {"seconds", r.seconds},
         {"drive", run.drive},
         {"filesystem", run.file_system}});
    rows.push_back(std::move(row));
  }
  return rows;
}

/// Prints what came of it, and returns the exit status.
int search(Settled& settled, const OutputFile& out, const OutputFile& picture, const OutputFile& rows,
           TuneProgressLine& line, const StopRequest& stop) {
  TuneRun& run = settled.run;
  const Clock::time_point begin = line.begin();
  if (run.paths.size() > 1) {
    measure_paths(settled, line, stop);
    line.line().clear();
    say(bandwidth_text(run));
    flush();
    settled.task.bandwidth = run.bandwidth;
  }
  IoJobs jobs(settled.task, run.jobs);
  prepare(jobs, line, run, stop);

  const auto paths = static_cast<unsigned>(run.paths.size());
  run.options.seconds = std::max(settled.seconds - seconds_since(begin), kLeastSearch * settled.seconds);
  const aio::TuneDrive drive{
      .sample =
          [&](const aio::TuneSetting& setting, aio::Traffic traffic, double seconds) {
            const aio::MeasureSetting how{
                .block_bytes = setting.block_bytes, .depth = setting.depth * paths, .engine = setting.engine};
            return in_all(jobs.measure(how, traffic, seconds, {}));
          },
      .now = [&] { return seconds_since(begin); },
      .stopped = [&] { return stop.signal_number() != 0; },
      .progress =
          [&](const aio::TuneProgress& progress) {
            line.show(progress.stage, fmt::format("{:.2f} GB/s", progress.bytes_per_s * 1e-9));
          }};
  run.result = aio::tune(drive, run.options);
  const bool stopped = !run.result.complete;
  if (!stopped) jobs.verify();
  line.line().clear();

  std::string text = "\n";
  if (stopped) text += "incomplete: stopped before the end, no file is written\n\n";
  if (!run.result.estimates.empty()) text += tune_table(run) + "\n";
  text += findings_text(run);
  if (!run.result.estimates.empty()) text += "\n" + tuned_configuration(run);
  say(text);
  flush();
  if (stopped) return 128 + stop.signal_number();
  if (run.result.estimates.empty())
    throw Error(ErrorKind::io, "the drive moved nothing in the whole time", {.hint = "give more --seconds"});
  if (out.wanted()) {
    picture.replace_with(tune_picture(run));
    out.replace_with(tuned_configuration(run));
    say(fmt::format("\nwritten: {} and {}\n", out.path(), picture.path()));
    flush();
  }
  if (rows.wanted()) {
    rows.replace_with(tune_rows(run).dump(2, ' ', false, json::error_handler_t::replace) + "\n");
  }
  return 0;
}

constexpr const char* kFooter =
    "Many short trials of settings in a random order, each between two trials of one reference setting, so "
    "that\n"
    "what the drive does meanwhile cancels out; the best settings side by side at the end. Of all that are "
    "within\n"
    "2% of the best the cheapest is chosen: least memory under way, then least processor time, then io_uring.\n"
    "What it writes goes into files without a name, and is gone at the end. docs/tuning.md tells more.\n\n"
    "Examples\n"
    "  spillway tune --path /mnt/nvme --out tuned.json\n"
    "      a minute; writes tuned.json and the picture tuned.json.svg\n"
    "  spillway train --config tuned.json --model decoder-tiny --data corpus.txt --offload-optimizer nvme\n"
    "      trains with it\n"
    "  spillway tune --path /mnt/a --path /mnt/b --jobs 4 --seconds 120\n"
    "      two drives as one, as four ranks would use them";
}  // namespace

CLI::App* add_tune(CLI::App& program, TuneCommand& command) {
  CLI::App* tune = program.add_subcommand("tune", "Find the settings that suit the drives a run would swap to");
  tune->get_formatter()->column_width(30);
  tune->add_option("--path", command.paths, "A directory on the drive; several times: striped over them")
      ->option_text("DIR");
  tune->add_option("--size", command.size, "Of the volume that is read and written, for each job")
      ->option_text("SIZE (1G)");
  tune->add_option("--seconds", command.seconds, "Time for everything")->option_text("S (60)");
  tune->add_option("--jobs", command.jobs, "Processes at once, as the ranks of a run")->option_text("N (1)");
  tune->add_option("--out", command.out, "The configuration, and FILE.svg beside it with a picture")
      ->option_text("FILE");
  tune->add_option("--json", command.json, "What every setting is worth, as JSON")->option_text("FILE");
  finish_options(*tune, {"--path", "--size", "--seconds", "--jobs", "--out", "--json"});
  tune->footer(kFooter);
  return tune;
}

int tune(const TuneCommand& command) {
  const StopRequest stop;
  const Clock::time_point begin = Clock::now();
  const OutputFile out(command.out, "--out");
  const OutputFile picture(command.out.empty() ? "" : command.out + ".svg", "--out");
  const OutputFile rows(command.json, "--json");
  rows.check_apart_from(out);
  rows.check_apart_from(picture);
  Settled settled = settle_tune(command);
  say(heading(settled));
  flush();
  TuneProgressLine line(begin, settled.seconds);
  try {
    return search(settled, out, picture, rows, line, stop);
  } catch (const StoppedEarly&) {
    line.line().clear();
    say("\nincomplete: stopped before anything was measured, no file is written\n");
    flush();
    return 128 + stop.signal_number();
  }
}

}  // namespace spillway::cli
