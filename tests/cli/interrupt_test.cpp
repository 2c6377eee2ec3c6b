// Ctrl-C, at any moment: the program ends within a second, by the signal, and leaves nothing behind.
#include "program.h"

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::cli {
namespace {

TEST(Interrupt, EndsWithinASecondAndLeavesNothing) {
  const Scratch scratch;
  const std::string text = scratch.write("text.txt", sample_text());
  const std::vector<std::string> command{SPILLWAY_PROGRAM, "train",
                                         "--config",       example("decoder-tiny.json"),
                                         "--data",         text,
                                         "--nvme-path",    scratch.root(),
                                         "--steps",        "1000000",
                                         "--json",         scratch.path("result.json"),
                                         "--trace",        scratch.path("trace.json")};
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    for (const double moment : {0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0}) {
      const Interrupted end = interrupt_command(command, signal_number, moment);
      EXPECT_EQ(end.exit_code, -signal_number) << moment;
      EXPECT_LT(end.seconds, 1.0) << moment;
      EXPECT_EQ(scratch.names(), std::vector<std::string>{text}) << moment;
    }
  }
}

TEST(Interrupt, AFileThatIsHalfWrittenGoes) {
  const Scratch scratch;
  const std::string text = scratch.write("text.txt", sample_text());
  // The trace goes to a name beside its own until it is whole: the signal comes when that name is there.
  const std::string command = SPILLWAY_PROGRAM " train --model decoder-tiny --data '" + text +
                              "' --steps 30 --trace '" + scratch.path("trace.json") +
                              "' > /dev/null & pid=$!\n" + "while kill -0 $pid 2> /dev/null; do\n" +
                              "  for name in '" + scratch.root() + "'/*.partial-*; do\n" +
                              "    if [ -e \"$name\" ]; then kill -INT $pid; wait $pid; echo $?; exit; fi\n" +
                              "  done\ndone\necho too late";
  const Outcome outcome = run_command({"bash", "-c", "set -m\n" + command});
  EXPECT_EQ(outcome.out, std::to_string(128 + SIGINT) + "\n") << outcome.err;
  EXPECT_EQ(scratch.names(), std::vector<std::string>{text});
}

TEST(Interrupt, WhatTheCallerIgnoresStaysIgnored) {
  const Scratch scratch;
  const std::string text = scratch.write("text.txt", sample_text());
  const Outcome outcome = run_command(
      {"bash", "-c",
       "trap '' HUP; " SPILLWAY_PROGRAM " train --model decoder-tiny --data '" + text +
           "' --steps 3 > /dev/null & pid=$!; for i in 1 2 3 4 5 6 7 8 9; do kill -HUP $pid; sleep 0.02; "
           "done; wait $pid; echo $?"});
  EXPECT_EQ(outcome.out, "0\n") << outcome.err;
}

}  // namespace
}  // namespace spillway::cli
