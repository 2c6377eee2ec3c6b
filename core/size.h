#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

/// "40M", "1.5GiB", "2GB", "4096": K, M, G, T and KiB, ... are powers of 1024, KB, MB, GB, TB powers of 1000.
/// Throws Error (usage) naming `what` for anything else: a sign, no number, a unit that is unknown, 2^62 or
/// more.
std::int64_t parse_size(std::string_view text, std::string_view what);

/// "37.5 MiB", "4 KiB", "12 B": at most one decimal, units of 1024.
std::string format_size(std::int64_t bytes);

}  // namespace spillway
