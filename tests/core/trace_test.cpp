#include "../../core/trace.h"

#include "../../core/error.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
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

TEST(Trace, LaneTimesCountWhatHasBegun) {
  for (const Trace::Keep keep : {Trace::Keep::events, Trace::Keep::lane_times}) {
    Trace trace(0, keep);
    const auto at = [](const auto& array, Lane lane) { return array[static_cast<std::size_t>(lane)]; };
    LaneTimes first;
    {
      const TraceSpan span(&trace, Lane::adam, "open");
      const TraceWait wait(&trace, Waiter::compute, Lane::read, 4);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      first = trace.take_lane_times();
      EXPECT_GE(at(first.busy, Lane::adam), 2e-3);
      EXPECT_GE(at(first.exposed, Lane::read), 2e-3);
      EXPECT_LE(at(first.busy, Lane::adam), first.seconds);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    trace.mark_backward();
    const LaneTimes second = trace.take_lane_times();
    EXPECT_GE(at(second.busy, Lane::adam), 1e-3);
    EXPECT_GE(at(second.exposed, Lane::read), 1e-3);
    EXPECT_EQ(at(second.busy, Lane::compute), 0.0);
    EXPECT_NEAR(at(second.exposed, Lane::read) + second.other, second.seconds, 1e-9);
    trace.add(Wait{.lane = Lane::copy_up, .begin_ns = 1, .end_ns = 5});
    trace.add(BufferEvent{.id = trace.next_buffer_id()});

    const bool kept = keep == Trace::Keep::events;
    EXPECT_EQ(trace.spans().size(), kept ? 1u : 0u);
    EXPECT_EQ(trace.buffer_events().size(), kept ? 1u : 0u);
    ASSERT_EQ(trace.waits().size(), kept ? 2u : 0u);
    ASSERT_EQ(trace.marks().size(), kept ? 3u : 0u);
    if (!kept) continue;
    EXPECT_EQ(trace.waits()[0].lane, Lane::read);
    EXPECT_EQ(trace.waits()[0].unit, 4);
    EXPECT_GE(trace.waits()[0].end_ns - trace.waits()[0].begin_ns, 3'000'000);
    EXPECT_EQ(trace.marks()[0].name, "step");
    EXPECT_EQ(trace.marks()[1].name, "backward");
    EXPECT_LE(trace.marks()[1].time_ns, trace.marks()[2].time_ns);
  }
  const TraceWait nothing(nullptr, Waiter::update, Lane::read);
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
  trace.add(Wait{.waiter = Waiter::update, .lane = Lane::read, .unit = 3, .begin_ns = 1500, .end_ns = 4000});
  trace.mark_backward();
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

  EXPECT_EQ(
      ours.at("waits"),
      json::parse(R"([{"waiter": "update", "lane": "read", "unit": 3, "begin_ns": 1500, "end_ns": 4000}])"));
  ASSERT_EQ(ours.at("marks").size(), 1u);
  EXPECT_EQ(ours.at("marks").at(0).at("name"), "backward");

  int complete = 0, instants = 0;
  std::set<std::string> tracks;
  for (const json& event : document.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 2);
    if (event.at("ph") == "M") tracks.insert(event.at("args").at("name"));
    if (event.at("ph") == "i") {
      ++instants;
      EXPECT_EQ(event.at("name"), "backward");
    }
    if (event.at("ph") != "X") continue;
    ++complete;
    EXPECT_EQ(event.at("ts"), 1.5);  // microseconds
    EXPECT_EQ(event.at("dur"), 2.5);
    const bool is_wait = event.at("cat") == "wait";
    EXPECT_EQ(event.at("tid"), is_wait ? kLanes + 1 : static_cast<int>(Lane::write));
    EXPECT_EQ(event.at("name"), is_wait ? "for read" : "a \"b\"\n");
  }
  EXPECT_EQ(complete, 2);
  EXPECT_EQ(instants, 1);
  EXPECT_EQ(tracks.size(), static_cast<std::size_t>(kLanes + kWaiters));
  EXPECT_TRUE(tracks.contains("compute waits") && tracks.contains("update waits"));
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
