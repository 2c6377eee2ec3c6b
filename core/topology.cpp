#include "topology.h"

#include "error.h"
#include "machine.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <stdexcept>
#include <tuple>

#include <fmt/format.h>
#include <hwloc.h>

namespace spillway {
namespace {

[[noreturn]] void throw_unreadable(const char* operation, int error_number) {
  throw Error(ErrorKind::resources, "hwloc cannot read which processors and NUMA nodes there are",
              {.operation = operation,
               .error_number = error_number,
               .hint = "set pin_threads to false: then nothing depends on them"});
}

using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

Topology load(const std::string& synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw_unreadable("hwloc_topology_init", errno);
  Topology topology(raw, hwloc_topology_destroy);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0)
    throw_unreadable("hwloc_topology_set_synthetic", errno);
  if (hwloc_topology_load(raw) != 0) throw_unreadable("hwloc_topology_load", errno);
  return topology;
}

/// Where no core is left for workers.
[[noreturn]] void throw_all_reserved(std::size_t cores, int reserved_cores) {
  throw Error(
      ErrorKind::configuration,
      fmt::format("io_cores: {} leave none of the {} cores that this process may use to the workers",
                  reserved_cores, cores),
      {.hint = cores > 1
                   ? fmt::format("leave at most {} to the drive (spillway.io_cores, --io-cores)", cores - 1)
                   : std::string("leave none (spillway.io_cores, --io-cores), or give the process "
                                 "more processors")});
}

}  // namespace

std::vector<Processor> allowed_processors(const std::string& synthetic) {
  const Topology topology = load(synthetic);
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> mask(hwloc_bitmap_alloc(),
                                                                           hwloc_bitmap_free);
  if (!mask || hwloc_get_cpubind(topology.get(), mask.get(), HWLOC_CPUBIND_THREAD) != 0)
    throw_unreadable("hwloc_get_cpubind", errno);
  std::vector<Processor> processors;
  hwloc_obj_t last_core = nullptr;
  int cores = 0;
  for (hwloc_obj_t unit = nullptr;
       (unit = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_PU, unit)) != nullptr;) {
    // Units of a core follow one another. Some virtual machines do not say what the cores are.
    const hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology.get(), HWLOC_OBJ_CORE, unit);
    if (core == nullptr || core != last_core) ++cores;
    last_core = core;
    if (!hwloc_bitmap_isset(mask.get(), unit->os_index)) continue;
    processors.push_back({.number = static_cast<int>(unit->os_index),
                          .core = cores - 1,
                          .node = std::max(hwloc_bitmap_first(unit->nodeset), 0)});
  }
  return processors;
}

std::vector<int> worker_processors(std::vector<Processor> processors, int threads, int reserved_cores) {
  if (threads < 1) throw std::invalid_argument("worker_processors: at least one thread");
  if (reserved_cores < 0) throw std::invalid_argument("worker_processors: reserved_cores is negative");
  if (processors.empty()) throw std::invalid_argument("worker_processors: no processors");
  std::sort(processors.begin(), processors.end(), [](const Processor& a, const Processor& b) {
    return std::tie(a.node, a.core, a.number) < std::tie(b.node, b.core, b.number);
  });
  std::vector<std::vector<int>> cores;
  for (std::size_t i = 0; i < processors.size(); ++i) {
    if (i == 0 || processors[i].core != processors[i - 1].core) cores.emplace_back();
    cores.back().push_back(processors[i].number);
  }
  const auto reserved = static_cast<std::size_t>(reserved_cores);
  if (reserved >= cores.size()) throw_all_reserved(cores.size(), reserved_cores);
  cores.resize(cores.size() - reserved);

  std::vector<int> chosen;
  const auto wanted = static_cast<std::size_t>(threads);
  while (chosen.size() < wanted) {
    for (std::size_t turn = 0; chosen.size() < wanted; ++turn) {
      std::vector<int> candidates;  // each core's hardware thread of this turn
      for (const auto& core : cores)
        if (turn < core.size()) candidates.push_back(core[turn]);
      if (candidates.empty()) break;
      const std::size_t taken = std::min(candidates.size(), wanted - chosen.size());
      for (std::size_t i = 0; i < taken; ++i) chosen.push_back(candidates[i * candidates.size() / taken]);
    }
  }
  return chosen;
}

std::vector<int> worker_processors(int threads, int reserved_cores) {
  return worker_processors(allowed_processors(), threads, reserved_cores);
}

bool should_pin_threads(const std::vector<Processor>& processors, int available) {
  const bool spans_nodes = std::any_of(processors.begin(), processors.end(), [&](const Processor& processor) {
    return processor.node != processors.front().node;
  });
  return spans_nodes && static_cast<std::size_t>(std::max(available, 0)) >= processors.size();
}

bool should_pin_threads() {
  try {
    return should_pin_threads(allowed_processors(), available_processors());
  } catch (const Error&) {
    return false;
  }
}

std::vector<int> pool_processors(std::optional<bool> pin_threads, int threads, int reserved_cores) {
  if (!pin_threads.value_or(should_pin_threads())) return {};
  return worker_processors(threads, reserved_cores);
}

int default_threads(int reserved_cores) {
  const int available = available_processors();
  if (reserved_cores == 0) return available;
  const std::vector<Processor> processors = allowed_processors();
  // Asked for as many threads as there are processors, all that are left are chosen at least once.
  const auto chosen = worker_processors(processors, static_cast<int>(processors.size()), reserved_cores);
  const int left = static_cast<int>(std::set<int>(chosen.begin(), chosen.end()).size());
  return std::min(available, left);
}

}  // namespace spillway
