#pragma once
// A pool of workers over which fixed blocks are spread. It is our own and not a library's: it has to say when
// the system refuses a thread or a processor, and the code that ThreadSanitizer checks has to be the code that
// runs.
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace spillway {

/// What the blocks compute must not depend on which worker runs them, nor on how many there are (D9): callers
/// choose blocks by shape alone. Blocks run with FTZ and DAZ off and rounding to nearest.
/// Calls from several threads run one after another. A block must not call for_blocks of the same pool.
class Workers {
 public:
  /// threads >= 1, the calling thread included. `processors`: none, or for each worker the one that it runs on,
  /// by the system's number (worker_processors() in topology.h chooses them); several workers may share one.
  /// Worker 0 is the thread that calls for_blocks: it is bound until that returns or throws, and then has its
  /// own mask again, which costs some microseconds for each call.
  /// Throws Error (resources) where the system refuses the threads or a processor, and std::invalid_argument
  /// for fewer than one thread or another number of processors than threads.
  explicit Workers(int threads, const std::vector<int>& processors = {});
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const { return threads_; }

  /// Calls body(block, worker) once for each block in [0, blocks), worker in [0, threads()), and returns when
  /// all are done. No two blocks run under one worker number at the same time, so it can index scratch memory.
  /// The first exception of a block is rethrown; blocks not yet begun may then be left out.
  ///
  /// Of `count` = min(blocks, threads()) workers, number w runs its own blocks, from w * blocks / count up to
  /// (w + 1) * blocks / count, in ascending order, so that a caller with the same number of blocks finds memory
  /// where its worker touched it before. Who has finished takes blocks from the ends of the others' ranges: a
  /// worker that is late, or does not come at all because its processor is busy, holds up nothing but the block
  /// that it is in.
  ///
  /// Where the system no longer lets the calling thread be bound (a container's processors changed), it works
  /// where it is: that is slower perhaps, and nothing to end a run for.
  void for_blocks(std::int64_t blocks, const std::function<void(std::int64_t block, int worker)>& body);

 private:
  struct Pool;
  int threads_;
  std::unique_ptr<Pool> pool_;
};

/// Throws Error (resources) for threads that the system refuses (pthread_create's error number); `whose` says
/// what they were for.
[[noreturn]] void throw_threads_refused(std::string_view whose, int error_number);

/// While it lives, subnormals are kept and the rounding is to nearest on this thread, whatever the caller had
/// set; the destructor restores the caller's state.
class FloatEnvironment {
 public:
  FloatEnvironment() noexcept;
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  std::uint64_t saved_;
};

}  // namespace spillway
