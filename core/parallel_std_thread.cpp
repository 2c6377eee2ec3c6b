#include "parallel.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace spillway {

struct Workers::Pool {
  std::mutex one_call;
  std::mutex mutex;
  std::condition_variable begin, end;
  std::uint64_t call = 0;
  int busy = 0;
  bool stop = false;
  std::int64_t blocks = 0;
  std::atomic<std::int64_t> next{0};
  const std::function<void(std::int64_t, int)>* body = nullptr;
  std::exception_ptr failure;
  std::vector<std::thread> threads;

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
      next = blocks;
      std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  }

  void run(int worker) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      begin.wait(lock, [&] { return stop || call != seen; });
      if (stop) return;
      seen = call;
      lock.unlock();
      work(worker);
      lock.lock();
      if (--busy == 0) end.notify_all();
    }
  }
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
  std::lock_guard one(pool_->one_call);
  {
    std::lock_guard lock(pool_->mutex);
    pool_->blocks = blocks;
    pool_->next = 0;
    pool_->body = &body;
    pool_->failure = nullptr;
    pool_->busy = threads_ - 1;
    ++pool_->call;
  }
  pool_->begin.notify_all();
  pool_->work(0);
  std::unique_lock lock(pool_->mutex);
  pool_->end.wait(lock, [&] { return pool_->busy == 0; });
  if (pool_->failure) std::rethrow_exception(pool_->failure);
}

}  // namespace spillway
