// How spillway doctor shows what it found.
#include "doctor.h"
#include "text.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::cli {
namespace {

constexpr std::size_t kMark = 2, kName = 11, kValue = 26;  // columns

std::string_view colour_of(Status status) {
  switch (status) {
    case Status::ok:
      return "\x1b[32m";
    case Status::note:
      return "\x1b[36m";
    case Status::warning:
      return "\x1b[33m";
    case Status::problem:
      return "\x1b[1;31m";
  }
  return {};
}

std::string heading(const Finding& finding) {
  if (finding.topic == "accelerators") return "GPU and ranks";
  if (finding.topic == "io") return "I/O";
  if (finding.topic == "config") return "configuration " + finding.subject;
  return finding.topic == "path" ? "path " + finding.subject : finding.topic;
}

std::string lines(const Finding& finding, std::size_t width, bool colours) {
  std::string text, begin;
  const std::string mark(name_of(finding.status));
  begin = std::string(kMark, ' ') +
          (colours ? fmt::format("{}{}\x1b[0m", colour_of(finding.status), mark) : mark) +
          std::string(kName - kMark - mark.size(), ' ') + fmt::format("{:<{}}", finding.name, kValue - kName);
  const std::size_t room = std::max(width, kValue + 20) - kValue;
  for (const std::string& line : broken_at_spaces(on_one_line(finding.value), room)) {
    text += (text.empty() ? begin : std::string(kValue, ' ')) + line + "\n";
  }
  if (finding.hint.empty() || finding.status == Status::ok) return text;
  bool first = true;
  for (const std::string& line : broken_at_spaces(on_one_line(finding.hint), room - 3)) {
    text += std::string(kValue, ' ') + (first ? "-> " : "   ") + line + "\n";
    first = false;
  }
  return text;
}

std::string summary(const std::vector<Finding>& findings) {
  std::array<std::int64_t, 4> counts{};
  for (const Finding& finding : findings) ++counts[static_cast<std::size_t>(finding.status)];
  std::vector<std::string> parts;
  for (const Status status : {Status::problem, Status::warning, Status::note}) {
    const std::int64_t count = counts[static_cast<std::size_t>(status)];
    if (count > 0) parts.push_back(counted(count, name_of(status)));
  }
  return fmt::format("Training can{} run here: {}.\n",
                     counts[static_cast<std::size_t>(Status::problem)] > 0 ? "not" : "",
                     parts.empty() ? "nothing is in the way" : fmt::format("{}", fmt::join(parts, ", ")));
}

}  // namespace

std::string screen(const std::vector<Finding>& findings, std::size_t width, bool colours) {
  std::string text, last;
  for (const Finding& finding : findings) {
    const std::string title = on_one_line(heading(finding));
    if (title != last)
      text += fmt::format("{}{}{}{}\n", last.empty() ? "" : "\n", colours ? "\x1b[1m" : "", title,
                          colours ? "\x1b[0m" : "");
    last = title;
    text += lines(finding, width, colours);
  }
  return text + "\n" + summary(findings);
}

}  // namespace spillway::cli
