// What a model moves out of the device's memory comes back as it was, whatever the order, and costs what the
// plan says.
#include "../../core/communicator.h"
#include "../../core/error.h"
#include "../../core/host_device.h"
#include "../../offload/engine.h"
#include "engine_rig.h"

#include <algorithm>
#include <future>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

constexpr std::int64_t kBytes = 40000;  // no multiple of 4 KiB

/// An engine of one small unit whose model moves buffers of kBytes out.
struct Mover {
  explicit Mover(const std::vector<Tier>& slots, Config config = {}, std::int64_t buffers = 1)
      : layout(make_layout(slots, buffers)),
        engine(config, layout, device, communicator),
        memory(device.allocate("buffers", buffers * kBytes)) {}

  ~Mover() {  // copies name the buffers
    for (const Lane lane : {Lane::compute, Lane::copy_down, Lane::copy_up}) device.stream(lane).record().wait();
  }

  static Layout make_layout(const std::vector<Tier>& slots, std::int64_t buffers) {
    LayoutOptions options;
    options.model_memory = {{"buffers", buffers * kBytes}};
    for (const Tier tier : slots) options.activations.push_back({tier, kBytes});
    return Layout({{"unit", {{"weight", {100, 30}}}}}, options);
  }

  std::byte* buffer(std::int64_t index = 0) const { return memory.data() + index * kBytes; }
  Stream& compute() { return device.stream(Lane::compute); }
  /// Fills a buffer in the compute stream's order.
  void fill(std::byte* buffer, int seed) {
    compute().call("fill", [=] {
      for (std::int64_t i = 0; i < kBytes; ++i) buffer[i] = value(seed, i);
    });
  }
  /// Counts in the same order whether it holds that.
  void expect(const std::byte* buffer, int seed) {
    compute().call("compare", [=, this] {
      for (std::int64_t i = 0; i < kBytes; ++i) {
        if (buffer[i] != value(seed, i)) {
          ++wrong;
          return;
        }
      }
    });
  }
  static std::byte value(int seed, std::int64_t i) {
    return static_cast<std::byte>((seed * 7919 + i * 31 + (i >> 8) * seed) & 0xff);
  }

  void save(int slot, std::byte* source) { compute().wait(engine.save_activation(slot, source)); }
  void load(int slot, std::byte* destination) {
    compute().wait(engine.load_activation(slot, destination, compute().record()));
  }

  HostDevice device{{.memory = -1, .threads = 1}};
  SingleRankCommunicator communicator;
  Layout layout;
  Engine engine;
  Memory memory;
  int wrong = 0;  ///< the compute stream's
};

Config on_nvme(const Directory& directory) {
  Config config;
  config.parameter_nvme_paths = {directory.path()};
  config.update_threads = 1;
  return config;
}

std::vector<Tier> alternating(int count) {
  std::vector<Tier> tiers;
  for (int i = 0; i < count; ++i) tiers.push_back(i % 3 == 1 ? Tier::host : Tier::nvme);
  return tiers;
}

/// Saves, loads and wishes of all slots at random, each value of a slot compared each time that it comes back.
void move_at_random(Mover& mover, int slots, int moves) {
  std::mt19937 random(7);
  std::vector<int> seeds(static_cast<std::size_t>(slots), -1);
  for (int move = 0; move < moves; ++move) {
    const int slot = static_cast<int>(random() % static_cast<unsigned>(slots));
    int& seed = seeds[static_cast<std::size_t>(slot)];
    const unsigned what = random() % 4;
    if (seed < 0 || what == 0) {
      seed = move;
      mover.fill(mover.buffer(), seed);
      mover.save(slot, mover.buffer());
      mover.fill(mover.buffer(), -1);  // the source is the caller's again
    } else if (what == 1) {
      mover.engine.prefetch_activation(slot);
    } else {
      mover.load(slot, mover.buffer());
      mover.expect(mover.buffer(), seed);
    }
  }
  mover.engine.drain();
  EXPECT_EQ(mover.wrong, 0);
}

TEST(Activations, ComeBackAsTheyWereInAnyOrder) {
  const Directory directory;
  for (const char* faults : {"", "delay=0.5,delay_us=300,reorder", "short=0.4,interrupt=0.2,reorder"}) {
    for (const bool checksums : {false, true}) {
      Config config = on_nvme(directory);
      config.io_faults = faults;
      config.checksums = checksums;
      Mover mover(alternating(9), config);
      move_at_random(mover, 9, 400);
    }
  }
  EXPECT_TRUE(directory.is_empty());
}

TEST(Activations, NeedOnePlaceOnTheirWayAndUseMoreWhereThereIsRoom) {
  const Directory directory;
  Config config = on_nvme(directory);
  const std::vector<Tier> slots(6, Tier::nvme);
  const Layout layout = Mover::make_layout(slots, 1);
  EXPECT_EQ(make_plan(layout, config).host.bytes_of("activation staging"), 4 * 40960);
  config.host_memory = 0;
  config.host_memory = make_plan(layout, config).host.total();
  ASSERT_EQ(make_plan(layout, config).host.bytes_of("activation staging"), 40960);
  config.io_faults = "delay=0.5,delay_us=300,reorder";
  Mover mover(slots, config);
  move_at_random(mover, 6, 300);
}

// As a model does it: forward, then backward, with the loads a layer ahead.
TEST(Activations, GoOutForwardAndComeBackInReverse) {
  const Directory directory;
  constexpr int kLayers = 12;
  for (const Tier tier : {Tier::host, Tier::nvme}) {
    Mover mover(std::vector<Tier>(kLayers, tier), on_nvme(directory), 2);
    for (int step = 0; step < 3; ++step) {
      std::vector<Event> gone(2), used(2);
      for (int layer = 0; layer < kLayers; ++layer) {
        const auto b = static_cast<std::size_t>(layer % 2);
        mover.compute().wait(gone[b]);
        mover.fill(mover.buffer(layer % 2), 100 * step + layer);
        gone[b] = mover.engine.save_activation(layer, mover.buffer(layer % 2));
      }
      for (const Event& event : gone) mover.compute().wait(event);
      used[0] = used[1] = mover.compute().record();
      Event there = mover.engine.load_activation(kLayers - 1, mover.buffer((kLayers - 1) % 2), used[0]);
      for (int layer = kLayers - 1; layer >= 0; --layer) {
        const auto b = static_cast<std::size_t>(layer % 2);
        if (layer >= 2) mover.engine.prefetch_activation(layer - 2);
        mover.compute().wait(there);
        mover.expect(mover.buffer(layer % 2), 100 * step + layer);
        used[b] = mover.compute().record();
        if (layer > 0)
          there = mover.engine.load_activation(layer - 1, mover.buffer((layer - 1) % 2), used[1 - b]);
      }
    }
    mover.engine.drain();
    EXPECT_EQ(mover.wrong, 0) << name_of(tier);
  }
}

TEST(Activations, WaitForTheComputeStreamWithoutBlockingTheCaller) {
  const Directory directory;
  for (const Tier tier : {Tier::host, Tier::nvme}) {
    Mover mover({tier}, on_nvme(directory), 2);
    mover.fill(mover.buffer(0), 1);
    std::promise<void> go;
    mover.compute().call("wait", [&, future = go.get_future().share()] { future.wait(); });
    mover.fill(mover.buffer(0), 2);
    const Event saved = mover.engine.save_activation(0, mover.buffer(0));
    EXPECT_FALSE(saved.passed());
    const Event back = mover.engine.load_activation(0, mover.buffer(1), {});  // before it has gone
    EXPECT_FALSE(back.passed());
    go.set_value();  // were a call to wait for the compute stream, nobody would come here
    mover.compute().wait(saved);
    mover.compute().wait(back);
    mover.expect(mover.buffer(1), 2);

    std::promise<void> used;
    mover.fill(mover.buffer(1), 5);
    mover.compute().call("wait", [&, future = used.get_future().share()] { future.wait(); });
    mover.expect(mover.buffer(1), 5);
    const Event loaded = mover.engine.load_activation(0, mover.buffer(1), mover.compute().record());
    EXPECT_FALSE(loaded.passed());
    used.set_value();
    mover.compute().wait(loaded);
    mover.expect(mover.buffer(1), 2);
    mover.engine.drain();
    EXPECT_EQ(mover.wrong, 0) << name_of(tier);
  }
}

TEST(Activations, AreReadOnceWhereAPrefetchHasBegunIt) {
  const Directory directory;
  Mover mover(std::vector<Tier>(10, Tier::nvme), on_nvme(directory));
  for (int slot = 0; slot < 10; ++slot) {
    mover.fill(mover.buffer(), slot);
    mover.save(slot, mover.buffer());
  }
  mover.engine.drain();
  EXPECT_EQ(mover.engine.counters().nvme_written_bytes, 10 * 40960);
  EXPECT_EQ(mover.engine.counters().nvme_read_bytes, 0);
  // The last four are still on their way: nothing is read for them.
  for (int slot = 9; slot >= 6; --slot) {
    mover.engine.prefetch_activation(slot);
    mover.load(slot, mover.buffer());
    mover.expect(mover.buffer(), slot);
  }
  mover.engine.drain();
  EXPECT_EQ(mover.engine.counters().nvme_read_bytes, 0);
  mover.engine.prefetch_activation(5);
  mover.engine.drain();
  EXPECT_EQ(mover.engine.counters().nvme_read_bytes, 40960);
  mover.load(5, mover.buffer());
  mover.expect(mover.buffer(), 5);
  mover.engine.drain();
  EXPECT_EQ(mover.engine.counters().nvme_read_bytes, 40960);
  EXPECT_EQ(mover.wrong, 0);
}

TEST(Activations, OccupyWhatThePlanSays) {
  const Directory directory;
  for (const Tier parameters : kTiers) {
    for (const auto& slots :
         {std::vector<Tier>(3, Tier::host), std::vector<Tier>(3, Tier::nvme), alternating(7)}) {
      for (const bool checksums : {false, true}) {
        Config config = on_nvme(directory);
        config.parameter_tier = parameters;
        config.checksums = checksums;
        Mover mover(slots, config);
        for (int slot = 0; slot < static_cast<int>(slots.size()); ++slot) mover.save(slot, mover.buffer());
        for (int slot = 0; slot < static_cast<int>(slots.size()); ++slot) mover.load(slot, mover.buffer());
        mover.engine.drain();
        for (const Tier tier : kTiers) {
          const auto peaks = mover.engine.budget(tier).peaks_by_name();
          const TierPlan& plan = mover.engine.plan().of(tier);
          EXPECT_EQ(peaks.size(), plan.entries.size()) << name_of(tier);
          for (const auto& [name, bytes] : peaks) EXPECT_EQ(bytes, plan.bytes_of(name)) << name;
        }
        const auto host = static_cast<std::int64_t>(std::ranges::count(slots, Tier::host));
        EXPECT_EQ(mover.engine.plan().host.bytes_of("activations"), host * kBytes);
        EXPECT_EQ(mover.engine.plan().nvme.bytes_of("activations"),
                  (static_cast<std::int64_t>(slots.size()) - host) * 40960);
        EXPECT_EQ(mover.engine.plan().host.bytes_of("checksums") > 0,
                  checksums && (host < static_cast<std::int64_t>(slots.size()) || parameters == Tier::nvme));
      }
    }
  }
}

TEST(Activations, AreRefusedWhereTheyDoNotFitOrHaveNoDirectory) {
  Config config;
  config.update_threads = 1;
  try {
    Mover mover({Tier::nvme}, config);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::configuration);
    EXPECT_NE(error.detail().hint.find("--nvme-path"), std::string::npos) << error.detail().hint;
  }
  const Directory directory;
  config.optimizer_nvme_paths = {directory.path()};  // those of the optimizer do too
  Mover mover({Tier::nvme}, config);
  mover.fill(mover.buffer(), 3);
  mover.save(0, mover.buffer());
  mover.engine.drain();
  EXPECT_GT(mover.engine.counters().nvme_written_bytes, 0);

  config.host_memory = 0;  // the least of everything
  const std::int64_t without = make_plan(Mover::make_layout({}, 1), config).host.total();
  config.host_memory = without + kBytes - 1;
  try {
    Mover too_much({Tier::host}, config);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resources);
    EXPECT_NE(std::string(error.what()).find("activations"), std::string::npos) << error.what();
  }
  config.host_memory = without + kBytes;
  Mover fits({Tier::host}, config);
}

TEST(Activations, OfUnknownSlotsAreMisuse) {
  Mover mover({Tier::host, Tier::host});
  EXPECT_THROW(mover.engine.save_activation(2, mover.buffer()), std::logic_error);
  EXPECT_THROW(mover.engine.save_activation(-1, mover.buffer()), std::logic_error);
  EXPECT_THROW(mover.engine.prefetch_activation(2), std::logic_error);
  EXPECT_THROW(mover.engine.load_activation(0, mover.buffer(), {}), std::logic_error);  // never saved
  mover.save(0, mover.buffer());
  mover.load(0, mover.buffer());
  mover.engine.drain();
}

// Whatever operation fails, some call says so, every later call says the same, and the engine ends.
TEST(Activations, FailuresOfTheDriveAreSaidOnceAndForAll) {
  const Directory directory;
  for (int operation = 1; operation <= 14; ++operation) {
    Config config = on_nvme(directory);
    config.io_faults = "fail=" + std::to_string(operation) + ":EIO";
    Mover mover(std::vector<Tier>(8, Tier::nvme), config);
    std::optional<std::string> first;
    const auto attempt = [&](auto&& call) {
      try {
        call();
        EXPECT_FALSE(first) << "a call after the failure works";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::io);
        if (!first) first = error.what();
        EXPECT_EQ(error.what(), *first);
      }
    };
    for (int slot = 0; slot < 8; ++slot) attempt([&] { mover.engine.save_activation(slot, mover.buffer()); });
    for (int slot = 7; slot >= 0; --slot) {
      attempt([&] { mover.engine.prefetch_activation(std::max(slot - 2, 0)); });
      attempt([&] { mover.engine.load_activation(slot, mover.buffer(), mover.compute().record()); });
    }
    attempt([&] { mover.engine.drain(); });
    // 8 writes, and 4 reads: four of them are still there.
    EXPECT_EQ(first.has_value(), operation <= 12) << operation;
  }
}

TEST(Activations, UnderWayDoNotHoldUpTheEnd) {
  const Directory directory;
  Config config = on_nvme(directory);
  config.io_faults = "delay=1,delay_us=2000,reorder";
  Mover mover(std::vector<Tier>(8, Tier::nvme), config);
  for (int slot = 0; slot < 8; ++slot) mover.engine.save_activation(slot, mover.buffer());
  for (int slot = 0; slot < 8; ++slot) mover.engine.prefetch_activation(slot);
}

}  // namespace
}  // namespace spillway
