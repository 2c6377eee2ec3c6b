#include "parallel.h"

#include "error.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace spillway {

void throw_threads_refused(std::string_view whose, int error_number) {
  throw Error(ErrorKind::resources, fmt::format("the system refuses the threads for {}", whose),
              {.operation = "pthread_create",
               .error_number = error_number,
               .hint = "ask for fewer threads, or raise the limits of this process (ulimit -u, ulimit -v)"});
}

/// The calling thread is worker 0; the others sleep between calls.
struct Workers::Pool {
  ~Pool() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    begin.notify_all();
    for (auto& thread : threads) thread.join();
  }

  void work(int worker) {
    FloatEnvironment exact;
    try {
      for (std::int64_t block; (block = next.fetch_add(1)) < blocks;) (*body)(block, worker);
    } catch (...) {
      next = blocks;  // those not yet begun are left out
      std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  }

  void run(int worker) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      begin.wait(lock, [&] { return stop || (is_open && call != seen); });
      if (stop) return;
      seen = call;
      ++inside;
      lock.unlock();
      work(worker);
      lock.lock();
      if (--inside == 0) end.notify_one();
    }
  }

  std::mutex one_call;  ///< held by the caller while its call lasts
  std::mutex mutex;     ///< of what follows, but for `next`
  std::condition_variable begin, end;
  std::uint64_t call = 0;
  bool is_open = false;  ///< a worker that wakes after the caller has finished stays out of the call
  int inside = 0;        ///< workers in the call, without the caller
  bool stop = false;
  std::int64_t blocks = 0;
  std::atomic<std::int64_t> next{0};
  const std::function<void(std::int64_t, int)>* body = nullptr;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
};

Workers::Workers(int threads) : threads_(threads) {
  if (threads < 1) throw std::invalid_argument("Workers: at least one thread");
  pool_ = std::make_unique<Pool>();
  for (int worker = 1; worker < threads; ++worker) {
    try {
      pool_->threads.emplace_back([pool = pool_.get(), worker] { pool->run(worker); });
    } catch (const std::system_error& refused) {
      throw_threads_refused(fmt::format("a pool of {}", threads), refused.code().value());
    }
  }
}

Workers::~Workers() = default;

void Workers::for_blocks(std::int64_t blocks, const std::function<void(std::int64_t, int)>& body) {
  if (blocks <= 0) return;
  Pool& pool = *pool_;
  std::lock_guard one(pool.one_call);
  const bool alone = blocks == 1 || threads_ == 1;
  {
    std::lock_guard lock(pool.mutex);
    pool.blocks = blocks;
    pool.next = 0;
    pool.body = &body;
    pool.failure = nullptr;
    pool.is_open = !alone;
    ++pool.call;
  }
  if (!alone) pool.begin.notify_all();
  pool.work(0);
  std::unique_lock lock(pool.mutex);
  pool.is_open = false;
  pool.end.wait(lock, [&] { return pool.inside == 0; });
  if (pool.failure) std::rethrow_exception(pool.failure);
}

#if defined(__x86_64__)
namespace {
constexpr unsigned kFlushToZero = 0x8000u, kDenormalsAreZero = 0x0040u, kRoundingMask = 0x6000u;
}
FloatEnvironment::FloatEnvironment() noexcept : saved_(_mm_getcsr()) {
  _mm_setcsr(static_cast<unsigned>(saved_) & ~(kFlushToZero | kDenormalsAreZero | kRoundingMask));
}
FloatEnvironment::~FloatEnvironment() {
  _mm_setcsr(static_cast<unsigned>(saved_));
}
#elif defined(__aarch64__)
namespace {
constexpr std::uint64_t kFlushToZero = 1u << 24, kFlushHalf = 1u << 19, kRoundingMask = 3u << 22;
}
FloatEnvironment::FloatEnvironment() noexcept {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" ::"r"(saved_ & ~(kFlushToZero | kFlushHalf | kRoundingMask)));
}
FloatEnvironment::~FloatEnvironment() {
  asm volatile("msr fpcr, %0" ::"r"(saved_));
}
#else
#error "how does this processor flush subnormals?"
#endif

}  // namespace spillway
