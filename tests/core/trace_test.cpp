#include "../../core/trace.h"

#include "../../core/error.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace spillway {
namespace {

TEST(Trace, TimeNeverGoesBack) {
  const Trace trace;
  std::int64_t last = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t now = trace.now_ns();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(Trace, SpansLastAsLongAsTheyLive) {
  Trace trace;
  {
    const TraceSpan outer(&trace, Lane::adam, "outer", 3, 128);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const TraceSpan inner(&trace, Lane::read, "inner");
  }
  { const TraceSpan nothing(nullptr, Lane::read, "nothing"); }
  const auto spans = trace.spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].name, "inner");
  EXPECT_EQ(spans[1].name, "outer");
  EXPECT_EQ(spans[1].lane, Lane::adam);
  EXPECT_EQ(spans[1].unit, 3);
  EXPECT_EQ(spans[1].bytes, 128);
  EXPECT_GE(spans[1].end_ns - spans[1].begin_ns, 2'000'000);
  EXPECT_LE(spans[1].begin_ns, spans[0].begin_ns);
  EXPECT_GE(spans[1].end_ns, spans[0].end_ns);
}

TEST(Trace, ALaneIsBusyWhileAnySpanOfItRuns) {
  Trace trace(0, Trace::Keep::lane_times);
  const auto span = [&](Lane lane, std::int64_t begin, std::int64_t end) {
    trace.add(Span{.lane = lane, .begin_ns = begin, .end_ns = end});
  };
  span(Lane::read, 100, 200);
  span(Lane::read, 300, 400);
  span(Lane::read, 350, 420);  // overlaps
  span(Lane::read, 500, 600);
  span(Lane::read, 150, 650);  // covers two gaps
  span(Lane::read, 10, 20);    // came late
  span(Lane::adam, 0, 7);
  auto seconds = trace.take_lane_seconds();
  EXPECT_NEAR(seconds[static_cast<int>(Lane::read)], 560e-9, 1e-15);
  EXPECT_NEAR(seconds[static_cast<int>(Lane::adam)], 7e-9, 1e-15);
  EXPECT_EQ(seconds[static_cast<int>(Lane::write)], 0.0);
  // What began before the last call counts from it on.
  const std::int64_t now = trace.now_ns();
  span(Lane::read, 0, now + 1'000'000'000);
  seconds = trace.take_lane_seconds();
  EXPECT_LE(seconds[static_cast<int>(Lane::read)], 1.1);
  EXPECT_GE(seconds[static_cast<int>(Lane::read)], 0.9);
  EXPECT_EQ(seconds[static_cast<int>(Lane::adam)], 0.0);
  EXPECT_TRUE(trace.spans().empty());
  trace.add(BufferEvent{.id = trace.next_buffer_id()});
  EXPECT_TRUE(trace.buffer_events().empty());
}

TEST(Trace, BufferEventsAreTimedInOrderUnlessTheyBringTheirTime) {
  Trace trace;
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  trace.add(BufferEvent{.id = trace.next_buffer_id()});
  trace.add(BufferEvent{.action = BufferAction::free, .id = 1});
  trace.add(BufferEvent{.time_ns = 5, .id = trace.next_buffer_id()});
  const auto events = trace.buffer_events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_GE(events[0].time_ns, 1'000'000);
  EXPECT_LE(events[0].time_ns, events[1].time_ns);
  EXPECT_EQ(events[2].time_ns, 5);
  EXPECT_EQ(events[2].id, 2u);
}

TEST(Trace, ManyThreadsLoseNothing) {
  Trace trace;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 500; ++repeat) {
        const TraceSpan span(&trace, Lane::compute, "work");
        trace.add(BufferEvent{.id = trace.next_buffer_id()});
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(trace.spans().size(), 2000u);
  EXPECT_EQ(trace.buffer_events().size(), 2000u);
  EXPECT_EQ(trace.next_buffer_id(), 2001u);
}

class TraceFile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  std::string path_ =
      (std::filesystem::temp_directory_path() / ("spillway-trace-" + std::to_string(getpid()) + ".json"))
          .string();
};

TEST_F(TraceFile, HoldsAllEventsAndTheChromeFormat) {
  using nlohmann::json;
  Trace trace(2);
  trace.add(
      Span{.lane = Lane::write, .name = "a \"b\"\n", .unit = 4, .begin_ns = 1500, .end_ns = 4000, .bytes = 9});
  trace.add(BufferEvent{.time_ns = 7,
                        .action = BufferAction::own,
                        .id = 11,
                        .unit = 1,
                        .kind = "record",
                        .tier = Tier::nvme,
                        .bytes = 12,
                        .owner = 2,
                        .cause = "step"});
  const auto unix_now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch());
  trace.write(path_);

  const json document = json::parse(std::ifstream(path_));
  const json& ours = document.at("spillway");
  EXPECT_EQ(ours.at("format_version"), 1);
  EXPECT_EQ(ours.at("rank"), 2);
  EXPECT_NEAR(ours.at("clock_offset_ns").get<double>(), static_cast<double>(unix_now.count()), 60e9);
  EXPECT_EQ(ours.at("spans"),
            json::parse(R"([{"lane": "write", "name": "a \"b\"\n", "unit": 4, "begin_ns": 1500,
                                                "end_ns": 4000, "bytes": 9}])"));
  EXPECT_EQ(
      ours.at("buffers"),
      json::parse(R"([{"time_ns": 7, "action": "own", "id": 11, "unit": 1, "kind": "record", "tier": "nvme",
                             "bytes": 12, "owner": 2, "cause": "step"}])"));

  int complete = 0;
  for (const json& event : document.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 2);
    if (event.at("ph") != "X") continue;
    ++complete;
    EXPECT_EQ(event.at("ts"), 1.5);  // microseconds
    EXPECT_EQ(event.at("dur"), 2.5);
    EXPECT_EQ(event.at("tid"), static_cast<int>(Lane::write));
  }
  EXPECT_EQ(complete, 1);
}

TEST_F(TraceFile, AFileThatCannotBeWrittenIsNamed) {
  for (const std::string path : {"/nowhere/trace.json", "/dev/full"}) {
    try {
      Trace().write(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::io);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
      EXPECT_NE(error.detail().error_number, 0) << path;
    }
  }
}

}  // namespace
}  // namespace spillway
