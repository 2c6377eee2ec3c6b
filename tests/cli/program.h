#pragma once
// Runs the built program as its users do: as a process.
#include <filesystem>
#include <string>
#include <vector>

namespace spillway::cli {

struct Outcome {
  int exit_code = -1;  ///< -signal where a signal ended it
  std::string out, err;
};

/// A command by its path or name; ends it after two minutes (exit code -9).
Outcome run_command(const std::vector<std::string>& command);
/// Starts a command without a terminal and with its output thrown away, sends it the signal after so long, and
/// waits for its end: its exit code, and the seconds it took from the signal on. The code is that of its own
/// end where it ended before.
struct Interrupted {
  int exit_code = 0;  ///< -signal where a signal ended it
  double seconds = 0;
};
Interrupted interrupt_command(const std::vector<std::string>& command, int signal_number, double after_seconds);
/// The program with these arguments.
Outcome run_program(const std::vector<std::string>& arguments);

/// An empty directory beside the tests (on a drive, where the build is), removed at the end.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  std::string root() const { return root_.string(); }
  std::string write(const std::string& name, const std::string& text) const;  ///< returns its path
  std::vector<std::string> names() const;                                     ///< of all files, sorted

 private:
  std::filesystem::path root_;
};

std::string read_file(const std::string& path);

/// examples/NAME of the source tree.
std::string example(const std::string& name);
/// English enough to train on: a few kilobytes, always the same.
std::string sample_text();

}  // namespace spillway::cli
