#pragma once
// What spillway doctor looks at: facts as the system tells them, gathered without judging. What it does not
// tell stays empty, 0 or -1.
#include "../aio/drive.h"
#include "../aio/io_uring_support.h"
#include "../core/error.h"
#include "../core/machine.h"
#include "setup.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace spillway::cli {

/// Why something cannot be used, as the library says it.
struct Refusal {
  ErrorKind kind = ErrorKind::io;
  std::string message, hint;
};

struct MachineFacts {
  std::string processor, system;  ///< model; kernel's name, release and architecture
  std::string isa;                ///< the one chosen for the update
  std::vector<std::string> isas;  ///< that can run here, slowest first
  std::optional<Refusal> isa_refusal;
  int cores = 0, hardware_threads = 0, available_processors = 0;  ///< that this process may use; by a quota too
  std::vector<int> nodes;                                         ///< NUMA nodes of them
  std::map<std::string, int> governors;                           ///< processors of them by the governor's name
  std::string transparent_huge_pages;                             ///< "madvise"; empty: not known
  std::int64_t huge_pages_reserved = 0, huge_page_bytes = 0;
  MachineMemory memory;
  std::int64_t installed_memory = 0;
  std::int64_t locked_memory_limit = 0;                       ///< bytes, -1: none
  bool may_lock_all = false;                                  ///< the capability that lifts that limit
  std::int64_t open_files_limit = 0, open_files_maximum = 0;  ///< -1: none
  bool is_optimized = true;
  std::string sanitizer;  ///< "AddressSanitizer"; empty: none
};

struct GpuFacts {
  std::vector<std::string> devices;  ///< NVIDIA's, by model where the driver says it, else by PCI address
  std::string driver;                ///< version
  bool has_cuda_library = false, has_nccl_library = false;
  std::string cuda, nccl;  ///< the libraries' versions
};

struct MpiFacts {
  std::string launcher;  ///< path of mpirun; empty: none in PATH
  std::string version;   ///< the first line that it prints about itself
};

struct PathFacts {
  std::string path;
  bool direct = true;      ///< as the configuration wants it: past the page cache
  bool is_needed = false;  ///< it was asked for: training does not run where it can't be used
  aio::Drive drive;
  std::optional<Refusal> refusal;  ///< why no swap space can be made there
  std::int64_t alignment = 0, memory_alignment = 0;
  std::vector<std::string> notes;  ///< of the swap space that was made
};

struct ConfigFacts {
  std::string file;
  std::optional<Refusal> refusal;  ///< of the file, or because it does not fit
  bool names_model = true;
  bool fits = false;
  std::string places;                           ///< "optimizer nvme, parameters host"
  std::int64_t device = 0, host = 0, nvme = 0;  ///< bytes that the run takes of each tier; -1: not known
};

struct Facts {
  MachineFacts machine;
  GpuFacts gpu;
  MpiFacts mpi;
  aio::IoUringSupport io_uring;
  std::vector<PathFacts> paths;
  std::optional<ConfigFacts> config;
};

/// `root` stands before /proc and /sys; the processors and the limits are this process's own.
MachineFacts machine_facts(const std::string& root = {});
/// The libraries are looked for on this machine, whatever the root.
GpuFacts gpu_facts(const std::string& root = {});
/// `path` is that of the environment: directories with colons between them. Runs mpirun, for at most five
/// seconds.
MpiFacts mpi_facts(const std::string& path);
/// Makes swap space there as a run would; nothing stays.
PathFacts path_facts(const std::string& path, bool is_needed, bool direct = true);
/// All of it. Without paths those on nvme of the configuration are taken, else the current directory, which is
/// then not needed.
Facts gather(const std::vector<std::string>& paths, const std::string& config);

}  // namespace spillway::cli
