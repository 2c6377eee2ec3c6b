#pragma once
// A line at the bottom of a terminal that is written again and again.
#include <chrono>
#include <cstddef>
#include <string>

namespace spillway::cli {

/// Where standard output is no terminal, nothing is shown.
class TerminalLine {
 public:
  TerminalLine();
  /// Ends the line where it is open, so that what follows (an error perhaps) begins on a new one.
  ~TerminalLine();
  TerminalLine(const TerminalLine&) = delete;
  TerminalLine& operator=(const TerminalLine&) = delete;

  bool is_terminal() const { return is_terminal_; }
  static std::size_t width();  ///< characters that fit into it

  void show(std::string text);
  /// The same, at most ten times a second.
  void show_sometimes(const std::string& text);
  void clear();
  void end();

 private:
  bool is_terminal_;
  bool open_ = false;
  std::chrono::steady_clock::time_point last_shown_{};
};

}  // namespace spillway::cli
