#include "gradient_stream.h"

#include "context.h"
#include "step.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway {

GradientStream::GradientStream(const Context& context, Swap* swap, Swap::Region region)
    : context_(context),
      on_device_(context.config.optimizer_tier == Tier::device),
      sums_in_rows_(!on_device_ && sums_before_moving(context.config)) {
  const Layout& layout = context.layout;
  const std::int64_t largest = layout.largest_trainable();
  const int slots = layout.options().live_gradients;
  slot_memory_ = context.device.allocate("gradient slots", slots * largest * 4);
  for (int i = 0; i < slots; ++i) {
    slots_.push_back({.data = slot_memory_.as<float>() + i * largest, .buffer = context.next_buffer_id()});
  }
  const bool spills = context.room.spills_gradients;
  std::int64_t planes_bytes = 0, largest_sum = 0;
  for (const Layout::Unit& unit : layout.units()) {
    const GradientPlanes form(unit, context.config);
    planes_bytes += form.bytes;
    if (form.is_sum) largest_sum = std::max(largest_sum, unit.trainable);
  }
  generation_bytes_ = planes_bytes;
  const std::int64_t all_planes = spills ? 0 : gradient_generations(context.config) * planes_bytes;
  planes_memory_ = on_device_ ? context.device.allocate("gradients", all_planes)
                              : Memory(context.host, "gradients", all_planes);
  std::byte* place = planes_memory_.data();
  for (const Layout::Unit& unit : layout.units()) {
    const GradientPlanes form(unit, context.config);
    units_.push_back({.planes = place,
                      .form = form,
                      .reduced = std::vector<int>(static_cast<std::size_t>(unit.uses)),
                      .norm = {},
                      .landed = {},
                      .buffer = context.next_buffer_id()});
    place += form.bytes;
  }
  // On the device one wire slot is enough: whoever fills and empties it does so on one stream.
  const std::int64_t wire_bytes = (on_device_ ? largest_sum : largest) * context.sizes.weight_bytes;
  wire_memory_ = context.device.allocate("gradient wire", (on_device_ ? 1 : kStagingSlots) * wire_bytes);
  if (sums_in_rows_) {
    device_sums_memory_ = context.device.allocate("gradient sums", kStagingSlots * largest_sum * 4);
  } else if (!on_device_ && !spills) {
    staging_memory_ =
        Memory(context.host, "gradient staging", kStagingSlots * largest_sum * context.sizes.weight_bytes);
  }
  for (int i = 0; i < kStagingSlots; ++i) {
    Pair& pair = pairs_[static_cast<std::size_t>(i)];
    pair.wire = wire_memory_.data() + (on_device_ ? 0 : i * wire_bytes);
    if (staging_memory_.data() != nullptr)
      pair.staging = staging_memory_.data() + i * largest_sum * context.sizes.weight_bytes;
    if (device_sums_memory_.data() != nullptr) pair.sum = device_sums_memory_.as<float>() + i * largest_sum;
  }
  if (spills) spill_ = std::make_unique<GradientSpill>(context, *swap, region);
  sums_memory_ = Memory(context.host, "norm sums", cpu_adam::norm_blocks(largest) * 8);
}

void GradientStream::begin_step(int micro_batches, int generation) {
  micro_batches_ = micro_batches;
  generation_ = generation;
  for (UnitState& state : units_) {
    std::fill(state.reduced.begin(), state.reduced.end(), 0);
    state.complete = state.measured = false;
  }
}

/// The stream in whose order gradients reach their planes.
Stream& GradientStream::landing() const {
  return context_.stream(on_device_ ? Lane::compute : Lane::copy_down);
}

std::byte* GradientStream::plane(const UnitState& state, int unit, int use) const {
  return planes(state, generation_) + use * context_.unit(unit).trainable * size_of(state.form.type);
}

float* GradientStream::open(int unit, int use) {
  const Layout::Unit& shape = context_.unit(unit);
  const UnitState& state = units_[static_cast<std::size_t>(unit)];
  if (use < 0 || use >= shape.uses) {
    throw std::logic_error(fmt::format("gradient({}): use {} of {}", shape.name, use, shape.uses));
  }
  if (state.reduced[static_cast<std::size_t>(use)] == micro_batches_) {
    throw std::logic_error(
        fmt::format("gradient({}): use {} has been reduced for all {} micro-batches of this step", shape.name,
                    use, micro_batches_));
  }
  std::string held;
  Slot* free = nullptr;
  for (Slot& slot : slots_) {
    if (slot.unit == unit && slot.use == use) return slot.data;
    if (slot.unit < 0) {
      free = &slot;
    } else {
      held += (held.empty() ? "" : ", ") + context_.unit(slot.unit).name;
    }
  }
  if (free == nullptr) {
    throw std::logic_error(
        fmt::format("gradient({}): all {} gradient slots are held by {}; reduce one, or declare more live "
                    "gradients in the layout",
                    shape.name, slots_.size(), held));
  }
  // It is zero: device memory begins like that, and each reduce() leaves it so.
  free->unit = unit;
  free->use = use;
  context_.trace_buffer(BufferAction::own, free->buffer, unit, "gradient", Tier::device, shape.trainable * 4,
                        "gradient");
  return free->data;
}

bool GradientStream::reduce(int unit, int use) {
  const Layout::Unit& shape = context_.unit(unit);
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  const auto slot =
      std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.unit == unit && s.use == use; });
  if (slot == slots_.end()) {
    throw std::logic_error(
        fmt::format("reduce({}): there is no gradient of use {} to reduce", shape.name, use));
  }
  const std::int64_t n = shape.trainable;
  const bool first = state.reduced[static_cast<std::size_t>(use)] == 0;
  if (sums_in_rows_ && open_sum_.pair != nullptr && (open_sum_.unit != unit || open_sum_.use != use)) {
    throw std::logic_error(
        fmt::format("reduce({}): with accumulation_order layer all micro-batches of {} come first", shape.name,
                    context_.unit(open_sum_.unit).name));
  }
  if (on_device_) {
    Stream& compute = context_.stream(Lane::compute);
    std::byte* target = plane(state, unit, use);
    std::byte* rounded = state.form.is_sum ? pairs_[0].wire : target;
    context_.device_state.cast_and_clear(compute, rounded, context_.sizes.weight, slot->data, n, unit);
    if (state.form.is_sum) {
      context_.device_state.accumulate(compute, reinterpret_cast<float*>(target),
                                       {rounded, context_.sizes.weight}, n, first, unit);
    }
  } else if (sums_in_rows_) {
    sum_on_device(state, unit, use, slot->data, first);
  } else {
    Pair& pair = pairs_[next_pair_];
    next_pair_ = (next_pair_ + 1) % pairs_.size();
    move_down(pair, state, unit, use, slot->data, first);
  }
  context_.trace_buffer(BufferAction::own, slot->buffer, -1, "gradient", Tier::device, 0, "reduce");
  context_.trace_buffer(BufferAction::move, state.buffer, unit, "gradient",
                        on_device_          ? Tier::device
                        : spill_ != nullptr ? Tier::nvme
                                            : Tier::host,
                        n * size_of(state.form.type), "reduce");
  slot->unit = -1;
  ++state.reduced[static_cast<std::size_t>(use)];
  if (std::all_of(state.reduced.begin(), state.reduced.end(),
                  [&](int count) { return count == micro_batches_; })) {
    complete(unit);
  }
  return state.complete;
}

/// Rounded on the device, copied, and, where there are several, added up in host memory in the order in which
/// they land.
void GradientStream::move_down(Pair& pair, UnitState& state, int unit, int use, float* gradient, bool first) {
  const std::int64_t n = context_.unit(unit).trainable, bytes = n * context_.sizes.weight_bytes;
  const DType wire_type = context_.sizes.weight;
  Stream& compute = context_.stream(Lane::compute);
  Stream& down = context_.stream(Lane::copy_down);
  std::byte* target = plane(state, unit, use);
  compute.wait(pair.emptied);
  context_.device_state.cast_and_clear(compute, pair.wire, wire_type, gradient, n, unit);
  down.wait(compute.record());
  if (spill_ != nullptr) {
    // With the last micro-batch of a unit's only use, the norm is found on the way.
    state.measured = state.form.planes == 1 && state.reduced[0] + 1 == micro_batches_;
    spill_->land({unit, use, generation_}, pair.wire, first,
                 state.measured ? sums_memory_.as<double>() : nullptr);
    pair.emptied = down.record();
    return;
  }
  std::byte* landed = state.form.is_sum ? pair.staging : target;
  down.copy(landed, pair.wire, bytes, "gradient", unit);
  pair.emptied = down.record();
  if (state.form.is_sum) {
    // Staging is overwritten by a later copy of this stream only.
    context_.device_state.accumulate(down, reinterpret_cast<float*>(target), {landed, wire_type}, n, first,
                                     unit);
  }
}

/// Rounded and added up on the device; the sum moves once, behind the last micro-batch.
void GradientStream::sum_on_device(UnitState& state, int unit, int use, float* gradient, bool first) {
  const std::int64_t n = context_.unit(unit).trainable;
  Stream& compute = context_.stream(Lane::compute);
  if (first) {
    open_sum_ = {&pairs_[next_pair_], unit, use};
    next_pair_ = (next_pair_ + 1) % pairs_.size();
    compute.wait(open_sum_.pair->emptied);
  }
  Pair& pair = *open_sum_.pair;
  context_.device_state.cast_and_clear(compute, pair.wire, context_.sizes.weight, gradient, n, unit);
  context_.device_state.accumulate(compute, pair.sum, {pair.wire, context_.sizes.weight}, n, first, unit);
  if (state.reduced[static_cast<std::size_t>(use)] + 1 == micro_batches_) flush_sum();
}

void GradientStream::flush_sum() {
  if (open_sum_.pair == nullptr) return;
  const auto [pair, unit, use] = open_sum_;
  open_sum_ = {};
  Stream& down = context_.stream(Lane::copy_down);
  down.wait(context_.stream(Lane::compute).record());
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  if (spill_ != nullptr) {
    state.measured = state.form.planes == 1;
    spill_->land({unit, use, generation_}, reinterpret_cast<const std::byte*>(pair->sum), true,
                 state.measured ? sums_memory_.as<double>() : nullptr);
  } else {
    down.copy(plane(state, unit, use), pair->sum, context_.unit(unit).trainable * 4, "gradient", unit);
  }
  pair->emptied = down.record();
}

bool GradientStream::is_first(int unit) const {
  const auto& reduced = units_[static_cast<std::size_t>(unit)].reduced;
  return std::all_of(reduced.begin(), reduced.end(), [](int count) { return count == 0; });
}

void GradientStream::complete(int unit) {
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  const std::int64_t n = context_.unit(unit).trainable;
  Stream& stream = landing();
  state.complete = true;
  if (n == 0) return;  // nothing but frozen parameters
  if (open_sum_.unit == unit) flush_sum();
  if (spill_ != nullptr) {
    complete_on_nvme(unit);
    return measure(unit);
  }
  for (int use = 0; use < state.form.planes; ++use) {
    if (state.reduced[static_cast<std::size_t>(use)] > 0) continue;
    // Who waits for this to land must find that the compute stream is through with the unit's parameters.
    if (!on_device_) stream.wait(context_.stream(Lane::compute).record());
    stream.zero(plane(state, unit, use), n * size_of(state.form.type), "no gradient", unit);
  }
  for (int use = 1; use < state.form.planes; ++use) {
    context_.device_state.accumulate(stream, reinterpret_cast<float*>(planes(state, generation_)),
                                     {plane(state, unit, use), state.form.type}, n, false, unit);
  }
  context_.device_state.square_sums(stream, gradient(unit, generation_), n, sums_memory_.as<double>(), unit);
  measure(unit);
}

/// The same of what lies on NVMe.
void GradientStream::complete_on_nvme(int unit) {
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  auto* sums = sums_memory_.as<double>();
  std::vector<int> uses;
  for (int use = 0; use < state.form.planes; ++use) {
    if (state.reduced[static_cast<std::size_t>(use)] > 0) uses.push_back(use);
  }
  // As above: not all of it has come through the compute stream's order.
  if (static_cast<int>(uses.size()) < state.form.planes)
    landing().wait(context_.stream(Lane::compute).record());
  if (uses.empty()) {
    spill_->land({unit, 0, generation_}, nullptr, true, sums);
  } else if (!state.measured) {
    spill_->add_uses(unit, generation_, std::move(uses), sums);
  }
}

/// The sums of squares are there, in the stream's order, and the gradient too: it has landed.
void GradientStream::measure(int unit) {
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  const std::int64_t n = context_.unit(unit).trainable;
  const auto* sums = sums_memory_.as<double>();
  Stream& stream = landing();
  stream.call(
      "norm",
      [norm = &state.norm, sums, n] {
        *norm = {};
        norm->add(std::span<const double>(sums, static_cast<std::size_t>(cpu_adam::norm_blocks(n))));
      },
      unit);
  state.landed = stream.record();
}

void GradientStream::check_reduced() const {
  for (const Slot& slot : slots_) {
    if (slot.unit >= 0) {
      throw std::logic_error(
          fmt::format("step(): the gradient of {} has not been reduced", context_.unit(slot.unit).name));
    }
  }
}

void GradientStream::finish(const std::shared_ptr<Step>& step) {
  landing().call("norm", [this, step] {
    // Units in their order in the layout, whatever the order in which they landed.
    cpu_adam::SquaredNorm whole;
    for (const UnitState& state : units_) {
      whole.sum_of_squares += state.norm.sum_of_squares;
      whole.finite = whole.finite && state.norm.finite;
    }
    step->norm = whole;
    step->measured = true;
  });
  step->landed = landing().record();
}

cpu_adam::Gradient GradientStream::gradient(int unit, int generation) const {
  const UnitState& state = units_[static_cast<std::size_t>(unit)];
  return {spill_ == nullptr ? planes(state, generation) : nullptr, state.form.type};
}

void GradientStream::read(int unit, std::int64_t first, std::int64_t n, float* destination) {
  const UnitState& state = units_[static_cast<std::size_t>(unit)];
  Stream& stream = landing();
  if (open_sum_.unit == unit) flush_sum();
  // Where the uses have been added up already, plane 0 holds the sum.
  const int count = state.complete ? 1 : state.form.planes;
  std::fill(destination, destination + n, 0.0f);
  if (spill_ != nullptr) {
    for (int use = 0; use < count; ++use) {
      if (state.complete || state.reduced[static_cast<std::size_t>(use)] > 0)
        spill_->read({unit, use, generation_}, first, n, destination);
    }
    return stream.synchronize();
  }
  std::vector<std::byte> piece(static_cast<std::size_t>(n * size_of(state.form.type)));
  for (int use = 0; use < count; ++use) {
    if (!state.complete && state.reduced[static_cast<std::size_t>(use)] == 0) continue;
    stream.copy(piece.data(), plane(state, unit, use) + first * size_of(state.form.type),
                static_cast<std::int64_t>(piece.size()), "read gradient", unit);
    stream.synchronize();
    for (std::int64_t i = 0; i < n; ++i) {
      destination[i] += state.form.type == DType::fp32
                            ? reinterpret_cast<const float*>(piece.data())[i]
                            : to_float(reinterpret_cast<const BFloat16*>(piece.data())[i]);
    }
  }
}

}  // namespace spillway
