#pragma once
// A value of the configuration on its way from JSON, or from the command line, to what the program uses.
#include "config.h"
#include "error.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace spillway::config_detail {

constexpr std::int64_t kMaximum = std::numeric_limits<std::int64_t>::max();

inline Error refuse(const std::string& message, std::string hint = {}) {
  return Error(ErrorKind::configuration, message, {.hint = std::move(hint)});
}

struct Value {
  nlohmann::json value;
  std::string where;                                // "run.json: optimizer.params.lr", or "--steps"
  std::optional<std::string> typed = std::nullopt;  // of the command line: a word may look like a number

  /// What was given is not what is wanted.
  Error not_a(std::string_view what, std::string hint = {}) const;

  // Each throws Error (configuration) where the value is something else.
  std::int64_t integer(std::int64_t least, std::int64_t most = kMaximum) const;
  int small(std::int64_t least, std::int64_t most) const { return static_cast<int>(integer(least, most)); }
  double number(double most) const;        ///< in [0, most]
  double number_below(double most) const;  ///< in [0, most)
  bool boolean() const;
  const std::string& string(std::string_view what) const;
  /// One of the words.
  const std::string& word(std::initializer_list<std::string_view> words) const;
  std::vector<std::string> strings(std::string_view what) const;  ///< a string, or a list of them
  std::int64_t size() const;                                      ///< bytes
  Tier tier() const { return parse_tier(string("device, host or nvme"), where); }
  std::vector<double> positive_numbers() const;  ///< a number, or a list of them
  /// A string, or a list of them, each directory once; {rank}, {local_rank} and {host} replaced.
  std::vector<std::string> directories() const;
};

/// What was typed for one key: a number where it is one, else a word.
Value from_flag(const ConfigOverride& given);

}  // namespace spillway::config_detail
