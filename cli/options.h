#pragma once
// What the options of all sub-commands have in common.
#include <initializer_list>

namespace CLI {
class App;
}

namespace spillway::cli {

/// Called when all options are added: an empty value of those named is refused, since it is an unset variable
/// of a script more often than a wish, and the descriptions of all are broken into lines.
void finish_options(CLI::App& command, std::initializer_list<const char*> named);

}  // namespace spillway::cli
