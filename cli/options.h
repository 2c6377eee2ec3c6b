#pragma once
// What the options of all sub-commands have in common.
#include "../core/config.h"

#include <initializer_list>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace spillway::cli {

/// Adds flags of `spillway train` to another sub-command, by name: what is typed for them goes to `overrides`.
void add_config_flags(CLI::App& command, std::vector<ConfigOverride>& overrides,
                      std::initializer_list<std::string_view> names);

/// Called when all options are added: an empty value of those named is refused, since it is an unset variable
/// of a script more often than a wish, and the descriptions of all are broken into lines.
void finish_options(CLI::App& command, std::initializer_list<const char*> named);

}  // namespace spillway::cli
