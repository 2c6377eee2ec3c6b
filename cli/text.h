#pragma once
// How the program writes numbers, times and text that it did not write itself.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::cli {

/// To standard output; Error (io) where that can't be written (a full disk behind it). A closed pipe ends the
/// program as usual.
void say(std::string_view text);
/// What say() has given is out; Error (io) as above.
void flush();

std::string grouped(std::int64_t number);                       ///< "24,940,800"
std::string plural(std::int64_t count, std::string_view noun);  ///< "1 step", "1,200 steps"
std::string duration(double seconds);                           ///< "0.8 s", "42 s", "2 m 31 s", "3 h 05 m"
std::string tera(double value);                                 ///< in units of 10^12, "1.23", "0.0456", or "-"
std::string fixed(double value, int decimals);                  ///< "2.3010", or "not finite"

/// Bytes as text that no terminal takes for a command: printable ASCII and line ends as they are, everything
/// else, and a backslash, as \xNN.
std::string printable(std::span<const std::int32_t> bytes);

struct Field {
  std::string text;
  int importance = 0;
};
/// The fields with two spaces between them in at most `width` characters: those of the least importance are
/// left out until the rest fits; the last one left is cut.
std::string fitting(std::vector<Field> fields, std::size_t width);

/// The text in lines of at most `width` characters, broken at spaces; a longer word is left whole.
std::vector<std::string> broken_at_spaces(std::string_view text, std::size_t width);

/// Lines of at most `width` characters; longer ones are cut where the width ends.
std::vector<std::string> lines_of(std::string_view text, std::size_t width);

}  // namespace spillway::cli
