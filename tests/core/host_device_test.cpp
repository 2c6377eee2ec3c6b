#include "../../core/host_device.h"

#include "../../core/error.h"
#include "../../core/trace.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <future>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace spillway {
namespace {

using namespace std::chrono_literals;
constexpr Lane kStreams[] = {Lane::compute, Lane::communicate, Lane::copy_down, Lane::copy_up};

/// Work that stays in its stream until it is let go; the destructor lets go, so that a failed test ends.
class Gate {
 public:
  ~Gate() { open(); }
  void open() {
    if (!opened_.exchange(true)) promise_.set_value();
  }
  std::function<void()> work() {
    return [future = future_] { future.wait(); };
  }

 private:
  std::atomic<bool> opened_{false};
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

TEST(HostDevice, EachStreamWorksInTheOrderGiven) {
  HostDevice device(HostDeviceOptions{.threads = 2});
  for (const Lane lane : kStreams) {
    HostStream& stream = device.stream(lane);
    EXPECT_EQ(stream.lane(), lane);
    std::vector<int> order;
    for (int i = 0; i < 200; ++i) stream.call("append", [&order, i] { order.push_back(i); });
    stream.synchronize();
    ASSERT_EQ(order.size(), 200u);
    for (int i = 0; i < 200; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  }
  EXPECT_THROW(device.stream(Lane::adam), std::logic_error);
}

TEST(HostDevice, StreamsDoNotWaitForOneAnother) {
  HostDevice device(HostDeviceOptions{});
  Gate gate;
  device.stream(Lane::compute).call("held", gate.work());
  bool done = false;
  device.stream(Lane::copy_up).call("free", [&] { done = true; });
  device.stream(Lane::copy_up).synchronize();
  EXPECT_TRUE(done);
}

TEST(HostDevice, TheTraceHasWhichLaneComputeWaitedFor) {
  Trace trace;
  HostDevice device(HostDeviceOptions{}, &trace);
  Gate gate;
  Stream& compute = device.stream(Lane::compute);
  Stream& up = device.stream(Lane::copy_up);
  compute.call("first", [] {});
  const Event own = compute.record();
  compute.synchronize();
  const Event past = up.record();
  up.synchronize();
  up.call("held", gate.work());
  const Event held = up.record();
  compute.wait(past);
  compute.wait(own);
  device.stream(Lane::copy_down).wait(held);  // no device waits for its results there
  compute.wait(held);
  compute.call("second", [] {});
  double exposed = 0;
  for (const auto begin = std::chrono::steady_clock::now();
       exposed == 0 && std::chrono::steady_clock::now() - begin < 20s;) {
    exposed = trace.take_lane_times().exposed[static_cast<std::size_t>(Lane::copy_up)];
  }
  EXPECT_GT(exposed, 0.0);
  gate.open();
  device.synchronize();
  const auto waits = trace.waits();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].waiter, Waiter::compute);
  EXPECT_EQ(waits[0].lane, Lane::copy_up);
  EXPECT_GT(waits[0].end_ns, waits[0].begin_ns);
}

TEST(HostDevice, AnEventOrdersOneStreamAfterAnother) {
  HostDevice device(HostDeviceOptions{});
  Stream& first = device.stream(Lane::compute);
  Stream& second = device.stream(Lane::copy_down);
  Gate gate;
  int value = 0, seen = -1;
  first.call("held", gate.work());
  first.call("write", [&] { value = 42; });
  const Event written = first.record();
  const Event same = written;
  second.wait(written);
  second.call("read", [&] { seen = value; });
  const Event read = second.record();
  std::this_thread::sleep_for(10ms);
  EXPECT_FALSE(written.passed());
  EXPECT_FALSE(read.passed());
  gate.open();
  read.wait();
  EXPECT_EQ(seen, 42);
  EXPECT_TRUE(same.passed());
  EXPECT_TRUE(Event().passed());
  Event().wait();
}

TEST(HostDevice, CopiesReturnAtOnceAndInOrder) {
  HostDevice device(HostDeviceOptions{});
  Stream& stream = device.stream(Lane::copy_up);
  const Memory a = device.allocate("a", 3 << 20), b = device.allocate("b", 3 << 20);
  const std::int64_t count = a.bytes() / 4;
  for (std::int64_t i = 0; i < count; ++i) a.as<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  Gate gate;
  stream.call("held", gate.work());
  stream.copy(b.data(), a.data(), a.bytes(), "copy", 1);
  stream.zero(a.data(), a.bytes(), "zero", 1);
  EXPECT_EQ(b.as<std::int32_t>()[count - 1], 0);  // not begun: the stream is held
  gate.open();
  stream.synchronize();
  for (std::int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(b.as<std::int32_t>()[i], i);
    ASSERT_EQ(a.as<std::int32_t>()[i], 0);
  }
}

TEST(HostDevice, PacedCopiesTakeAsLongAsTheBusWould) {
  HostDevice device(HostDeviceOptions{.copy_bandwidth = 100e6});
  const Memory a = device.allocate("a", 5'000'000), b = device.allocate("b", 5'000'000);
  for (const Lane lane : {Lane::copy_up, Lane::copy_down}) {
    const auto begin = std::chrono::steady_clock::now();
    device.stream(lane).copy(a.data(), b.data(), a.bytes(), "paced");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 40ms);  // asynchronous
    device.stream(lane).synchronize();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
  }
}

TEST(HostDevice, MemoryIsABudget) {
  HostDevice device(HostDeviceOptions{.memory = 8192});
  Memory first = device.allocate("weights", 5000);
  EXPECT_TRUE(device.host_addressable());
  EXPECT_EQ(device.budget().tier(), Tier::device);
  EXPECT_EQ(device.budget().used(), 5000);
  EXPECT_THROW(device.allocate("activations", 3193), Error);
  device.allocate("activations", 3192);
  first.reset();
  device.allocate("all", 8192);
  EXPECT_EQ(device.budget().peak(), 8192);
}

TEST(HostDevice, TheFirstErrorIsKeptAndThrownByEveryLaterCall) {
  HostDevice device(HostDeviceOptions{});
  Stream& stream = device.stream(Lane::communicate);
  std::atomic<bool> later{false};
  Gate gate;
  stream.call("held", gate.work());
  stream.call("fails", [] { throw Error(ErrorKind::io, "the first"); });
  stream.call("fails too", [] { throw Error(ErrorKind::io, "the second"); });
  stream.call("dropped", [&] { later = true; });
  const Event end = stream.record();
  gate.open();
  end.wait();  // passes although the work before it was dropped
  EXPECT_FALSE(later);
  const auto text_of = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  std::byte byte{};
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_EQ(text_of([&] { device.check(); }), "the first");
    EXPECT_EQ(text_of([&] { device.synchronize(); }), "the first");
    EXPECT_EQ(text_of([&] { stream.synchronize(); }), "the first");
    for (const Lane lane : kStreams) {  // of the device, not of one stream alone
      HostStream& other = device.stream(lane);
      EXPECT_EQ(text_of([&] { other.copy(&byte, &byte, 1, "copy"); }), "the first");
      EXPECT_EQ(text_of([&] { other.zero(&byte, 1, "zero"); }), "the first");
      EXPECT_EQ(text_of([&] { other.call("call", [] {}); }), "the first");
      EXPECT_EQ(text_of([&] { other.launch("launch", 1, [](std::int64_t, int) {}); }), "the first");
      EXPECT_NO_THROW(other.wait(other.record()));
    }
  }
}

TEST(HostDevice, AnErrorOfATileIsTheDevicesError) {
  HostDevice device(HostDeviceOptions{.threads = 3});
  HostStream& stream = device.stream(Lane::compute);
  stream.launch("tiles", 64, [](std::int64_t tile, int) {
    if (tile == 17) throw Error(ErrorKind::numerics, "tile 17");
  });
  EXPECT_THROW(stream.synchronize(), Error);
}

TEST(HostDevice, DestroyedWithWorkPendingItReturnsAndEventsPass) {
  std::atomic<int> begun{0};
  Event last;
  auto held = std::make_shared<int>(1);
  const auto begin = std::chrono::steady_clock::now();
  {
    HostDevice device(HostDeviceOptions{});
    Stream& stream = device.stream(Lane::compute);
    for (int i = 0; i < 1000; ++i) {
      stream.call("slow", [&begun, held] {
        ++begun;
        std::this_thread::sleep_for(20ms);
      });
    }
    last = stream.record();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);  // all of them would take 20
  EXPECT_LT(begun, 1000);
  EXPECT_TRUE(last.passed());
  last.wait();
  EXPECT_EQ(held.use_count(), 1);  // what dropped work holds is given back
}

TEST(HostDevice, DestroyedWithCrossWaitsItDoesNotDeadlock) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    HostDevice device(HostDeviceOptions{.threads = 2});
    Event last;
    for (int i = 0; i < 40; ++i) {  // each stream waits for the one before it, around and around
      Stream& stream = device.stream(kStreams[i % 4]);
      stream.wait(last);
      stream.call("step", [repeat] {
        if (repeat % 3 == 1) std::this_thread::sleep_for(1us);
        if (repeat % 3 == 2) throw std::runtime_error("fails");
      });
      last = stream.record();
      if (repeat % 3 == 2) break;  // later calls would throw
    }
  }
}

TEST(HostDevice, LaunchGivesTheSameBitsForAnyNumberOfThreads) {
  constexpr std::int64_t kTiles = 37, kWidth = 100;
  const auto run = [&](int threads) {
    HostDevice device(HostDeviceOptions{.threads = threads});
    EXPECT_EQ(device.threads(), threads);
    std::vector<float> sums(kTiles), scratch(static_cast<std::size_t>(threads));
    std::atomic<bool> valid{true};
    device.stream(Lane::compute).launch("sums", kTiles, [&](std::int64_t tile, int worker) {
      if (worker < 0 || worker >= threads) valid = false;
      float& sum = scratch[static_cast<std::size_t>(worker)];  // each worker has its own
      sum = 0;
      for (std::int64_t i = 0; i < kWidth; ++i) {
        sum += std::sin(static_cast<float>(tile * kWidth + i)) * 1e-39f;  // subnormal: FTZ would show
      }
      sums[static_cast<std::size_t>(tile)] = sum;
    });
    device.synchronize();
    EXPECT_TRUE(valid);
    return sums;
  };
  const auto one = run(1);
  EXPECT_NE(one[1], 0.0f);
  for (const int threads : {2, 3, 7}) EXPECT_EQ(run(threads), one);
}

TEST(HostDevice, LaunchesOfSeveralStreamsShareThePool) {
  HostDevice device(HostDeviceOptions{.threads = 3});
  std::atomic<int> tiles{0};
  for (int repeat = 0; repeat < 50; ++repeat) {
    for (const Lane lane : kStreams)
      device.stream(lane).launch("count", 5, [&](std::int64_t, int) { ++tiles; });
  }
  device.synchronize();
  EXPECT_EQ(tiles, 1000);
}

TEST(HostDevice, ManyThreadsMayGiveWork) {
  HostDevice device(HostDeviceOptions{});
  std::int64_t sum = 0;  // touched by the stream alone
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 250; ++repeat) device.stream(Lane::compute).call("add", [&] { ++sum; });
      device.stream(Lane::compute).synchronize();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum, 1000);
}

TEST(HostDevice, SpansAndBuffersAreTraced) {
  Trace trace;
  {
    HostDevice device(HostDeviceOptions{}, &trace);
    const Memory memory = device.allocate("weights", 4096);
    device.stream(Lane::copy_up).zero(memory.data(), 4096, "clear", 5);
    device.synchronize();
  }
  const auto spans = trace.spans();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].lane, Lane::copy_up);
  EXPECT_EQ(spans[0].name, "clear");
  EXPECT_EQ(spans[0].unit, 5);
  EXPECT_EQ(spans[0].bytes, 4096);
  EXPECT_LE(spans[0].begin_ns, spans[0].end_ns);
  const auto events = trace.buffer_events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].action, BufferAction::allocate);
  EXPECT_EQ(events[1].action, BufferAction::free);
}

/// In a process of its own: as much address space as `more` MiB beyond what is used.
[[noreturn]] void make_device_with_little_room(std::int64_t more) {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto most = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (more << 20));
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
  try {
    HostDevice device(HostDeviceOptions{.threads = 1});
    device.synchronize();
  } catch (const Error& error) {
    _exit(error.kind() == ErrorKind::resources ? 3 : 1);
  } catch (const std::bad_alloc&) {
    _exit(3);
  }
  _exit(0);
}

TEST(HostDevice, AThreadThatIsRefusedIsAnErrorAndTheOthersEnd) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs more addresses than the limit leaves";
#endif
  rlimit stack{};
  ASSERT_EQ(getrlimit(RLIMIT_STACK, &stack), 0);
  if (stack.rlim_cur != rlim_t{8} << 20) GTEST_SKIP() << "the room below is made for stacks of 8 MiB";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // Room for no stream's stack, for one, two and three of the four.
  for (const std::int64_t more : {4, 12, 20, 28}) {
    EXPECT_EXIT(make_device_with_little_room(more), testing::ExitedWithCode(3), "") << more;
  }
}

}  // namespace
}  // namespace spillway
