#include "doctor_checks.h"

#include "../core/size.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::cli {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
/// Transfers have their slots registered with io_uring, which locks them; a run on nvme has some hundred MiB.
constexpr std::int64_t kLockedMemory = kGiB;
constexpr std::int64_t kMoreOpenFiles = 4096;
constexpr std::int64_t kOpenFiles = 256;  // files, rings, data, and what libraries hold

using Findings = std::vector<Finding>;

std::string limit_text(std::int64_t limit) {
  return limit < 0 ? "no limit" : format_size(limit);
}

void judge_processors(const MachineFacts& m, Findings& findings) {
  Finding processor{.topic = "machine", .name = "processor"};
  processor.value = m.processor.empty() ? m.system : m.processor;
  if (m.hardware_threads > 0) {
    processor.value +=
        fmt::format("{}{}, {}, {}", processor.value.empty() ? "" : ", ", counted(m.cores, "core"),
                    counted(m.hardware_threads, "hardware thread"), counted(std::ssize(m.nodes), "NUMA node"));
  } else if (m.available_processors > 0) {
    processor.value += (processor.value.empty() ? "" : ", ") + counted(m.available_processors, "processor");
  } else if (processor.value.empty()) {
    processor.value = "the system does not say";
  }
  processor.numbers = {{"cores", m.cores},
                       {"hardware_threads", m.hardware_threads},
                       {"available_processors", m.available_processors},
                       {"numa_nodes", m.nodes.size()}};
  findings.push_back(std::move(processor));
  if (m.available_processors < m.hardware_threads) {
    findings.push_back({.topic = "machine",
                        .name = "quota",
                        .value = fmt::format("the container's share is worth {} of {}",
                                             counted(m.available_processors, "processor"), m.hardware_threads),
                        .status = Status::note,
                        .hint = "raise it (docker run --cpus, Kubernetes limits.cpu, systemd CPUQuota)",
                        .numbers = {{"available_processors", m.available_processors},
                                    {"hardware_threads", m.hardware_threads}}});
  }
}

void judge_isa(const MachineFacts& m, Findings& findings) {
  Finding isa{.topic = "machine", .name = "update"};
  if (m.isa_refusal) {
    isa.value = m.isa_refusal->message;
    isa.status = Status::problem;
    isa.hint = m.isa_refusal->hint;
    isa.kind = m.isa_refusal->kind;
    findings.push_back(std::move(isa));
    return;
  }
  isa.value = fmt::format("{} instructions", m.isa);
  isa.numbers = {{"isa", m.isa}, {"isas", fmt::format("{}", fmt::join(m.isas, ","))}};
  if (!m.isas.empty() && m.isas.back() != m.isa) {
    isa.value += fmt::format(", and this processor has {}", m.isas.back());
    isa.status = Status::note;
    isa.hint = "unset SPILLWAY_ISA, and the fastest is taken";
  } else if (m.isa == "scalar") {
    isa.value += ": no AVX-512, AVX2 or NEON is seen, and the update is several times slower";
    isa.status = Status::warning;
    isa.hint = "on a virtual machine let it see the processor's instructions (QEMU: -cpu host)";
  }
  findings.push_back(std::move(isa));
}

void judge_governor(const MachineFacts& m, Findings& findings) {
  if (m.governors.empty()) return;
  int all = 0;
  std::vector<std::string> parts;
  bool slow = false, dynamic = false;
  for (const auto& [name, count] : m.governors) {
    all += count;
    slow = slow || name == "powersave" || name == "conservative" || name == "userspace";
    dynamic = dynamic || (name != "performance");
  }
  for (const auto& [name, count] : m.governors) {
    parts.push_back(m.governors.size() == 1 ? name : fmt::format("{} on {} of {}", name, count, all));
  }
  const auto fast = m.governors.find("performance");
  Finding governor{.topic = "machine", .name = "governor", .value = fmt::format("{}", fmt::join(parts, ", "))};
  governor.numbers = {{"performance_processors", fast == m.governors.end() ? 0 : fast->second},
                      {"processors", all}};
  if (dynamic) {
    governor.status = slow ? Status::warning : Status::note;
    governor.value += ": processors that wait for the drive slow down";
    governor.hint = "cpupower frequency-set -g performance";
  }
  findings.push_back(std::move(governor));
}

void judge_memory(const MachineFacts& m, Findings& findings) {
  Finding memory{.topic = "machine", .name = "memory"};
  memory.numbers = {{"total_bytes", m.memory.total},
                    {"available_bytes", m.memory.available},
                    {"installed_bytes", m.installed_memory}};
  if (m.memory.total == 0) {
    memory.value = "the system does not say";
    findings.push_back(std::move(memory));
    return;
  }
  memory.value =
      fmt::format("{} available of {}", format_size(m.memory.available), format_size(m.memory.total));
  if (m.memory.is_limited) {
    memory.value += fmt::format(", the container's limit; {} are installed", format_size(m.installed_memory));
    memory.status = Status::note;
    memory.hint = "raise it (docker run --memory, Kubernetes limits.memory, systemd MemoryMax)";
  }
  if (memory_without_margin(m.memory.available) == 0) {
    memory.value += ": nothing is left for a run";
    memory.status = Status::problem;
    memory.kind = ErrorKind::resources;
    memory.hint = "end what else runs, or raise the container's limit";
  } else if (m.memory.available < m.memory.total / 10) {
    memory.status = Status::warning;
    memory.hint = "end what else runs: what is not available cannot be used for slots and resident state";
  }
  findings.push_back(std::move(memory));
}

void judge_huge_pages(const MachineFacts& m, Findings& findings) {
  if (m.transparent_huge_pages.empty() && m.huge_page_bytes == 0) return;
  const std::int64_t reserved = m.huge_pages_reserved * m.huge_page_bytes;
  Finding pages{.topic = "machine", .name = "huge pages"};
  pages.value = fmt::format("transparent: {}; {}",
                            m.transparent_huge_pages.empty() ? "not built in" : m.transparent_huge_pages,
                            reserved > 0 ? format_size(reserved) + " reserved" : "none reserved");
  pages.numbers = {{"transparent", m.transparent_huge_pages},
                   {"reserved_bytes", reserved},
                   {"huge_page_bytes", m.huge_page_bytes}};
  if (reserved > m.installed_memory / 8) {
    pages.value += ", which this program cannot use";
    pages.status = Status::warning;
    pages.hint = "sysctl vm.nr_hugepages=0, unless another program needs them";
  } else if (m.transparent_huge_pages == "never") {
    pages.status = Status::note;
    pages.hint = "echo always > /sys/kernel/mm/transparent_hugepage/enabled saves the update page table walks";
  }
  findings.push_back(std::move(pages));
}

void judge_build(const MachineFacts& m, Findings& findings) {
  if (m.is_optimized && m.sanitizer.empty()) return;
  findings.push_back(
      {.topic = "machine",
       .name = "build",
       .value = fmt::format("this program was built {}",
                            m.sanitizer.empty() ? "without optimization" : "with " + m.sanitizer) +
                ": it is slow",
       .status = Status::note,
       .hint = "scripts/build.sh release"});
}

void judge_accelerators(const Facts& facts, Findings& findings) {
  const GpuFacts& g = facts.gpu;
  Finding gpu{.topic = "accelerators", .name = "GPU"};
  gpu.numbers = {{"devices", g.devices.size()}, {"driver", g.driver}, {"cuda", g.cuda}};
  if (g.devices.empty()) {
    gpu.value = g.driver.empty()
                    ? "none: the host device computes"
                    : fmt::format("none, though driver {} is there: the host device computes", g.driver);
  } else {
    const bool same = std::all_of(g.devices.begin(), g.devices.end(),
                                  [&](const std::string& one) { return one == g.devices.front(); });
    gpu.value = same && g.devices.size() > 1 ? fmt::format("{} x {}", g.devices.size(), g.devices.front())
                                             : fmt::format("{}", fmt::join(g.devices, ", "));
    gpu.value += g.driver.empty() ? ", no driver" : fmt::format(", driver {}", g.driver);
    if (!g.cuda.empty()) gpu.value += fmt::format(", CUDA {}", g.cuda);
    gpu.value += "; this version does not use it yet: the host device computes";
    gpu.status = Status::note;
    if (g.driver.empty()) {
      gpu.hint = "install NVIDIA's driver, after which nvidia-smi names the device";
    } else if (!g.has_cuda_library) {
      gpu.hint = "libcuda.so.1 is missing: start the container with its GPUs (docker run --gpus all)";
    }
  }
  findings.push_back(std::move(gpu));
  findings.push_back({.topic = "accelerators",
                      .name = "NCCL",
                      .value = g.has_nccl_library
                                   ? fmt::format("{}; for ranks on GPUs, not used by this version yet",
                                                 g.nccl.empty() ? "there" : g.nccl)
                                   : "not there; only ranks on GPUs need it",
                      .numbers = {{"nccl", g.nccl}}});
  const std::string& launcher = facts.mpi.version.empty() ? facts.mpi.launcher : facts.mpi.version;
  findings.push_back({.topic = "accelerators",
                      .name = "MPI",
                      .value = launcher.empty() ? "no mpirun in PATH; this version runs one rank, without MPI"
                                                : launcher + "; this version runs one rank, without MPI"});
}

void judge_io_uring(const aio::IoUringSupport& u, Findings& findings) {
  Finding ring{.topic = "io", .name = "io_uring"};
  ring.numbers = {{"available", u.available},
                  {"errno", u.error_number},
                  {"disabled_sysctl", u.disabled_sysctl},
                  {"single_issuer", u.single_issuer},
                  {"deferred_task_run", u.deferred_task_run},
                  {"sqpoll", u.sqpoll},
                  {"iopoll", u.iopoll},
                  {"registered_files", u.registered_files},
                  {"registered_memory", u.registered_memory}};
  if (!u.available) {
    ring.value =
        fmt::format("off: {}; threads in pread and pwrite serve, with more work for the processors", u.reason);
    ring.status = Status::warning;
    ring.hint = u.hint.empty()
                    ? "allow it: sysctl kernel.io_uring_disabled=0, and a container's seccomp profile"
                    : u.hint;
    findings.push_back(std::move(ring));
    return;
  }
  std::vector<std::string> with, without;
  for (const auto& [name, has] :
       {std::pair{"single issuer", u.single_issuer}, std::pair{"deferred task-run", u.deferred_task_run},
        std::pair{"SQPOLL", u.sqpoll}, std::pair{"IOPOLL", u.iopoll},
        std::pair{"registered files", u.registered_files},
        std::pair{"registered memory", u.registered_memory}}) {
    (has ? with : without).emplace_back(name);
  }
  ring.value = "on";
  if (!with.empty()) ring.value += fmt::format(", with {}", fmt::join(with, ", "));
  if (!without.empty()) ring.value += fmt::format("; without {}", fmt::join(without, ", "));
  if (!u.registered_memory || !u.registered_files) {
    ring.status = Status::note;
    ring.hint = u.hint;
  }
  findings.push_back(std::move(ring));
}

void judge_limits(const Facts& facts, Findings& findings) {
  const MachineFacts& m = facts.machine;
  const std::int64_t planned = facts.config ? facts.config->host : 0;
  const std::int64_t needed = planned > 0 ? planned : kLockedMemory;
  Finding locked{.topic = "io", .name = "locked memory", .value = limit_text(m.locked_memory_limit)};
  locked.numbers = {
      {"limit_bytes", m.locked_memory_limit}, {"may_lock_all", m.may_lock_all}, {"needed_bytes", needed}};
  if (m.may_lock_all && m.locked_memory_limit >= 0) {
    locked.value = fmt::format("limit {}, which does not bind this user", limit_text(m.locked_memory_limit));
  } else if (m.locked_memory_limit >= 0 && m.locked_memory_limit < needed) {
    locked.value =
        fmt::format("limit {}: {} could be registered with io_uring, and what is beyond it is not",
                    limit_text(m.locked_memory_limit),
                    planned > 0 ? format_size(planned) + " of this run" : "up to " + format_size(needed));
    locked.status = Status::note;
    locked.hint =
        "ulimit -l unlimited, where /etc/security/limits.conf has a line 'USER - memlock unlimited' "
        "(docker run --ulimit memlock=-1, systemd LimitMEMLOCK=infinity)";
  }
  findings.push_back(std::move(locked));

  Finding files{.topic = "io", .name = "open files"};
  files.value = m.open_files_limit < 0 ? "no limit" : fmt::format("limit {}", m.open_files_limit);
  files.numbers = {{"limit", m.open_files_limit}, {"maximum", m.open_files_maximum}};
  if (m.open_files_limit >= 0 && m.open_files_limit < kOpenFiles) {
    files.value += ": few for drives, rings and data files";
    files.status = Status::warning;
    const bool may_raise = m.open_files_maximum < 0 || m.open_files_maximum >= kOpenFiles;
    files.hint =
        may_raise ? fmt::format("ulimit -n {}", m.open_files_maximum < 0
                                                    ? kMoreOpenFiles
                                                    : std::min(m.open_files_maximum, kMoreOpenFiles))
                  : fmt::format("/etc/security/limits.conf: 'USER - nofile {}' (docker run --ulimit nofile={})",
                                kMoreOpenFiles, kMoreOpenFiles);
  }
  findings.push_back(std::move(files));
}

void judge_config(const ConfigFacts& c, Findings& findings) {
  Finding config{.topic = "config", .name = "run", .subject = c.file};
  config.numbers = {
      {"fits", c.fits}, {"device_bytes", c.device}, {"host_bytes", c.host}, {"nvme_bytes", c.nvme}};
  if (c.refusal) {
    config.value = c.refusal->message;
    config.status = Status::problem;
    config.kind = c.refusal->kind;
    const char* const usual = c.refusal->kind == ErrorKind::io ? "name a file that exists and can be read"
                                                               : "docs/configuration.md explains every key";
    config.hint = c.refusal->hint.empty() ? usual : c.refusal->hint;
  } else if (!c.names_model) {
    config.value = fmt::format("{}; it names no model, so whether that fits is not known", c.places);
    config.status = Status::note;
    config.hint = fmt::format("spillway train --config {} --model MODEL --dry-run says it", c.file);
  } else {
    config.value = fmt::format("{}; it fits: {} of device memory, {} of host memory, {} on nvme", c.places,
                               format_size(c.device), format_size(c.host), format_size(c.nvme));
  }
  findings.push_back(std::move(config));
}

}  // namespace

std::string_view name_of(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::note:
      return "note";
    case Status::warning:
      return "warning";
    case Status::problem:
      return "problem";
  }
  return {};
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::vector<Finding> judge(const Facts& facts) {
  Findings findings;
  judge_processors(facts.machine, findings);
  judge_isa(facts.machine, findings);
  judge_governor(facts.machine, findings);
  judge_memory(facts.machine, findings);
  judge_huge_pages(facts.machine, findings);
  judge_build(facts.machine, findings);
  judge_accelerators(facts, findings);
  judge_io_uring(facts.io_uring, findings);
  judge_limits(facts, findings);
  if (facts.config) judge_config(*facts.config, findings);
  for (const PathFacts& path : facts.paths) {
    for (Finding& finding : judge_path(path, facts.machine.nodes)) findings.push_back(std::move(finding));
  }
  return findings;
}

const Finding* first_problem(const std::vector<Finding>& findings) {
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [](const Finding& one) { return one.status == Status::problem; });
  return found == findings.end() ? nullptr : &*found;
}

}  // namespace spillway::cli
