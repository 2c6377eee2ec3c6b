#pragma once
// The picture of a search: bandwidth by depth and block size.
#include "tune_report.h"

#include <string>

namespace spillway::cli {

/// A self-contained SVG, for light and dark backgrounds: a field for each setting with its GB/s, darker where
/// it is faster, its 95% interval as a bar and in its tooltip, the chosen one in a frame.
std::string tune_picture(const TuneRun& run);

}  // namespace spillway::cli
