#pragma once
// The block devices below a file system. Not installed: for drive.cpp.
#include "drive.h"
#include "system_files.h"

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace spillway::aio {

/// Follows the devices below a file system.
class Stack {
 public:
  Stack(const std::string& root, const std::vector<Mount>& mounts, std::vector<BlockDevice>& layers)
      : sysfs_(root + "/sys"), mounts_(mounts), layers_(layers) {}

  /// The devices that hold the file system which `mount` shows, of which a file's device number is `device`.
  /// False where none are known.
  bool add_below(const Mount& mount, const std::string& device);

 private:
  bool add(const std::filesystem::path& directory);  ///< of the device in sysfs, and all below it
  bool add_named(const std::string& name);
  bool add_below_file(const std::string& path);
  void describe_drive_at(const std::filesystem::path& directory, BlockDevice& drive) const;
  std::string device_name(const std::string& source) const;
  std::vector<std::string> btrfs_devices(const std::string& name) const;

  std::filesystem::path sysfs_;
  const std::vector<Mount>& mounts_;
  std::vector<BlockDevice>& layers_;
  std::set<std::string> seen_;
};

/// "259:2", as the mount table and sysfs write it.
std::string device_number(std::uint64_t device);

}  // namespace spillway::aio
