#pragma once
// What the benchmarks have in common: how their options are refused, and how their rows are written.
#include "../core/error.h"

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace spillway::cli {

class OutputFile;

Error usage(const std::string& message, std::string hint);

/// The value of --params: "1000000", "64M" and "64Mi" (64 x 2^20), "1G". Throws Error (usage) for anything
/// else, for less than 1 and for more than 2^40.
std::int64_t parse_parameters(const std::string& typed);

/// The value of --seconds: above 0, or 0 where it may be, and at most an hour. Throws Error (usage) with the
/// hint.
void check_seconds(double seconds, bool may_be_zero, std::string hint);

std::string percent(double share);  ///< "97.3%"

/// A list of rows, where the file is wanted. Names of files need not be UTF-8.
void write_rows(const OutputFile& output, const nlohmann::json& rows);

}  // namespace spillway::cli
