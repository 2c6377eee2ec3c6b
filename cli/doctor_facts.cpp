#include "doctor_facts.h"

#include "../aio/file.h"
#include "../core/topology.h"
#include "../cpu_adam/isa.h"
#include "../models/named_models.h"
#include "machine.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace spillway::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{5};  // with another program that says its version

Refusal refusal_of(const Error& error) {
  return {error.kind(), error.what(), error.detail().hint};
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// What stands behind "name:" in a file of such lines.
std::string named(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":")) continue;
    const auto begin = line.find_first_not_of(" \t", name.size() + 1);
    return begin == std::string::npos ? "" : line.substr(begin, line.find_last_not_of(" \t") + 1 - begin);
  }
  return {};
}

std::int64_t number(const std::string& text, int base = 10) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, base);
  return value;
}

std::string in_brackets(const std::string& choices) {  // "always [madvise] never"
  const auto open = choices.find('['), close = choices.find(']');
  return open == std::string::npos || close == std::string::npos ? ""
                                                                 : choices.substr(open + 1, close - open - 1);
}

std::int64_t limit_of(rlim_t limit) {
  return limit == RLIM_INFINITY ? -1 : static_cast<std::int64_t>(limit);
}

void add_processors(MachineFacts& facts, const std::string& root) {
  std::vector<Processor> processors;
  try {
    processors = allowed_processors();
  } catch (const Error&) {  // a run goes on without knowing them, too
    return;
  }
  std::set<int> cores, nodes;
  for (const Processor& one : processors) {
    cores.insert(one.core);
    nodes.insert(one.node);
    const std::string governor =
        first_line(fmt::format("{}/sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor", root, one.number));
    if (!governor.empty()) ++facts.governors[governor];
  }
  facts.cores = static_cast<int>(cores.size());
  facts.hardware_threads = static_cast<int>(processors.size());
  facts.nodes.assign(nodes.begin(), nodes.end());
}

void add_isa(MachineFacts& facts) {
  for (const auto isa : cpu_adam::supported_isas()) facts.isas.emplace_back(name_of(isa));
  try {
    facts.isa = name_of(cpu_adam::chosen_isa());
  } catch (const Error& error) {
    facts.isa_refusal = refusal_of(error);
  }
}

void add_limits(MachineFacts& facts, const std::string& root) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) facts.locked_memory_limit = limit_of(limit.rlim_cur);
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts.open_files_limit = limit_of(limit.rlim_cur);
    facts.open_files_maximum = limit_of(limit.rlim_max);
  }
  constexpr int kIpcLock = 14;  // CAP_IPC_LOCK
  const std::string capabilities = named(root + "/proc/self/status", "CapEff");
  // Within a user namespace the capability does not lift the limit: only there are users mapped.
  std::istringstream first_range(first_line(root + "/proc/self/uid_map"));
  std::int64_t inside = -1, outside = -1, count = 0;
  first_range >> inside >> outside >> count;
  const bool all_users = inside == 0 && outside == 0 && count == 0xffffffff;
  facts.may_lock_all = all_users && (number(capabilities, 16) >> kIpcLock & 1) != 0;
}

void add_build(MachineFacts& facts) {
#ifndef __OPTIMIZE__
  facts.is_optimized = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
  facts.sanitizer = "AddressSanitizer";
#elif defined(__SANITIZE_THREAD__)
  facts.sanitizer = "ThreadSanitizer";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  facts.sanitizer = "AddressSanitizer";
#elif __has_feature(thread_sanitizer)
  facts.sanitizer = "ThreadSanitizer";
#endif
#endif
  static_cast<void>(facts);
}

/// The first word that begins like a version: of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15
/// Tue".
std::string version_in(const std::string& line) {
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const bool plain = word.find_first_not_of("0123456789.") == std::string::npos;
    if (plain && word.find('.') != std::string::npos) return word;
  }
  return {};
}

/// Of a library that is loaded for as long as its version takes to be asked; it is linked nowhere. False where
/// it is not there.
bool library_version(const char* library, const char* function, std::string& version,
                     const std::function<std::string(int)>& text) {
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return false;
  int value = 0;
  const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(handle, function));
  if (ask != nullptr && ask(&value) == 0 && value > 0) version = text(value);
  dlclose(handle);
  return true;
}

std::vector<std::string> sorted_names(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code failure;
  for (auto entry = fs::directory_iterator(directory, failure); !failure && entry != fs::directory_iterator();
       entry.increment(failure)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The first line that a program writes; empty where it says nothing in time.
std::string first_line_of(const std::string& program, const std::string& argument) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::string name = program, flag = argument;
  const std::array<char*, 3> arguments{name.data(), flag.data(), nullptr};
  pid_t child = 0;
  const int failure = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  if (failure == 0) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (text.find('\n') == std::string::npos) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      pollfd waiting{.fd = ends[0], .events = POLLIN, .revents = 0};
      std::array<char, 256> buffer;
      if (left.count() <= 0 || poll(&waiting, 1, static_cast<int>(left.count())) <= 0) break;
      const ssize_t got = read(ends[0], buffer.data(), buffer.size());
      if (got <= 0) break;
      text.append(buffer.data(), static_cast<std::size_t>(got));
    }
    kill(child, SIGKILL);  // it has said what it was asked, or never will
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  close(ends[0]);
  return text.substr(0, text.find('\n'));
}

/// Directories that the run keeps something in, each once.
std::vector<std::string> nvme_paths(const Config& config) {
  std::vector<std::string> paths;
  for (const auto& [tier, of_tier] : {std::pair{config.optimizer_tier, &config.optimizer_nvme_paths},
                                      std::pair{config.parameter_tier, &config.parameter_nvme_paths}}) {
    if (tier != Tier::nvme) continue;
    for (const std::string& path : *of_tier) {
      if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
    }
  }
  return paths;
}

/// Whether the run fits. Drives that can't be used have said so already: `all_usable` is false then, and they
/// do not count.
void judge_fit(ConfigFacts& facts, bool all_usable) {
  try {
    const Setup setup = prepare({.config = facts.file, .dry_run = all_usable});
    const Plan plan = make_plan(setup.layout, setup.config);
    facts.device = plan.of(Tier::device).total();
    facts.host = plan.of(Tier::host).total();
    facts.nvme = plan.of(Tier::nvme).total();
    check_fits(setup);
    facts.fits = true;
  } catch (const Error& error) {
    facts.refusal = refusal_of(error);
  }
}

}  // namespace

MachineFacts machine_facts(const std::string& root) {
  MachineFacts facts;
  const Machine machine = this_machine();
  facts.processor = machine.processor;
  facts.system = machine.system;
  facts.available_processors = available_processors(root);
  add_processors(facts, root);
  add_isa(facts);
  facts.transparent_huge_pages = in_brackets(first_line(root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  const std::string meminfo = root + "/proc/meminfo";
  facts.huge_pages_reserved = number(named(meminfo, "HugePages_Total"));
  facts.huge_page_bytes = number(named(meminfo, "Hugepagesize")) * 1024;
  facts.installed_memory = number(named(meminfo, "MemTotal")) * 1024;
  facts.memory = machine_memory(root);
  add_limits(facts, root);
  add_build(facts);
  return facts;
}

GpuFacts gpu_facts(const std::string& root) {
  GpuFacts facts;
  facts.driver = version_in(first_line(root + "/proc/driver/nvidia/version"));
  const fs::path known = root + "/proc/driver/nvidia/gpus";
  for (const std::string& address : sorted_names(known)) {
    const std::string model = named(known / address / "information", "Model");
    facts.devices.push_back(model.empty() ? "NVIDIA device at " + address : model);
  }
  if (facts.devices.empty()) {  // no driver, or a container that does not show what it knows
    const fs::path bus = root + "/sys/bus/pci/devices";
    for (const std::string& address : sorted_names(bus)) {
      const bool is_display = first_line(bus / address / "class").starts_with("0x03");
      if (is_display && first_line(bus / address / "vendor") == "0x10de") {
        facts.devices.push_back("NVIDIA device at " + address);
      }
    }
  }
  facts.has_cuda_library = library_version("libcuda.so.1", "cuDriverGetVersion", facts.cuda, [](int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  });
  facts.has_nccl_library = library_version("libnccl.so.2", "ncclGetVersion", facts.nccl, [](int version) {
    const int major = version >= 10000 ? 10000 : 1000;  // 2804 and 22803
    return fmt::format("{}.{}.{}", version / major, version % major / 100, version % 100);
  });
  return facts;
}

MpiFacts mpi_facts(const std::string& path) {
  std::istringstream directories(path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string program = (directory.empty() ? "." : directory) + "/mpirun";
    std::error_code failure;
    if (!fs::is_regular_file(program, failure) || access(program.c_str(), X_OK) != 0) continue;
    return {.launcher = program, .version = first_line_of(program, "--version")};
  }
  return {};
}

PathFacts path_facts(const std::string& path, bool is_needed, bool direct) {
  PathFacts facts{.path = path, .direct = direct, .is_needed = is_needed};
  try {
    facts.drive = aio::describe_drive(path);
    const aio::File file = aio::File::create(path, aio::direct_io_alignment, {.direct = direct});
    facts.alignment = file.alignment();
    facts.memory_alignment = file.memory_alignment();
    facts.notes = file.notes();
  } catch (const Error& error) {
    facts.refusal = refusal_of(error);
  }
  return facts;
}

Facts gather(const std::vector<std::string>& paths, const std::string& config) {
  Facts facts{.machine = machine_facts(), .gpu = gpu_facts(), .io_uring = aio::probe_io_uring()};
  const char* const path = std::getenv("PATH");
  facts.mpi = mpi_facts(path == nullptr ? "" : path);

  std::vector<std::string> wanted = paths, of_config;
  bool is_readable = false, direct = true;
  if (!config.empty()) {
    facts.config = ConfigFacts{.file = config};
    try {
      const Config read = read_config(config, {.models = models::named_models()});
      facts.config->names_model = !read.model.empty();
      facts.config->places = fmt::format("optimizer {}, parameters {}", name_of(read.optimizer_tier),
                                         name_of(read.parameter_tier));
      of_config = nvme_paths(read);
      direct = read.direct_io;
      for (const std::string& one : of_config) {
        if (std::find(wanted.begin(), wanted.end(), one) == wanted.end()) wanted.push_back(one);
      }
      is_readable = true;
    } catch (const Error& error) {
      facts.config->refusal = refusal_of(error);
    }
  }
  for (const std::string& one : wanted) facts.paths.push_back(path_facts(one, true, direct));
  const bool all_usable = std::none_of(facts.paths.begin(), facts.paths.end(), [&](const PathFacts& one) {
    const bool is_of_config = std::find(of_config.begin(), of_config.end(), one.path) != of_config.end();
    return is_of_config && one.refusal.has_value();
  });
  if (facts.paths.empty()) facts.paths.push_back(path_facts(".", false));
  if (is_readable && facts.config->names_model) judge_fit(*facts.config, all_usable);
  return facts;
}

}  // namespace spillway::cli
