#include "trace.h"

#include "error.h"

#include <cerrno>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace spillway {
namespace {

constexpr int kTraceFormatVersion = 1;

constexpr std::string_view name_of_action(BufferAction action) {
  constexpr std::string_view names[] = {"allocate", "free", "move", "own"};
  return names[static_cast<int>(action)];
}

}  // namespace

Trace::Trace(int rank, Keep keep)
    : rank_(rank),
      keep_(keep),
      begin_(std::chrono::steady_clock::now()),
      clock_offset_ns_(std::chrono::duration_cast<std::chrono::nanoseconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count()) {}

std::int64_t Trace::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin_)
      .count();
}

std::uint64_t Trace::next_buffer_id() {
  std::lock_guard lock(mutex_);
  return ++buffers_;
}

void Trace::add(Span span) {
  std::lock_guard lock(mutex_);
  clock_.add_span(span.lane, span.begin_ns, span.end_ns);
  if (keep_ == Keep::events) spans_.push_back(std::move(span));
}

// The time is read under the lock, so that take_lane_times() never counts what begins after it.
std::int64_t Trace::begin_span(Lane lane) {
  std::lock_guard lock(mutex_);
  const std::int64_t now = now_ns();
  clock_.begin_span(lane, now);
  return now;
}

void Trace::end_span(Span&& span) {
  std::lock_guard lock(mutex_);
  span.end_ns = now_ns();
  clock_.end_span(span.lane, span.begin_ns, span.end_ns);
  if (keep_ == Keep::events) spans_.push_back(std::move(span));
}

void Trace::add(const Wait& wait) {
  std::lock_guard lock(mutex_);
  clock_.add_wait(wait.waiter, wait.lane, wait.begin_ns, wait.end_ns);
  if (keep_ == Keep::events) waits_.push_back(wait);
}

std::int64_t Trace::begin_wait(Waiter waiter, Lane lane) {
  std::lock_guard lock(mutex_);
  const std::int64_t now = now_ns();
  clock_.begin_wait(waiter, lane, now);
  return now;
}

void Trace::end_wait(const Wait& wait) {
  std::lock_guard lock(mutex_);
  Wait ended = wait;
  ended.end_ns = now_ns();
  clock_.end_wait(ended.waiter, ended.lane, ended.begin_ns, ended.end_ns);
  if (keep_ == Keep::events) waits_.push_back(ended);
}

void Trace::mark_backward() {
  std::lock_guard lock(mutex_);
  const std::int64_t now = now_ns();
  clock_.mark_backward(now);
  if (keep_ == Keep::events) marks_.push_back({.name = "backward", .time_ns = now});
}

LaneTimes Trace::take_lane_times() {
  std::lock_guard lock(mutex_);
  const std::int64_t now = now_ns();
  if (keep_ == Keep::events) marks_.push_back({.name = "step", .time_ns = now});
  return clock_.take(now);
}

void Trace::add(BufferEvent event) {
  if (keep_ != Keep::events) return;
  if (event.time_ns == 0) event.time_ns = now_ns();
  std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

std::vector<Wait> Trace::waits() const {
  std::lock_guard lock(mutex_);
  return waits_;
}

std::vector<Mark> Trace::marks() const {
  std::lock_guard lock(mutex_);
  return marks_;
}

std::vector<Span> Trace::spans() const {
  std::lock_guard lock(mutex_);
  return spans_;
}

std::vector<BufferEvent> Trace::buffer_events() const {
  std::lock_guard lock(mutex_);
  return events_;
}

void Trace::write(const std::string& path) const {
  using nlohmann::json;
  std::lock_guard lock(mutex_);
  json chrome = json::array();
  const auto name_track = [&](int track, std::string_view name) {
    chrome.push_back(
        {{"ph", "M"}, {"name", "thread_name"}, {"pid", rank_}, {"tid", track}, {"args", {{"name", name}}}});
  };
  for (int lane = 0; lane < kLanes; ++lane) name_track(lane, name_of(static_cast<Lane>(lane)));
  for (int waiter = 0; waiter < kWaiters; ++waiter)
    name_track(kLanes + waiter, fmt::format("{} waits", name_of(static_cast<Waiter>(waiter))));
  json spans = json::array(), waits = json::array(), marks = json::array(), buffers = json::array();
  for (const Span& s : spans_) {
    spans.push_back({{"lane", name_of(s.lane)},
                     {"name", s.name},
                     {"unit", s.unit},
                     {"begin_ns", s.begin_ns},
                     {"end_ns", s.end_ns},
                     {"bytes", s.bytes}});
    chrome.push_back({{"ph", "X"},
                      {"name", s.name},
                      {"cat", name_of(s.lane)},
                      {"pid", rank_},
                      {"tid", static_cast<int>(s.lane)},
                      {"ts", static_cast<double>(s.begin_ns) / 1000.0},
                      {"dur", static_cast<double>(s.end_ns - s.begin_ns) / 1000.0},
                      {"args", {{"unit", s.unit}, {"bytes", s.bytes}}}});
  }
  for (const Wait& w : waits_) {
    waits.push_back({{"waiter", name_of(w.waiter)},
                     {"lane", name_of(w.lane)},
                     {"unit", w.unit},
                     {"begin_ns", w.begin_ns},
                     {"end_ns", w.end_ns}});
    chrome.push_back({{"ph", "X"},
                      {"name", fmt::format("for {}", name_of(w.lane))},
                      {"cat", "wait"},
                      {"pid", rank_},
                      {"tid", kLanes + static_cast<int>(w.waiter)},
                      {"ts", static_cast<double>(w.begin_ns) / 1000.0},
                      {"dur", static_cast<double>(w.end_ns - w.begin_ns) / 1000.0},
                      {"args", {{"unit", w.unit}}}});
  }
  for (const Mark& m : marks_) {
    marks.push_back({{"name", m.name}, {"time_ns", m.time_ns}});
    chrome.push_back({{"ph", "i"},
                      {"name", m.name},
                      {"s", "p"},
                      {"pid", rank_},
                      {"tid", static_cast<int>(Lane::compute)},
                      {"ts", static_cast<double>(m.time_ns) / 1000.0}});
  }
  for (const BufferEvent& e : events_) {
    buffers.push_back({{"time_ns", e.time_ns},
                       {"action", name_of_action(e.action)},
                       {"id", e.id},
                       {"unit", e.unit},
                       {"kind", e.kind},
                       {"tier", name_of(e.tier)},
                       {"bytes", e.bytes},
                       {"owner", e.owner},
                       {"cause", e.cause}});
  }
  const json document = {{"traceEvents", std::move(chrome)},
                         {"displayTimeUnit", "ms"},
                         {"spillway",
                          {{"format_version", kTraceFormatVersion},
                           {"rank", rank_},
                           {"clock_offset_ns", clock_offset_ns_},
                           {"spans", std::move(spans)},
                           {"waits", std::move(waits)},
                           {"marks", std::move(marks)},
                           {"buffers", std::move(buffers)}}}};
  std::ofstream file(path);
  file << document.dump(1) << '\n';
  file.close();
  if (!file) {
    throw Error(
        ErrorKind::io, "cannot write the trace",
        {.operation = "write", .path = path, .error_number = errno, .hint = "name a file that can be written"});
  }
}

}  // namespace spillway
