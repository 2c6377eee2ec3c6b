#pragma once
// Reads procfs and sysfs, whose files may be missing, and the mount table. Not installed: for drive.cpp and
// block_stack.cpp.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::aio {

/// The first line without white space around it; empty where the file can't be read.
std::string read_line(const std::filesystem::path& path);
/// The number that the first line begins with.
std::optional<std::int64_t> read_number(const std::filesystem::path& path);
bool is_there(const std::filesystem::path& path);
/// Where all links of the path end; empty where that can't be said.
std::filesystem::path real_path(const std::filesystem::path& path);
/// nvme2n1 before nvme10n1; none where the directory can't be read.
std::vector<std::string> names_in(const std::filesystem::path& directory);
std::vector<std::string> split(std::string_view text, char separator);

struct Mount {
  std::string device;  ///< "259:2"
  std::string point, type, source, options;
};

/// `root` stands before /proc.
std::vector<Mount> mount_table(const std::string& root);

/// The mount that a path is seen through, by the number of the device that holds it, and by the path (without
/// links) where several mounts have that number or none has: btrfs numbers each subvolume. Null: none is known.
const Mount* mount_of(const std::vector<Mount>& mounts, const std::string& device, const std::string& path);

}  // namespace spillway::aio
