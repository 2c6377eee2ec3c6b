#include "block_stack.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

namespace spillway::aio {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t sysfs_sector = 512;  // of "size", whatever the drive's blocks are
constexpr int unknown_width = 255;          // as sysfs writes it, beside 0

bool is_pci_address(const std::string& name) {  // "0000:01:00.0", with a longer domain behind some bridges
  const auto parts = split(name, ':');
  return parts.size() == 3 && parts[0].size() >= 4 && parts[1].size() == 2 && parts[2].size() == 4 &&
         parts[2][2] == '.' && name.find_first_not_of("0123456789abcdef:.") == std::string::npos;
}

/// The directory and those above it, as far as sysfs describes devices.
std::vector<fs::path> with_ancestors(fs::path directory) {
  std::vector<fs::path> all;
  while (directory.has_relative_path() && directory.filename() != "devices") {
    all.push_back(directory);
    directory = directory.parent_path();
  }
  return all;
}

PciLink link_of(const std::vector<fs::path>& ancestors) {
  const auto device = std::find_if(ancestors.begin(), ancestors.end(),
                                   [](const fs::path& path) { return is_pci_address(path.filename()); });
  if (device == ancestors.end()) return {};
  const auto width = [&](const char* name) {
    const std::int64_t lanes = read_number(*device / name).value_or(0);
    return lanes < 0 || lanes >= unknown_width ? 0 : static_cast<int>(lanes);
  };
  PciLink link{.address = device->filename(),
               .speed = read_line(*device / "current_link_speed"),
               .maximum_speed = read_line(*device / "max_link_speed"),
               .width = width("current_link_width"),
               .maximum_width = width("max_link_width")};
  const bool says_nothing =
      link.speed.empty() && link.width == 0;  // conventional PCI, or a part of the chipset
  return says_nothing ? PciLink{} : link;
}

std::string chosen_in_brackets(const std::string& choices) {  // "none [mq-deadline] kyber"
  const auto open = choices.find('['), close = choices.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return choices;
  return choices.substr(open + 1, close - open - 1);
}

std::string mapper_kind(const std::string& uuid) {
  if (uuid.starts_with("LVM-")) return "lvm";
  if (uuid.starts_with("CRYPT-LUKS")) return "luks";
  if (uuid.starts_with("CRYPT-VERITY")) return "dm";
  if (uuid.starts_with("CRYPT-")) return "crypt";
  if (uuid.starts_with("mpath-")) return "multipath";
  if (uuid.starts_with("part")) return "partition";  // "part1-mpath-..."
  return "dm";
}

std::string kind_of(const fs::path& directory, const std::string& name) {
  if (is_there(directory / "partition")) return "partition";
  if (is_there(directory / "dm")) return mapper_kind(read_line(directory / "dm/uuid"));
  if (is_there(directory / "md")) {
    const std::string level = read_line(directory / "md/level");
    return level.empty() ? "raid" : level;
  }
  if (name.starts_with("loop")) return "loop";
  if (name.starts_with("zram")) return "zram";
  if (name.starts_with("nvme")) return "nvme";
  const std::string bus = real_path(directory / "device/subsystem").filename();
  if (bus == "virtio" || bus == "scsi") return bus;
  if (name.starts_with("vd")) return "virtio";
  if (name.starts_with("sd")) return "scsi";
  return "block";
}

std::string model_of(const fs::path& directory, const std::string& kind) {
  if (kind == "virtio") return "virtio block device";
  if (kind == "zram") return "compressed memory";
  const std::string model = read_line(directory / "device/model");
  if (kind != "scsi") return model;
  const std::string vendor = read_line(directory / "device/vendor");
  return vendor.empty() || vendor == "ATA" ? model : vendor + " " + model;
}

}  // namespace

std::string device_number(std::uint64_t device) {
  return fmt::format("{}:{}", major(device), minor(device));
}

bool Stack::add_below(const Mount& mount, const std::string& device) {
  if (add(real_path(sysfs_ / "dev/block" / device))) return true;
  if (add(real_path(sysfs_ / "dev/block" / mount.device))) return true;
  if (mount.type == "overlay") {
    for (const std::string& option : split(mount.options, ',')) {
      if (option.starts_with("upperdir=")) return add_below_file(option.substr(sizeof "upperdir=" - 1));
    }
    return false;
  }
  if (!mount.source.starts_with("/dev/")) return false;
  const std::string name = device_name(mount.source);
  if (mount.type != "btrfs") return add_named(name);
  bool any = false;
  for (const std::string& one : btrfs_devices(name)) any = add_named(one) || any;
  return any;
}

/// The directory of the device in sysfs, and all below it.
bool Stack::add(const fs::path& directory) {
  if (directory.empty()) return false;
  const std::string name = directory.filename();
  if (!seen_.insert(name).second) return true;
  BlockDevice device{.name = name, .kind = kind_of(directory, name)};
  device.bytes = read_number(directory / "size").value_or(0) * sysfs_sector;
  const bool is_partition = is_there(directory / "partition");
  // A partition has no queue of its own.
  const fs::path queue = (is_partition ? directory.parent_path() : directory) / "queue";
  device.logical_block = static_cast<int>(read_number(queue / "logical_block_size").value_or(0));
  device.physical_block = static_cast<int>(read_number(queue / "physical_block_size").value_or(0));
  device.rotational = read_number(queue / "rotational").value_or(0) != 0;
  device.polled_queues = read_number(queue / "io_poll").value_or(0) != 0;
  device.scheduler = chosen_in_brackets(read_line(queue / "scheduler"));
  const std::size_t place = layers_.size();
  layers_.push_back(std::move(device));
  if (is_partition) {
    add(directory.parent_path());
    return true;
  }

  bool has_below = false;
  for (const std::string& below : names_in(directory / "slaves")) {
    has_below = add(real_path(directory / "slaves" / below)) || has_below;
  }
  if (const std::string file = read_line(directory / "loop/backing_file"); !file.empty()) {
    layers_[place].model = file;
    has_below = add_below_file(file) || has_below;
  }
  if (!has_below) describe_drive_at(directory, layers_[place]);
  return true;
}

void Stack::describe_drive_at(const fs::path& directory, BlockDevice& drive) const {
  drive.is_drive = true;
  if (drive.model.empty()) drive.model = model_of(directory, drive.kind);
  fs::path attached = directory;
  // With several paths to a drive sysfs keeps it apart from its controllers: the first one counts.
  if (directory.string().find("/nvme-subsystem/") != std::string::npos) {
    for (const std::string& name : names_in(directory.parent_path())) {
      const fs::path controller = real_path(directory.parent_path() / name);
      if (name.starts_with("nvme") && controller.parent_path().filename() == "nvme") {
        attached = controller;
        break;
      }
    }
  }
  const std::vector<fs::path> ancestors = with_ancestors(attached);
  for (const fs::path& one : ancestors) {
    if (const auto node = read_number(one / "numa_node")) {
      drive.numa_node = static_cast<int>(*node);
      break;
    }
  }
  drive.link = link_of(ancestors);
}

bool Stack::add_named(const std::string& name) {
  return !name.empty() && add(real_path(sysfs_ / "class/block" / name));
}

bool Stack::add_below_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  const std::string device = device_number(status.st_dev);
  const Mount* const mount = mount_of(mounts_, device, real_path(path));
  return mount != nullptr && add_below(*mount, device);
}

/// "dm-0" of "/dev/mapper/vg-swap", whose links a container need not have.
std::string Stack::device_name(const std::string& source) const {
  const std::string name = fs::path(source).filename();
  if (!source.starts_with("/dev/mapper/")) return name;
  for (const std::string& block : names_in(sysfs_ / "class/block")) {
    if (read_line(sysfs_ / "class/block" / block / "dm/name") == name) return block;
  }
  return {};
}

/// All devices of the file system that `name` is one of.
std::vector<std::string> Stack::btrfs_devices(const std::string& name) const {
  for (const std::string& uuid : names_in(sysfs_ / "fs/btrfs")) {
    const auto devices = names_in(sysfs_ / "fs/btrfs" / uuid / "devices");
    if (std::find(devices.begin(), devices.end(), name) != devices.end()) return devices;
  }
  return {name};
}

}  // namespace spillway::aio
