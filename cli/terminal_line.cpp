#include "terminal_line.h"

#include "interrupt.h"
#include "text.h"

#include <cstdlib>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

namespace spillway::cli {

TerminalLine::TerminalLine() {
  const char* term = std::getenv("TERM");
  is_terminal_ = isatty(STDOUT_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

TerminalLine::~TerminalLine() {
  try {
    end();
  } catch (...) {  // an unwritable output has been or will be reported by who writes next
  }
}

std::size_t TerminalLine::width() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return (known ? size.ws_col : 80) - 1;  // the last column stays free: a terminal would begin a new line
}

void TerminalLine::show(std::string text) {
  if (!is_terminal_) return;
  if (text.size() > width()) text.resize(width());
  open_ = true;
  set_line_open(true);
  say("\r\x1b[K" + text);
  flush();
}

void TerminalLine::show_sometimes(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_shown_ < std::chrono::milliseconds(100)) return;
  last_shown_ = now;
  show(text);
}

void TerminalLine::clear() {
  if (!open_) return;
  say("\r\x1b[K");
  flush();
  open_ = false;
  set_line_open(false);
}

void TerminalLine::end() {
  if (!open_) return;
  open_ = false;
  set_line_open(false);
  say("\n");
  flush();
}

}  // namespace spillway::cli
