#include "size.h"

#include "error.h"

#include <cctype>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace spillway {
namespace {

/// 0 where the unit is unknown.
double factor_of(std::string_view unit) {
  if (unit.empty() || unit == "b") return 1;
  constexpr std::string_view letters = "kmgt";
  const auto power = letters.find(unit[0]);
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = unit.substr(1);
  if (rest.empty() || rest == "ib") return std::pow(1024.0, static_cast<double>(power + 1));
  if (rest == "b") return std::pow(1000.0, static_cast<double>(power + 1));
  return 0;
}

}  // namespace

std::int64_t parse_size(std::string_view text, std::string_view what) {
  const auto refuse = [&](std::string_view why) {
    return Error(ErrorKind::usage, fmt::format("{}: '{}' is not a size: {}", what, text, why),
                 {.hint = "a size is a number with a unit, such as 40M, 1.5GiB or 2GB"});
  };
  if (text.empty() || !std::isdigit(static_cast<unsigned char>(text[0]))) {
    throw refuse(text.starts_with('-') ? "it is negative" : "it does not begin with a number");
  }
  // Long double holds every 63-bit integer: bytes are exact.
  long double number = 0;
  const auto [end, failure] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (failure != std::errc()) throw refuse("it is larger than any memory");
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  const double factor = factor_of(unit);
  if (factor == 0) throw refuse(fmt::format("'{}' is no unit", unit));
  const long double bytes = number * factor;
  if (!(bytes < 0x1p62L)) throw refuse("it is larger than any memory");
  return static_cast<std::int64_t>(bytes);
}

std::string format_size(std::int64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (std::fabs(value) >= 1023.95 && unit < 4) {  // what would be rounded to 1024.0
    value /= 1024.0;
    ++unit;
  }
  if (value == std::floor(value)) return fmt::format("{} {}", static_cast<std::int64_t>(value), units[unit]);
  return fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace spillway
