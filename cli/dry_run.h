#pragma once
// spillway train --dry-run: what a run would occupy and write, without running it.
#include "output_file.h"
#include "setup.h"

namespace spillway::cli {

/// Prints the plan, and writes it as JSON where that is wanted. Throws Error (resources) in the end where
/// the run would not fit.
void dry_run(const Setup& setup, const OutputFile& json);

}  // namespace spillway::cli
