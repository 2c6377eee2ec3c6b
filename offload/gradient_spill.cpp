#include "gradient_spill.h"

#include "../cpu_adam/accumulate.h"
#include "../cpu_adam/norm.h"
#include "context.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace spillway {

GradientSpill::GradientSpill(const Context& context, Swap& swap, Swap::Region region)
    : context_(context), swap_(swap), store_(swap, region), sums_in_rows_(sums_before_moving(context.config)) {
  const GradientPieces sizes(context.layout, context.config, context.chunks);
  const std::int64_t count = context.room.gradient_slots, slot_bytes = sizes.staged + sizes.sum;
  memory_ = Memory(context.host, "gradient staging", count * slot_bytes);
  registered_ = SwapMemory(swap, memory_);
  for (std::int64_t i = 0; i < count; ++i) {
    std::byte* const place = memory_.data() + i * slot_bytes;
    slots_.push_back({.staged = place, .sum = place + sizes.staged});
  }
  for (const Layout::Unit& unit : context.layout.units()) {
    UnitState state{.form = GradientPlanes(unit, context.config), .offset = generation_bytes_, .writes = {}};
    state.plane_bytes = round_up(unit.trainable * size_of(state.form.type), kBlockBytes);
    state.writes.resize(static_cast<std::size_t>(gradient_generations(context.config) * state.form.planes *
                                                 context.chunks.records(unit)));
    generation_bytes_ += state.form.planes * state.plane_bytes;
    units_.push_back(std::move(state));
  }
}

GradientSpill::~GradientSpill() {
  const auto settle = [this](aio::Ticket ticket) {
    try {
      if (ticket.number != 0) swap_.queue().wait(ticket);
    } catch (const std::exception&) {
      // Nothing of it is in flight any more, and nobody is left to hear of it.
    }
  };
  for (const Slot& slot : slots_) {
    settle(slot.read);
    settle(slot.write);
  }
}

std::int64_t GradientSpill::pieces(int unit) const {
  return context_.chunks.records(context_.unit(unit));
}

std::int64_t GradientSpill::elements(int unit, std::int64_t first) const {
  return std::min(context_.chunks.elements, context_.unit(unit).trainable - first);
}

aio::Ticket& GradientSpill::write_of(const Plane& plane, std::int64_t first) {
  UnitState& state = units_[static_cast<std::size_t>(plane.unit)];
  const std::int64_t row = std::int64_t{plane.generation} * state.form.planes + plane.use;
  return state.writes[static_cast<std::size_t>(row * pieces(plane.unit) + first / context_.chunks.elements)];
}

GradientSpill::Extent GradientSpill::extent(const Plane& plane, std::int64_t first) {
  const UnitState& state = units_[static_cast<std::size_t>(plane.unit)];
  const std::int64_t size = size_of(state.form.type);
  return {&store_,
          plane.generation * generation_bytes_ + state.offset + plane.use * state.plane_bytes + first * size,
          round_up(elements(plane.unit, first) * size, kBlockBytes)};
}

void GradientSpill::wait(aio::Ticket& ticket) {
  const aio::Ticket landing = std::exchange(ticket, {});
  if (landing.number != 0) swap_.queue().wait(landing);
}

/// Makes the slot ready for a piece, whose last write has landed then; its sum so far is on its way there.
void GradientSpill::begin(Slot& slot, const Plane& plane, std::int64_t first, bool reads) {
  wait(slot.write);
  wait(write_of(plane, first));
  if (!reads) return;
  const Extent from = extent(plane, first);
  slot.read = store_.read(from.offset, slot.sum, from.bytes, {Purpose::Kind::gradient, plane.unit});
}

/// The piece has been staged: adds it up where that is done here, measures it, and starts its write.
void GradientSpill::finish(Slot& slot, const Plane& plane, std::int64_t first, bool is_first,
                           double* square_sums) {
  const UnitState& state = units_[static_cast<std::size_t>(plane.unit)];
  const std::int64_t n = elements(plane.unit, first);
  const std::byte* landed = slot.staged;
  if (adds_up(state)) {
    wait(slot.read);
    cpu_adam::accumulate(context_.isa, context_.workers,
                         is_first ? cpu_adam::Accumulate::assign : cpu_adam::Accumulate::add,
                         reinterpret_cast<float*>(slot.sum), {slot.staged, context_.sizes.weight}, n);
    landed = slot.sum;
  }
  if (square_sums != nullptr) {
    // A chunk is a multiple of a norm's block wherever there are several of them.
    cpu_adam::square_sums(context_.isa, context_.workers, {landed, state.form.type}, n,
                          square_sums + first / cpu_adam::kNormBlock);
  }
  const Extent to = extent(plane, first);
  slot.write = store_.write(to.offset, landed, to.bytes, {Purpose::Kind::gradient, plane.unit});
  write_of(plane, first) = slot.write;
}

void GradientSpill::land(const Plane& plane, const std::byte* source, bool first, double* square_sums) {
  const UnitState& state = units_[static_cast<std::size_t>(plane.unit)];
  Stream& down = context_.stream(Lane::copy_down);
  const std::int64_t size = sums_in_rows_ ? 4 : context_.sizes.weight_bytes;
  const bool reads = adds_up(state) && !first;
  const std::int64_t count = pieces(plane.unit);
  const auto slot_count = static_cast<std::int64_t>(slots_.size());
  // Half of the slots are read ahead, where there is something to read; the others are being written.
  const std::int64_t ahead = reads ? slot_count / 2 : 0;
  const auto slot_of = [&](std::int64_t i) { return &slots_[static_cast<std::size_t>(i % slot_count)]; };
  for (std::int64_t i = 0; i < count + ahead; ++i) {
    if (i < count) {
      Slot* const slot = slot_of(i);
      const std::int64_t at = i * context_.chunks.elements, bytes = elements(plane.unit, at) * size;
      down.call(
          "await slot", [=, this] { begin(*slot, plane, at, reads); }, plane.unit);
      if (source != nullptr) {
        down.copy(slot->staged, source + at * size, bytes, "gradient", plane.unit);
      } else {
        down.zero(slot->staged, bytes, "no gradient", plane.unit);
      }
    }
    if (i < ahead) continue;
    Slot* const slot = slot_of(i - ahead);
    const std::int64_t at = (i - ahead) * context_.chunks.elements;
    down.call(
        "begin write", [=, this] { finish(*slot, plane, at, first, square_sums); }, plane.unit);
  }
}

/// Waits for a piece that has landed; on the stream's thread.
void GradientSpill::fetch(Slot& slot, std::byte* to, const Plane& plane, std::int64_t first) {
  wait(slot.write);
  wait(write_of(plane, first));
  const Extent from = extent(plane, first);
  slot.read = store_.read(from.offset, to, from.bytes, {Purpose::Kind::gradient, plane.unit});
  wait(slot.read);
}

void GradientSpill::add_uses(int unit, int generation, std::vector<int> uses, double* square_sums) {
  const UnitState& state = units_[static_cast<std::size_t>(unit)];
  const auto work = [=, this, &state] {
    Slot &sum = slots_[0], &other = slots_[1];
    for (std::int64_t i = 0; i < pieces(unit); ++i) {
      const std::int64_t at = i * context_.chunks.elements, n = elements(unit, at);
      fetch(sum, sum.sum, {unit, uses.front(), generation}, at);
      for (std::size_t k = 1; k < uses.size(); ++k) {
        fetch(other, other.sum, {unit, uses[k], generation}, at);
        cpu_adam::accumulate(context_.isa, context_.workers, cpu_adam::Accumulate::add,
                             reinterpret_cast<float*>(sum.sum), {other.sum, DType::fp32}, n);
      }
      cpu_adam::square_sums(context_.isa, context_.workers, {sum.sum, state.form.type}, n,
                            square_sums + at / cpu_adam::kNormBlock);
      if (uses.size() == 1 && uses.front() == 0) continue;
      const Plane plane{unit, 0, generation};
      wait(write_of(plane, at));
      const Extent to = extent(plane, at);
      sum.write = store_.write(to.offset, sum.sum, to.bytes, {Purpose::Kind::gradient, unit});
      write_of(plane, at) = sum.write;
    }
  };
  context_.stream(Lane::copy_down).call("add up uses", work, unit);
}

void GradientSpill::read(const Plane& plane, std::int64_t first, std::int64_t n, float* sums) {
  const auto work = [=, this] {
    const UnitState& state = units_[static_cast<std::size_t>(plane.unit)];
    Slot& slot = slots_[0];
    std::byte* const place = adds_up(state) ? slot.sum : slot.staged;
    const std::int64_t size = context_.chunks.elements;
    for (std::int64_t chunk = first / size * size; chunk < first + n; chunk += size) {
      fetch(slot, place, plane, chunk);
      for (std::int64_t i = std::max(first, chunk); i < std::min(first + n, chunk + size); ++i) {
        sums[i - first] += state.form.type == DType::fp32
                               ? reinterpret_cast<const float*>(place)[i - chunk]
                               : to_float(reinterpret_cast<const BFloat16*>(place)[i - chunk]);
      }
    }
  };
  context_.stream(Lane::copy_down).call("read gradient", work, plane.unit);
}

bool GradientSpill::is_written(int unit, int generation, std::int64_t first) {
  const aio::Ticket write = write_of({unit, 0, generation}, first);
  return write.number == 0 || swap_.queue().done(write);
}

aio::Ticket GradientSpill::start_read(int unit, int generation, std::int64_t first, std::byte* destination) {
  // Left as it is: the stream's thread waits for it again before it overwrites the piece.
  const aio::Ticket write = write_of({unit, 0, generation}, first);
  if (write.number != 0) swap_.queue().wait(write);
  const Extent from = extent({unit, 0, generation}, first);
  return store_.read(from.offset, destination, from.bytes, {Purpose::Kind::gradient, unit});
}

}  // namespace spillway
