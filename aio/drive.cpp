#include "drive.h"

#include "../core/error.h"
#include "block_stack.h"
#include "system_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

namespace spillway::aio {
namespace {

double number_before(std::string_view text) {
  return std::strtod(std::string(text).c_str(), nullptr);  // "16.0 GT/s PCIe"; 0 of "Unknown"
}

double link_gb_per_s(const std::string& speed, int width) {
  const double rate = number_before(speed);
  const double code = rate < 8 ? 8.0 / 10 : 128.0 / 130;  // from 8 GT/s on (64 GT/s has no line code, but FEC)
  return rate * code / 8 * width;
}

}  // namespace

bool PciLink::reduced() const {
  const double rate = number_before(speed), maximum = number_before(maximum_speed);
  return (rate > 0 && rate < maximum) || (width > 0 && width < maximum_width);
}

double PciLink::gb_per_s() const {
  return link_gb_per_s(speed, width);
}

double PciLink::maximum_gb_per_s() const {
  return link_gb_per_s(maximum_speed, maximum_width);
}

std::vector<BlockDevice> Drive::drives() const {
  std::vector<BlockDevice> all;
  std::copy_if(layers.begin(), layers.end(), std::back_inserter(all),
               [](const BlockDevice& device) { return device.is_drive; });
  return all;
}

bool Drive::has_option(const std::string& name) const {
  for (const std::string& option : split(mount_options, ',')) {
    if (option == name || option.starts_with(name + "=")) return true;
  }
  return false;
}

std::string Drive::option(const std::string& name) const {
  for (const std::string& one : split(mount_options, ',')) {
    if (one.starts_with(name + "=")) return one.substr(name.size() + 1);
  }
  return {};
}

std::string Drive::describe() const {
  std::vector<std::string> models, parts;
  std::map<std::string, std::vector<std::string>> names;  // of the drives of one model
  for (const BlockDevice& drive : drives()) {
    const std::string model = drive.model.empty() ? drive.kind + " device" : drive.model;
    if (names[model].empty()) models.push_back(model);
    names[model].push_back(drive.name);
  }
  for (const std::string& model : models) {
    const auto count = names[model].size();
    parts.push_back(fmt::format("{}{} ({})", count > 1 ? fmt::format("{} x ", count) : "", model,
                                fmt::join(names[model], ", ")));
  }
  if (parts.size() > 1) parts = {fmt::format("{}", fmt::join(parts, " + "))};
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    const bool is_said = std::find(parts.begin(), parts.end(), layer->kind) != parts.end();
    if (!layer->is_drive && layer->kind != "partition" && !is_said) parts.push_back(layer->kind);
  }
  if (!file_system.empty()) {
    const bool says_more = layers.empty() && !source.empty() && source != file_system && source != "none";
    parts.push_back(says_more ? fmt::format("{} ({})", file_system, source) : file_system);
  }
  return parts.empty() ? "unknown" : fmt::format("{}", fmt::join(parts, ", "));
}

Drive describe_drive(const std::string& path, const std::string& root) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    throw Error(
        ErrorKind::io, "the directory cannot be reached",
        {.operation = "stat", .path = path, .error_number = errno, .hint = "create it, or name another"});
  }
  Drive drive{.path = path};
  if (struct statvfs space{}; ::statvfs(path.c_str(), &space) == 0) {
    drive.total_bytes = static_cast<std::int64_t>(space.f_blocks * space.f_frsize);
    drive.free_bytes = static_cast<std::int64_t>(space.f_bavail * space.f_frsize);
  }
  const std::string device = device_number(status.st_dev);
  const std::vector<Mount> mounts = mount_table(root);
  const Mount* const mount = mount_of(mounts, device, real_path(path));
  if (mount == nullptr) return drive;
  drive.mount_point = mount->point;
  drive.file_system = mount->type;
  drive.mount_options = mount->options;
  drive.source = mount->source;
  Stack(root, mounts, drive.layers).add_below(*mount, device);
  return drive;
}

}  // namespace spillway::aio
