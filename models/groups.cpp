#include "groups.h"

#include "../core/error.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

namespace spillway::models {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

void check_patterns(const std::vector<UnitSpec>& units, const std::vector<std::string>& patterns) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : units) {
    for (const ParameterSpec& parameter : unit.parameters) names.push_back(parameter.name);
  }
  for (const std::string& pattern : patterns) {
    if (std::any_of(names.begin(), names.end(), [&](const auto& name) { return matches(pattern, name); }))
      continue;
    const auto shown = std::span(names).first(std::min<std::size_t>(names.size(), 5));
    throw Error(ErrorKind::configuration,
                fmt::format("spillway.no_decay: the pattern \"{}\" matches no parameter of the model", pattern),
                {.hint = fmt::format("parameters are called {}{}", fmt::join(shown, ", "),
                                     shown.size() < names.size() ? ", ..." : "")});
  }
}

}  // namespace

void assign_decay_groups(std::vector<UnitSpec>& units,
                         const std::optional<std::vector<std::string>>& no_decay) {
  if (no_decay) check_patterns(units, *no_decay);
  for (UnitSpec& unit : units) {
    for (ParameterSpec& parameter : unit.parameters) {
      const bool exempt =
          no_decay ? std::any_of(no_decay->begin(), no_decay->end(),
                                 [&](const auto& pattern) { return matches(pattern, parameter.name); })
                   : parameter.shape.size() == 1;
      parameter.group = exempt ? 1 : 0;
    }
  }
}

}  // namespace spillway::models
