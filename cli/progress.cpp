#include "progress.h"

#include "../core/size.h"
#include "../core/tier.h"
#include "interrupt.h"
#include "text.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace spillway::cli {
namespace {

using namespace std::chrono_literals;

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

std::size_t terminal_width() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

std::string norm(double value) {
  return !(value >= 1e4) || std::isinf(value) ? fixed(value, 3) : fmt::format("{:.2e}", value);
}

/// A share where there is a limit, else the bytes.
std::string use(std::int64_t bytes, std::int64_t limit) {
  if (limit <= 0) return format_size(bytes);
  return fmt::format("{:.0f}%", 100.0 * static_cast<double>(bytes) / static_cast<double>(limit));
}

}  // namespace

Progress::Progress(std::int64_t steps, std::int64_t tokens_a_step, double flops_a_token,
                   std::array<std::int64_t, 3> limits)
    : steps_(steps),
      tokens_a_step_(tokens_a_step),
      flops_a_token_(flops_a_token),
      limits_(limits),
      terminal_(is_terminal()),
      begin_(std::chrono::steady_clock::now()),
      last_shown_(begin_) {
  if (!terminal_) {
    std::string heading =
        fmt::format("{:>8} {:>10} {:>10} {:>10} {:>9}", "step", "loss", "norm", "tokens/s", "TFLOP/s");
    for (const Tier tier : kTiers) heading += fmt::format(" {:>10}", name_of(tier));
    say(heading + fmt::format(" {:>11}\n", "left"));
    flush();
    return;
  }
}

Progress::~Progress() {
  try {
    end_line();
  } catch (...) {  // an unwritable output has been or will be reported by who writes next
  }
}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

double Progress::tokens_per_second(std::int64_t step) const {
  return static_cast<double>(step * tokens_a_step_) / std::max(seconds(), 1e-9);
}

double Progress::seconds_left(std::int64_t step) const {
  return seconds() / static_cast<double>(step) * static_cast<double>(steps_ - step);
}

std::string Progress::row(const StepStatus& s) const {
  std::string line = fmt::format("{:>8} {:>10} {:>10} {:>10} {:>9}", s.step, fixed(s.loss, 4),
                                 s.skipped ? "skipped" : norm(s.gradient_norm),
                                 grouped(static_cast<std::int64_t>(tokens_per_second(s.step))),
                                 tera(flops_a_token_ * tokens_per_second(s.step)));
  for (std::size_t i = 0; i < limits_.size(); ++i) line += fmt::format(" {:>10}", use(s.used[i], limits_[i]));
  return line + fmt::format(" {:>11}\n", duration(seconds_left(s.step)));
}

std::string Progress::bar_line(const StepStatus& s) const {
  constexpr std::int64_t kBar = 12;
  const auto full = static_cast<std::size_t>(kBar * s.step / steps_);
  std::vector<Field> fields{
      {fmt::format("[{}{}]", std::string(full, '#'), std::string(static_cast<std::size_t>(kBar) - full, '.')),
       5},
      {fmt::format("{}/{}", s.step, steps_), 9},
      {"loss " + fixed(s.loss, 3), 8},
      {"norm " + (s.skipped ? "skipped" : norm(s.gradient_norm)), 4},
      {grouped(static_cast<std::int64_t>(tokens_per_second(s.step))) + " tok/s", 6},
      {tera(flops_a_token_ * tokens_per_second(s.step)) + " TFLOP/s", 4},
      {duration(seconds_left(s.step)) + " left", 7}};
  for (std::size_t i = 0; i < limits_.size(); ++i) {
    fields.push_back(
        {fmt::format("{} {}", name_of(kTiers[i]), use(s.used[i], limits_[i])), 3 - static_cast<int>(i)});
  }
  return fitting(std::move(fields), terminal_width() - 1);
}

void Progress::show(const StepStatus& status) {
  const auto now = std::chrono::steady_clock::now();
  const bool last = status.step == steps_;
  const std::int64_t steps_since = status.step - last_step_shown_;
  // In place ten times a second; as rows about twenty in all, and a sign of life twice a minute.
  const bool due =
      terminal_ ? now - last_shown_ >= 100ms : steps_since * 20 >= steps_ || now - last_shown_ >= 30s;
  if (status.step != 1 && !last && !due) return;
  last_shown_ = now;
  last_step_shown_ = status.step;
  if (terminal_) return put(bar_line(status));
  say(row(status));
  flush();
}

void Progress::remark(std::string_view text) {
  if (!terminal_) return;
  put(std::string(text));
  if (text.empty()) set_open(false);
}

void Progress::note(std::string_view line) {
  if (terminal_ && open_) say("\r\x1b[K");
  say(fmt::format("{}\n", line));
  flush();
  set_open(false);
}

void Progress::put(std::string line) {
  // The last column stays free: a terminal would begin a new line.
  if (const std::size_t width = terminal_width(); line.size() >= width) line.resize(width - 1);
  set_open(true);
  say("\r\x1b[K" + line);
  flush();
}

void Progress::set_open(bool open) {
  open_ = open;
  set_line_open(open);
}

void Progress::end_line() {
  if (!open_) return;
  set_open(false);
  say("\n");
  flush();
}

}  // namespace spillway::cli
