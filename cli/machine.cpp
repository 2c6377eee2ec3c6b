#include "machine.h"

#include "../core/machine.h"

#include <fstream>

#include <nlohmann/json.hpp>
#include <sys/utsname.h>

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
  machine.memory_bytes = machine_memory().total;
  if (utsname name{}; uname(&name) == 0) {
    machine.system = std::string(name.sysname) + " " + name.release + " " + name.machine;
  }
  return machine;
}

nlohmann::json machine_json() {
  const Machine machine = this_machine();
  return {{"processor", machine.processor},
          {"processors", machine.processors},
          {"memory_bytes", machine.memory_bytes},
          {"system", machine.system}};
}

}  // namespace spillway::cli
