#include "progress.h"

#include "../core/size.h"
#include "../core/tier.h"
#include "text.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace spillway::cli {
namespace {

using namespace std::chrono_literals;

/// Of the table's columns, in the order of kTiers: a share of a budget is short.
constexpr int kTierWidths[] = {7, 7, 10};

std::string norm(double value) {
  return !(value >= 1e4) || std::isinf(value) ? fixed(value, 3) : fmt::format("{:.2e}", value);
}

/// A share where there is a limit, else the bytes.
std::string use(std::int64_t bytes, std::int64_t limit) {
  if (limit <= 0) return format_size(bytes);
  return fmt::format("{:.0f}%", 100.0 * static_cast<double>(bytes) / static_cast<double>(limit));
}

/// "drive 97%": the lane that bounds the steps, and how near they are to what it allows.
std::string bound(const StepStatus& s) {
  return fmt::format("{} {:.0f}%", s.bound, 100.0 * s.of_floor);
}

}  // namespace

Progress::Progress(std::int64_t steps, std::int64_t tokens_a_step, double flops_a_token,
                   std::array<std::int64_t, 3> limits)
    : steps_(steps),
      tokens_a_step_(tokens_a_step),
      flops_a_token_(flops_a_token),
      limits_(limits),
      begin_(std::chrono::steady_clock::now()),
      last_shown_(begin_) {
  if (!line_.is_terminal()) {
    std::string heading = fmt::format("{:>7} {:>9} {:>9} {:>10} {:>8} {:>16}", "step", "loss", "norm",
                                      "tokens/s", "TFLOP/s", "of floor");
    for (std::size_t i = 0; i < limits_.size(); ++i)
      heading += fmt::format(" {:>{}}", name_of(kTiers[i]), kTierWidths[i]);
    say(heading + fmt::format(" {:>8}\n", "left"));
    flush();
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
  std::string line = fmt::format("{:>7} {:>9} {:>9} {:>10} {:>8} {:>16}", s.step, fixed(s.loss, 4),
                                 s.skipped ? "skipped" : norm(s.gradient_norm),
                                 grouped(static_cast<std::int64_t>(tokens_per_second(s.step))),
                                 tera(flops_a_token_ * tokens_per_second(s.step)), bound(s));
  for (std::size_t i = 0; i < limits_.size(); ++i)
    line += fmt::format(" {:>{}}", use(s.used[i], limits_[i]), kTierWidths[i]);
  return line + fmt::format(" {:>8}\n", duration(seconds_left(s.step)));
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
      {bound(s) + " of floor", 3},
      {duration(seconds_left(s.step)) + " left", 7}};
  for (std::size_t i = 0; i < limits_.size(); ++i) {
    fields.push_back(
        {fmt::format("{} {}", name_of(kTiers[i]), use(s.used[i], limits_[i])), 2 - static_cast<int>(i)});
  }
  return fitting(std::move(fields), TerminalLine::width());
}

void Progress::show(const StepStatus& status) {
  const auto now = std::chrono::steady_clock::now();
  const bool last = status.step == steps_;
  const std::int64_t steps_since = status.step - last_step_shown_;
  // In place ten times a second; as rows about twenty in all, and a sign of life twice a minute.
  const bool due =
      line_.is_terminal() ? now - last_shown_ >= 100ms : steps_since * 20 >= steps_ || now - last_shown_ >= 30s;
  if (status.step != 1 && !last && !due) return;
  last_shown_ = now;
  last_step_shown_ = status.step;
  if (line_.is_terminal()) return line_.show(bar_line(status));
  say(row(status));
  flush();
}

void Progress::note(std::string_view line) {
  line_.clear();
  say(fmt::format("{}\n", line));
  flush();
}

}  // namespace spillway::cli
