#include "parallel.h"

#include <mutex>
#include <optional>
#include <stdexcept>

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

namespace spillway {

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
  pool_ = std::make_unique<Pool>(threads);
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
