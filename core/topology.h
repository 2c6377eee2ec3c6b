#pragma once
// Which processors the workers of a pool are bound to. hwloc says what the machine looks like.
#include <optional>
#include <string>
#include <vector>

namespace spillway {

/// A processor is what the system schedules threads on: one hardware thread of a core.
struct Processor {
  int number = 0;  ///< the system's, as for sched_setaffinity and in Workers
  int core = 0;    ///< the same for the hardware threads of one physical core
  int node = 0;    ///< the NUMA node whose memory is nearest
};

/// The processors that the calling thread may run on: those of its affinity mask, which a control group's
/// cpuset limits. Throws Error (resources) where hwloc cannot read the machine. `synthetic`, where not empty,
/// describes another machine in hwloc's notation ("node:2 core:4 pu:2"), of which every processor counts.
std::vector<Processor> allowed_processors(const std::string& synthetic = {});

/// The processor for each of `threads` workers, by the system's numbers:
/// - Each core gets a worker before any gets a second one, on its next hardware thread. Fewer workers than
/// cores
///   are spread evenly over them, so that every node's memory and every cache serves.
/// - Neighbouring workers are on one node; nodes and cores ascend. (Of workers on second hardware threads this
///   is true among themselves.)
/// - Where all hardware threads have a worker, more begin again at the first.
/// - The last `reserved_cores` cores get none: they are for threads that wait for drives and devices.
/// Throws Error (configuration) where no core is left, and std::invalid_argument for fewer than one thread,
/// fewer than no core, or no processors.
std::vector<int> worker_processors(std::vector<Processor> processors, int threads, int reserved_cores);

/// The same of allowed_processors(). Processes that share a machine need masks of their own (`mpirun
/// --bind-to`, `taskset`): with the same mask they would get the same processors.
std::vector<int> worker_processors(int threads, int reserved_cores);

/// Whether binding is worth its price, where the user does not say: the processors are of several NUMA nodes,
/// so that memory is near only to some, and no quota takes a share of them away (`available` is at least their
/// number): a thread under a quota, as one on a shared machine, is faster where it may go to an idle processor.
bool should_pin_threads(const std::vector<Processor>& processors, int available);

/// The same of allowed_processors() and available_processors(); false where the machine cannot be read.
bool should_pin_threads();

/// The processors for the workers of a pool by a run's settings: those of worker_processors(), or none where
/// threads are not to be bound. Without a `pin_threads`, should_pin_threads() decides.
std::vector<int> pool_processors(std::optional<bool> pin_threads, int threads, int reserved_cores);

/// Threads of a pool where nobody says how many: the processors available to this process, without those of the
/// last `reserved_cores` cores. Errors as of worker_processors().
int default_threads(int reserved_cores);

}  // namespace spillway
