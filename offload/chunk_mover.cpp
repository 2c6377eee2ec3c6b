#include "chunk_mover.h"

#include "../cpu_adam/streams.h"
#include "context.h"
#include "parameter_stream.h"

#include <algorithm>
#include <exception>

namespace spillway {

ChunkMover::ChunkMover(const Context& context, ParameterStream& parameters, Swap* swap, Swap::Region region)
    : context_(context),
      parameters_(parameters),
      swap_(swap),
      slots_(static_cast<std::size_t>(context.room.update_slots)) {
  find_homes(swap, region);
  touch_records();
  for (std::size_t i = 0; i < context.layout.units().size(); ++i) {
    record_buffers_.push_back(context.next_buffer_id());
    weight_buffers_.push_back(context.next_buffer_id());
  }
  const Chunks& sizes = context.chunks;
  const Tier weights = parameters.store().tier(), records = context.config.optimizer_tier;
  const auto count = static_cast<std::int64_t>(slots_.size());
  if (weights != Tier::host)
    host_high_ = Memory(context.host, "parameter update slots", count * sizes.weight_bytes);
  if (records != Tier::host)
    host_records_ = Memory(context.host, "optimizer slots", count * sizes.record_bytes);
  const GradientPieces pieces(context.layout, context.config, sizes);
  if (context.room.spills_gradients)
    host_gradients_ = Memory(context.host, "gradient update slots", count * pieces.read);
  if (records == Tier::device && weights != Tier::device)
    device_high_ = context.device.allocate("update slots", count * sizes.weight_bytes);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto piece = [i](const Memory& memory, std::int64_t bytes) {
      return memory.data() == nullptr ? nullptr : memory.data() + i * bytes;
    };
    Slot& slot = slots_[static_cast<std::size_t>(i)];
    slot.host_high = piece(host_high_, sizes.weight_bytes);
    slot.host_record = piece(host_records_, sizes.record_bytes);
    slot.host_gradient = piece(host_gradients_, pieces.read);
    slot.device_high = piece(device_high_, sizes.weight_bytes);
  }
  if (weights == Tier::nvme) high_registered_ = SwapMemory(*swap, host_high_);
  if (records_->tier() == Tier::nvme) records_registered_ = SwapMemory(*swap, host_records_);
  if (context.room.spills_gradients) gradients_registered_ = SwapMemory(*swap, host_gradients_);
}

cpu_adam::Planes ChunkMover::Chunk::planes(const StateSizes& sizes) const {
  return sizes.record.planes(high, record, state);
}

std::vector<ChunkMover::Chunk> ChunkMover::chunks(int unit, std::int64_t first, std::int64_t last) const {
  const Layout::Unit& shape = context_.unit(unit);
  const std::int64_t size = context_.chunks.elements;
  std::vector<Chunk> chunks;
  for (std::int64_t begin = first / size * size; begin < last; begin += size) {
    chunks.push_back({.unit = unit,
                      .first = begin,
                      .elements = std::min(size, shape.elements - begin),
                      .state = std::clamp<std::int64_t>(shape.trainable - begin, 0, size)});
  }
  return chunks;
}

/// Gives each record its place, one after another in its tier, and reserves the tiers.
void ChunkMover::find_homes(Swap* swap, Swap::Region region) {
  const StateSizes& sizes = context_.sizes;
  const auto& units = context_.layout.units();
  const bool on_nvme = context_.config.optimizer_tier == Tier::nvme;
  std::int64_t all = 0, index = 0, stored = 0, resident = 0;
  for (const Layout::Unit& unit : units) all += context_.chunks.records(unit);
  std::vector<Home*> of_store, of_resident;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    auto& homes = homes_.emplace_back();
    for (const Chunk& chunk : chunks(unit, 0, context_.unit(unit).elements)) {
      Home& home = homes.emplace_back();
      home.high_offset = parameters_.offset(unit) + chunk.first * sizes.weight_bytes;
      home.high_bytes = chunk.elements * sizes.weight_bytes;
    }
    for (std::int64_t i = 0; i < context_.chunks.records(context_.unit(unit)); ++i, ++index) {
      Home& home = homes[static_cast<std::size_t>(i)];
      home.record_bytes = context_.chunks.record_bytes_of(context_.unit(unit), i, sizes);
      const bool stays = on_nvme && is_resident(index, all, context_.room.resident_chunks);
      std::int64_t& end = stays ? resident : stored;
      home.record_offset = end;
      end += home.record_bytes;
      (stays ? of_resident : of_store).push_back(&home);
    }
  }
  records_.emplace(Store::make(context_.config.optimizer_tier, context_.device, context_.host, swap, region,
                               "optimizer records", stored, Pages::untouched));
  resident_ = Memory(context_.host, "resident records", resident, Pages::untouched);
  for (Home* home : of_resident) home->record = resident_.data() + home->record_offset;
  if (records_->tier() == Tier::nvme) return;
  for (Home* home : of_store) home->record = records_->at(home->record_offset);
}

/// Places each page of host memory near the worker that will update it.
void ChunkMover::touch_records() {
  if (context_.config.optimizer_tier == Tier::device) return;
  for (int unit = 0; unit < static_cast<int>(homes_.size()); ++unit) {
    for (const Chunk& chunk : chunks(unit, 0, context_.unit(unit).trainable)) {
      const Home& at = home(chunk);
      if (at.record == nullptr) continue;
      const std::int64_t bytes = context_.sizes.record.bytes(chunk.state);
      cpu_adam::first_touch(context_.workers, context_.sizes.record.planes(nullptr, at.record, chunk.state),
                            chunk.state);
      std::fill(at.record + bytes, at.record + at.record_bytes, std::byte{0});
    }
  }
}

const ChunkMover::Home& ChunkMover::home(const Chunk& chunk) const {
  return homes_[static_cast<std::size_t>(chunk.unit)]
               [static_cast<std::size_t>(chunk.first / context_.chunks.elements)];
}

/// The record lies on NVMe.
bool ChunkMover::is_read(const Chunk& chunk) const {
  const Home& at = home(chunk);
  return at.record == nullptr && at.record_bytes > 0;
}

void ChunkMover::start(Site site, Slot& slot, const Chunk& chunk) {
  const Home& at = home(chunk);
  Store& weights = parameters_.store();
  const Tier here = site == Site::host ? Tier::host : Tier::device;
  const bool record_on_device = context_.config.optimizer_tier == Tier::device;
  slot.chunk = chunk;
  slot.site = site;
  slot.has_gradient = false;
  slot.arrived = slot.gone = Event();
  slot.chunk.high = weights.tier() == here ? weights.at(at.high_offset)
                    : site == Site::host   ? slot.host_high
                                           : slot.device_high;
  slot.chunk.record = at.record_bytes == 0 ? nullptr  // of frozen parameters there is none
                      : is_read(chunk)     ? slot.host_record
                      : record_on_device == (site == Site::device) ? at.record
                                                                   : slot.host_record;
  if (weights.tier() == Tier::nvme) {
    slot.reads.push_back(weights.read(at.high_offset, slot.host_high, round_up(at.high_bytes, kBlockBytes),
                                      {Purpose::Kind::high, chunk.unit}));
  }
  if (is_read(chunk)) {
    slot.reads.push_back(records_->read(at.record_offset, slot.host_record, at.record_bytes,
                                        {Purpose::Kind::record, chunk.unit}));
  }
  if (site == Site::device) return;
  Stream& down = context_.device.side_stream(Lane::copy_down);
  const bool copies_record = record_on_device && at.record_bytes > 0;
  if (weights.tier() == Tier::device)
    down.copy(slot.host_high, weights.at(at.high_offset), at.high_bytes, "high", chunk.unit);
  if (copies_record) down.copy(slot.host_record, at.record, at.record_bytes, "record", chunk.unit);
  if (weights.tier() == Tier::device || copies_record) slot.arrived = down.record();
}

void ChunkMover::bring(Slot& slot) {
  const Home& at = home(slot.chunk);
  const int unit = slot.chunk.unit;
  wait(slot.reads, Lane::read, unit);
  wait(slot.arrived, Lane::copy_down, unit);
  Store& weights = parameters_.store();
  if (slot.site == Site::device && weights.tier() != Tier::device) {
    Stream& up = context_.device.side_stream(Lane::copy_up);
    up.copy(slot.device_high, weights.tier() == Tier::host ? weights.at(at.high_offset) : slot.host_high,
            at.high_bytes, "high", unit);
    context_.stream(Lane::compute).wait(up.record());
  }
  trace_move(slot.chunk, slot.site, /*home=*/false);
}

void ChunkMover::drop(Slot& slot) {
  wait(slot.reads, Lane::read, slot.chunk.unit);
  wait(slot.arrived, Lane::copy_down, slot.chunk.unit);
}

void ChunkMover::take_home(Slot& slot) {
  const Home& at = home(slot.chunk);
  const int unit = slot.chunk.unit;
  Store& weights = parameters_.store();
  if (slot.site == Site::device) {
    Stream& compute = context_.stream(Lane::compute);
    slot.gone = compute.record();
    if (weights.tier() != Tier::device) {
      Stream& down = context_.device.side_stream(Lane::copy_down);
      down.wait(slot.gone);
      down.copy(weights.tier() == Tier::host ? weights.at(at.high_offset) : slot.host_high, slot.device_high,
                at.high_bytes, "high", unit);
      slot.gone = down.record();
    }
    if (weights.tier() == Tier::nvme) wait(slot.gone, Lane::copy_down, unit);
  } else {
    Stream& up = context_.device.side_stream(Lane::copy_up);
    const bool copies_record = context_.config.optimizer_tier == Tier::device && at.record_bytes > 0;
    if (weights.tier() == Tier::device)
      up.copy(weights.at(at.high_offset), slot.host_high, at.high_bytes, "high", unit);
    if (copies_record) up.copy(at.record, slot.host_record, at.record_bytes, "record", unit);
    if (weights.tier() == Tier::device || copies_record) slot.gone = up.record();
  }
  slot.high_write = {};
  if (weights.tier() == Tier::nvme) {
    slot.high_write = weights.write(at.high_offset, slot.host_high, round_up(at.high_bytes, kBlockBytes),
                                    {Purpose::Kind::high, unit});
    slot.writes.push_back(slot.high_write);
  }
  if (is_read(slot.chunk)) {
    slot.writes.push_back(
        records_->write(at.record_offset, slot.host_record, at.record_bytes, {Purpose::Kind::record, unit}));
  }
  trace_move(slot.chunk, slot.site, /*home=*/true);
}

bool ChunkMover::is_home(const Slot& slot) const {
  return slot.gone.passed() && std::all_of(slot.writes.begin(), slot.writes.end(),
                                           [&](aio::Ticket ticket) { return swap_->queue().done(ticket); });
}

void ChunkMover::retire(Slot& slot) {
  wait(slot.writes, Lane::write, slot.chunk.unit);
  wait(slot.gone, slot.site == Site::host ? Lane::copy_up : Lane::copy_down, slot.chunk.unit);
}

void ChunkMover::give_up() noexcept {
  for (Slot& slot : slots_) {
    for (auto* tickets : {&slot.reads, &slot.writes}) {
      for (const aio::Ticket ticket : *tickets) {
        try {
          swap_->queue().wait(ticket);
        } catch (const std::exception&) {
          // The first error is on its way out already.
        }
      }
      tickets->clear();
    }
    slot.arrived.wait();
    slot.gone.wait();
  }
}

std::vector<ChunkMover::Extent> ChunkMover::extents(GradientSpill* gradients) {
  std::vector<Extent> extents;
  for (int unit = 0; unit < static_cast<int>(homes_.size()); ++unit) {
    for (const Chunk& chunk : chunks(unit, 0, context_.unit(unit).trainable)) {
      const Home& at = home(chunk);
      if (parameters_.store().tier() == Tier::nvme)
        extents.push_back({&parameters_.store(), at.high_offset, round_up(at.high_bytes, kBlockBytes)});
      if (is_read(chunk)) extents.push_back({&*records_, at.record_offset, at.record_bytes});
      if (gradients != nullptr) extents.push_back(gradients->extent({unit, 0, 0}, chunk.first));
    }
  }
  return extents;
}

void ChunkMover::wait(std::vector<aio::Ticket>& tickets, Lane lane, int unit) {
  if (tickets.empty()) return;
  TraceWait waits(context_.trace, Waiter::update, lane, unit);
  while (!tickets.empty()) {
    const aio::Ticket ticket = tickets.back();
    tickets.pop_back();
    swap_->queue().wait(ticket);
  }
}

void ChunkMover::wait(Event& event, Lane lane, int unit) {
  if (!event.passed()) {
    TraceWait waits(context_.trace, Waiter::update, lane, unit);
    event.wait();
  }
  event = Event();
}

/// Records that what of the chunk is not at home where the work is done has come there, or has gone home.
void ChunkMover::trace_move(const Chunk& chunk, Site site, bool home_again) const {
  if (context_.trace == nullptr) return;
  const Home& at = home(chunk);
  const auto unit = static_cast<std::size_t>(chunk.unit);
  const Tier there = site == Site::host ? Tier::host : Tier::device;
  const auto move = [&](std::string_view kind, std::uint64_t buffer, Tier home_tier, std::int64_t bytes) {
    if (home_tier == there || bytes == 0) return;
    context_.trace_buffer(BufferAction::move, buffer, chunk.unit, kind, home_again ? home_tier : there, bytes,
                          home_again ? "write chunk" : "read chunk");
  };
  move("high", weight_buffers_[unit], parameters_.store().tier(), at.high_bytes);
  move("record", record_buffers_[unit],
       is_read(chunk)                                   ? Tier::nvme
       : at.record == nullptr                           ? there
       : context_.config.optimizer_tier == Tier::device ? Tier::device
                                                        : Tier::host,
       context_.sizes.record.bytes(chunk.state));
}

}  // namespace spillway
