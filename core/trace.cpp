#include "trace.h"

#include "error.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>

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

void Trace::Busy::add(std::int64_t begin, std::int64_t end) {
  // Spans arrive when they end, so what they touch is near the end.
  auto first = intervals.end();
  while (first != intervals.begin() && std::prev(first)->second >= begin) --first;
  auto last = first;
  for (; last != intervals.end() && last->first <= end; ++last) {
    begin = std::min(begin, last->first);
    end = std::max(end, last->second);
  }
  intervals.insert(intervals.erase(first, last), {begin, end});
}

void Trace::add(Span span) {
  std::lock_guard lock(mutex_);
  const std::int64_t begin = std::max(span.begin_ns, taken_until_);
  if (span.end_ns > begin) busy_[static_cast<std::size_t>(span.lane)].add(begin, span.end_ns);
  if (keep_ == Keep::events) spans_.push_back(std::move(span));
}

std::array<double, kLanes> Trace::take_lane_seconds() {
  std::lock_guard lock(mutex_);
  std::array<double, kLanes> seconds{};
  for (std::size_t lane = 0; lane < seconds.size(); ++lane) {
    std::int64_t sum = 0;
    for (const auto& [begin, end] : busy_[lane].intervals) sum += end - begin;
    seconds[lane] = static_cast<double>(sum) * 1e-9;
    busy_[lane].intervals.clear();
  }
  taken_until_ = now_ns();
  return seconds;
}

void Trace::add(BufferEvent event) {
  if (keep_ != Keep::events) return;
  if (event.time_ns == 0) event.time_ns = now_ns();
  std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

void Trace::add(const Wait& wait) {
  if (keep_ != Keep::events) return;
  std::lock_guard lock(mutex_);
  waits_.push_back(wait);
}

std::vector<Wait> Trace::waits() const {
  std::lock_guard lock(mutex_);
  return waits_;
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
  for (int lane = 0; lane < kLanes; ++lane) {
    chrome.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", rank_},
                      {"tid", lane},
                      {"args", {{"name", name_of(static_cast<Lane>(lane))}}}});
  }
  json spans = json::array(), buffers = json::array();
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
