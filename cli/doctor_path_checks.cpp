// The rules of spillway doctor about a directory for swap space, and what lies under it.
#include "../core/size.h"
#include "doctor_checks.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::cli {
namespace {

using aio::BlockDevice;
using aio::Drive;

constexpr std::int64_t kLittleSpace = std::int64_t{16} << 30;

Finding about(const PathFacts& facts, std::string name, std::string value) {
  return {.topic = "path", .name = std::move(name), .value = std::move(value), .subject = facts.path};
}

void worse(Finding& finding, Status status, std::string hint) {
  if (finding.status >= status) return;
  finding.status = status;
  finding.hint = std::move(hint);
}

bool one_of(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Finding judge_drive(const PathFacts& facts) {
  std::int64_t bytes = 0;
  int rotational = 0;
  const auto drives = facts.drive.drives();
  for (const BlockDevice& drive : drives) bytes += drive.bytes;
  Finding finding = about(facts, "drive", facts.drive.describe());
  if (drives.empty()) finding.value += "; no drive is seen under it";
  if (bytes > 0) finding.value += fmt::format(", {}", format_size(bytes));
  std::vector<std::string> spinning;
  for (const BlockDevice& drive : drives) {
    if (!drive.rotational) continue;
    ++rotational;
    if (drive.kind != "virtio" && drive.kind != "loop") spinning.push_back(drive.name);
  }
  finding.numbers = {{"bytes", bytes}, {"drives", drives.size()}, {"rotational", rotational}};
  if (!spinning.empty()) {
    finding.value += fmt::format("; {} rotates", fmt::join(spinning, ", "));
    worse(finding, Status::warning, "name a directory on an NVMe drive: a disk that rotates moves 0.2 GB/s");
  } else if (rotational > 0) {
    finding.value += "; says that it rotates, as virtual drives do";
  }
  if (std::any_of(drives.begin(), drives.end(), [](const BlockDevice& d) { return d.kind == "zram"; })) {
    worse(finding, Status::warning, "zram is memory: name a directory on a drive");
  }
  return finding;
}

std::string link_text(const aio::PciLink& link) {
  const auto rate = [](const std::string& speed) { return speed.substr(0, speed.find(" PCIe")); };
  if (!link.reduced()) return fmt::format("{} x{}", rate(link.speed), link.width);
  return fmt::format("{} x{} of {} x{}", rate(link.speed), link.width, rate(link.maximum_speed),
                     link.maximum_width);
}

void judge_links(const PathFacts& facts, std::vector<Finding>& findings) {
  for (const BlockDevice& drive : facts.drive.drives()) {
    const aio::PciLink& link = drive.link;
    if (link.address.empty()) continue;
    Finding finding = about(facts, "link", fmt::format("{}: {}", drive.name, link_text(link)));
    if (link.gb_per_s() > 0) finding.value += fmt::format(", at most {:.1f} GB/s", link.gb_per_s());
    finding.numbers = {{"device", drive.name},        {"pci_address", link.address},
                       {"width", link.width},         {"maximum_width", link.maximum_width},
                       {"speed", link.speed},         {"maximum_speed", link.maximum_speed},
                       {"gb_per_s", link.gb_per_s()}, {"maximum_gb_per_s", link.maximum_gb_per_s()}};
    if (link.reduced()) {
      if (link.maximum_gb_per_s() > 0) finding.value += fmt::format(" of {:.1f}", link.maximum_gb_per_s());
      worse(finding, Status::warning,
            fmt::format("reseat the drive, or give it a slot with {} lanes of {}; lspci -vv -s {} shows LnkCap "
                        "and LnkSta",
                        link.maximum_width, link.maximum_speed, link.address));
    }
    findings.push_back(std::move(finding));
  }
}

void judge_node(const PathFacts& facts, const std::vector<int>& nodes, std::vector<Finding>& findings) {
  std::set<int> of_drives;
  for (const BlockDevice& drive : facts.drive.drives()) {
    if (drive.numa_node >= 0) of_drives.insert(drive.numa_node);
  }
  if (of_drives.empty()) return;
  Finding finding = about(facts, "NUMA node", fmt::format("{}", fmt::join(of_drives, ", ")));
  finding.numbers = {{"numa_node", *of_drives.begin()}};
  for (const int node : of_drives) {
    if (nodes.empty() || std::find(nodes.begin(), nodes.end(), node) != nodes.end()) continue;
    finding.value += fmt::format("; this process runs on {} only", fmt::join(nodes, ", "));
    worse(finding, Status::note,
          fmt::format("numactl --cpunodebind={} --membind={} spillway train ...", node, node));
    break;
  }
  findings.push_back(std::move(finding));
}

void judge_layers(const PathFacts& facts, std::vector<Finding>& findings) {
  std::vector<std::string> names, kinds;
  for (const BlockDevice& layer : facts.drive.layers) {
    if (layer.is_drive || layer.kind == "partition") continue;
    names.push_back(fmt::format("{} ({})", layer.kind, layer.name));
    if (!one_of(layer.kind, kinds)) kinds.push_back(layer.kind);
  }
  if (names.empty()) return;
  Finding finding = about(facts, "layers", fmt::format("{}", fmt::join(names, ", ")));
  finding.numbers = {{"layers", fmt::format("{}", fmt::join(kinds, ","))}};
  for (const std::string& kind : kinds) {
    if (kind == "luks" || kind == "crypt") {
      finding.value += "; encryption takes processor time that the update wants";
      worse(finding, Status::note, "where the state need not be secret, use a partition without encryption");
    } else if (one_of(kind, {"raid4", "raid5", "raid6"})) {
      finding.value += "; parity is read before it is written";
      worse(finding, Status::warning,
            "swap space needs no parity: use RAID 0, or give each drive's directory with its own --path");
    } else if (one_of(kind, {"raid1", "raid10"})) {
      finding.value += "; each byte is written twice";
      worse(finding, Status::note,
            "swap space needs no mirror: use RAID 0, or give each drive's directory with its own --path");
    } else if (kind == "loop") {
      finding.value += "; each byte passes two file systems";
      worse(finding, Status::note, "name a directory on the file system that holds the loop device's file");
    }
  }
  findings.push_back(std::move(finding));
}

Finding judge_file_system(const PathFacts& facts) {
  const Drive& drive = facts.drive;
  Finding finding = about(facts, "file system", fmt::format("{} at {}", drive.file_system, drive.mount_point));
  finding.numbers = {{"file_system", drive.file_system}, {"mount_options", drive.mount_options}};
  static const std::vector<std::string> network = {"nfs",      "nfs4",      "cifs",  "smb3", "ceph",
                                                   "lustre",   "glusterfs", "9p",    "afs",  "gpfs",
                                                   "virtiofs", "beegfs",    "ocfs2", "pvfs2"};
  if (one_of(drive.file_system, network)) {
    finding.value += ", which is shared or far away";
    worse(finding, Status::warning, "name a directory on a local drive (ext4 or xfs, for example)");
  } else if (drive.file_system.starts_with("fuse")) {
    finding.value += ", which another program serves";
    worse(finding, Status::warning, "name a directory on a local drive (ext4 or xfs, for example)");
  } else if (drive.file_system == "overlay") {
    finding.value += ", the container's own";
    worse(finding, Status::note,
          "mount a directory of a local drive into the container (docker run -v /mnt/nvme:/mnt/nvme)");
  }
  std::vector<std::string> words;
  for (const char* option :
       {"ro", "sync", "dirsync", "discard", "compress", "compress-force", "nodatacow", "dax"}) {
    if (drive.has_option(option)) words.emplace_back(option);
  }
  if (drive.option("data") == "journal") words.emplace_back("data=journal");
  if (!words.empty()) finding.value += fmt::format("; mounted with {}", fmt::join(words, ", "));
  if (drive.has_option("sync") || drive.option("data") == "journal") {
    worse(finding, Status::warning,
          fmt::format("mount it without {}: each write waits for the drive's journal",
                      drive.has_option("sync") ? "sync" : "data=journal"));
  } else if (drive.has_option("compress") || drive.has_option("compress-force")) {
    worse(finding, Status::note,
          "optimizer state hardly compresses: chattr +C on an empty directory there turns it off");
  }
  return finding;
}

Finding judge_space(const PathFacts& facts) {
  const Drive& drive = facts.drive;
  Finding finding =
      about(facts, "space",
            fmt::format("{} free of {}", format_size(drive.free_bytes), format_size(drive.total_bytes)));
  finding.numbers = {{"free_bytes", drive.free_bytes}, {"total_bytes", drive.total_bytes}};
  if (drive.free_bytes < drive.total_bytes / 10) {
    finding.value += ", less than a tenth: drives slow down when they are full";
    worse(finding, Status::note, "free some space, or name a directory on a larger drive");
  } else if (drive.free_bytes < kLittleSpace) {
    constexpr int kRecordBytes = 10;  // of a parameter on nvme, in fp32
    finding.value += fmt::format(", room for the fp32 state of {} million parameters",
                                 drive.free_bytes / kRecordBytes / 1'000'000);
    worse(finding, Status::note, "free some space, or name a directory on a larger drive");
  }
  return finding;
}

void judge_queues(const PathFacts& facts, std::vector<Finding>& findings) {
  std::set<std::string> said;
  for (const BlockDevice& drive : facts.drive.drives()) {
    if (drive.logical_block == 0 && drive.scheduler.empty()) continue;
    const std::string scheduler = drive.scheduler.empty() ? "" : fmt::format("scheduler {}, ", drive.scheduler);
    const std::string value = fmt::format("{}blocks of {} B on {} B, {}IOPOLL", scheduler, drive.logical_block,
                                          drive.physical_block, drive.polled_queues ? "" : "no ");
    const bool slow = drive.kind == "nvme" && !one_of(drive.scheduler, {"", "none", "mq-deadline"});
    if (!said.insert(value).second && !slow) continue;  // as another drive's
    Finding finding = about(facts, "queue", fmt::format("{}: {}", drive.name, value));
    finding.numbers = {{"device", drive.name},
                       {"scheduler", drive.scheduler},
                       {"logical_block", drive.logical_block},
                       {"physical_block", drive.physical_block},
                       {"polled_queues", drive.polled_queues}};
    if (slow) {
      worse(finding, Status::note, fmt::format("echo none > /sys/block/{}/queue/scheduler", drive.name));
    }
    findings.push_back(std::move(finding));
  }
}

Finding judge_swap_space(const PathFacts& facts) {
  if (facts.refusal) {
    Finding finding = about(facts, "swap space", facts.refusal->message);
    finding.status = facts.is_needed ? Status::problem : Status::warning;
    finding.kind = facts.refusal->kind;
    finding.hint = facts.is_needed && !facts.refusal->hint.empty()
                       ? facts.refusal->hint
                       : "name a directory on a local drive with --path, if something shall live on nvme";
    return finding;
  }
  Finding finding = about(facts, "swap space", "can be made: ");
  finding.value += facts.direct ? fmt::format("direct I/O in units of {}, memory aligned to {}",
                                              format_size(facts.alignment), format_size(facts.memory_alignment))
                                : "through the page cache, which takes memory and a copy";
  if (!facts.direct)
    worse(finding, Status::note, "spillway.direct_io true, where the file system has direct I/O");
  finding.numbers = {
      {"alignment", facts.alignment}, {"memory_alignment", facts.memory_alignment}, {"direct", facts.direct}};
  return finding;
}

}  // namespace

std::vector<Finding> judge_path(const PathFacts& facts, const std::vector<int>& nodes) {
  std::vector<Finding> findings;
  if (!facts.drive.file_system.empty()) {
    findings.push_back(judge_drive(facts));
    judge_links(facts, findings);
    judge_node(facts, nodes, findings);
    judge_layers(facts, findings);
    findings.push_back(judge_file_system(facts));
    if (facts.drive.total_bytes > 0) findings.push_back(judge_space(facts));
    judge_queues(facts, findings);
  }
  findings.push_back(judge_swap_space(facts));
  for (const std::string& note : facts.notes) {
    Finding finding = about(facts, "reservation", note);
    worse(finding, Status::warning,
          "name a directory on ext4 or xfs, where space once reserved stays reserved");
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace spillway::cli
