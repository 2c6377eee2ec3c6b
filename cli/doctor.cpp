#include "doctor.h"

#include "machine.h"
#include "options.h"
#include "output_file.h"
#include "terminal_line.h"
#include "text.h"

#include <algorithm>
#include <cstdlib>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::cli {
namespace {

using nlohmann::json;

constexpr int kDoctorFormatVersion = 1;
constexpr std::size_t kWidth = 100;
constexpr const char* kFooter =
    "Looks at processors, memory, GPU, MPI, io_uring and limits, and at each path: the drive and how it is\n"
    "attached, the layers and the file system on it, and whether swap space can really be made there as a\n"
    "run would make it (nothing stays). Nothing is measured or changed: spillway tune measures drives.\n\n"
    "  ok       as it should be\n"
    "  note     worth knowing\n"
    "  warning  training runs, slower or less safely than it could\n"
    "  problem  training does not run; the exit code is then that of the first problem:\n"
    "           2 for a configuration, 3 for too little memory or space, 4 for I/O\n"
    "Behind -> stands what to type or change. docs/doctor.md explains every line.\n\n"
    "Examples\n"
    "  spillway doctor\n"
    "      this machine, and the current directory as a place for swap space\n"
    "  spillway doctor --path /mnt/nvme0 --path /mnt/nvme1 --json doctor.json\n"
    "      two drives, and everything as JSON, to send with a report\n"
    "  spillway doctor --config ds_config.json\n"
    "      whether what spillway train --config would do fits here, on the paths that it names";

json rows_of(const std::vector<Finding>& findings) {
  const json machine = machine_json();
  json rows = json::array();
  for (const Finding& finding : findings) {
    json row = {{"version", SPILLWAY_VERSION}, {"format_version", kDoctorFormatVersion},
                {"command", "doctor"},         {"machine", machine},
                {"topic", finding.topic},      {"name", finding.name},
                {"value", finding.value},      {"status", name_of(finding.status)},
                {"hint", finding.hint},        {"subject", finding.subject}};
    row.update(finding.numbers);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

CLI::App* add_doctor(CLI::App& program, DoctorOptions& options) {
  CLI::App* doctor =
      program.add_subcommand("doctor", "Say what this machine offers to a run, and what is in the way");
  doctor->get_formatter()->column_width(30);
  doctor
      ->add_option(
          "--path", options.paths,
          "A directory for what lives on nvme; may be given several times (those of --config, else the "
          "current directory)")
      ->option_text("DIR")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  doctor->add_option("--config", options.config, "The configuration of a run, read as spillway train does")
      ->option_text("FILE");
  doctor->add_option("--json", options.json, "The findings with raw numbers, as JSON")->option_text("FILE");
  finish_options(*doctor, {"--path", "--config", "--json"});
  doctor->footer(kFooter);
  return doctor;
}

void doctor(const DoctorOptions& options) {
  const OutputFile output(options.json, "--json");
  if (!options.config.empty()) output.check_apart_from("--config", options.config);
  const std::vector<Finding> findings = judge(gather(options.paths, options.config));

  const bool is_terminal = TerminalLine().is_terminal();
  const char* const no_colour = std::getenv("NO_COLOR");
  const bool colours = is_terminal && (no_colour == nullptr || *no_colour == '\0');
  say(fmt::format("spillway {}: {}\n\n", SPILLWAY_VERSION, this_machine().system));
  say(screen(findings, is_terminal ? std::min(kWidth, TerminalLine::width()) : kWidth, colours));
  flush();
  if (output.wanted()) {
    output.replace_with(rows_of(findings).dump(2, ' ', false, json::error_handler_t::replace) + "\n");
  }
  if (const Finding* const problem = first_problem(findings)) {
    throw Error(problem->kind, problem->value, {.hint = problem->hint});
  }
}

}  // namespace spillway::cli
