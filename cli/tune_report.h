#pragma once
// What a search of `spillway tune` is told as: a table, sentences, a configuration.
#include "../aio/tuner.h"

#include <string>
#include <vector>

namespace spillway::cli {

/// All that a search was.
struct TuneRun {
  std::vector<std::string> paths;      ///< absolute
  std::vector<double> bandwidth = {};  ///< bytes a second of each, where there are several
  std::string drive, file_system;
  std::int64_t bytes = 0;  ///< of the volume of one job
  int jobs = 1;
  std::int64_t written_before = 0;  ///< by the preparation
  aio::TuneOptions options;         ///< depths are those of each directory
  aio::TuneResult result;
};

/// "512 KiB x 16".
std::string setting_text(const aio::TuneSetting& setting);

/// Bandwidth by depth and block size for the chosen engine and overlap, the chosen one marked.
std::string tune_table(const TuneRun& run);
/// What was found, in sentences, one each.
std::vector<std::string> tune_findings(const TuneRun& run);
/// What `spillway train --config` takes, as text.
std::string tuned_configuration(const TuneRun& run);

}  // namespace spillway::cli
