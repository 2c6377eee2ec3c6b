#include "bench_adam.h"

#include "../core/error.h"
#include "../core/machine.h"
#include "../core/parallel.h"
#include "../core/size.h"
#include "../core/topology.h"
#include "../cpu_adam/record.h"
#include "adam_measurement.h"
#include "bench.h"
#include "bench_support.h"
#include "machine.h"
#include "options.h"
#include "output_file.h"
#include "report.h"
#include "terminal_line.h"
#include "text.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using cpu_adam::Isa;
using cpu_adam::RecordFormat;
using nlohmann::json;

constexpr StateFormat kFormats[] = {StateFormat::fp32, StateFormat::bf16, StateFormat::compact8};
constexpr Optimizer kOptimizers[] = {Optimizer::adamw, Optimizer::adam, Optimizer::lion, Optimizer::sgd};
constexpr DType kGradients[] = {DType::bf16, DType::fp16, DType::fp32};
constexpr int kMostThreads = 1024;

/// All settled.
struct AdamBench {
  std::int64_t parameters = 0;
  std::vector<AdamCase> cases;
  std::vector<std::string> left_out;  ///< formats that do not exist with the optimizer, and why
  int threads = 0;
  bool pinned = false;  ///< each thread on a processor of its own
  SliceLimits limits;
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

/// That of `choices` whose name was typed, in capitals or not.
template <class T, std::size_t N>
T chosen(std::string_view flag, std::string_view name, const T (&choices)[N]) {
  std::vector<std::string_view> names;
  for (const T choice : choices) {
    if (lower(name) == name_of(choice)) return choice;
    names.push_back(name_of(choice));
  }
  throw usage(fmt::format("{}: '{}' is not known", flag, name),
              fmt::format("use one of {}", fmt::join(names, ", ")));
}

Isa isa_of(const std::string& typed) {
  if (typed.empty()) return cpu_adam::chosen_isa();
  std::vector<std::string_view> names;
  for (const Isa isa : cpu_adam::supported_isas()) {
    if (name_of(isa) == typed) return isa;
    names.push_back(name_of(isa));
  }
  throw usage(fmt::format("--isa: this processor has no '{}'", typed),
              fmt::format("use one of {}", fmt::join(names, ", ")));
}

int threads_of(std::optional<int> typed) {
  if (!typed) return std::min(available_processors(), kMostThreads);
  if (*typed < 1 || *typed > kMostThreads) {
    throw usage(fmt::format("--threads: {} is not between 1 and {}", *typed, kMostThreads),
                fmt::format("this process may run on {} processors", available_processors()));
  }
  return *typed;
}

std::vector<AdamCase> cases_of(const AdamBenchOptions& options, std::vector<std::string>& left_out) {
  AdamCase one{.optimizer = chosen("--optimizer", options.optimizer, kOptimizers),
               .gradient = chosen("--gradient", options.gradient, kGradients),
               .isa = isa_of(options.isa)};
  const bool named = !options.state_formats.empty();
  std::vector<StateFormat> formats;
  for (const auto& name : options.state_formats) {
    const StateFormat format = chosen("--state-format", name, kFormats);
    if (std::find(formats.begin(), formats.end(), format) == formats.end()) formats.push_back(format);
  }
  if (!named) formats.assign(std::begin(kFormats), std::end(kFormats));
  std::vector<AdamCase> cases;
  for (const StateFormat format : formats) {
    one.format = format;
    const std::string_view why = RecordFormat::refusal(format, one.optimizer, DType::bf16);
    if (why.empty()) {
      cases.push_back(one);
    } else if (named) {
      throw usage(fmt::format("--state-format {} with --optimizer {}: {}", name_of(format),
                              name_of(one.optimizer), why),
                  "without --state-format every format that exists is measured");
    } else {
      left_out.push_back(fmt::format("{}: {}", name_of(format), why));
    }
  }
  return cases;
}

AdamBench settle(const AdamBenchOptions& options) {
  AdamBench bench{.parameters = parse_parameters(options.params), .threads = threads_of(options.threads)};
  bench.cases = cases_of(options, bench.left_out);
  check_seconds(options.seconds, false, "the time for each state format, such as 3");
  bench.limits.seconds = options.seconds;
  bench.pinned = should_pin_threads();
  return bench;
}

/// The most that is occupied at one moment: the formats come one after another.
std::int64_t most_occupied(const AdamBench& bench, std::int64_t parameters) {
  std::int64_t bytes = 0;
  for (const AdamCase& one : bench.cases) bytes = std::max(bytes, occupied_bytes(one, parameters));
  return bytes;
}

/// Says what will be occupied; Error (resources) where that does not fit.
std::string memory_text(const AdamBench& bench) {
  const std::int64_t bytes = most_occupied(bench, bench.parameters);
  const MachineMemory memory = machine_memory();
  if (memory.total == 0) return format_size(bytes);  // the system does not say
  const std::int64_t limit = memory_without_margin(memory.available);
  if (bytes <= limit)
    return fmt::format("at most {} at a time, of {} available", format_size(bytes),
                       format_size(memory.available));
  constexpr std::int64_t kMany = std::int64_t{1} << 20;
  const double bytes_each = static_cast<double>(most_occupied(bench, kMany)) / static_cast<double>(kMany);
  const auto fits = static_cast<std::int64_t>(static_cast<double>(limit) / bytes_each);
  throw Error(
      ErrorKind::resources,
      fmt::format("{} parameters take {}, and {} of this machine's {} of memory can be taken",
                  grouped(bench.parameters), format_size(bytes), format_size(limit), format_size(memory.total)),
      {.hint = fits < kMany ? "this machine has too little memory left for a measurement"
                            : fmt::format("--params {}M fits", fits / kMany)});
}

/// Bytes of all third-level caches, 0 where the system does not say. (sysconf knows one of them, and in virtual
/// machines the host's.)
std::int64_t cache_bytes() {
  std::set<std::string> seen;
  std::int64_t bytes = 0;
  std::error_code failure;
  for (const auto& processor : std::filesystem::directory_iterator("/sys/devices/system/cpu", failure)) {
    const auto read = [&](const char* name) {
      std::ifstream file(processor.path() / "cache/index3" / name);
      std::string text;
      std::getline(file, text);
      return text;
    };
    if (const std::string size = read("size"); !size.empty() && seen.insert(read("shared_cpu_list")).second) {
      bytes += parse_size(size, "cache");
    }
  }
  return bytes;
}

/// A note where the caches may hold a share of what is measured.
std::string cache_note(const AdamBench& bench) {
  const std::int64_t cache = cache_bytes();
  std::string formats;
  for (const AdamCase& one : bench.cases) {
    if (occupied_bytes(one, bench.parameters) >= 4 * cache) continue;
    formats += fmt::format("{}{}", formats.empty() ? "" : ", ", name_of(one.format));
  }
  if (formats.empty()) return {};
  return fmt::format(
      "{}: less than four times the {} of cache here, so that a part of it stays in there, and this is not the "
      "speed of memory; more --params change that",
      formats, format_size(cache));
}

std::string heading(const AdamBench& bench, const std::string& memory) {
  const Machine machine = this_machine();
  const AdamCase& one = bench.cases.front();
  std::string text = fmt::format("spillway {}\n\n", SPILLWAY_VERSION);
  text += entry("machine", fmt::format("{}, {} of its processors available",
                                       machine.processor.empty() ? "unknown processor" : machine.processor,
                                       machine.processors));
  text +=
      entry("update", fmt::format("{}, {} gradient, {}, {}{}", name_of(one.optimizer), name_of(one.gradient),
                                  name_of(one.isa),
                                  bench.threads == 1 ? "1 thread" : fmt::format("{} threads", bench.threads),
                                  bench.pinned ? " on a processor each" : ""));
  text += entry("parameters", fmt::format("{}, timed in slices of {}", grouped(bench.parameters),
                                          grouped(sections_of(bench.parameters).parameters)));
  text += entry("memory", memory);
  for (const auto& why : bench.left_out) text += entry("left out", why);
  if (const std::string note = cache_note(bench); !note.empty()) text += entry("note", note);
  return text;
}

constexpr const char* kRow = "{:<9} {:>11} {:>9} {:>7} {:>7} {:>11} {:>9} {:>7} {:>16}\n";

std::string table_heading() {
  return "\n" + fmt::format(fmt::runtime(kRow), "state", "bytes/param", "Gparam/s", "x fp32", "GB/s",
                            "floor GB/s", "of floor", "spread", "control (spread)");
}

double of_fp32(const AdamCase& what, const AdamFigures& f) {
  return what.format == StateFormat::fp32 ? 1.0 : f.comparison.against_rival.median;
}

std::string table_row(const AdamCase& what, const AdamFigures& f) {
  const Comparison& c = f.comparison;
  return fmt::format(fmt::runtime(kRow), name_of(what.format), fmt::format("{:.2f}", f.bytes_per_parameter),
                     fmt::format("{:.3f}", f.parameters_per_s * 1e-9), fmt::format("{:.2f}", of_fp32(what, f)),
                     fmt::format("{:.1f}", f.bytes_per_s * 1e-9),
                     fmt::format("{:.1f}", f.floor_bytes_per_s * 1e-9), percent(c.ratio.median),
                     percent(c.ratio.spread),
                     fmt::format("{} ({})", percent(c.control.median), percent(c.control.spread)));
}

/// What to think of the figures where the control says that they are not worth much.
std::string noise_note(double control_spread) {
  constexpr double kNoisy = 0.1;
  if (control_spread < kNoisy) return {};
  return fmt::format(
      "\nnote: the floor against itself varies by {}: something else uses this machine's processors or "
      "memory.\n"
      "A quiet machine, or more --seconds, give figures that can be compared.\n",
      percent(control_spread));
}

constexpr const char* kClosing =
    "\nof floor: the update's speed as a share of its floor's, which moves the same bytes through the same\n"
    "memory with next to no arithmetic; the median of many pairs of slices that alternate. spread: how far\n"
    "apart their quartiles lie. control: the floor against itself; what it is off 100% is this machine's "
    "noise.\n";

json row_of_case(const AdamBench& bench, const AdamCase& what, const AdamFigures& f) {
  json row = bench_row("bench adam");
  const Comparison& c = f.comparison;
  row.update({{"state_format", name_of(what.format)},
              {"optimizer", name_of(what.optimizer)},
              {"gradient", name_of(what.gradient)},
              {"isa", name_of(what.isa)},
              {"threads", bench.threads},
              {"pinned", bench.pinned},
              {"params", bench.parameters},
              {"sections", f.sections.count},
              {"section_params", f.sections.parameters},
              {"occupied_bytes", occupied_bytes(what, bench.parameters)},
              {"verified", true},
              {"seconds", bench.limits.seconds},
              {"slices", c.slices},
              {"bytes_per_param", f.bytes_per_parameter},
              {"gparam_per_s", f.parameters_per_s * 1e-9},
              {"of_fp32", of_fp32(what, f)},
              {"of_fp32_spread", c.against_rival.spread},
              {"gb_per_s", f.bytes_per_s * 1e-9},
              {"floor_gb_per_s", f.floor_bytes_per_s * 1e-9},
              {"of_floor", c.ratio.median},
              {"spread", c.ratio.spread},
              {"control", c.control.median},
              {"control_spread", c.control.spread}});
  return row;
}

constexpr const char* kFooter =
    "First the update is held against the scalar reference, bit by bit. Then it is timed in short slices, by\n"
    "turns with its floor: the same streams (each plane of the state read and written, the gradient read), of\n"
    "the same widths and on the same threads, moved with one trivial operation. Nothing that updates this "
    "state\n"
    "in this memory can be faster.\n\n"
    "Columns\n"
    "  state             the state format: fp32, bf16 or compact8\n"
    "  bytes/param       moved for a parameter: a plane counts twice, the gradient once\n"
    "  Gparam/s          10^9 parameters updated in a second, by the median slice\n"
    "  x fp32            that, in units of the state format fp32: the median over pairs of slices of both\n"
    "  GB/s, floor GB/s  10^9 bytes moved in a second by the update, and by its floor\n"
    "  of floor          the update's speed as a share of the floor's: the median over pairs of neighbouring\n"
    "                    slices\n"
    "  spread            (75th percentile - 25th percentile) / median of that share over the pairs\n"
    "  control (spread)  the floor against itself in the same way: 100% and no spread without noise\n\n"
    "Examples\n"
    "  spillway bench adam\n"
    "      all state formats with AdamW, on all processors\n"
    "  spillway bench adam --optimizer lion --state-format fp32,bf16 --threads 1 --json lion.json\n"
    "  spillway bench adam --params 1G --isa avx2 --seconds 20\n"
    "      more memory, another instruction set than the best, less noise";

}  // namespace

CLI::App* add_bench_adam(CLI::App& bench, AdamBenchOptions& options) {
  CLI::App* adam = bench.add_subcommand("adam", "The optimizer's update, beside the speed of memory");
  adam->get_formatter()->column_width(30);
  adam->add_option("--params", options.params, "Parameters to update, such as 1000000, 64M (64 x 2^20) or 1G")
      ->option_text("N (64M)");
  adam->add_option("--state-format", options.state_formats,
                   "How the optimizer's state is stored: fp32, bf16 or compact8; several with commas (all)")
      ->delimiter(',')
      ->option_text("FORMAT,...");
  adam->add_option("--optimizer", options.optimizer, "adamw, adam, lion or sgd")->option_text("NAME (adamw)");
  adam->add_option("--gradient", options.gradient, "The gradient's number format: bf16, fp16 or fp32")
      ->option_text("TYPE (bf16)");
  adam->add_option("--threads", options.threads, "Threads of the update (all processors)")->option_text("N");
  adam->add_option("--isa", options.isa,
                   "Its instruction set: scalar, neon, avx2 or avx512 (SPILLWAY_ISA, else the fastest here)")
      ->option_text("ISA");
  adam->add_option("--seconds", options.seconds, "Time for each state format, at least")->option_text("S (3)");
  adam->add_option("--json", options.json, "The rows with all settings, as JSON")->option_text("FILE");
  finish_options(*adam, {"--params", "--state-format", "--optimizer", "--gradient", "--threads", "--isa",
                         "--seconds", "--json"});
  adam->footer(kFooter);
  return adam;
}

void bench_adam(const AdamBenchOptions& options) {
  const AdamBench bench = settle(options);
  const OutputFile output(options.json, "--json");
  Workers workers(bench.threads, bench.pinned ? worker_processors(bench.threads, 0) : std::vector<int>{});
  say(heading(bench, memory_text(bench)));
  flush();

  TerminalLine line;
  for (const AdamCase& one : bench.cases) {
    line.show(fmt::format("{}: verifying", name_of(one.format)));
    verify_adam(one, workers);
  }
  line.clear();
  say(entry("verified", fmt::format("every bit as the scalar reference has it: {} parameters, {} steps",
                                    grouped(kVerifiedElements), kVerifiedSteps)));
  say(table_heading());
  flush();

  json rows = json::array();
  double control_spread = 0;
  for (const AdamCase& one : bench.cases) {
    line.show(
        fmt::format("{}: filling {}", name_of(one.format), format_size(occupied_bytes(one, bench.parameters))));
    const auto progress = [&](double done) {
      line.show_sometimes(fmt::format("{}: {:.0f}%", name_of(one.format), 100.0 * done));
    };
    const AdamFigures figures = measure_adam(one, workers, bench.parameters, bench.limits, progress);
    line.clear();
    say(table_row(one, figures));
    flush();
    rows.push_back(row_of_case(bench, one, figures));
    control_spread = std::max(control_spread, figures.comparison.control.spread);
  }
  say(kClosing + noise_note(control_spread));
  flush();
  write_rows(output, rows);
}

}  // namespace spillway::cli
