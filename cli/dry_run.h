#pragma once
// spillway train --dry-run: what a run would occupy and write, without running it.
#include "setup.h"

#include <string>

namespace spillway::cli {

/// Prints the plan, and writes it as JSON where `json` names a file. Throws Error (resources) in the end where
/// the run would not fit.
void dry_run(const Setup& setup, const std::string& json);

}  // namespace spillway::cli
