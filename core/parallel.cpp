#include "parallel.h"

#include "error.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

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

namespace {

/// Binds a thread to one processor. Returns 0 or the error number. A number that no mask has room for leaves it
/// empty, which the system refuses as it does a processor that is not there.
int bind(pthread_t thread, int processor) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<std::size_t>(processor), &mask);
  return pthread_setaffinity_np(thread, sizeof mask, &mask);
}

/// While it lives, the calling thread runs on one processor, where the system allows that.
class BoundCaller {
 public:
  explicit BoundCaller(int processor)
      : error_number_(pthread_getaffinity_np(pthread_self(), sizeof saved_, &saved_)) {
    if (error_number_ == 0) error_number_ = bind(pthread_self(), processor);
  }
  ~BoundCaller() {
    if (error_number_ == 0) pthread_setaffinity_np(pthread_self(), sizeof saved_, &saved_);
  }
  BoundCaller(const BoundCaller&) = delete;
  BoundCaller& operator=(const BoundCaller&) = delete;

  int error_number() const { return error_number_; }

 private:
  cpu_set_t saved_;
  int error_number_;
};

void require_bound(int worker, int processor, int error_number) {
  if (error_number == 0) return;
  throw Error(ErrorKind::resources,
              fmt::format("the system refuses to bind worker {} to processor {}", worker, processor),
              {.operation = "pthread_setaffinity_np",
               .error_number = error_number,
               .hint = "set pin_threads to false, or start again where a container's processors have changed"});
}

/// A worker's place: what it is told, and the blocks that are its own. Apart from the others' by two cache
/// lines, which processors fetch in pairs.
struct alignas(128) Seat {
  /// A call is `offered` to the worker, which sleeps `outside`. Nobody waits for a worker that has not come
  /// `inside` by the end of the call: the offer is withdrawn, and the worker finds itself `outside`.
  enum class State { outside, offered, inside, dismissed };

  void tell(State news) {
    {
      std::lock_guard lock(mutex);
      state = news;
    }
    changed.notify_one();
  }

  void assign(std::int64_t first, std::int64_t last) {
    front = first;
    back.store(last, std::memory_order_relaxed);
    left.store(last - first, std::memory_order_relaxed);
  }

  bool has_left() const { return left.load(std::memory_order_relaxed) > 0; }

  /// A block of the front, for the seat's own worker; -1 where none is left.
  std::int64_t take_own() { return left.fetch_sub(1, std::memory_order_relaxed) > 0 ? front++ : -1; }

  /// A block of the back, for the others; -1 where none is left.
  std::int64_t take_from() {
    if (!has_left() || left.fetch_sub(1, std::memory_order_relaxed) <= 0) return -1;
    return back.fetch_sub(1, std::memory_order_relaxed) - 1;
  }

  std::mutex mutex;  ///< of the state
  std::condition_variable changed;
  State state = State::outside;
  /// Who counts this down from above zero may take one block, from either end: the ends never meet.
  std::atomic<std::int64_t> left{0};
  std::atomic<std::int64_t> back{0};
  std::int64_t front = 0;
};

}  // namespace

/// The calling thread is worker 0; the others sleep between calls.
struct Workers::Pool {
  explicit Pool(int size) : seats(static_cast<std::size_t>(size)) {}

  ~Pool() {
    for (std::size_t worker = 1; worker < seats.size(); ++worker) seats[worker].tell(Seat::State::dismissed);
    for (auto& thread : threads) thread.join();
  }

  void work(int worker) {
    FloatEnvironment exact;
    try {
      Seat& own = seats[static_cast<std::size_t>(worker)];
      for (std::int64_t block; (block = own.take_own()) >= 0;) (*body)(block, worker);
      for (int distance = 1; distance < count; ++distance) {  // each its neighbours first, so that they spread
        Seat& other = seats[static_cast<std::size_t>((worker + distance) % count)];
        for (std::int64_t block; (block = other.take_from()) >= 0;) (*body)(block, worker);
      }
    } catch (...) {
      for (Seat& seat : seats) seat.left = 0;  // those not yet begun are left out
      if (!has_failed.exchange(true)) failure = std::current_exception();
    }
  }

  void run(int worker) {
    Seat& seat = seats[static_cast<std::size_t>(worker)];
    std::unique_lock lock(seat.mutex);
    for (;;) {
      seat.changed.wait(lock, [&] { return seat.state != Seat::State::outside; });
      if (seat.state == Seat::State::dismissed) return;
      seat.state = Seat::State::inside;
      lock.unlock();
      work(worker);
      seat.tell(Seat::State::outside);
      lock.lock();
    }
  }

  std::mutex one_call;      ///< held by the caller while its call lasts, and guards what follows
  std::vector<Seat> seats;  ///< of each worker
  int count = 0;            ///< workers that have blocks of their own
  const std::function<void(std::int64_t, int)>* body = nullptr;
  std::atomic<bool> has_failed{false};
  std::exception_ptr failure;  ///< written by who sets has_failed
  int callers_processor = -1;  ///< none where negative
  std::vector<std::thread> threads;
};

Workers::Workers(int threads, const std::vector<int>& processors) : threads_(threads) {
  if (threads < 1) throw std::invalid_argument("Workers: at least one thread");
  const bool is_bound = !processors.empty();
  if (is_bound && processors.size() != static_cast<std::size_t>(threads))
    throw std::invalid_argument("Workers: one processor for each thread");
  pool_ = std::make_unique<Pool>(threads);
  if (is_bound) {
    pool_->callers_processor = processors[0];
    require_bound(0, processors[0], BoundCaller(processors[0]).error_number());
  }
  for (int worker = 1; worker < threads; ++worker) {
    try {
      pool_->threads.emplace_back([pool = pool_.get(), worker] { pool->run(worker); });
    } catch (const std::system_error& refused) {
      throw_threads_refused(fmt::format("a pool of {}", threads), refused.code().value());
    }
    if (is_bound) {
      const int processor = processors[static_cast<std::size_t>(worker)];
      require_bound(worker, processor, bind(pool_->threads.back().native_handle(), processor));
    }
  }
}

Workers::~Workers() = default;

void Workers::for_blocks(std::int64_t blocks, const std::function<void(std::int64_t, int)>& body) {
  if (blocks <= 0) return;
  Pool& pool = *pool_;
  std::lock_guard one(pool.one_call);
  std::optional<BoundCaller> bound;
  if (pool.callers_processor >= 0) bound.emplace(pool.callers_processor);
  pool.count = static_cast<int>(std::min<std::int64_t>(blocks, threads_));
  pool.body = &body;
  for (int worker = 0; worker < pool.count; ++worker) {
    pool.seats[static_cast<std::size_t>(worker)].assign(worker * blocks / pool.count,
                                                        (worker + 1) * blocks / pool.count);
  }
  for (int worker = 1; worker < pool.count; ++worker) {
    Seat& seat = pool.seats[static_cast<std::size_t>(worker)];
    if (seat.has_left()) seat.tell(Seat::State::offered);  // waking is dear, and those awake help at once
  }
  pool.work(0);
  for (int worker = 1; worker < pool.count; ++worker) {
    Seat& seat = pool.seats[static_cast<std::size_t>(worker)];
    std::unique_lock lock(seat.mutex);
    if (seat.state == Seat::State::offered) seat.state = Seat::State::outside;
    seat.changed.wait(lock, [&] { return seat.state == Seat::State::outside; });
  }
  if (pool.has_failed.exchange(false)) std::rethrow_exception(std::exchange(pool.failure, nullptr));
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
