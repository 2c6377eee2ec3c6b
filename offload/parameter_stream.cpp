#include "parameter_stream.h"

#include "context.h"

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

}  // namespace

ParameterStream::ParameterStream(const Context& context, Swap* swap, Swap::Region region)
    : context_(context),
      offsets_(unit_offsets(context)),
      store_(Store::make(context.config.parameter_tier, context.device, context.host, swap, region,
                         "parameters", offsets_.back())),
      swap_(swap),
      views_(context.layout.units().size()) {
  if (store_.tier() == Tier::device) return;
  const std::int64_t unit_bytes = context.layout.largest_unit() * context.sizes.weight_bytes;
  const int count = context.room.parameter_slots;
  slot_memory_ = context.device.allocate("parameter slots", count * unit_bytes);
  for (int i = 0; i < count; ++i) {
    slots_.push_back({.data = slot_memory_.data() + i * unit_bytes, .buffer = context.next_buffer_id()});
  }
  if (store_.tier() != Tier::nvme) return;
  const std::int64_t staging_bytes = round_up(unit_bytes, kBlockBytes);
  const int staged = context.room.parameter_cache_slots;
  staging_memory_ = Memory(context.host, "parameter staging", staged * staging_bytes);
  for (int i = 0; i < staged; ++i)
    staging_.push_back({.data = staging_memory_.data() + i * staging_bytes, .emptied = {}});
  staging_registered_ = SwapMemory(*swap, staging_memory_);
}

ParameterStream::View ParameterStream::gather(int unit) {
  int& views = views_[static_cast<std::size_t>(unit)];
  if (store_.tier() == Tier::device) {
    ++views;
    return {store_.at(offset(unit)), -1};
  }
  // Of the free slots the one released first; which one should leave is for the schedule to know, once it does.
  int chosen = -1;
  for (int i = 0; i < static_cast<int>(slots_.size()); ++i) {
    Slot& slot = slots_[static_cast<std::size_t>(i)];
    if (slot.unit == unit) {
      ++slot.views;
      ++views;
      return {slot.data, i};
    }
    if (slot.views > 0) continue;
    if (chosen < 0 || slot.released_at < slots_[static_cast<std::size_t>(chosen)].released_at) chosen = i;
  }
  if (chosen < 0) {
    throw std::logic_error(
        fmt::format("gather({}): all {} parameter slots are held by views of {}; release one, or declare more "
                    "live units in the layout",
                    context_.unit(unit).name, slots_.size(), held()));
  }
  Slot& slot = slots_[static_cast<std::size_t>(chosen)];
  slot.unit = -1;  // unless filling it succeeds
  fill(slot, unit);
  slot.unit = unit;
  slot.views = 1;
  ++views;
  context_.trace_buffer(BufferAction::own, slot.buffer, unit, "high", Tier::device,
                        context_.unit(unit).elements * context_.sizes.weight_bytes, "gather");
  return {slot.data, chosen};
}

void ParameterStream::fill(Slot& slot, int unit) {
  Stream& up = context_.stream(Lane::copy_up);
  const std::int64_t bytes = context_.unit(unit).elements * context_.sizes.weight_bytes;
  up.wait(slot.released);
  if (store_.tier() == Tier::host) {
    up.copy(slot.data, store_.at(offset(unit)), bytes, "parameters", unit);
  } else {
    Staging& staging = staging_[next_staging_];
    next_staging_ = (next_staging_ + 1) % staging_.size();
    staging.emptied.wait();
    {
      TraceSpan span(context_.trace, Lane::read, "parameters", unit, bytes);
      swap_->queue().wait(store_.read(offset(unit), staging.data, round_up(bytes, kBlockBytes)));
    }
    up.copy(slot.data, staging.data, bytes, "parameters", unit);
    staging.emptied = up.record();
  }
  context_.stream(Lane::compute).wait(up.record());
}

void ParameterStream::release(int unit, int index) noexcept {
  --views_[static_cast<std::size_t>(unit)];
  if (index < 0) return;
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  if (--slot.views > 0) return;
  slot.released = context_.stream(Lane::compute).record();
  slot.released_at = ++releases_;
  context_.trace_buffer(BufferAction::own, slot.buffer, -1, "high", Tier::device, 0, "release");
}

void ParameterStream::invalidate(int unit) {
  for (Slot& slot : slots_) {
    if (slot.unit == unit) slot.unit = -1;
  }
}

std::string ParameterStream::held() const {
  std::string names;
  for (std::size_t unit = 0; unit < views_.size(); ++unit) {
    if (views_[unit] > 0) names += (names.empty() ? "" : ", ") + context_.layout.units()[unit].name;
  }
  return names;
}

}  // namespace spillway
