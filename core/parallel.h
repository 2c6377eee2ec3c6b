#pragma once
// A pool of workers over which fixed blocks are spread. It is our own and not a library's: it has to say when
// the system refuses a thread, and the code that ThreadSanitizer checks has to be the code that runs.
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace spillway {

/// What the blocks compute must not depend on which worker runs them, nor on how many there are (D9): callers
/// choose blocks by shape alone. Blocks run with FTZ and DAZ off and rounding to nearest.
/// Calls from several threads run one after another. A block must not call for_blocks of the same pool.
class Workers {
 public:
  /// threads >= 1, the calling thread included. Throws Error (resources) where the system refuses them.
  explicit Workers(int threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const { return threads_; }

  /// Calls body(block, worker) once for each block in [0, blocks), worker in [0, threads()), and returns when
  /// all are done. No two blocks run under one worker number at the same time, so it can index scratch memory.
  /// The first exception of a block is rethrown; blocks not yet begun may then be left out.
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
