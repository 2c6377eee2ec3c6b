// spillway doctor: each rule on made-up facts, both sides of it; what is read from made-up system files; and
// the program as its users run it.
#include "../../cli/doctor.h"

#include "../../core/error.h"
#include "program.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <nlohmann/json.hpp>
#include <sys/vfs.h>
#include <unistd.h>

namespace spillway::cli {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// A machine on which nothing is in the way.
Facts good() {
  Facts facts;
  MachineFacts& m = facts.machine;
  m.processor = "Zen";
  m.system = "Linux";
  m.isa = "avx512";
  m.isas = {"scalar", "avx2", "avx512"};
  m.cores = 8;
  m.hardware_threads = m.available_processors = 16;
  m.nodes = {0};
  m.governors = {{"performance", 16}};
  m.transparent_huge_pages = "madvise";
  m.huge_page_bytes = 2 << 20;
  m.memory = {.total = 64 * kGiB, .available = 60 * kGiB};
  m.installed_memory = 64 * kGiB;
  m.locked_memory_limit = -1;
  m.open_files_limit = m.open_files_maximum = 1024;
  facts.io_uring = {.available = true};
  facts.io_uring.single_issuer = facts.io_uring.deferred_task_run = facts.io_uring.sqpoll = true;
  facts.io_uring.iopoll = facts.io_uring.registered_files = facts.io_uring.registered_memory = true;
  PathFacts path{.path = "/mnt/nvme", .is_needed = true};
  path.drive = {.path = "/mnt/nvme",
                .mount_point = "/mnt",
                .file_system = "xfs",
                .mount_options = "rw,noatime",
                .source = "/dev/nvme0n1",
                .total_bytes = 2000 * kGiB,
                .free_bytes = 1000 * kGiB};
  path.drive.layers = {{.name = "nvme0n1",
                        .kind = "nvme",
                        .model = "Fast drive",
                        .bytes = 2000 * kGiB,
                        .logical_block = 512,
                        .physical_block = 4096,
                        .is_drive = true,
                        .polled_queues = true,
                        .scheduler = "none",
                        .numa_node = 0,
                        .link = {"0000:01:00.0", "16.0 GT/s PCIe", "16.0 GT/s PCIe", 4, 4}}};
  path.alignment = 4096;
  path.memory_alignment = 512;
  facts.paths = {path};
  return facts;
}

/// The worst finding of that name; one without a name where there is none.
Finding found(const Facts& facts, const std::string& name) {
  Finding worst;
  for (const Finding& one : judge(facts)) {
    if (one.name == name && (worst.name.empty() || one.status > worst.status)) worst = one;
  }
  return worst;
}

void expect(const Facts& facts, const std::string& name, Status status, const std::string& value,
            const std::string& hint = "") {
  const Finding one = found(facts, name);
  SCOPED_TRACE(one.name + ": " + one.value + " -> " + one.hint);
  EXPECT_EQ(one.name, name);
  EXPECT_EQ(name_of(one.status), name_of(status));
  EXPECT_NE(one.value.find(value), std::string::npos) << "missing: " << value;
  EXPECT_NE(one.hint.find(hint), std::string::npos) << "missing: " << hint;
}

aio::BlockDevice& drive_of(Facts& facts) {
  return facts.paths[0].drive.layers.back();
}

aio::BlockDevice layer(const std::string& name, const std::string& kind) {
  return {.name = name, .kind = kind};
}

TEST(DoctorRules, NothingIsInTheWayOfAGoodMachine) {
  for (const Finding& one : judge(good()))
    EXPECT_EQ(name_of(one.status), "ok") << one.name << ": " << one.value;
  EXPECT_EQ(first_problem(judge(good())), nullptr);
  expect(good(), "processor", Status::ok, "Zen, 8 cores, 16 hardware threads, 1 NUMA node");
  expect(good(), "drive", Status::ok, "Fast drive (nvme0n1), xfs, 2.0 TiB");
  expect(good(), "link", Status::ok, "16.0 GT/s x4, at most 7.9 GB/s");
  for (const char* name : {"quota", "build", "layers", "run", "reservation"})
    EXPECT_EQ(found(good(), name).name, "");
}

TEST(DoctorRules, EveryWarningAndProblemHasAHint) {
  Facts facts;  // nothing is known, and nothing works
  facts.paths = {{.path = "/gone", .is_needed = true, .refusal = Refusal{ErrorKind::io, "gone", ""}}};
  facts.machine.isa = "scalar";
  facts.machine.memory = {.total = kGiB, .available = 0};
  facts.machine.open_files_limit = facts.machine.open_files_maximum = 10;
  facts.config = ConfigFacts{.file = "c.json", .refusal = Refusal{ErrorKind::configuration, "bad", ""}};
  int bad = 0;
  for (const Finding& one : judge(facts)) {
    EXPECT_NE(one.value, "") << one.name;
    if (one.status < Status::warning) continue;
    ++bad;
    EXPECT_NE(one.hint, "") << one.name;
  }
  EXPECT_EQ(bad, 6);
}

TEST(DoctorRules, Quota) {
  Facts facts = good();
  facts.machine.available_processors = 4;
  expect(facts, "quota", Status::note, "4 processors of 16", "--cpus");
}

TEST(DoctorRules, InstructionSet) {
  Facts facts = good();
  facts.machine.isa = "avx2";
  expect(facts, "update", Status::note, "avx2 instructions, and this processor has avx512", "SPILLWAY_ISA");
  facts.machine.isa = "scalar";
  facts.machine.isas = {"scalar"};
  expect(facts, "update", Status::warning, "scalar", "-cpu host");
  facts.machine.isa_refusal = Refusal{ErrorKind::configuration, "no mmx", "use scalar"};
  expect(facts, "update", Status::problem, "no mmx", "use scalar");
}

TEST(DoctorRules, Governor) {
  Facts facts = good();
  facts.machine.governors = {{"powersave", 16}};
  expect(facts, "governor", Status::warning, "powersave", "cpupower frequency-set -g performance");
  facts.machine.governors = {{"performance", 15}, {"powersave", 1}};
  expect(facts, "governor", Status::warning, "performance on 15 of 16, powersave on 1 of 16");
  facts.machine.governors = {{"schedutil", 16}};
  expect(facts, "governor", Status::note, "schedutil", "performance");
  facts.machine.governors = {};
  EXPECT_EQ(found(facts, "governor").name, "");
}

TEST(DoctorRules, Memory) {
  Facts facts = good();
  facts.machine.memory = {.total = 16 * kGiB, .available = 12 * kGiB, .is_limited = true};
  expect(facts, "memory", Status::note, "12 GiB available of 16 GiB, the container's limit; 64 GiB",
         "--memory");
  facts.machine.memory = {.total = 64 * kGiB, .available = 6 * kGiB};
  expect(facts, "memory", Status::warning, "6 GiB available", "end what else runs");
  facts.machine.memory.available = 7 * kGiB;
  expect(facts, "memory", Status::ok, "7 GiB available");
  facts.machine.memory.available = kGiB / 10;
  expect(facts, "memory", Status::problem, "nothing is left");
  EXPECT_EQ(found(facts, "memory").kind, ErrorKind::resources);
  facts.machine.memory = {};
  expect(facts, "memory", Status::ok, "does not say");
}

TEST(DoctorRules, HugePages) {
  Facts facts = good();
  facts.machine.transparent_huge_pages = "never";
  expect(facts, "huge pages", Status::note, "transparent: never", "transparent_hugepage");
  facts.machine.huge_pages_reserved = 4096;  // 8 GiB, an eighth
  expect(facts, "huge pages", Status::note, "8 GiB reserved");
  facts.machine.huge_pages_reserved = 4097;
  expect(facts, "huge pages", Status::warning, "cannot use", "vm.nr_hugepages");
  facts.machine.transparent_huge_pages = "";
  facts.machine.huge_page_bytes = 0;
  EXPECT_EQ(found(facts, "huge pages").name, "");
}

TEST(DoctorRules, BuildOfTheProgram) {
  Facts facts = good();
  facts.machine.is_optimized = false;
  expect(facts, "build", Status::note, "without optimization", "build.sh release");
  facts.machine.sanitizer = "AddressSanitizer";
  expect(facts, "build", Status::note, "AddressSanitizer", "build.sh release");
}

TEST(DoctorRules, GpuNcclAndMpi) {
  Facts facts = good();
  expect(facts, "GPU", Status::ok, "none: the host device computes");
  expect(facts, "NCCL", Status::ok, "not there");
  expect(facts, "MPI", Status::ok, "no mpirun in PATH; this version runs one rank");
  facts.gpu = {.devices = {"NVIDIA H200", "NVIDIA H200"}};
  expect(facts, "GPU", Status::note, "2 x NVIDIA H200, no driver; this version does not use it yet", "driver");
  facts.gpu.driver = "570.86.15";
  expect(facts, "GPU", Status::note, "driver 570.86.15", "--gpus all");
  facts.gpu.has_cuda_library = facts.gpu.has_nccl_library = true;
  facts.gpu.cuda = "12.8";
  facts.gpu.nccl = "2.28.3";
  facts.mpi = {.launcher = "/usr/bin/mpirun", .version = "mpirun (Open MPI) 4.1.4"};
  expect(facts, "GPU", Status::note, "driver 570.86.15, CUDA 12.8");
  EXPECT_EQ(found(facts, "GPU").hint, "");
  expect(facts, "NCCL", Status::ok, "2.28.3");
  expect(facts, "MPI", Status::ok, "mpirun (Open MPI) 4.1.4; this version runs one rank");
}

TEST(DoctorRules, IoUring) {
  Facts facts = good();
  expect(facts, "io_uring", Status::ok,
         "on, with single issuer, deferred task-run, SQPOLL, IOPOLL, registered files");
  facts.io_uring.sqpoll = false;
  expect(facts, "io_uring", Status::ok, "; without SQPOLL");
  facts.io_uring.registered_memory = false;
  facts.io_uring.hint = "raise it";
  expect(facts, "io_uring", Status::note, "without SQPOLL, registered memory", "raise it");
  facts.io_uring = {.available = false, .reason = "a profile forbids it", .hint = "allow it so"};
  expect(facts, "io_uring", Status::warning, "off: a profile forbids it; threads", "allow it so");
  facts.io_uring.hint = "";
  expect(facts, "io_uring", Status::warning, "off", "sysctl kernel.io_uring_disabled=0");
}

TEST(DoctorRules, LockedMemoryIsHeldAgainstWhatTheRunPins) {
  Facts facts = good();
  facts.machine.locked_memory_limit = 8 << 20;
  expect(facts, "locked memory", Status::note, "limit 8 MiB: up to 1 GiB", "ulimit -l unlimited");
  facts.config = ConfigFacts{.file = "c.json", .fits = true, .host = 8 << 20};
  expect(facts, "locked memory", Status::ok, "8 MiB");
  facts.config->host += 1;
  expect(facts, "locked memory", Status::note, "of this run");
  facts.machine.may_lock_all = true;
  expect(facts, "locked memory", Status::ok, "does not bind");
}

TEST(DoctorRules, OpenFiles) {
  Facts facts = good();
  facts.machine.open_files_limit = 256;
  expect(facts, "open files", Status::ok, "256");
  facts.machine.open_files_limit = 255;
  expect(facts, "open files", Status::warning, "255", "ulimit -n 1024");
  facts.machine.open_files_maximum = -1;
  expect(facts, "open files", Status::warning, "255", "ulimit -n 4096");
  facts.machine.open_files_maximum = 255;
  expect(facts, "open files", Status::warning, "255", "nofile");
  facts.machine.open_files_limit = -1;
  expect(facts, "open files", Status::ok, "no limit");
}

TEST(DoctorRules, Link) {
  Facts facts = good();
  drive_of(facts).link.width = 2;
  expect(facts, "link", Status::warning, "nvme0n1: 16.0 GT/s x2 of 16.0 GT/s x4, at most 3.9 GB/s of 7.9",
         "lspci -vv -s 0000:01:00.0");
  drive_of(facts).link = {};
  EXPECT_EQ(found(facts, "link").name, "");
}

TEST(DoctorRules, RotationCountsWhereADriveIsReal) {
  Facts facts = good();
  drive_of(facts).rotational = true;
  expect(facts, "drive", Status::warning, "nvme0n1 rotates", "NVMe");
  drive_of(facts).kind = "virtio";
  expect(facts, "drive", Status::ok, "as virtual drives do");
  drive_of(facts).kind = "zram";
  drive_of(facts).rotational = false;
  expect(facts, "drive", Status::warning, "", "memory");
}

TEST(DoctorRules, NumaNode) {
  Facts facts = good();
  expect(facts, "NUMA node", Status::ok, "0");
  facts.machine.nodes = {1, 2};
  expect(facts, "NUMA node", Status::note, "0; this process runs on 1, 2 only", "numactl --cpunodebind=0");
  drive_of(facts).numa_node = -1;
  EXPECT_EQ(found(facts, "NUMA node").name, "");
}

TEST(DoctorRules, Layers) {
  struct Case {
    const char* kind;
    Status status;
    const char* value;
  };
  for (const Case& one : {Case{"lvm", Status::ok, "lvm (md0)"}, Case{"raid0", Status::ok, "raid0"},
                          Case{"luks", Status::note, "encryption"}, Case{"crypt", Status::note, "encryption"},
                          Case{"raid1", Status::note, "twice"}, Case{"raid5", Status::warning, "parity"},
                          Case{"loop", Status::note, "two file systems"}}) {
    SCOPED_TRACE(one.kind);
    Facts facts = good();
    auto& layers = facts.paths[0].drive.layers;
    layers.insert(layers.begin(), layer("md0", one.kind));
    expect(facts, "layers", one.status, one.value);
    if (one.status != Status::ok) {
      EXPECT_NE(found(facts, "layers").hint, "");
    }
  }
  Facts facts = good();
  auto& layers = facts.paths[0].drive.layers;
  layers.insert(layers.begin(), {layer("dm-1", "luks"), layer("dm-0", "lvm"), layer("p1", "partition")});
  expect(facts, "layers", Status::note, "luks (dm-1), lvm (dm-0);");
  layers.insert(layers.begin(), layer("md0", "raid6"));  // the worst counts, wherever it stands
  expect(facts, "layers", Status::warning, "raid6 (md0), luks", "no parity");
}

TEST(DoctorRules, FileSystem) {
  Facts facts = good();
  aio::Drive& drive = facts.paths[0].drive;
  expect(facts, "file system", Status::ok, "xfs at /mnt");
  drive.mount_options = "rw,sync,discard";
  expect(facts, "file system", Status::warning, "mounted with sync, discard", "without sync");
  drive.mount_options = "rw,data=journal";
  expect(facts, "file system", Status::warning, "data=journal", "without data=journal");
  drive.mount_options = "rw,data=ordered";
  expect(facts, "file system", Status::ok, "xfs");
  drive.mount_options = "rw,compress=zstd:3";
  expect(facts, "file system", Status::note, "compress", "chattr +C");
  drive.mount_options = "rw";
  for (const char* far : {"nfs4", "cifs", "9p", "virtiofs", "fuse.sshfs"}) {
    drive.file_system = far;
    expect(facts, "file system", Status::warning, far, "local drive");
  }
  drive.file_system = "overlay";
  expect(facts, "file system", Status::note, "the container's own", "docker run -v");
}

TEST(DoctorRules, Space) {
  Facts facts = good();
  aio::Drive& drive = facts.paths[0].drive;
  drive.free_bytes = 200 * kGiB;
  expect(facts, "space", Status::ok, "200 GiB free of 2.0 TiB");
  drive.free_bytes -= 1;
  expect(facts, "space", Status::note, "a tenth", "free some space");
  drive.total_bytes = 100 * kGiB;
  drive.free_bytes = 16 * kGiB;
  expect(facts, "space", Status::ok, "16 GiB");
  drive.free_bytes -= 1;
  expect(facts, "space", Status::note, "1717 million parameters", "larger drive");
}

TEST(DoctorRules, Scheduler) {
  Facts facts = good();
  for (const char* good_one : {"none", "mq-deadline", ""}) {
    drive_of(facts).scheduler = good_one;
    expect(facts, "queue", Status::ok, good_one);
  }
  drive_of(facts).scheduler = "bfq";
  drive_of(facts).polled_queues = false;
  expect(facts, "queue", Status::note, "bfq, blocks of 512 B on 4096 B, no IOPOLL",
         "echo none > /sys/block/nvme0n1/queue/scheduler");
  drive_of(facts).kind = "scsi";
  expect(facts, "queue", Status::ok, "bfq");
}

TEST(DoctorRules, SwapSpace) {
  Facts facts = good();
  expect(facts, "swap space", Status::ok, "units of 4 KiB, memory aligned to 512 B");
  facts.paths[0].direct = false;
  expect(facts, "swap space", Status::note, "through the page cache", "direct_io");
  facts.paths[0].notes = {"/mnt/nvme copies on write"};
  expect(facts, "reservation", Status::warning, "copies on write", "ext4 or xfs");
  facts.paths[0].refusal = Refusal{ErrorKind::resources, "no space", "make some"};
  expect(facts, "swap space", Status::problem, "no space", "make some");
  EXPECT_EQ(found(facts, "swap space").kind, ErrorKind::resources);
  EXPECT_EQ(first_problem(judge(facts))->name, "swap space");
  facts.paths[0].is_needed = false;
  expect(facts, "swap space", Status::warning, "no space", "--path");
  EXPECT_EQ(first_problem(judge(facts)), nullptr);
}

TEST(DoctorRules, Configuration) {
  Facts facts = good();
  facts.config =
      ConfigFacts{.file = "c.json", .fits = true, .places = "optimizer nvme", .device = kGiB, .nvme = 3 * kGiB};
  expect(facts, "run", Status::ok,
         "optimizer nvme; it fits: 1 GiB of device memory, 0 B of host memory, 3 GiB on nvme");
  facts.config->names_model = false;
  expect(facts, "run", Status::note, "no model", "--config c.json --model");
  facts.config->refusal = Refusal{ErrorKind::resources, "too large", "less of it"};
  expect(facts, "run", Status::problem, "too large", "less of it");
  EXPECT_EQ(found(facts, "run").kind, ErrorKind::resources);
}

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  return longest;
}

TEST(DoctorScreen, KeepsItsWidthAndSaysHintsAndTheCount) {
  Facts facts = good();
  facts.machine.governors = {{"powersave", 16}};
  drive_of(facts).link.width = 2;
  facts.machine.open_files_limit = 7;
  for (const std::size_t width : {79u, 100u}) {
    const std::string text = screen(judge(facts), width, false);
    EXPECT_LE(longest_line(text), width) << text;
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
    for (const char* part :
         {"machine\n", "\nGPU and ranks\n", "\nI/O\n", "\npath /mnt/nvme\n", "  warning  governor",
          "-> cpupower frequency-set -g performance\n", "\nTraining can run here: 3 warnings.\n"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << text;
    }
  }
  EXPECT_NE(screen(judge(facts), 100, true).find("\x1b[33mwarning\x1b[0m"), std::string::npos);
  EXPECT_NE(screen(judge(good()), 100, false).find("Training can run here: nothing is in the way."),
            std::string::npos);
}

TEST(DoctorScreen, WritesNoCommandOfTheTerminal) {
  Facts facts = good();
  facts.paths[0].path = "/mnt/\x1b[2J\nx";
  drive_of(facts).model = "Drive\x07";
  const std::string text = screen(judge(facts), 100, false);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\x07'), std::string::npos);
}

class DoctorFacts : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    const fs::path file = fs::path(root()) / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root() const { return scratch_.path("root"); }
  Scratch scratch_;
};

TEST_F(DoctorFacts, OfTheMachine) {
  for (int i = 0; i < 256; ++i) {
    write("sys/devices/system/cpu/cpu" + std::to_string(i) + "/cpufreq/scaling_governor", "powersave\n");
  }
  write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  write("proc/meminfo",
        "MemTotal:  1000 kB\nMemAvailable: 500 kB\nHugePages_Total:  12\nHugepagesize:    2048 kB\n");
  write("proc/self/status", "Name: x\nCapEff:\t000001ffffffffff\n");
  write("proc/self/uid_map", "         0          0 4294967295\n");
  const MachineFacts facts = machine_facts(root());
  EXPECT_GE(facts.cores, 1);
  EXPECT_GE(facts.hardware_threads, facts.cores);
  EXPECT_EQ(facts.governors, (std::map<std::string, int>{{"powersave", facts.hardware_threads}}));
  EXPECT_EQ(facts.transparent_huge_pages, "madvise");
  EXPECT_EQ(facts.huge_pages_reserved, 12);
  EXPECT_EQ(facts.huge_page_bytes, 2 << 20);
  EXPECT_EQ(facts.installed_memory, 1000 * 1024);
  EXPECT_EQ(facts.memory.available, 500 * 1024);
  EXPECT_TRUE(facts.may_lock_all);
  EXPECT_NE(facts.isa, "");
  EXPECT_NE(facts.open_files_limit, 0);
  write("proc/self/uid_map", "         0       1000          1\n");
  EXPECT_FALSE(machine_facts(root()).may_lock_all);
  write("proc/self/uid_map", "         0          0 4294967295\n");
  write("proc/self/status", "CapEff:\t00000000a80425fb\n");
  EXPECT_FALSE(machine_facts(root()).may_lock_all);
}

TEST_F(DoctorFacts, WithoutAnyFileAreEmpty) {
  const MachineFacts machine = machine_facts(root());
  EXPECT_TRUE(machine.governors.empty());
  EXPECT_EQ(machine.transparent_huge_pages, "");
  EXPECT_EQ(machine.huge_page_bytes, 0);
  EXPECT_FALSE(machine.may_lock_all);
  EXPECT_TRUE(gpu_facts(root()).devices.empty());
  EXPECT_EQ(gpu_facts(root()).driver, "");
  EXPECT_EQ(mpi_facts("").launcher, "");
  EXPECT_EQ(mpi_facts(root() + ":/gone").launcher, "");
}

TEST_F(DoctorFacts, OfGpusFromTheDriverElseFromTheBus) {
  write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  write("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
  write("sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n");
  write("sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n");  // its sound device
  write("sys/bus/pci/devices/0000:02:00.0/vendor", "0x1002\n");
  write("sys/bus/pci/devices/0000:02:00.0/class", "0x030000\n");
  EXPECT_EQ(gpu_facts(root()).devices, std::vector<std::string>{"NVIDIA device at 0000:01:00.0"});
  write("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release\n");
  write("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ:   12\n");
  EXPECT_EQ(gpu_facts(root()).devices, std::vector<std::string>{"NVIDIA H200"});
  EXPECT_EQ(gpu_facts(root()).driver, "570.86.15");
  write("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n");
  EXPECT_EQ(gpu_facts(root()).driver, "550.54.15");
}

TEST_F(DoctorFacts, OfMpiAreTheLaunchersOwnWords) {
  write("bin/mpirun", "#!/bin/sh\necho \"mpirun (Open MPI) 4.1.4 $1\"\necho more\nexec sleep 60\n");
  EXPECT_EQ(mpi_facts(root() + "/bin").launcher, "");  // it may not be run
  fs::permissions(root() + "/bin/mpirun", fs::perms::owner_all);
  const MpiFacts facts = mpi_facts("/gone:" + root() + "/bin");
  EXPECT_EQ(facts.launcher, root() + "/bin/mpirun");
  EXPECT_EQ(facts.version, "mpirun (Open MPI) 4.1.4 --version");
  write("bin/mpirun", "#!/bin/sh\nexit 1\n");
  EXPECT_EQ(mpi_facts(root() + "/bin").version, "");
}

class Doctor : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(scratch_.path("swap"));
    struct statfs status {};
    if (statfs(scratch_.root().c_str(), &status) != 0 || status.f_type == TMPFS_MAGIC) {
      GTEST_SKIP() << "the build folder is in memory, where no swap space can be made";
    }
  }
  json rows(const std::string& name = "rows.json") const { return json::parse(read_file(scratch_.path(name))); }
  static json row(const json& rows, const std::string& name) {
    for (const json& one : rows) {
      if (one.at("name") == name) return one;
    }
    ADD_FAILURE() << "no row " << name;
    return {};
  }
  std::string swap() const { return scratch_.path("swap"); }
  static bool ends_with_one_error(const Outcome& outcome) {
    return outcome.err.rfind("error: ", 0) == 0 && outcome.err.find("\nhint: ") != std::string::npos &&
           std::count(outcome.err.begin(), outcome.err.end(), '\n') == 2;
  }
  Scratch scratch_;
};

TEST_F(Doctor, PrintsAScreenAndFlatRowsAndLeavesNothing) {
  const Outcome outcome = run_program({"doctor", "--path", swap(), "--json", scratch_.path("rows.json")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
  EXPECT_LE(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 48);
  for (const char* part :
       {"spillway " SPILLWAY_VERSION, "\nmachine\n", "processor", "update", "memory", "GPU", "MPI", "io_uring",
        "locked memory", "\npath ", "swap space", "Training can run here: "}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part;
  }
  const json all = rows();
  for (const json& one : all) {
    for (const auto& [name, value] : one.items())
      EXPECT_TRUE(value.is_primitive() || name == "machine") << name;
    EXPECT_EQ(one.at("version"), SPILLWAY_VERSION);
    EXPECT_EQ(one.at("format_version"), 1);
    EXPECT_EQ(one.at("command"), "doctor");
    for (const char* key : {"topic", "name", "value", "status", "hint", "subject"})
      EXPECT_TRUE(one.at(key).is_string());
    if (one.at("status") == "warning" || one.at("status") == "problem") {
      EXPECT_NE(one.at("hint"), "") << one.dump();
    }
    EXPECT_NE(outcome.out.find(one.at("name").get<std::string>()), std::string::npos);
  }
  EXPECT_GT(row(all, "processor").at("cores"), 0);
  EXPECT_GT(row(all, "space").at("free_bytes"), 0);
  EXPECT_GE(row(all, "swap space").at("alignment"), 4096);
  EXPECT_EQ(row(all, "swap space").at("subject"), swap());
  EXPECT_TRUE(row(all, "io_uring").at("available").is_boolean());
  EXPECT_EQ(scratch_.names(), (std::vector<std::string>{scratch_.path("rows.json"), swap()}));
}

TEST_F(Doctor, APathThatCannotServeIsSaidOnTheScreenAndAtTheEnd) {
  const Outcome outcome = run_program(
      {"doctor", "--path", scratch_.path("gone"), "--path", swap(), "--json", scratch_.path("rows.json")});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_TRUE(ends_with_one_error(outcome)) << outcome.err;
  EXPECT_NE(outcome.err.find(scratch_.path("gone")), std::string::npos);
  EXPECT_NE(outcome.out.find("path " + swap() + "\n"), std::string::npos);  // the screen goes on
  EXPECT_NE(outcome.out.find("Training cannot run here: 1 problem"), std::string::npos);
  EXPECT_EQ(row(rows(), "swap space").at("status"), "problem");
  const Outcome file = run_program({"doctor", "--path", scratch_.write("file", "x")});
  EXPECT_EQ(file.exit_code, 4);
  EXPECT_NE(file.err.find("not a directory"), std::string::npos);
}

TEST_F(Doctor, MemoryIsNoDrive) {
  struct statfs status {};
  if (statfs("/dev/shm", &status) != 0 || status.f_type != TMPFS_MAGIC || access("/dev/shm", W_OK) != 0) {
    GTEST_SKIP() << "/dev/shm is no tmpfs to write to";
  }
  const Outcome outcome = run_program({"doctor", "--path", "/dev/shm"});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_NE(outcome.err.find("tmpfs, which is memory"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("file system    tmpfs at /dev/shm"), std::string::npos) << outcome.out;
}

TEST_F(Doctor, TheCurrentDirectoryMayBeUnfit) {
  // Nothing asked for it: training without swap space can run.
  const Outcome outcome = run_command({"sh", "-c", "cd /proc && exec " SPILLWAY_PROGRAM " doctor"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("  warning  swap space"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("path .\n"), std::string::npos);
}

TEST_F(Doctor, AConfigurationNamesPathsAndIsHeldAgainstTheMachine) {
  const auto config = [&](const std::string& directory, const std::string& ours) {
    return scratch_.write("config.json",
                          R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": ")" +
                              directory + R"("}}, "spillway": {)" + ours + "}}");
  };
  const std::string model = R"("model": "decoder-tiny")";
  const std::string json_path = scratch_.path("rows.json");
  Outcome outcome = run_program({"doctor", "--config", config(swap(), model), "--json", json_path});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(row(rows(), "run").at("fits"), true);
  EXPECT_GT(row(rows(), "run").at("nvme_bytes"), 1'000'000);
  EXPECT_EQ(row(rows(), "swap space").at("subject"), swap());
  EXPECT_NE(outcome.out.find("optimizer nvme, parameters device; it fits"), std::string::npos) << outcome.out;

  outcome = run_program(
      {"doctor", "--config", config(swap(), model + R"(, "device_memory": 1000)"), "--json", json_path});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.out;
  EXPECT_TRUE(ends_with_one_error(outcome)) << outcome.err;
  EXPECT_EQ(row(rows(), "run").at("fits"), false);

  outcome = run_program(
      {"doctor", "--config", config(swap(), model + R"(, "direct_io": false)"), "--json", json_path});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(row(rows(), "swap space").at("direct"), false);

  outcome = run_program({"doctor", "--config", config(scratch_.path("gone"), model)});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_NE(outcome.err.find(scratch_.path("gone")), std::string::npos);
  EXPECT_NE(outcome.out.find("Training cannot run here: 1 problem"), std::string::npos) << outcome.out;

  outcome = run_program({"doctor", "--config", config(swap(), "")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("names no model"), std::string::npos);

  outcome = run_program({"doctor", "--config", config(swap(), R"("modle": "x")")});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("modle"), std::string::npos) << outcome.err;
  outcome = run_program({"doctor", "--config", scratch_.path("gone.json")});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_NE(outcome.err.find("gone.json"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(swap()));
}

TEST_F(Doctor, AnInstructionSetThatIsNotHereIsAProblem) {
  const Outcome outcome =
      run_command({"env", "SPILLWAY_ISA=mmx", SPILLWAY_PROGRAM, "doctor", "--path", swap()});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("SPILLWAY_ISA"), std::string::npos);
  EXPECT_NE(outcome.out.find("swap space"), std::string::npos);
}

TEST_F(Doctor, RefusesWhatItDoesNotKnow) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{"doctor", "--paht", "x"},
                                                                     {"doctor", "x"},
                                                                     {"doctor", "--path", ""},
                                                                     {"doctor", "--json", ""},
                                                                     {"doctor", "--path"}}) {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments.back();
    EXPECT_TRUE(ends_with_one_error(outcome)) << outcome.err;
    EXPECT_NE(outcome.err.find("spillway doctor --help"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  EXPECT_EQ(run_program({"doctor", "--json", scratch_.path("gone/x.json")}).exit_code, 4);
  const std::string config = scratch_.write("c.json", "{}");
  EXPECT_EQ(run_program({"doctor", "--config", config, "--json", config}).exit_code, 2);
  EXPECT_EQ(read_file(config), "{}");
}

TEST_F(Doctor, HelpTeaches) {
  const Outcome help = run_program({"doctor", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* part :
       {"--path", "--config", "--json", "warning", "problem", "Examples", "docs/doctor.md"}) {
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
  }
  EXPECT_LE(longest_line(help.out), 105u);
  EXPECT_NE(run_program({"--help"}).out.find("doctor"), std::string::npos);
}

}  // namespace
}  // namespace spillway::cli
