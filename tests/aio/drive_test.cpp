// What lies under a directory, read from made-up trees of sysfs and procfs, and from this machine's own.
#include "../../aio/drive.h"

#include "../../core/error.h"
#include "scratch.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

namespace spillway::aio {
namespace {

namespace fs = std::filesystem;

std::string device_number(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw std::runtime_error("stat failed for " + path);
  return fmt::format("{}:{}", major(status.st_dev), minor(status.st_dev));
}

class DriveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::canonical(scratch_.path()) / "swap";
    fs::create_directories(path_);
    root_ = (fs::path(scratch_.path()) / "root").string();
    number_ = device_number(path_);
    write("proc/self/mountinfo", "");
  }

  void write(const std::string& name, const std::string& text) {
    const fs::path file = fs::path(root_) / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void link(const std::string& name, const std::string& target) {
    const fs::path at = fs::path(root_) / name;
    fs::create_directories(at.parent_path());
    fs::create_symlink(fs::absolute(fs::path(root_) / target), at);
  }
  /// A line of the mount table.
  void mount(const std::string& device, const std::string& point, const std::string& rest) {
    std::ofstream(fs::path(root_) / "proc/self/mountinfo", std::ios::app)
        << "36 35 " << device << " / " << point << ' ' << rest << '\n';
  }
  /// A block device at devices/WHERE, by its number and its name.
  void block(const std::string& where, const std::string& number) {
    const std::string name = fs::path(where).filename();
    write("sys/devices/" + where + "/size", "1000\n");
    link("sys/dev/block/" + number, "sys/devices/" + where);
    link("sys/class/block/" + name, "sys/devices/" + where);
  }
  void queue(const std::string& where, const std::string& scheduler = "[none] mq-deadline") {
    const std::string at = "sys/devices/" + where + "/queue/";
    write(at + "logical_block_size", "512\n");
    write(at + "physical_block_size", "4096\n");
    write(at + "rotational", "0\n");
    write(at + "io_poll", "1\n");
    write(at + "scheduler", scheduler + "\n");
  }
  /// An NVMe drive, number 259:N.
  std::string nvme(int n, const std::string& speed = "16.0 GT/s PCIe", int width = 4) {
    const std::string pci = fmt::format("pci0000:00/0000:00:01.{}/0000:{:02}:00.0", n, n + 1);
    const std::string controller = fmt::format("{}/nvme/nvme{}", pci, n);
    const std::string where = fmt::format("{}/nvme{}n1", controller, n);
    block(where, fmt::format("259:{}", n));
    queue(where);
    write("sys/devices/" + pci + "/current_link_speed", speed + "\n");
    write("sys/devices/" + pci + "/max_link_speed", "16.0 GT/s PCIe\n");
    write("sys/devices/" + pci + "/current_link_width", fmt::format("{}\n", width));
    write("sys/devices/" + pci + "/max_link_width", "4\n");
    write("sys/devices/" + pci + "/numa_node", "1\n");
    write("sys/devices/" + controller + "/model", "Samsung SSD 990 PRO 2TB                 \n");
    link("sys/devices/" + where + "/device", "sys/devices/" + controller);
    return where;
  }
  void slave(const std::string& upper, const std::string& lower) {
    link("sys/devices/" + upper + "/slaves/" + fs::path(lower).filename().string(), "sys/devices/" + lower);
  }
  Drive described() const { return describe_drive(path_, root_); }
  static std::vector<std::string> kinds(const Drive& drive) {
    std::vector<std::string> all;
    for (const auto& layer : drive.layers) all.push_back(layer.name + " " + layer.kind);
    return all;
  }
  using Strings = std::vector<std::string>;

  ScratchDirectory scratch_;
  std::string path_, root_, number_;
};

TEST_F(DriveTest, APartitionOfANvmeDriveWithAReducedLink) {
  const std::string drive = nvme(0, "8.0 GT/s PCIe", 2);
  block(drive + "/nvme0n1p2", number_);
  write("sys/devices/" + drive + "/nvme0n1p2/partition", "2\n");
  write("sys/devices/" + drive + "/nvme0n1p2/size", "3000\n");
  mount("0:21", "/proc", "rw - proc proc rw");
  mount("8:1", "/", "rw,relatime - xfs /dev/sda1 rw,attr2");
  mount(number_, "/mnt/a\\040b", "rw,noatime shared:1 master:2 - ext4 /dev/nvme0n1p2 rw,discard");
  const Drive d = described();
  EXPECT_EQ(d.path, path_);
  EXPECT_EQ(d.mount_point, "/mnt/a b");
  EXPECT_EQ(d.file_system, "ext4");
  EXPECT_EQ(d.source, "/dev/nvme0n1p2");
  EXPECT_EQ(d.mount_options, "rw,noatime,discard");
  EXPECT_EQ(kinds(d), (Strings{"nvme0n1p2 partition", "nvme0n1 nvme"}));
  EXPECT_EQ(d.layers[0].bytes, 3000 * 512);
  EXPECT_FALSE(d.layers[0].is_drive);
  const BlockDevice& nvme = d.layers[1];
  EXPECT_TRUE(nvme.is_drive);
  EXPECT_EQ(nvme.model, "Samsung SSD 990 PRO 2TB");
  EXPECT_EQ(nvme.bytes, 1000 * 512);
  EXPECT_EQ(nvme.logical_block, 512);
  EXPECT_EQ(nvme.physical_block, 4096);
  EXPECT_FALSE(nvme.rotational);
  EXPECT_TRUE(nvme.polled_queues);
  EXPECT_EQ(nvme.scheduler, "none");
  EXPECT_EQ(nvme.numa_node, 1);
  EXPECT_EQ(nvme.link.address, "0000:01:00.0");
  EXPECT_EQ(nvme.link.speed, "8.0 GT/s PCIe");
  EXPECT_EQ(nvme.link.maximum_speed, "16.0 GT/s PCIe");
  EXPECT_EQ(nvme.link.width, 2);
  EXPECT_EQ(nvme.link.maximum_width, 4);
  EXPECT_TRUE(nvme.link.reduced());
  EXPECT_NEAR(nvme.link.gb_per_s(), 1.969, 0.001);
  EXPECT_NEAR(nvme.link.maximum_gb_per_s(), 7.877, 0.001);
  EXPECT_EQ(d.describe(), "Samsung SSD 990 PRO 2TB (nvme0n1), ext4");
  struct statvfs space {};
  ASSERT_EQ(::statvfs(path_.c_str(), &space), 0);
  EXPECT_EQ(d.total_bytes, static_cast<std::int64_t>(space.f_blocks * space.f_frsize));
  EXPECT_GT(d.free_bytes, 0);
  EXPECT_LE(d.free_bytes, d.total_bytes);
}

TEST_F(DriveTest, LuksOnLvmOnRaidOverTwoDrives) {
  const std::string first = nvme(2), second = nvme(10 - 1);
  block("virtual/block/dm-1", number_);
  block("virtual/block/dm-0", "253:0");
  block("virtual/block/md0", "9:0");
  write("sys/devices/virtual/block/dm-1/dm/uuid", "CRYPT-LUKS2-0123456789abcdef-swap\n");
  write("sys/devices/virtual/block/dm-0/dm/uuid", "LVM-abcdef\n");
  write("sys/devices/virtual/block/md0/md/level", "raid0\n");
  slave("virtual/block/dm-1", "virtual/block/dm-0");
  slave("virtual/block/dm-0", "virtual/block/md0");
  slave("virtual/block/md0", second);
  slave("virtual/block/md0", first);
  mount(number_, "/", "rw - xfs /dev/mapper/swap rw");
  const Drive d = described();
  EXPECT_EQ(kinds(d), (Strings{"dm-1 luks", "dm-0 lvm", "md0 raid0", "nvme2n1 nvme", "nvme9n1 nvme"}));
  ASSERT_EQ(d.drives().size(), 2u);
  EXPECT_EQ(d.drives()[1].link.address, "0000:10:00.0");
  EXPECT_FALSE(d.drives()[0].link.reduced());
  EXPECT_EQ(d.describe(), "2 x Samsung SSD 990 PRO 2TB (nvme2n1, nvme9n1), raid0, lvm, luks, xfs");
}

TEST_F(DriveTest, PartitionsOfOneDriveUnderARaidNameTheDriveOnce) {
  const std::string drive = nvme(0);
  block("virtual/block/md0", number_);
  write("sys/devices/virtual/block/md0/md/level", "raid1\n");
  for (const std::string part : {"/nvme0n1p1", "/nvme0n1p2"}) {
    block(drive + part, "259:1" + part.substr(part.size() - 1));
    write("sys/devices/" + drive + part + "/partition", "1\n");
    slave("virtual/block/md0", drive + part);
  }
  mount(number_, "/", "rw - ext4 /dev/md0 rw");
  EXPECT_EQ(kinds(described()),
            (Strings{"md0 raid1", "nvme0n1p1 partition", "nvme0n1 nvme", "nvme0n1p2 partition"}));
  EXPECT_EQ(described().describe(), "Samsung SSD 990 PRO 2TB (nvme0n1), raid1, ext4");
}

TEST_F(DriveTest, ALoopDeviceLiesOnTheDriveOfItsFile) {
  // Two devices whose numbers are real: that of the path, and that of /proc, which holds the loop's file here.
  const std::string other = device_number("/proc");
  ASSERT_NE(other, number_);
  block("virtual/block/loop3", number_);
  write("sys/devices/virtual/block/loop3/loop/backing_file", "/proc/self\n");
  block("pci0000:00/ata1/sda", other);
  write("sys/devices/pci0000:00/ata1/model", "HGST HUS726T6TAL\n");
  write("sys/devices/pci0000:00/ata1/vendor", "ATA\n");
  link("sys/devices/pci0000:00/ata1/sda/device", "sys/devices/pci0000:00/ata1");
  write("sys/devices/pci0000:00/ata1/sda/queue/rotational", "1\n");
  mount(other, "/", "rw - ext4 /dev/sda rw");
  mount(number_, path_, "rw - ext4 /dev/loop3 rw");
  const Drive d = described();
  EXPECT_EQ(d.mount_point, path_);
  EXPECT_EQ(kinds(d), (Strings{"loop3 loop", "sda scsi"}));
  EXPECT_EQ(d.layers[0].model, "/proc/self");
  EXPECT_FALSE(d.layers[0].is_drive);
  EXPECT_TRUE(d.layers[1].rotational);
  EXPECT_TRUE(d.layers[1].link.address.empty());
  EXPECT_EQ(d.layers[1].numa_node, -1);
  EXPECT_EQ(d.describe(), "HGST HUS726T6TAL (sda), loop, ext4");
}

TEST_F(DriveTest, ALoopDeviceWhoseFileCannotBeSeenIsTheLastThingKnown) {
  block("virtual/block/loop3", number_);
  write("sys/devices/virtual/block/loop3/loop/backing_file", "/gone/disk.img (deleted)\n");
  mount(number_, "/", "rw - ext4 /dev/loop3 rw");
  const Drive d = described();
  EXPECT_EQ(kinds(d), Strings{"loop3 loop"});
  EXPECT_TRUE(d.layers[0].is_drive);
  EXPECT_EQ(d.describe(), "/gone/disk.img (deleted) (loop3), ext4");
}

TEST_F(DriveTest, AnOverlayLiesOnTheDriveOfItsUpperDirectory) {
  const std::string drive = nvme(0);
  fs::remove(fs::path(root_) / "sys/dev/block/259:0");
  link("sys/dev/block/" + device_number("/proc"), "sys/devices/" + drive);
  mount("0:90", "/", "rw - overlay overlay rw,lowerdir=/a,upperdir=/proc/self,workdir=/b");
  mount(device_number("/proc"), "/proc", "rw - ext4 /dev/nvme0n1 rw");
  const Drive d = described();
  EXPECT_EQ(d.file_system, "overlay");
  EXPECT_EQ(kinds(d), Strings{"nvme0n1 nvme"});
  EXPECT_EQ(d.describe(), "Samsung SSD 990 PRO 2TB (nvme0n1), overlay");
}

TEST_F(DriveTest, AnOverlayInAContainerHidesItsDrive) {
  mount("0:90", "/", "rw - overlay overlay rw,lowerdir=/a,upperdir=/gone/diff,workdir=/gone/work");
  EXPECT_TRUE(described().layers.empty());
  EXPECT_EQ(described().describe(), "overlay");
}

TEST_F(DriveTest, MemoryAndNetworkHaveNoDrive) {
  mount(number_, "/", "rw - tmpfs tmpfs rw,size=24683584k");
  Drive d = described();
  EXPECT_EQ(d.file_system, "tmpfs");
  EXPECT_TRUE(d.layers.empty());
  EXPECT_EQ(d.option("size"), "24683584k");
  EXPECT_EQ(d.describe(), "tmpfs");
  write("proc/self/mountinfo", "");
  mount(number_, "/data", "rw - nfs4 server:/export rw,sync,vers=4.2");
  d = described();
  EXPECT_EQ(d.file_system, "nfs4");
  EXPECT_TRUE(d.layers.empty());
  EXPECT_TRUE(d.has_option("sync"));
  EXPECT_TRUE(d.has_option("vers"));
  EXPECT_FALSE(d.has_option("ver"));
  EXPECT_EQ(d.option("sync"), "");
  EXPECT_EQ(d.describe(), "nfs4 (server:/export)");
}

TEST_F(DriveTest, BtrfsHasANumberOfItsOwnAndSeveralDrives) {
  nvme(0);
  nvme(1);
  for (const std::string device : {"nvme0n1", "nvme1n1"}) {
    link("sys/fs/btrfs/6f0e3b2c/devices/" + device, "sys/class/block/" + device);
  }
  write("sys/fs/btrfs/11111111/devices/sdz", "");
  write("sys/fs/btrfs/features/x", "1\n");
  mount("8:1", "/", "rw - ext4 /dev/sda1 rw");
  mount("0:45", fs::path(path_).parent_path().string(),
        "rw - btrfs /dev/nvme1n1 rw,compress=zstd:3,subvol=/swap");
  const Drive d = described();
  EXPECT_EQ(d.file_system, "btrfs");
  EXPECT_EQ(kinds(d), (Strings{"nvme0n1 nvme", "nvme1n1 nvme"}));
  EXPECT_EQ(d.option("compress"), "zstd:3");
  EXPECT_EQ(d.describe(), "2 x Samsung SSD 990 PRO 2TB (nvme0n1, nvme1n1), btrfs");
}

TEST_F(DriveTest, BtrfsOnAMappedDeviceIsFoundByTheMappersName) {
  const std::string drive = nvme(0);
  block("virtual/block/dm-4", "253:4");
  write("sys/devices/virtual/block/dm-4/dm/name", "vault\n");
  write("sys/devices/virtual/block/dm-4/dm/uuid", "CRYPT-LUKS2-01-vault\n");
  slave("virtual/block/dm-4", drive);
  mount("0:45", "/", "rw - btrfs /dev/mapper/vault rw");
  EXPECT_EQ(kinds(described()), (Strings{"dm-4 luks", "nvme0n1 nvme"}));
}

TEST_F(DriveTest, ADriveWithSeveralPathsIsAttachedWhereItsFirstControllerIs) {
  const std::string subsystem = "virtual/nvme-subsystem/nvme-subsys0";
  const std::string controller = "pci0000:00/0000:03:00.0/nvme/nvme0";
  block(subsystem + "/nvme0n1", number_);
  write("sys/devices/" + subsystem + "/model", "Datacenter drive\n");
  link("sys/devices/" + subsystem + "/nvme0n1/device", "sys/devices/" + subsystem);
  write("sys/devices/" + controller + "/address", "0000:03:00.0\n");
  link("sys/devices/" + subsystem + "/nvme0", "sys/devices/" + controller);
  write("sys/devices/pci0000:00/0000:03:00.0/current_link_width", "8\n");
  write("sys/devices/pci0000:00/0000:03:00.0/numa_node", "2\n");
  mount(number_, "/", "rw - ext4 /dev/nvme0n1 rw");
  const Drive d = described();
  ASSERT_EQ(d.layers.size(), 1u);
  EXPECT_EQ(d.layers[0].model, "Datacenter drive");
  EXPECT_EQ(d.layers[0].link.address, "0000:03:00.0");
  EXPECT_EQ(d.layers[0].numa_node, 2);
}

TEST_F(DriveTest, AVirtualDriveHasNeitherModelNorLink) {
  block("pci0000:00/0000:00:02.0/virtio1/block/vda", number_);
  queue("pci0000:00/0000:00:02.0/virtio1/block/vda", "none [mq-deadline] kyber");
  mount(number_, "/", "rw - ext4 /dev/vda rw");
  const Drive d = described();
  EXPECT_EQ(kinds(d), Strings{"vda virtio"});
  EXPECT_EQ(d.layers[0].scheduler, "mq-deadline");
  EXPECT_TRUE(d.layers[0].link.address.empty());
  EXPECT_EQ(d.describe(), "virtio block device (vda), ext4");
}

TEST_F(DriveTest, TheMountIsThatOfTheNumberElseTheLongestElseTheLast) {
  mount("8:1", "/", "rw - ext4 first rw");
  mount("8:2", fs::path(path_).parent_path().string(), "rw - xfs second rw");
  mount("8:3", path_ + "other", "rw - xfs third rw");
  EXPECT_EQ(described().source, "second");
  mount("8:4", fs::path(path_).parent_path().string(), "rw - xfs fourth rw");
  EXPECT_EQ(described().source, "fourth");
  mount(number_, "/elsewhere", "rw - xfs fifth rw");
  EXPECT_EQ(described().source, "fifth");
  mount(number_, "/", "rw - xfs sixth rw");
  EXPECT_EQ(described().source, "sixth");
  mount(number_, "/elsewhere/longer", "rw - xfs seventh rw");
  EXPECT_EQ(described().source, "sixth");
}

TEST_F(DriveTest, WhatIsMissingStaysEmpty) {
  EXPECT_EQ(described().describe(), "unknown");
  EXPECT_GT(described().total_bytes, 0);
  write("proc/self/mountinfo",
        "\nnonsense\n36 35 8:1 / /\n36 35 8:1 / / rw - ext4\n36 35 8:1 / / rw -\n - - - - - - -\n");
  EXPECT_EQ(described().file_system, "");
  mount(number_, "/", "rw -  tmpfs");  // a source without a name is an empty word
  EXPECT_EQ(described().file_system, "");
  write("proc/self/mountinfo", "");
  mount(number_, "/", "rw - ext4 /dev/nvme0n1");
  EXPECT_EQ(described().file_system, "ext4");
  EXPECT_EQ(described().mount_options, "rw");
  EXPECT_TRUE(described().layers.empty());
  // Devices of which nothing but their places is known; a link that leads nowhere; a circle.
  fs::create_directories(fs::path(root_) / "sys/devices/virtual/block/dm-0/dm");
  link("sys/dev/block/" + number_, "sys/devices/virtual/block/dm-0");
  slave("virtual/block/dm-0", "gone");
  slave("virtual/block/dm-0", "virtual/block/dm-0");
  const Drive d = described();
  EXPECT_EQ(kinds(d), Strings{"dm-0 dm"});
  EXPECT_EQ(d.layers[0].bytes, 0);
  EXPECT_EQ(describe_drive(path_, "/gone").describe(), "unknown");
}

TEST_F(DriveTest, LinksThatAreNotKnownAreNotReduced) {
  EXPECT_FALSE(PciLink{}.reduced());
  EXPECT_FALSE((PciLink{"0000:01:00.0", "Unknown", "16.0 GT/s PCIe", 0, 4}.reduced()));
  EXPECT_FALSE((PciLink{"0000:01:00.0", "16.0 GT/s PCIe", "16.0 GT/s PCIe", 4, 4}.reduced()));
  EXPECT_TRUE((PciLink{"0000:01:00.0", "16.0 GT/s PCIe", "32.0 GT/s PCIe", 4, 4}.reduced()));
  EXPECT_TRUE((PciLink{"0000:01:00.0", "16.0 GT/s PCIe", "16.0 GT/s PCIe", 2, 4}.reduced()));
  EXPECT_EQ(PciLink{}.gb_per_s(), 0);
  EXPECT_NEAR((PciLink{"", "5.0 GT/s PCIe", "", 4, 4}.gb_per_s()), 2.0, 1e-9);
}

TEST_F(DriveTest, APathThatDoesNotExistIsAnErrorThatNamesIt) {
  for (const std::string& path : {path_ + "/gone", std::string()}) {
    const auto error = error_of([&] { describe_drive(path, root_); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::io);
    EXPECT_EQ(error->detail().path, path);
    EXPECT_EQ(error->detail().error_number, ENOENT);
    EXPECT_NE(error->detail().hint, "");
  }
}

TEST_F(DriveTest, TheMachineItself) {
  const Drive d = describe_drive(path_);
  EXPECT_TRUE(path_.starts_with(d.mount_point)) << d.mount_point;
  EXPECT_NE(d.file_system, "");
  EXPECT_NE(d.mount_options, "");
  EXPECT_GT(d.total_bytes, 0);
  for (const BlockDevice& layer : d.layers) {
    EXPECT_NE(layer.name, "");
    EXPECT_NE(layer.kind, "");
    EXPECT_GT(layer.bytes, 0) << layer.name;
  }
  for (const BlockDevice& drive : d.drives()) {
    EXPECT_GE(drive.logical_block, 512) << drive.name;
    EXPECT_GE(drive.physical_block, drive.logical_block) << drive.name;
    EXPECT_NE(d.describe().find(drive.name), std::string::npos) << d.describe();
  }
  EXPECT_EQ(describe_drive("/proc").file_system, "proc");
  EXPECT_TRUE(describe_drive("/proc").layers.empty());
}

}  // namespace
}  // namespace spillway::aio
