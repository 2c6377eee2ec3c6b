#include "optimizer_stream.h"

#include "../cpu_adam/streams.h"
#include "../cpu_adam/update.h"
#include "context.h"
#include "gradient_stream.h"
#include "parameter_stream.h"

#include <algorithm>
#include <atomic>

namespace spillway {
namespace {

std::vector<std::int64_t> record_offsets(const Context& context) {
  std::vector<std::int64_t> offsets{0};
  for (const Layout::Unit& unit : context.layout.units()) {
    offsets.push_back(offsets.back() + context.chunks.unit_record_bytes(unit, context.sizes));
  }
  return offsets;
}

}  // namespace

OptimizerStream::OptimizerStream(const Context& context, ParameterStream& parameters, Swap* swap,
                                 Swap::Region region)
    : context_(context),
      parameters_(parameters),
      swap_(swap),
      record_offsets_(record_offsets(context)),
      records_(Store::make(context.config.optimizer_tier, context.device, context.host, swap, region,
                           "optimizer records", record_offsets_.back(), Pages::untouched)) {
  if (records_.tier() == Tier::host) touch_records();
  for (std::size_t i = 0; i < context.layout.units().size(); ++i) {
    record_buffers_.push_back(context.next_buffer_id());
    weight_buffers_.push_back(context.next_buffer_id());
  }
  const Chunks& chunks = context.chunks;
  const Tier weights = parameters.store().tier();
  const int slots = context.room.update_slots;
  slots_.resize(static_cast<std::size_t>(slots));
  if (weights != Tier::host) {
    host_high_ = Memory(context.host, "parameter update slots", slots * chunks.weight_bytes);
  }
  if (context.config.optimizer_tier != Tier::host) {
    host_records_ = Memory(context.host, "optimizer slots", slots * chunks.record_bytes);
  }
  if (context.config.optimizer_tier == Tier::device && weights != Tier::device) {
    device_high_ = context.device.allocate("update slots", slots * chunks.weight_bytes);
  }
  for (int i = 0; i < slots; ++i) {
    const auto piece = [i](const Memory& memory, std::int64_t bytes) {
      return memory.data() == nullptr ? nullptr : memory.data() + i * bytes;
    };
    slots_[static_cast<std::size_t>(i)].host_high = piece(host_high_, chunks.weight_bytes);
    slots_[static_cast<std::size_t>(i)].host_record = piece(host_records_, chunks.record_bytes);
    slots_[static_cast<std::size_t>(i)].device_high = piece(device_high_, chunks.weight_bytes);
  }
  if (weights == Tier::nvme) high_registered_ = SwapMemory(*swap, host_high_);
  if (records_.tier() == Tier::nvme) records_registered_ = SwapMemory(*swap, host_records_);
}

cpu_adam::Planes OptimizerStream::Chunk::planes(const StateSizes& sizes) const {
  return sizes.record.planes(high, record, state);
}

/// Places each page near the worker that will update it.
void OptimizerStream::touch_records() {
  for (int unit = 0; unit < static_cast<int>(context_.layout.units().size()); ++unit) {
    std::vector<Chunk> chunks;
    append_chunks(chunks, unit, 0, context_.unit(unit).trainable);
    for (const Chunk& chunk : chunks) {
      const Where at = where(chunk);
      std::byte* record = records_.at(at.record_offset);
      cpu_adam::first_touch(context_.workers, context_.sizes.record.planes(nullptr, record, chunk.state),
                            chunk.state);
      std::fill(record + at.record_bytes, record + round_up(at.record_bytes, kBlockBytes), std::byte{0});
    }
  }
}

OptimizerStream::Where OptimizerStream::where(const Chunk& chunk) const {
  const Chunks& chunks = context_.chunks;
  const StateSizes& sizes = context_.sizes;
  return {.high_offset = parameters_.offset(chunk.unit) + chunk.first * sizes.weight_bytes,
          .high_bytes = chunk.elements * sizes.weight_bytes,
          .record_offset = record_offsets_[static_cast<std::size_t>(chunk.unit)] +
                           chunk.first / chunks.elements * chunks.record_bytes,
          .record_bytes = sizes.record.bytes(chunk.state)};
}

void OptimizerStream::append_chunks(std::vector<Chunk>& chunks, int unit, std::int64_t first,
                                    std::int64_t last) const {
  const Layout::Unit& shape = context_.unit(unit);
  const std::int64_t size = context_.chunks.elements;
  for (std::int64_t begin = first / size * size; begin < last; begin += size) {
    chunks.push_back({.unit = unit,
                      .first = begin,
                      .elements = std::min(size, shape.elements - begin),
                      .state = std::clamp<std::int64_t>(shape.trainable - begin, 0, size)});
  }
}

void OptimizerStream::visit(int unit, std::int64_t first, std::int64_t last, bool changes, const Visit& visit) {
  std::vector<Chunk> chunks;
  append_chunks(chunks, unit, first, last);
  pass(Site::host, chunks, changes, visit);
}

bool OptimizerStream::update(const GradientStream& gradients, std::span<const UpdateCoefficients> coefficients,
                             std::int64_t step) {
  std::vector<Chunk> chunks;
  for (int unit = 0; unit < static_cast<int>(context_.layout.units().size()); ++unit) {
    append_chunks(chunks, unit, 0, context_.unit(unit).trainable);
  }
  bool non_finite = false;
  const Site site = records_.tier() == Tier::device ? Site::device : Site::host;
  pass(site, chunks, true, [&](const Chunk& chunk) {
    if (update_chunk(chunk, gradients, coefficients, step)) non_finite = true;
  });
  return non_finite;
}

bool OptimizerStream::update_chunk(const Chunk& chunk, const GradientStream& gradients,
                                   std::span<const UpdateCoefficients> coefficients, std::int64_t step) {
  std::vector<cpu_adam::UpdateSegment> segments;
  for (const int index : context_.unit(chunk.unit).parameters) {
    const Layout::Parameter& p = context_.layout.parameters()[static_cast<std::size_t>(index)];
    const std::int64_t begin = std::max(p.offset, chunk.first);
    const std::int64_t end = std::min(p.offset + p.elements, chunk.first + chunk.state);
    if (!p.trainable || begin >= end) continue;
    segments.push_back({.offset = begin - chunk.first,
                        .count = end - begin,
                        .coefficients = coefficients[static_cast<std::size_t>(p.group)],
                        .place = {.seed = context_.config.seed,
                                  .step = static_cast<std::uint32_t>(step),
                                  .parameter = static_cast<std::uint32_t>(index),
                                  .element = begin - p.offset}});
  }
  return cpu_adam::update(context_.isa, context_.workers, chunk.planes(context_.sizes),
                          cpu_adam::advance(gradients.gradient(chunk.unit), chunk.first), segments);
}

void OptimizerStream::pass(Site site, const std::vector<Chunk>& chunks, bool changes, const Visit& body) {
  const std::size_t ahead = slots_.size() - 1;  // chunks whose reads are on their way while one is worked on
  const auto slot_of = [&](std::size_t i) -> Slot& { return slots_[i % slots_.size()]; };
  try {
    for (std::size_t i = 0; i < std::min(ahead, chunks.size()); ++i) start(site, slot_of(i), chunks[i]);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      Slot& slot = slot_of(i);
      bring(site, slot);
      if (site == Site::device) {
        Stream& compute = context_.stream(Lane::compute);
        compute.call(
            "adam", [&] { body(slot.chunk); }, slot.chunk.unit);
        compute.synchronize();
      } else {
        TraceSpan span(context_.trace, Lane::adam, "adam", slot.chunk.unit,
                       context_.sizes.record.bytes(slot.chunk.state));
        body(slot.chunk);
      }
      if (changes) take_home(site, slot);
      if (i + ahead < chunks.size()) start(site, slot_of(i + ahead), chunks[i + ahead]);
    }
    for (Slot& slot : slots_) wait(slot.writes, Lane::write, slot.chunk, 0);
  } catch (...) {
    // The kernel may still be writing into the slots; nothing leaves here before it has stopped.
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
    }
    throw;
  }
}

/// Gives the slot to a chunk and starts its reads.
void OptimizerStream::start(Site site, Slot& slot, const Chunk& chunk) {
  wait(slot.writes, Lane::write, slot.chunk, 0);
  slot.chunk = chunk;
  const Where at = where(chunk);
  Store& weights = parameters_.store();
  const bool weights_visible = weights.tier() == (site == Site::host ? Tier::host : Tier::device);
  const bool record_visible = records_.tier() == (site == Site::host ? Tier::host : Tier::device);
  slot.chunk.high = weights_visible      ? weights.at(at.high_offset)
                    : site == Site::host ? slot.host_high
                                         : slot.device_high;
  slot.chunk.record = at.record_bytes == 0 ? nullptr  // a chunk of frozen parameters has no record
                      : record_visible     ? records_.at(at.record_offset)
                                           : slot.host_record;
  if (weights.tier() == Tier::nvme) {
    slot.reads.push_back(weights.read(at.high_offset, slot.host_high, round_up(at.high_bytes, kBlockBytes)));
  }
  if (records_.tier() == Tier::nvme && at.record_bytes > 0) {
    slot.reads.push_back(
        records_.read(at.record_offset, slot.host_record, round_up(at.record_bytes, kBlockBytes)));
  }
}

/// Waits for the reads and copies what lies on the other side of the bus.
void OptimizerStream::bring(Site site, Slot& slot) {
  const Where at = where(slot.chunk);
  const int unit = slot.chunk.unit;
  wait(slot.reads, Lane::read, slot.chunk, at.record_bytes);
  const Tier weights = parameters_.store().tier();
  if (site == Site::host && weights == Tier::device) {
    copy(Lane::copy_down, slot.host_high, parameters_.store().at(at.high_offset), at.high_bytes, "high", unit);
  }
  if (site == Site::device && weights != Tier::device) {
    copy(Lane::copy_up, slot.device_high,
         weights == Tier::host ? parameters_.store().at(at.high_offset) : slot.host_high, at.high_bytes, "high",
         unit);
  }
  if (site == Site::host && records_.tier() == Tier::device) {
    copy(Lane::copy_down, slot.host_record, records_.at(at.record_offset), at.record_bytes, "record", unit);
  }
  trace_move(slot.chunk, site, /*home=*/false);
}

/// The opposite of start and bring.
void OptimizerStream::take_home(Site site, Slot& slot) {
  const Where at = where(slot.chunk);
  const int unit = slot.chunk.unit;
  Store& weights = parameters_.store();
  if (site == Site::host && weights.tier() == Tier::device) {
    copy(Lane::copy_up, weights.at(at.high_offset), slot.host_high, at.high_bytes, "high", unit);
  }
  if (site == Site::device && weights.tier() != Tier::device) {
    copy(Lane::copy_down, weights.tier() == Tier::host ? weights.at(at.high_offset) : slot.host_high,
         slot.device_high, at.high_bytes, "high", unit);
  }
  if (site == Site::host && records_.tier() == Tier::device) {
    copy(Lane::copy_up, records_.at(at.record_offset), slot.host_record, at.record_bytes, "record", unit);
  }
  if (weights.tier() == Tier::nvme) {
    slot.writes.push_back(weights.write(at.high_offset, slot.host_high, round_up(at.high_bytes, kBlockBytes)));
  }
  if (records_.tier() == Tier::nvme && at.record_bytes > 0) {
    slot.writes.push_back(
        records_.write(at.record_offset, slot.host_record, round_up(at.record_bytes, kBlockBytes)));
  }
  trace_move(slot.chunk, site, /*home=*/true);
}

void OptimizerStream::wait(std::vector<aio::Ticket>& tickets, Lane lane, const Chunk& chunk,
                           std::int64_t bytes) {
  if (tickets.empty()) return;
  TraceSpan span(context_.trace, lane, lane == Lane::read ? "read chunk" : "write chunk", chunk.unit, bytes);
  while (!tickets.empty()) {
    const aio::Ticket ticket = tickets.back();
    tickets.pop_back();
    swap_->queue().wait(ticket);
  }
}

/// Records that what of the chunk is not at home where the work is done has come there, or has gone home.
void OptimizerStream::trace_move(const Chunk& chunk, Site site, bool home) const {
  if (context_.trace == nullptr) return;
  const Where at = where(chunk);
  const auto unit = static_cast<std::size_t>(chunk.unit);
  const Tier there = site == Site::host ? Tier::host : Tier::device;
  const auto move = [&](std::string_view kind, std::uint64_t buffer, Tier home_tier, std::int64_t bytes) {
    if (home_tier == there || bytes == 0) return;
    context_.trace_buffer(BufferAction::move, buffer, chunk.unit, kind, home ? home_tier : there, bytes,
                          home ? "write chunk" : "read chunk");
  };
  move("high", weight_buffers_[unit], parameters_.store().tier(), at.high_bytes);
  move("record", record_buffers_[unit], records_.tier(), at.record_bytes);
}

void OptimizerStream::copy(Lane lane, void* destination, const void* source, std::int64_t bytes,
                           std::string_view name, int unit) {
  if (bytes == 0) return;
  Stream& stream = context_.stream(lane);
  stream.copy(destination, source, bytes, name, unit);
  stream.synchronize();
}

}  // namespace spillway
