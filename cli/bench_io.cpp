#include "bench_io.h"

#include "../core/error.h"
#include "../core/size.h"
#include "bench.h"
#include "bench_support.h"
#include "io_jobs.h"
#include "io_setting.h"
#include "machine.h"
#include "options.h"
#include "output_file.h"
#include "report.h"
#include "terminal_line.h"
#include "text.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <sys/utsname.h>

namespace spillway::cli {
namespace {

using aio::Sample;
using aio::Traffic;
using nlohmann::json;

std::string kernel() {
  utsname name{};
  return uname(&name) == 0 ? name.release : "";
}

std::string heading(const IoSetting& setting) {
  const Machine machine = this_machine();
  const IoTask& task = setting.task;
  std::string text = fmt::format("spillway {}\n\n", SPILLWAY_VERSION);
  text += entry("machine", fmt::format("{}, {} of its processors available, {}",
                                       machine.processor.empty() ? "unknown processor" : machine.processor,
                                       machine.processors, machine.system));
  text +=
      entry("path", fmt::format("{}{}", fmt::join(task.paths, ", "), task.paths.size() > 1 ? ": striped" : ""));
  text += entry("drive", setting.drive);
  text += entry("file system", setting.file_system);
  return text;
}

std::string engine_text(const aio::RingReport& r) {
  std::vector<std::string> has;
  if (r.single_issuer) has.emplace_back("single issuer");
  if (r.deferred_task_run) has.emplace_back("deferred task run");
  if (r.sqpoll) has.emplace_back("SQPOLL");
  if (r.iopoll) has.emplace_back("IOPOLL");
  if (r.registered_files) has.emplace_back("registered files");
  if (r.registered_memory) has.emplace_back("registered memory");
  return fmt::format("{}{}{}", name_of(r.engine), has.empty() ? "" : ": ", fmt::join(has, ", "));
}

/// What is known once the volumes are there.
std::string second_heading(const IoSetting& setting, const IoReady& ready) {
  const IoTask& task = setting.task;
  std::string text = entry(
      "volume", fmt::format("{}{}, {}", format_size(ready.bytes),
                            setting.jobs > 1 ? fmt::format(" for each of {} processes", setting.jobs) : "",
                            task.existing ? "in place of what the file held" : "in files without a name"));
  text += entry("transfers", fmt::format("of {}, in blocks of {}, {} in flight, {}",
                                         format_size(std::max(task.transfer_bytes, task.setting.block_bytes)),
                                         format_size(task.setting.block_bytes), task.setting.depth,
                                         task.file.direct ? "direct" : "through the page cache"));
  text += entry("engine", engine_text(ready.report));
  for (const auto& note : setting.notes) text += entry("note", note);
  for (const auto& note : ready.report.notes) text += entry("note", note);
  for (const auto& note : ready.notes) text += entry("note", note);
  return text;
}

/// A sample in the units of the table.
struct Figures {
  explicit Figures(const Sample& s, double asked_seconds)
      : gb_per_s(1e-9 * s.bytes_per_s()),
        read_gb_per_s(1e-9 * static_cast<double>(s.read_bytes) / s.seconds),
        write_gb_per_s(1e-9 * static_cast<double>(s.written_bytes) / s.seconds),
        iops(static_cast<double>(s.operations) / s.seconds),
        p50_us(1e6 * s.latency.quantile(0.5)),
        p99_us(1e6 * s.latency.quantile(0.99)),
        p999_us(1e6 * s.latency.quantile(0.999)),
        cpu_s_per_gb(s.cpu_seconds / (1e-9 * static_cast<double>(s.read_bytes + s.written_bytes))),
        spread(spread_of(s, asked_seconds)) {}

  double gb_per_s, read_gb_per_s, write_gb_per_s, iops, p50_us, p99_us, p999_us, cpu_s_per_gb;
  double spread;  ///< negative: too short to tell
};

constexpr const char* kRow = "{:<8} {:>7} {:>9} {:>10} {:>9} {:>8} {:>8} {:>8} {:>8} {:>7} {:>8}\n";

std::string table_heading() {
  return "\n" + fmt::format(fmt::runtime(kRow), "mode", "GB/s", "read GB/s", "write GB/s", "IOPS", "p50 us",
                            "p99 us", "p99.9 us", "CPU s/GB", "spread", "verified");
}

std::string table_row(std::string_view name, const Figures& f) {
  return fmt::format(
      fmt::runtime(kRow), name, fmt::format("{:.3f}", f.gb_per_s), fmt::format("{:.3f}", f.read_gb_per_s),
      fmt::format("{:.3f}", f.write_gb_per_s), fmt::format("{:.0f}", f.iops), fmt::format("{:.0f}", f.p50_us),
      fmt::format("{:.0f}", f.p99_us), fmt::format("{:.0f}", f.p999_us), fmt::format("{:.4f}", f.cpu_s_per_gb),
      f.spread < 0 ? "-" : fmt::format("{:.1f}%", 100 * f.spread), "yes");
}

/// `job` 0: all of them.
json row_of(const IoSetting& setting, const IoReady& ready, Traffic mode, int job, const Sample& sample) {
  const IoTask& task = setting.task;
  const Figures f(sample, setting.seconds);
  json row = bench_row("bench io");
  row.update({{"mode", name_of_mode(mode)},
              {"engine", name_of(ready.report.engine)},
              {"block_size", task.setting.block_bytes},
              {"queue_depth", task.setting.depth},
              {"jobs", setting.jobs},
              {"job", job == 0 ? json() : json(job)},
              {"direct", task.file.direct},
              {"gb_per_s", f.gb_per_s},
              {"read_gb_per_s", f.read_gb_per_s},
              {"write_gb_per_s", f.write_gb_per_s},
              {"iops", f.iops},
              {"p50_us", f.p50_us},
              {"p99_us", f.p99_us},
              {"p999_us", f.p999_us},
              {"cpu_s_per_gb", f.cpu_s_per_gb},
              {"verified", true},
              {"spread", f.spread < 0 ? json() : json(f.spread)},
              {"drive", setting.drive},
              {"filesystem", setting.file_system},
              {"kernel", kernel()},
              {"path", fmt::format("{}", fmt::join(task.paths, ", "))},
              {"size", ready.bytes},
              {"transfer_size", task.transfer_bytes},
              {"seconds", setting.seconds},
              {"timed_seconds", sample.seconds},
              {"read_bytes", sample.read_bytes},
              {"written_bytes", sample.written_bytes},
              {"cpu_seconds", sample.cpu_seconds},
              {"engine_asked", name_of(task.setting.engine)},
              {"single_issuer", ready.report.single_issuer},
              {"deferred_task_run", ready.report.deferred_task_run},
              {"sqpoll", ready.report.sqpoll},
              {"iopoll", ready.report.iopoll},
              {"registered_files", ready.report.registered_files},
              {"registered_memory", ready.report.registered_memory}});
  return row;
}

constexpr const char* kClosing =
    "\nEach mode moved one volume from begin to end and again, in order; mixed reads one half of it while it\n"
    "writes the other. All that was read last and a sample of what was written was held against what belongs\n"
    "there, after the time was taken. ";

/// What to think of the figures where they vary.
std::string noise_note(double spread) {
  constexpr double kNoisy = 0.15;
  if (spread < kNoisy) return {};
  return fmt::format(
      "\nnote: the speed varied by {:.0f}% within a run: something else uses this drive, or it has a cache "
      "that\n"
      "fills. More --seconds say more, and two settings are best compared by turns, as spillway tune does.\n",
      100 * spread);
}

constexpr const char* kFooter =
    "A volume is reserved in a file without a name, which is gone however the program ends, and written once.\n"
    "Then it is read, written and both, through the queue that a run's optimizer states go through.\n\n"
    "Columns\n"
    "  GB/s        10^9 bytes moved in a second, from the first start to the last completion\n"
    "  read, write GB/s   of those, what was read and what was written\n"
    "  IOPS        blocks in a second\n"
    "  p50, p99, p99.9 us   a block's time from its start to its completion, in millionths of a second, that\n"
    "              so many percent of them kept within\n"
    "  CPU s/GB    processor seconds for 10^9 bytes, user and system, the kernel's workers included\n"
    "  spread      (75th percentile - 25th percentile) / median of the speed in quarters of a second\n"
    "  verified    every word that was looked at is what belongs there; else the program ends with an error\n"
    "With --jobs, a row for all of them together and one for each.\n\n"
    "Examples\n"
    "  spillway bench io --path /mnt/nvme\n"
    "      reading, writing and both, with the settings that a run has by default\n"
    "  spillway bench io --path /mnt/a --path /mnt/b --mode write --block-size 4M --queue-depth 16\n"
    "      two drives as one\n"
    "  spillway bench io --path /mnt/nvme --jobs 4 --json io.json\n"
    "      as four ranks of a run would use the drive\n"
    "  spillway bench io --path /dev/shm --direct on\n"
    "      what the software itself costs";

}  // namespace

CLI::App* add_bench_io(CLI::App& bench, IoBenchOptions& options) {
  CLI::App* io = bench.add_subcommand("io", "Reading and writing on the drives that a run would swap to");
  io->get_formatter()->column_width(30);
  io->add_option(
        "--path", options.paths,
        "A directory on the drive; several times: striped over them. Also a file or block device, with "
        "--overwrite")
      ->allow_extra_args(false)
      ->option_text("DIR");
  io->add_option("--size", options.size,
                 "Bytes of the volume, for each job, at most half of what is free (1G, or less)")
      ->option_text("S");
  io->add_option("--block-size", options.block_size, "Bytes of one operation")->option_text("S (1M)");
  io->add_option("--queue-depth", options.queue_depth,
                 "Operations in flight, over all paths together (a run's queue_depth is for each path)")
      ->option_text("N (32)");
  io->add_option("--jobs", options.jobs, "Processes at once, each with a volume of its own, as ranks are")
      ->option_text("N (1)");
  io->add_option("--mode", options.modes, "read, write or mixed; several with commas (all)")
      ->delimiter(',')
      ->option_text("MODE,...");
  io->add_option("--engine", options.engine, "auto, io_uring or posix, a pool of threads")
      ->option_text("NAME (auto)");
  io->add_option(
        "--direct", options.direct,
        "on: past the page cache; given explicitly, memory file systems are accepted too. off: through "
        "it")
      ->option_text("on|off (on)");
  io->add_option("--seconds", options.seconds, "Time for each mode")->option_text("S (5)");
  io->add_option("--transfer-size", options.transfer_size,
                 "What is handed to the queue at once, which cuts it into blocks")
      ->option_text("S (4M)");
  io->add_flag("--sqpoll", options.sqpoll, "A thread of the kernel takes submissions, where it may");
  io->add_flag("--iopoll", options.iopoll, "Completions are polled for, where the drive can");
  io->add_flag("--overwrite", options.overwrite, "A file or device named by --path may lose its contents");
  io->add_option("--json", options.json, "The rows with all settings, as JSON")->option_text("FILE");
  finish_options(*io, {"--path", "--size", "--block-size", "--queue-depth", "--jobs", "--mode", "--engine",
                       "--direct", "--seconds", "--transfer-size", "--json"});
  io->footer(kFooter);
  return io;
}

void bench_io(const IoBenchOptions& options) {
  const IoSetting setting = settle(options);
  const OutputFile output(options.json, "--json");
  if (setting.task.existing) {
    for (const auto& path : setting.task.paths) output.check_apart_from("the file that is measured", path);
  }
  IoJobs jobs(setting.task, setting.jobs);  // before anything is said, so that a refusal stands alone
  TerminalLine line;
  const IoReady ready = jobs.prepare(
      [&](double done) { line.show_sometimes(fmt::format("writing the volume once: {:.0f}%", 100 * done)); });
  line.clear();
  say(heading(setting) + second_heading(setting, ready) + table_heading());
  flush();

  json rows = json::array();
  double most_spread = 0;
  for (const Traffic mode : setting.modes) {
    const std::string name(name_of_mode(mode));
    const std::vector<Sample> samples = jobs.measure(mode, setting.seconds, [&](double done) {
      line.show_sometimes(fmt::format("{}: {:.0f}%", name, 100 * done));
    });
    line.show(name + ": verifying");
    jobs.verify();
    line.clear();
    const Sample all = in_all(samples);
    const Figures figures(all, setting.seconds);
    say(table_row(name, figures));
    rows.push_back(row_of(setting, ready, mode, 0, all));
    for (std::size_t job = 0; setting.jobs > 1 && job < samples.size(); ++job) {
      say(table_row(fmt::format("  job {}", job + 1), Figures(samples[job], setting.seconds)));
      rows.push_back(row_of(setting, ready, mode, static_cast<int>(job + 1), samples[job]));
    }
    flush();
    most_spread = std::max(most_spread, figures.spread);
  }
  say(kClosing);
  say(fmt::format("Written in all: {:.3g} TB.\n", 1e-12 * static_cast<double>(jobs.written_bytes())) +
      noise_note(most_spread));
  flush();
  write_rows(output, rows);
}

}  // namespace spillway::cli
