#include "lane_times.h"

#include <algorithm>
#include <iterator>

namespace spillway {
namespace {

/// So many intervals of one track are added up before the times are taken.
constexpr std::size_t kMostIntervals = 4096;

/// Of several that are waited for at once, the first of these counts: what lies between the device and the
/// tiers, then the drive, then what only follows from them.
constexpr Lane kNearest[] = {Lane::communicate, Lane::copy_up, Lane::copy_down, Lane::read, Lane::write};

double seconds_of(const Intervals& intervals) {
  std::int64_t sum = 0;
  for (const auto& [begin, end] : intervals) sum += end - begin;
  return static_cast<double>(sum) * 1e-9;
}

void insert(Intervals& intervals, std::int64_t begin, std::int64_t end) {
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

/// Divides `intervals` into what lies in `others` and what does not.
struct Division {
  Division(const Intervals& intervals, const Intervals& others) {
    auto other = others.begin();
    for (auto [begin, end] : intervals) {
      while (other != others.end() && other->second <= begin) ++other;
      for (auto it = other; it != others.end() && it->first < end; ++it) {
        if (it->first > begin) outside.emplace_back(begin, it->first);
        const std::int64_t common = std::min(end, it->second);
        inside.emplace_back(std::max(begin, it->first), common);
        begin = common;
      }
      if (begin < end) outside.emplace_back(begin, end);
    }
  }
  Intervals inside, outside;
};

}  // namespace

void LaneClock::begin_span(Lane lane, std::int64_t begin) {
  span(lane).open.push_back(begin);
}
void LaneClock::begin_wait(Waiter waiter, Lane lane, std::int64_t begin) {
  wait(waiter, lane).open.push_back(begin);
}
void LaneClock::end_span(Lane lane, std::int64_t begin, std::int64_t end) {
  close(span(lane), begin, end);
}
void LaneClock::end_wait(Waiter waiter, Lane lane, std::int64_t begin, std::int64_t end) {
  close(wait(waiter, lane), begin, end);
}
void LaneClock::add_span(Lane lane, std::int64_t begin, std::int64_t end) {
  add(span(lane), begin, end);
}
void LaneClock::add_wait(Waiter waiter, Lane lane, std::int64_t begin, std::int64_t end) {
  add(wait(waiter, lane), begin, end);
}

void LaneClock::mark_backward(std::int64_t now) {
  if (!backward_) backward_ = now;
}

void LaneClock::close(Track& track, std::int64_t begin, std::int64_t end) {
  const auto open = std::find(track.open.begin(), track.open.end(), begin);
  if (open != track.open.end()) track.open.erase(open);
  add(track, begin, end);
}

void LaneClock::add(Track& track, std::int64_t begin, std::int64_t end) {
  begin = std::max(begin, settled_);
  if (end <= begin) return;
  insert(track.over, begin, end);
  if (track.over.size() > kMostIntervals) settle(end);
}

/// What the track says of the time up to `now`, which it forgets.
Intervals LaneClock::cut_off(Track& track, std::int64_t now) const {
  for (const std::int64_t begin : track.open) {
    if (now > std::max(begin, settled_)) insert(track.over, std::max(begin, settled_), now);
  }
  Division divided(track.over, {{settled_, now}});
  track.over = std::move(divided.outside);
  return std::move(divided.inside);
}

void LaneClock::settle(std::int64_t now) {
  if (now <= settled_) return;
  const std::int64_t forward_end = std::min(backward_.value_or(now), now);
  std::array<Intervals, kLanes> busy;
  std::array<std::array<Intervals, kLanes>, kWaiters> waited;
  for (std::size_t lane = 0; lane < busy.size(); ++lane) {
    busy[lane] = cut_off(spans_[lane], now);
    sums_.busy[lane] += seconds_of(busy[lane]);
    if (forward_end > settled_)
      sums_.forward[lane] += seconds_of(Division(busy[lane], {{settled_, forward_end}}).inside);
    for (std::size_t waiter = 0; waiter < waited.size(); ++waiter)
      waited[waiter][lane] = cut_off(waits_[waiter][lane], now);
  }
  Intervals idle = Division({{settled_, now}}, busy[static_cast<std::size_t>(Lane::compute)]).outside;
  const auto charge = [&](Intervals& time, Waiter waiter, Lane lane) {
    const auto index = static_cast<std::size_t>(lane);
    Division divided(time, waited[static_cast<std::size_t>(waiter)][index]);
    sums_.exposed[index] += seconds_of(divided.inside);
    time = std::move(divided.outside);
  };
  for (const Lane lane : kNearest) charge(idle, Waiter::compute, lane);
  // Who waits for an update waits for what the update itself waits for.
  Division updates(idle,
                   waited[static_cast<std::size_t>(Waiter::compute)][static_cast<std::size_t>(Lane::adam)]);
  for (const Lane lane : kNearest) charge(updates.inside, Waiter::update, lane);
  sums_.exposed[static_cast<std::size_t>(Lane::adam)] += seconds_of(updates.inside);
  sums_.other += seconds_of(updates.outside);
  sums_.seconds += static_cast<double>(now - settled_) * 1e-9;
  settled_ = now;
}

LaneTimes LaneClock::take(std::int64_t now) {
  settle(now);
  backward_.reset();
  return std::exchange(sums_, {});
}

}  // namespace spillway
