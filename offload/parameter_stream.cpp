#include "parameter_stream.h"

#include "context.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway {
namespace {

/// Units follow one another; in a file each begins at a multiple of 4 KiB.
std::vector<std::int64_t> unit_offsets(const Context& context) {
  const bool in_file = context.config.parameter_tier == Tier::nvme;
  std::vector<std::int64_t> offsets{0};
  for (const Layout::Unit& unit : context.layout.units()) {
    const std::int64_t bytes = unit.elements * context.sizes.weight_bytes;
    offsets.push_back(offsets.back() + (in_file ? round_up(bytes, kBlockBytes) : bytes));
  }
  return offsets;
}

std::vector<char> units_that_change(const Layout& layout) {
  std::vector<char> changes;
  for (const Layout::Unit& unit : layout.units()) changes.push_back(unit.trainable > 0 ? 1 : 0);
  return changes;
}

}  // namespace

ParameterStream::ParameterStream(const Context& context, Swap* swap, Swap::Region region)
    : context_(context),
      offsets_(unit_offsets(context)),
      changes_(units_that_change(context.layout)),
      store_(Store::make(context.config.parameter_tier, context.device, context.host, swap, region,
                         "parameters", offsets_.back())),
      swap_(swap),
      views_(context.layout.units().size()),
      schedule_(static_cast<int>(context.layout.units().size())) {
  if (store_.tier() == Tier::device) return;
  const std::int64_t unit_bytes = context.layout.largest_unit() * context.sizes.weight_bytes;
  const int count = context.room.parameter_slots;
  slot_memory_ = context.device.allocate("parameter slots", count * unit_bytes);
  for (int i = 0; i < count; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.data = slot_memory_.data() + i * unit_bytes;
    slot.buffer = context.next_buffer_id();
  }
  if (store_.tier() != Tier::nvme) return;
  const std::int64_t staging_bytes = round_up(unit_bytes, kBlockBytes);
  const int staged = context.room.parameter_cache_slots;
  staging_memory_ = Memory(context.host, "parameter staging", staged * staging_bytes);
  for (int i = 0; i < staged; ++i) staging_.emplace_back().data = staging_memory_.data() + i * staging_bytes;
  staging_registered_ = SwapMemory(*swap, staging_memory_);
}

ParameterStream::~ParameterStream() {
  for (Staging& staging : staging_) {
    if (!staging.is_reading) continue;
    try {
      swap_->queue().wait(staging.ticket);
    } catch (const std::exception&) {
      // Nobody needs it any more.
    }
  }
  for (const Slot& slot : slots_) slot.filled.wait();
}

std::int64_t ParameterStream::bytes(int unit) const {
  return context_.unit(unit).elements * context_.sizes.weight_bytes;
}

ParameterStream::View ParameterStream::gather(int unit, bool in_step, const IsCurrent& is_current) {
  int& views = views_[static_cast<std::size_t>(unit)];
  if (views == 0 && held_ == context_.layout.options().live_units) throw std::logic_error(too_many(unit));
  const auto count = [&] {
    if (++views == 1) ++held_;
  };
  if (store_.tier() == Tier::device) {
    schedule_.use(unit, in_step);
    count();
    return {store_.at(offset(unit)), -1};
  }
  int chosen = device_slot(unit);
  const bool is_missing = chosen < 0;
  if (is_missing) {
    FirstToLeave leaves;
    for (int i = 0; i < static_cast<int>(slots_.size()); ++i) {
      const Slot& slot = slots_[static_cast<std::size_t>(i)];
      if (slot.views > 0) continue;
      std::int64_t next = slot.unit < 0 ? kNever : schedule_.next_use(slot.unit);
      if (next >= schedule_.record().size() && slot.unit >= 0 && is_changing(slot.unit)) next = kNever;
      leaves.offer(i, next, slot.released_at);
    }
    chosen = leaves.slot();
    // A unit that is held as it was before an update has a slot beside that of what it is now.
    if (chosen < 0) throw std::logic_error(too_many(unit));
  }
  follow(schedule_.use(unit, in_step), is_missing);
  Slot& slot = slots_[static_cast<std::size_t>(chosen)];
  ++slot.views;
  if (is_missing) {
    slot.unit = unit;
    try {
      fill(slot, unit, in_step, is_current);
    } catch (...) {
      slot.unit = -1;
      slot.views = 0;
      throw;
    }
  } else if (in_step) {
    read_ahead(is_current, nullptr);
  }
  count();
  if (slot.views == 1) {
    context_.trace_buffer(BufferAction::own, slot.buffer, unit, "high", Tier::device, bytes(unit), "gather");
  }
  return {slot.data, chosen};
}

int ParameterStream::device_slot(int unit) const {
  const auto found =
      std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.unit == unit; });
  return found == slots_.end() ? -1 : static_cast<int>(found - slots_.begin());
}

/// Keeps what was foreseen, where this use of a unit is as foreseen.
void ParameterStream::follow(bool as_recorded, bool was_missing) {
  const bool is_fill = next_fill_ < fills_.units.size() &&
                       fills_.places[static_cast<std::size_t>(next_fill_)] == schedule_.cursor() - 1;
  if (!as_recorded || is_fill != was_missing) is_foreseen_ = false;
  if (is_fill) ++next_fill_;
}

const Fills& ParameterStream::fills() {
  if (!is_foreseen_) {
    std::vector<SlotContents> contents;
    for (const Slot& slot : slots_) contents.push_back({slot.unit, slot.views > 0});
    fills_ = foresee(schedule_, contents, changes_);
    next_fill_ = 0;
    is_foreseen_ = true;
  }
  return fills_;
}

void ParameterStream::fill(Slot& slot, int unit, bool in_step, const IsCurrent& is_current) {
  Stream& up = context_.stream(Lane::copy_up);
  const auto copy = [&](const std::byte* source) {
    up.wait(slot.released);
    up.copy(slot.data, source, bytes(unit), "parameters", unit);
    slot.filled = up.record();
    ++copies_;
  };
  if (store_.tier() == Tier::host) {
    copy(store_.at(offset(unit)));
  } else {
    Staging& staging = stage(unit, in_step);
    // What comes later is started before this is waited for, so that the drive has something to do meanwhile.
    if (in_step) read_ahead(is_current, &staging);
    finish_read(staging);
    copy(staging.data);
    staging.emptied = slot.filled;
    staging.used_at = ++moments_;
  }
  context_.stream(Lane::compute).wait(slot.filled);
}

/// The host slot that holds the unit, or will when its read has landed.
ParameterStream::Staging& ParameterStream::stage(int unit, bool in_step) {
  // Outside a step what was foreseen is near enough, and much cheaper than to foresee it for every gather.
  const Fills& coming = in_step ? fills() : fills_;
  FirstToLeave leaves;
  for (int i = 0; i < static_cast<int>(staging_.size()); ++i) {
    Staging& staging = staging_[static_cast<std::size_t>(i)];
    if (staging.unit == unit) return staging;
    leaves.offer(i, coming.units.next(staging.unit, next_fill_), staging.used_at);
  }
  Staging& staging = staging_[static_cast<std::size_t>(leaves.slot())];
  finish_read(staging);  // of a unit that was expected, but is not what is needed now
  if (!staging.emptied.passed()) {
    const TraceWait wait(context_.trace, Waiter::compute, Lane::copy_up, unit);
    staging.emptied.wait();
  }
  start_read(staging, unit);
  return staging;
}

void ParameterStream::read_ahead(const IsCurrent& is_current, const Staging* needed) {
  if (store_.tier() != Tier::nvme) return;
  const Fills& coming = fills();
  std::vector<HostSlot> slots;
  for (const Staging& staging : staging_) {
    slots.push_back({.unit = staging.unit,
                     .free = !staging.is_reading && &staging != needed && staging.emptied.passed(),
                     .since = staging.used_at});
  }
  for (const Fill& fill : fills_ahead(coming, next_fill_, slots, is_current))
    start_read(staging_[static_cast<std::size_t>(fill.slot)], fill.unit);
}

void ParameterStream::start_read(Staging& staging, int unit) {
  staging.unit = -1;  // unless it can be started
  staging.ticket = store_.read(offset(unit), staging.data, round_up(bytes(unit), kBlockBytes),
                               {Purpose::Kind::parameters, unit});
  staging.unit = unit;
  staging.is_reading = true;
  ++reads_;
}

/// Returns when nothing is on its way into the slot.
void ParameterStream::finish_read(Staging& staging) {
  if (!staging.is_reading) return;
  const int unit = staging.unit;
  try {
    if (swap_->queue().done(staging.ticket)) {
      swap_->queue().wait(staging.ticket);
    } else {
      const TraceWait wait(context_.trace, Waiter::compute, Lane::read, unit);
      swap_->queue().wait(staging.ticket);
    }
  } catch (...) {
    staging.is_reading = false;
    staging.unit = -1;
    throw;
  }
  staging.is_reading = false;
}

void ParameterStream::release(int unit, int index) noexcept {
  if (--views_[static_cast<std::size_t>(unit)] == 0) {
    --held_;
    schedule_.release(unit);
  }
  if (index < 0) return;
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  if (--slot.views > 0) return;
  slot.released = context_.stream(Lane::compute).record();
  slot.released_at = ++moments_;
  context_.trace_buffer(BufferAction::own, slot.buffer, -1, "high", Tier::device, 0, "release");
}

void ParameterStream::invalidate(int unit) {
  for (Slot& slot : slots_) {
    if (slot.unit == unit) slot.unit = -1;
  }
  for (Staging& staging : staging_) {
    if (staging.unit != unit) continue;
    finish_read(staging);
    staging.unit = -1;
  }
}

void ParameterStream::prefetch(const IsCurrent& is_current) {
  read_ahead(is_current, nullptr);
}

void ParameterStream::end_iteration() {
  schedule_.end_iteration();
  is_foreseen_ = false;
}

std::string ParameterStream::too_many(int unit) const {
  return fmt::format(
      "gather({}): the layout allows {} live units, and there are views of {}; release one, or declare more "
      "live "
      "units in the layout",
      context_.unit(unit).name, context_.layout.options().live_units, held());
}

std::string ParameterStream::held() const {
  std::string names;
  for (std::size_t unit = 0; unit < views_.size(); ++unit) {
    if (views_[unit] > 0) names += (names.empty() ? "" : ", ") + context_.layout.units()[unit].name;
  }
  return names;
}

}  // namespace spillway
