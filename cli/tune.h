#pragma once
// spillway tune: which block size, queue depth and engine suit the drives that a run would swap to.
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace spillway::cli {

/// As typed.
struct TuneCommand {
  std::vector<std::string> paths;
  std::string size;
  double seconds = 60;
  int jobs = 1;
  std::string out, json;  ///< paths, empty for none
};

/// Adds the sub-command; `command` is filled when the command line is parsed.
CLI::App* add_tune(CLI::App& program, TuneCommand& command);

/// Returns the program's exit status: 0, or 128 and the signal that ended the search early, after which what it
/// had was printed. Throws Error for everything that the user or the machine causes.
int tune(const TuneCommand& command);

}  // namespace spillway::cli
