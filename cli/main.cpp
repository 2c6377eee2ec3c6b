// spillway: the command line. Parses, calls the sub-command, and turns what it throws into one line and an exit
// code.
#include "../core/error.h"
#include "bench.h"
#include "doctor.h"
#include "interrupt.h"
#include "text.h"
#include "train.h"
#include "tune.h"

#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace {

using namespace spillway;

constexpr int kBug = 70;

int report(std::string_view message, std::string_view hint, int code) {
  // What was said before stands before it where both go to one place.
  std::fflush(stdout);
  std::string text = fmt::format("error: {}\n", on_one_line(message));
  if (!hint.empty()) text += fmt::format("hint: {}\n", on_one_line(hint));
  std::fwrite(text.data(), 1, text.size(), stderr);
  return code;
}

int report_bug(std::string_view what) {
  return report(fmt::format("internal: {}", what), "this is a bug: please report it with the command", kBug);
}

/// Files of ours must not get the numbers of the standard streams: what is printed would go into them.
void open_standard_streams() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    if (fcntl(number, F_GETFD) < 0 && errno == EBADF)
      open("/dev/null", O_RDWR);  // takes the lowest free number
  }
}

int run(int argc, char** argv) {
  CLI::App program{
      "spillway trains models that do not fit in GPU memory: what a layer does not need just now lives in\n"
      "host memory or on NVMe."};
  program.name("spillway");
  program.set_version_flag("--version", "spillway " SPILLWAY_VERSION, "Print the version and end");
  program.get_formatter()->column_width(28);
  program.footer("spillway train --help explains a sub-command, with examples.");
  cli::TrainOptions train_options;
  const CLI::App* train = cli::add_train(program, train_options);
  cli::BenchOptions bench_options;
  cli::add_bench(program, bench_options);
  cli::DoctorOptions doctor_options;
  const CLI::App* doctor = cli::add_doctor(program, doctor_options);
  cli::TuneCommand tune_command;
  const CLI::App* tune = cli::add_tune(program, tune_command);
  program.require_subcommand(0, 1);
  try {
    program.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    cli::say(program.help());  // of the sub-command, where one was named
    cli::flush();
    return 0;
  } catch (const CLI::CallForVersion& version) {
    cli::say(std::string(version.what()) + "\n");
    cli::flush();
    return 0;
  } catch (const CLI::ParseError& failure) {
    std::string chosen = "spillway";
    for (auto named = program.get_subcommands(); !named.empty(); named = named.front()->get_subcommands()) {
      chosen += " " + named.front()->get_name();
    }
    return report(failure.what(), fmt::format("{} --help shows what can be given", chosen),
                  exit_code(ErrorKind::usage));
  }
  if (train->parsed()) {
    cli::train(train_options);
  } else if (doctor->parsed()) {
    cli::doctor(doctor_options);
  } else if (tune->parsed()) {
    return cli::tune(tune_command);
  } else if (bench_options.chosen) {
    bench_options.chosen();
  } else {
    cli::say(program.help());  // of the group, where one was named
    cli::flush();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  cli::clean_up_when_interrupted();
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    return report(error.what(), error.detail().hint, exit_code(error.kind()));
  } catch (const std::bad_alloc&) {
    return report("out of memory", "limit it with --host-memory, or give this process more",
                  exit_code(ErrorKind::resources));
  } catch (const std::system_error& failure) {
    const bool refused = failure.code() == std::errc::resource_unavailable_try_again ||
                         failure.code() == std::errc::not_enough_memory;
    return refused ? report(fmt::format("the system refuses a thread: {}", failure.what()),
                            "give --device-threads and --update-threads, or raise this process's limits",
                            exit_code(ErrorKind::resources))
                   : report_bug(failure.what());
  } catch (const std::exception& failure) {
    return report_bug(failure.what());
  } catch (...) {
    return report_bug("an unknown exception");
  }
}
