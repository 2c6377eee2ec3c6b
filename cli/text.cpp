#include "text.h"

#include "../core/error.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

namespace spillway::cli {
namespace {

void check_output(bool written) {
  if (!written) {
    throw Error(ErrorKind::io, "cannot write to standard output",
                {.operation = "write", .error_number = errno});
  }
}

}  // namespace

void say(std::string_view text) {
  check_output(std::fwrite(text.data(), 1, text.size(), stdout) == text.size());
}

void flush() {
  check_output(std::fflush(stdout) == 0);
}

std::string grouped(std::int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool between = i > 0 && digits[i - 1] != '-';
    if (between && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string plural(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(count), noun, count == 1 ? "" : "s");
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 1e15)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} m {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} m", whole / 3600, whole % 3600 / 60);
}

std::string tera(double value) {
  return std::isfinite(value) ? fmt::format("{:.3g}", value * 1e-12) : "-";
}

std::string fixed(double value, int decimals) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : "not finite";
}

std::string printable(std::span<const std::int32_t> bytes) {
  std::string text;
  for (const std::int32_t byte : bytes) {
    const bool plain = byte == '\n' || (byte >= 0x20 && byte < 0x7f && byte != '\\');
    if (plain) {
      text += static_cast<char>(byte);
    } else {
      text += fmt::format("\\x{:02x}", byte & 0xff);
    }
  }
  return text;
}

std::string fitting(std::vector<Field> fields, std::size_t width) {
  for (;;) {
    std::string line;
    for (const Field& field : fields) line += (line.empty() ? "" : "  ") + field.text;
    if (line.size() <= width) return line;
    if (fields.size() <= 1) return line.substr(0, width);
    fields.erase(std::min_element(fields.begin(), fields.end(),
                                  [](const Field& a, const Field& b) { return a.importance < b.importance; }));
  }
}

std::vector<std::string> broken_at_spaces(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  while (text.size() > width) {
    auto space = text.rfind(' ', width);
    if (space == std::string_view::npos) space = text.find(' ');
    if (space == std::string_view::npos) break;
    lines.emplace_back(text.substr(0, space));
    text.remove_prefix(space + 1);
  }
  lines.emplace_back(text);
  return lines;
}

std::vector<std::string> lines_of(std::string_view text, std::size_t width) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
      continue;
    }
    if (lines.back().size() == width) lines.emplace_back();
    lines.back() += c;
  }
  return lines;
}

}  // namespace spillway::cli
