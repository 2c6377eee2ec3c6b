#include "parallel.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <future>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

namespace spillway {
namespace {

/// oneTBB starts its threads from one another, where nobody can catch that one was refused: the process would
/// end. So as many are started here first, each with a heap of its own, as oneTBB's will have.
void try_threads(int count) {
  std::vector<std::thread> threads;
  std::promise<void> end;
  std::shared_future<void> ended = end.get_future().share();
  int refused = 0;
  try {
    for (int i = 0; i < count; ++i) {
      std::promise<void> ready;
      auto started = ready.get_future();
      threads.emplace_back([&ready, ended] {
        void* const own = std::malloc(1 << 12);
        asm volatile("" : : "r"(own) : "memory");  // not to be left out
        std::free(own);
        ready.set_value();
        ended.wait();
      });
      started.wait();
    }
  } catch (const std::system_error& failure) {
    refused = failure.code().value();
  } catch (const std::bad_alloc&) {
    refused = ENOMEM;
  }
  end.set_value();
  for (auto& thread : threads) thread.join();
  if (refused != 0) throw_threads_refused(fmt::format("a pool of {}", count + 1), refused);
}

}  // namespace

struct Workers::Pool {
  explicit Pool(int threads) : arena(threads, /*reserved_for_masters=*/1) {
    // More threads than processors are asked for in tests; oneTBB starts them only when it is told to.
    if (threads > tbb::info::default_concurrency()) {
      more.emplace(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads));
    }
  }
  std::optional<tbb::global_control> more;
  tbb::task_arena arena;
  std::mutex one_call;
};

Workers::Workers(int threads) : threads_(threads) {
  if (threads < 1) throw std::invalid_argument("Workers: at least one thread");
  try_threads(threads - 1);
  pool_ = std::make_unique<Pool>(threads);
  // oneTBB's own start now, while there is room for them. It may give fewer: they are not waited for long.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  std::atomic<int> there{0};
  for_blocks(threads, [&](std::int64_t, int) {
    ++there;
    while (there < threads && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  });
}
Workers::~Workers() = default;

void Workers::for_blocks(std::int64_t blocks, const std::function<void(std::int64_t, int)>& body) {
  if (blocks <= 0) return;
  std::lock_guard lock(pool_->one_call);
  if (threads_ == 1 || blocks == 1) {
    FloatEnvironment exact;
    for (std::int64_t block = 0; block < blocks; ++block) body(block, 0);
    return;
  }
  pool_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, blocks, 1),
        [&](const tbb::blocked_range<std::int64_t>& range) {
          FloatEnvironment exact;
          const int worker = tbb::this_task_arena::current_thread_index();
          for (std::int64_t block = range.begin(); block != range.end(); ++block) body(block, worker);
        },
        tbb::simple_partitioner());
  });
}

}  // namespace spillway
