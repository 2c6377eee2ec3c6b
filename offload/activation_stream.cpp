#include "activation_stream.h"

#include "context.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <tuple>

#include <fmt/format.h>

namespace spillway {

ActivationStream::ActivationStream(const Context& context, Swap* swap, Swap::Region region)
    : context_(context), swap_(swap) {
  const ActivationBytes sizes(context.layout);
  memory_ = Memory(context.host, "activations", sizes.host);
  std::int64_t host = 0, nvme = 0;
  for (const ActivationSlot& one : context.layout.options().activations) {
    Slot slot{.tier = one.tier, .bytes = one.bytes, .buffer = context.next_buffer_id()};
    if (one.tier == Tier::host) {
      slot.offset = host;
      host += one.bytes;
    } else {
      slot.offset = nvme;
      nvme += round_up(one.bytes, kBlockBytes);
    }
    slots_.push_back(slot);
  }
  if (nvme == 0) return;
  store_ = Store(*swap, region);
  staging_memory_ = Memory(context.host, "activation staging", context.room.activation_slots * sizes.staging);
  for (int i = 0; i < context.room.activation_slots; ++i) {
    Staging staging;
    staging.data = staging_memory_.data() + i * sizes.staging;
    staging_.push_back(staging);
  }
  registered_ = SwapMemory(*swap, staging_memory_);
}

ActivationStream::~ActivationStream() {
  for (Staging& staging : staging_) {
    try {
      settle(staging);
    } catch (const std::exception&) {
      // Nothing of it is in flight any more, and nobody is left to hear of it.
    }
  }
  for (const Slot& slot : slots_) {
    slot.saved.wait();
    slot.loaded.wait();
  }
}

ActivationStream::Slot& ActivationStream::slot(int index, const char* call) {
  if (index < 0 || index >= static_cast<int>(slots_.size())) {
    throw std::logic_error(fmt::format("{}: there is no activation {} in the layout", call, index));
  }
  return slots_[static_cast<std::size_t>(index)];
}

ActivationStream::Staging* ActivationStream::holding(int slot) {
  const auto found = std::ranges::find(staging_, slot, &Staging::slot);
  return found == staging_.end() ? nullptr : &*found;
}

bool ActivationStream::is_idle(const Staging& staging) const {
  return staging.filled.passed() && staging.emptied.passed() &&
         (staging.transfer.number == 0 || swap_->queue().done(staging.transfer));
}

void ActivationStream::settle(Staging& staging) {
  if (!staging.filled.passed()) {
    TraceWait wait(context_.trace, Waiter::compute, Lane::copy_down);
    staging.filled.wait();
  }
  if (staging.transfer.number != 0) {
    const aio::Ticket ticket = std::exchange(staging.transfer, {});
    if (swap_->queue().done(ticket)) {
      swap_->queue().wait(ticket);
    } else {
      TraceWait wait(context_.trace, Waiter::compute, staging.lane);
      swap_->queue().wait(ticket);
    }
  }
  if (!staging.emptied.passed()) {
    TraceWait wait(context_.trace, Waiter::compute, Lane::copy_up);
    staging.emptied.wait();
  }
}

ActivationStream::Staging* ActivationStream::take(int slot, bool may_wait) {
  // An empty one; else what has been loaded before what has not, and what was touched longest ago before the
  // rest: passes come back in the reverse order. What is wanted soon goes last, the latest wish first.
  const auto rank = [this](const Staging& staging) {
    return std::tuple(staging.slot >= 0, staging.is_wanted, !is_idle(staging), !staging.is_used,
                      staging.is_wanted ? ~staging.turn : staging.turn);
  };
  Staging* chosen = &staging_.front();
  auto best = rank(*chosen);
  for (Staging& staging : staging_) {
    auto its = rank(staging);
    if (its >= best) continue;
    best = its;
    chosen = &staging;
  }
  if (!may_wait && (chosen->is_wanted || !is_idle(*chosen))) return nullptr;
  settle(*chosen);
  context_.device.check();  // a write that was dropped has left nothing on NVMe
  chosen->slot = slot;
  chosen->is_wanted = chosen->is_used = false;
  chosen->turn = ++turns_;
  return chosen;
}

Event ActivationStream::save(int index, const void* source) {
  Slot& to = slot(index, "save_activation()");
  Stream& down = context_.stream(Lane::copy_down);
  std::byte* destination = memory_.data() + to.offset;
  Staging* staging = nullptr;
  if (to.tier == Tier::nvme) {
    staging = holding(index);
    if (staging == nullptr) staging = take(index, true);
    settle(*staging);
    destination = staging->data;
  }
  down.wait(to.loaded);
  down.wait(context_.stream(Lane::compute).record());
  down.copy(destination, source, to.bytes, "activation");
  to.saved = down.record();
  to.is_saved = true;
  if (staging != nullptr) {
    staging->is_wanted = staging->is_used = false;
    staging->turn = ++turns_;
    staging->lane = Lane::write;
    // Once the copy is done, and by its stream, so that nobody waits for it.
    down.call("begin write", [this, staging, offset = to.offset, bytes = round_up(to.bytes, kBlockBytes)] {
      staging->transfer = store_.write(offset, staging->data, bytes, {Purpose::Kind::activation, -1});
    });
    staging->filled = down.record();
  }
  context_.trace_buffer(BufferAction::move, to.buffer, -1, "activation", to.tier, to.bytes, "save");
  return to.saved;
}

void ActivationStream::start_read(Staging& staging, int index) {
  const Slot& from = slots_[static_cast<std::size_t>(index)];
  staging.lane = Lane::read;
  staging.transfer = store_.read(from.offset, staging.data, round_up(from.bytes, kBlockBytes),
                                 {Purpose::Kind::activation, -1});
}

Event ActivationStream::load(int index, void* destination, const Event& free) {
  Slot& from = slot(index, "load_activation()");
  if (!from.is_saved) {
    throw std::logic_error(fmt::format("load_activation(): activation {} has never been saved", index));
  }
  Stream& up = context_.stream(Lane::copy_up);
  const std::byte* source = memory_.data() + from.offset;
  Staging* staging = nullptr;
  if (from.tier == Tier::nvme) {
    staging = holding(index);
    if (staging == nullptr) {
      staging = take(index, true);
      start_read(*staging, index);
    }
    if (staging->lane == Lane::read) settle(*staging);
    staging->is_wanted = false;
    staging->is_used = true;
    staging->turn = ++turns_;
    source = staging->data;
  }
  up.wait(from.saved);
  up.wait(free);
  up.copy(destination, source, from.bytes, "activation");
  from.loaded = up.record();
  if (staging != nullptr) staging->emptied = from.loaded;
  context_.trace_buffer(BufferAction::move, from.buffer, -1, "activation", Tier::device, from.bytes, "load");
  return from.loaded;
}

void ActivationStream::prefetch(int index) {
  const Slot& from = slot(index, "prefetch_activation()");
  if (from.tier != Tier::nvme || !from.is_saved) return;
  if (Staging* const staging = holding(index)) {
    staging->is_wanted = true;
    staging->turn = ++turns_;
    return;
  }
  Staging* const staging = take(index, false);
  if (staging == nullptr) return;
  start_read(*staging, index);
  staging->is_wanted = true;
}

}  // namespace spillway
