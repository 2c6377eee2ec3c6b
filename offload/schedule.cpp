#include "schedule.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace spillway {

UnitRow::UnitRow(std::vector<int> row, int units)
    : row_(std::move(row)), places_(static_cast<std::size_t>(units)) {
  for (std::size_t place = 0; place < row_.size(); ++place) {
    if (row_[place] >= 0)
      places_[static_cast<std::size_t>(row_[place])].push_back(static_cast<std::int64_t>(place));
  }
}

std::int64_t UnitRow::next(int unit, std::int64_t from) const {
  if (unit < 0 || row_.empty()) return kNever;
  const auto& places = places_[static_cast<std::size_t>(unit)];
  const auto found = std::lower_bound(places.begin(), places.end(), from);
  return found == places.end() ? kNever : *found;
}

std::int64_t UnitRow::last(int unit, std::int64_t before) const {
  if (unit < 0 || row_.empty()) return -1;
  const auto& places = places_[static_cast<std::size_t>(unit)];
  const auto found = std::lower_bound(places.begin(), places.end(), before);
  return found == places.begin() ? -1 : *std::prev(found);
}

Schedule::Schedule(int units)
    : units_(units), order_(static_cast<std::size_t>(units)), last_seen_(static_cast<std::size_t>(units), -1) {
  std::iota(order_.begin(), order_.end(), 0);
}

bool Schedule::use(int unit, bool in_step) {
  if (in_step) {
    last_seen_[static_cast<std::size_t>(unit)] = static_cast<std::int64_t>(seen_.size());
    seen_.push_back(unit);
    seen_until_.push_back(kNever);
  }
  if (record_.size() == 0) return false;
  if (!in_step) {
    ++departures_;
    return false;
  }
  if (cursor_ < record_.size() && record_[cursor_] == unit) {
    ++cursor_;
    left_ = -1;
    return true;
  }
  if (left_ >= 0 && record_[left_] == unit) {
    cursor_ = left_ + 1;  // something was put in between, and the record goes on
    left_ = -1;
    return false;
  }
  ++departures_;
  if (const std::int64_t next = record_.next(unit, cursor_); next != kNever) {
    if (left_ < 0) left_ = cursor_;
    cursor_ = next + 1;
  }
  return false;
}

void Schedule::release(int unit) noexcept {
  const std::int64_t place = last_seen_[static_cast<std::size_t>(unit)];
  if (place >= 0) seen_until_[static_cast<std::size_t>(place)] = static_cast<std::int64_t>(seen_.size());
}

void Schedule::end_iteration() {
  cursor_ = 0;
  left_ = -1;
  if (seen_.empty()) return;
  for (std::int64_t& until : seen_until_) until = std::min(until, static_cast<std::int64_t>(seen_.size()));
  record_ = UnitRow(std::exchange(seen_, {}), units_);
  until_ = std::exchange(seen_until_, {});
  std::fill(last_seen_.begin(), last_seen_.end(), -1);
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int a, int b) { return record_.next(a, 0) < record_.next(b, 0); });
}

std::int64_t Schedule::next_use(int unit, std::int64_t from) const {
  const std::int64_t size = record_.size();
  if (size == 0) return kNever;
  const std::int64_t round = from / size * size;
  if (const std::int64_t next = record_.next(unit, from - round); next != kNever) return round + next;
  const std::int64_t first = record_.next(unit, 0);
  return first == kNever ? kNever : round + size + first;
}

Fills foresee(const Schedule& schedule, std::span<const SlotContents> slots, std::span<const char> changes) {
  const UnitRow& record = schedule.record();
  const std::int64_t size = record.size();
  if (size == 0) return {};
  struct Content {
    int unit;
    std::int64_t until;  ///< held before this place
  };
  std::vector<Content> contents;
  for (const SlotContents& slot : slots) {
    const std::int64_t place = slot.held ? record.last(slot.unit, schedule.cursor()) : -1;
    contents.push_back({slot.unit, place < 0 ? 0 : schedule.until(place)});
  }

  Fills fills;
  std::vector<int> units;
  for (std::int64_t place = schedule.cursor(); place < 2 * size; ++place) {
    const std::int64_t border = place < size ? size : 2 * size;
    if (place == size) {
      for (Content& content : contents) {
        if (content.unit >= 0 && changes[static_cast<std::size_t>(content.unit)] != 0) content.unit = -1;
      }
    }
    const int unit = record[place % size];
    const std::int64_t until = schedule.until(place % size) + border - size;
    const auto found = std::find_if(contents.begin(), contents.end(),
                                    [&](const Content& content) { return content.unit == unit; });
    if (found != contents.end()) {
      found->until = until;
      continue;
    }
    const bool is_changed = changes[static_cast<std::size_t>(unit)] != 0;
    units.push_back(place >= size && is_changed ? -1 : unit);
    fills.places.push_back(place);
    if (place < size) ++fills.in_iteration;
    FirstToLeave leaves;
    for (int i = 0; i < static_cast<int>(contents.size()); ++i) {
      const Content& content = contents[static_cast<std::size_t>(i)];
      if (content.until > place) continue;
      std::int64_t next = content.unit < 0 ? kNever : schedule.next_use(content.unit, place);
      if (next >= border && content.unit >= 0 && changes[static_cast<std::size_t>(content.unit)] != 0)
        next = kNever;
      leaves.offer(i, next, 0);
    }
    if (leaves.slot() >= 0) contents[static_cast<std::size_t>(leaves.slot())] = {unit, until};
  }
  fills.units = UnitRow(std::move(units), static_cast<int>(changes.size()));
  return fills;
}

std::vector<Fill> fills_ahead(const Fills& fills, std::int64_t from, std::span<const HostSlot> slots,
                              const std::function<bool(int unit)>& is_current) {
  std::vector<HostSlot> simulated(slots.begin(), slots.end());
  std::int64_t open = std::count_if(slots.begin(), slots.end(), [](const HostSlot& slot) { return slot.free; });
  std::vector<Fill> ahead;
  // A slot that is used on the way, for what it holds or for what is to come, is not free before that.
  const auto use = [&](HostSlot& slot) {
    if (std::exchange(slot.free, false)) --open;
  };
  for (std::int64_t i = from; i < fills.in_iteration && open > 0; ++i) {
    const int unit = fills.units[i];
    const auto found = std::find_if(simulated.begin(), simulated.end(),
                                    [&](const HostSlot& slot) { return slot.unit == unit; });
    if (found != simulated.end()) {
      use(*found);
      continue;
    }
    FirstToLeave leaves;
    for (int s = 0; s < static_cast<int>(simulated.size()); ++s) {
      const HostSlot& slot = simulated[static_cast<std::size_t>(s)];
      // Where it makes no difference to what will be asked for, one that is free now.
      constexpr std::uint64_t kLate = std::uint64_t{1} << 63;
      leaves.offer(s, fills.units.next(slot.unit, i), slot.free ? slot.since : slot.since | kLate);
    }
    if (leaves.slot() < 0) break;
    HostSlot& slot = simulated[static_cast<std::size_t>(leaves.slot())];
    if (slot.free && is_current(unit)) ahead.push_back({leaves.slot(), unit});
    use(slot);
    slot.unit = unit;
  }
  return ahead;
}

}  // namespace spillway
