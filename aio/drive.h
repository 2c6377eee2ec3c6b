#pragma once
// What lies under a directory: the file system, the block devices below it, and how they are attached. From
// sysfs and procfs; what they do not say stays empty.
#include <cstdint>
#include <string>
#include <vector>

namespace spillway::aio {

struct PciLink {
  std::string address;               ///< "0000:01:00.0"; empty: not on PCIe
  std::string speed;                 ///< "16.0 GT/s PCIe", as it runs; may be "Unknown"
  std::string maximum_speed;         ///< that the device can
  int width = 0, maximum_width = 0;  ///< lanes; 0: not known
  bool reduced() const;              ///< runs slower or narrower than the device can, as far as that is known
  /// Of data in one direction, by speed, width and line code, before the packets' headers; 0: not known.
  double gb_per_s() const;
  double maximum_gb_per_s() const;
};

/// One block device of the stack below a file system.
struct BlockDevice {
  std::string name;  ///< "nvme0n1", "md0", "dm-1"
  /// "nvme", "virtio", "scsi", "loop", "raid0" (and the other levels of md), "lvm", "luks", "crypt" (dm-crypt
  /// without LUKS), "multipath", "dm" (another device mapper target), "partition", "zram", or "block"
  std::string kind;
  std::string model;  ///< of a drive; of a loop device the file
  std::int64_t bytes = 0;
  int logical_block = 0, physical_block = 0;  ///< bytes
  bool is_drive = false;                      ///< nothing lies below it, as far as is known
  bool rotational = false;                    ///< as it says: virtual drives often say so without reason
  bool polled_queues = false;                 ///< IOPOLL can serve
  std::string scheduler;                      ///< the one chosen: "none", "mq-deadline"
  int numa_node = -1;                         ///< -1: not said
  PciLink link;
};

struct Drive {
  std::string path;  ///< as it was given
  std::string mount_point;
  std::string file_system;                       ///< "ext4", "xfs", "btrfs", "tmpfs", "overlay"
  std::string mount_options;                     ///< of the mount and of the file system, with commas
  std::string source;                            ///< as the mount table names it
  std::int64_t total_bytes = 0, free_bytes = 0;  ///< free: for this user
  /// From the file system down to the drives, each followed by what lies below it; empty: none (network,
  /// memory), or none that this process may see (in a container).
  std::vector<BlockDevice> layers;

  std::vector<BlockDevice> drives() const;  ///< those of the layers that are drives
  bool has_option(
      const std::string& name) const;  ///< among mount_options: "sync"; "compress" of "compress=zstd"
  std::string option(const std::string& name) const;  ///< what stands behind "name="; empty where nothing does
  /// One line: "Samsung SSD 990 PRO 2TB (nvme0n1), luks, ext4", or what is known of it.
  std::string describe() const;
};

/// Throws Error (io) where the path does not exist or cannot be reached, and for nothing else. `root` stands
/// before /proc and /sys.
Drive describe_drive(const std::string& path, const std::string& root = {});

}  // namespace spillway::aio
