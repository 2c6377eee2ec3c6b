#pragma once
// What lies under a directory: the file system, the block devices below it, and how they are attached. From
// sysfs and procfs; what they do not say stays empty.
#include <cstdint>
#include <string>
#include <vector>

namespace spillway::aio {

struct PciLink {
  std::string address;               ///< "0000:01:00.0"; empty: not on PCIe
  std::string speed;                 ///< "16.0 GT/s PCIe", as it runs
  std::string maximum_speed;         ///< that the device can
  int width = 0, maximum_width = 0;  ///< lanes
  bool reduced() const;              ///< runs slower or narrower than the device can
};

/// One block device of the stack below a file system.
struct BlockDevice {
  std::string name;  ///< "nvme0n1", "md0", "dm-1"
  std::string
      kind;  ///< "nvme", "virtio", "scsi", "loop", "raid0", "lvm", "luks", "partition", "zram", or "block"
  std::string model;  ///< of a drive
  std::int64_t bytes = 0;
  int logical_block = 0, physical_block = 0;  ///< bytes
  bool rotational = false;
  bool polled_queues = false;  ///< IOPOLL can serve
  std::string scheduler;       ///< the one chosen: "none", "mq-deadline"
  int numa_node = -1;          ///< -1: not said
  PciLink link;
};

struct Drive {
  std::string path;  ///< as it was given
  std::string mount_point;
  std::string file_system;  ///< "ext4", "xfs", "btrfs", "tmpfs", "overlay"
  std::string mount_options;
  std::string source;                            ///< as the mount table names it
  std::int64_t total_bytes = 0, free_bytes = 0;  ///< free: for this user
  std::vector<BlockDevice> layers;  ///< from the file system down to the drives; empty: none (network, memory)
  /// One line: "Samsung SSD 990 PRO 2TB (nvme0n1), luks, ext4", or what is known of it.
  std::string describe() const;
};

/// Throws Error (io) where the path does not exist. `root` stands before /proc and /sys.
Drive describe_drive(const std::string& path, const std::string& root = {});

}  // namespace spillway::aio
