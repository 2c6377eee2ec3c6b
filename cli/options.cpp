#include "options.h"

#include "text.h"

#include <cstddef>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::cli {
namespace {

constexpr std::size_t kHelpWidth = 68;

}  // namespace

void finish_options(CLI::App& command, std::initializer_list<const char*> named) {
  const CLI::Validator not_empty(
      [](const std::string& value) { return value.empty() ? "a name is missing" : ""; }, "", "");
  for (const char* flag : named) command.get_option(flag)->check(not_empty);
  for (CLI::Option* option : command.get_options()) {
    option->description(
        fmt::format("{}", fmt::join(broken_at_spaces(option->get_description(), kHelpWidth), "\n")));
  }
}

}  // namespace spillway::cli
