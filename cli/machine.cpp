#include "machine.h"

#include "../core/parallel.h"

#include <fstream>

#include <sys/utsname.h>
#include <unistd.h>

namespace spillway::cli {

Machine this_machine() {
  Machine machine;
  machine.processors = available_processors();
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("model name")) continue;
    if (const auto colon = line.find(": "); colon != std::string::npos)
      machine.processor = line.substr(colon + 2);
    break;
  }
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) machine.memory_bytes = std::int64_t{pages} * page;
  if (utsname name{}; uname(&name) == 0) {
    machine.system = std::string(name.sysname) + " " + name.release + " " + name.machine;
  }
  return machine;
}

}  // namespace spillway::cli
