#include "optimizer_stream.h"

#include "../core/error.h"
#include "../core/parallel.h"
#include "context.h"
#include "gradient_stream.h"
#include "parameter_stream.h"

#include <algorithm>
#include <cmath>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace spillway {

OptimizerStream::OptimizerStream(const Context& context, ParameterStream& parameters,
                                 const GradientStream& gradients, Swap* swap, Swap::Region region)
    : context_(context),
      gradients_(gradients),
      swap_(swap),
      site_(context.config.optimizer_tier == Tier::device ? Site::device : Site::host),
      conditional_(context.config.check_finite || context.config.gradient_clipping > 0),
      unit_by_unit_(!conditional_ || context.config.delayed_update),
      mover_(context, parameters, swap, region),
      units_(context.layout.units().size()) {
  for (Slot& slot : mover_.slots()) free_.push_back(&slot);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) units_[unit].rank = static_cast<std::int64_t>(unit);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& refused) {
    throw_threads_refused("the update", refused.code().value());
  }
}

void OptimizerStream::stop() noexcept {
  {
    const Lock lock(mutex_);
    stop_ = true;
  }
  given_.notify_all();
  if (thread_.joinable()) thread_.join();
  mover_.give_up();
}

void OptimizerStream::set_order(const std::vector<int>& units) {
  const Lock lock(mutex_);
  std::int64_t rank = 0;
  for (const int unit : units) units_[static_cast<std::size_t>(unit)].rank = rank++;
}

void OptimizerStream::begin_step(const std::shared_ptr<Step>& step, bool expecting) {
  {
    const Lock lock(mutex_);
    expecting_ = expecting;
    new_arrivals_.clear();
    if (conditional_) {
      unsettled_.push_back(step);
    } else {
      settle_one(*step);
    }
  }
  given_.notify_one();
}

void OptimizerStream::submit(int unit, const std::shared_ptr<Step>& step, int generation, const Event& ready) {
  {
    const Lock lock(mutex_);
    new_arrivals_.push_back(unit);
    // Skipped before all of its units were here: cancel() has been, and nobody else would take this one away.
    if (step->settled && step->skipped) return;
    units_[static_cast<std::size_t>(unit)].job.emplace(Job{step, generation, ready, ++submitted_});
    ++pending_;
  }
  given_.notify_one();
}

void OptimizerStream::end_step() {
  const Lock lock(mutex_);
  expecting_ = false;
  given_.notify_one();
  arrivals_ = std::exchange(new_arrivals_, {});
}

bool OptimizerStream::is_current(int unit) const {
  const Lock lock(mutex_);
  const UnitState& state = units_[static_cast<std::size_t>(unit)];
  return !state.job && std::all_of(state.high_writes.begin(), state.high_writes.end(),
                                   [&](aio::Ticket ticket) { return swap_->queue().done(ticket); });
}

void OptimizerStream::wait(int unit) {
  Lock lock(mutex_);
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  if (state.job) {
    // Whatever was expected: it is this one that is needed next.
    state.rank = -1;
    TraceWait waits(context_.trace, Waiter::compute, Lane::adam, unit);
    ++waiting_;
    given_.notify_one();
    done_.wait(lock, [&] { return !state.job || error_; });
    --waiting_;
  }
  if (error_) std::rethrow_exception(error_);
  const auto writes = std::exchange(state.high_writes, {});
  const Event home = std::exchange(state.home, Event());
  lock.unlock();
  for (const aio::Ticket ticket : writes) {
    if (swap_->queue().done(ticket)) {
      swap_->queue().wait(ticket);
      continue;
    }
    TraceWait waits(context_.trace, Waiter::compute, Lane::write, unit);
    swap_->queue().wait(ticket);
  }
  context_.stream(Lane::compute).wait(home);
  context_.stream(Lane::copy_up).wait(home);
}

void OptimizerStream::drain() {
  const Pause pause(*this);
}

void OptimizerStream::settle_when_landed(Step& step) {
  step.landed.wait();
  if (!step.measured) return;
  const Lock lock(mutex_);
  settle(step);
}

std::int64_t OptimizerStream::steps() const {
  const Lock lock(mutex_);
  return steps_;
}

std::int64_t OptimizerStream::skipped() const {
  const Lock lock(mutex_);
  return skipped_;
}

void OptimizerStream::check() const {
  const Lock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void OptimizerStream::fail(std::exception_ptr error) noexcept {
  {
    const Lock lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  done_.notify_all();
}

OptimizerStream::Pause::Pause(OptimizerStream& stream) : stream_(stream) {
  Lock lock(stream.mutex_);
  stream.pause_ = true;
  stream.given_.notify_one();
  stream.done_.wait(lock, [&] { return stream.is_paused_ || stream.error_; });
  if (!stream.error_) return;
  stream.pause_ = false;
  std::rethrow_exception(stream.error_);
}

OptimizerStream::Pause::~Pause() {
  {
    const Lock lock(stream_.mutex_);
    stream_.pause_ = stream_.is_paused_ = false;
  }
  stream_.given_.notify_one();
}

void OptimizerStream::visit(int unit, std::int64_t first, std::int64_t last, bool changes, const Visit& visit) {
  const Pause pause(*this);
  auto& slots = mover_.slots();
  const auto chunks = mover_.chunks(unit, first, last);
  const std::size_t ahead = slots.size() - 1;
  const auto slot_of = [&](std::size_t i) -> Slot& { return slots[i % slots.size()]; };
  try {
    for (std::size_t i = 0; i < chunks.size() + ahead; ++i) {
      if (i < chunks.size()) {
        mover_.retire(slot_of(i));
        mover_.start(Site::host, slot_of(i), chunks[i]);
      }
      if (i < ahead) continue;
      Slot& slot = slot_of(i - ahead);
      mover_.bring(slot);
      visit(slot.chunk);
      if (changes) mover_.take_home(slot);
    }
    for (Slot& slot : slots) mover_.retire(slot);
  } catch (...) {
    mover_.give_up();  // nothing leaves here before what is under way has stopped
    throw;
  }
}

void OptimizerStream::run() {
  try {
    Lock lock(mutex_);
    while (!stop_) {
      if (pause_ && pending_ == 0) {
        lock.unlock();
        empty_ring();
        lock.lock();
        is_paused_ = true;
        done_.notify_all();
        given_.wait(lock, [&] { return stop_ || !is_paused_; });
        continue;
      }
      if (commit(lock)) continue;
      // What was read in vain, or too early, stands back.
      const auto has_job = [this](const Slot* slot) {
        return units_[static_cast<std::size_t>(slot->chunk.unit)].job.has_value();
      };
      std::stable_partition(ring_.begin(), ring_.end(), has_job);
      if (!ring_.empty() && has_job(ring_.front())) {
        update_front(lock);
        continue;
      }
      // Nothing to update. What is on its way home lands without us, unless its slot is wanted.
      if (free_.empty() && (ring_.empty() ? has_work() : pending_ > 0)) {
        if (!leaving_.empty()) {
          lock.unlock();
          mover_.retire(*leaving_.front());
          lock.lock();
          continue;
        }
        // While the step is being handed over, the jobs of what was read may still come.
        if (waiting_ > 0 || pause_ || !expecting_) {
          drop_ring(lock);
          continue;
        }
      }
      given_.wait(lock);
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

/// Whether there is a chunk to read.
bool OptimizerStream::has_work() const {
  return !to_start_.empty() || next_unit() >= 0;
}

/// Starts the reads of one more chunk, where there is one and a slot is free.
bool OptimizerStream::commit(Lock& lock) {
  if (!has_work()) return false;
  lock.unlock();  // the queue is asked for what has landed
  Slot* const slot = free_slot();
  lock.lock();
  if (slot == nullptr) return false;
  if (to_start_.empty()) {
    const int unit = next_unit();
    if (unit < 0) {
      free_.push_back(slot);
      return false;
    }
    units_[static_cast<std::size_t>(unit)].committed = true;
    const auto chunks = mover_.chunks(unit, 0, context_.unit(unit).trainable);
    to_start_.assign(chunks.begin(), chunks.end());
  }
  const Chunk chunk = to_start_.front();
  to_start_.pop_front();
  lock.unlock();
  // What is read must have been written.
  for (auto at = leaving_.begin(); at != leaving_.end();) {
    if (!(*at)->chunk.is_same(chunk)) {
      ++at;
      continue;
    }
    mover_.retire(**at);
    free_.push_back(*at);
    at = leaving_.erase(at);
  }
  mover_.start(site_, *slot, chunk);
  lock.lock();
  ring_.push_back(slot);
  read_gradients(lock);
  return true;
}

/// The unit that is read next: of those whose update may start, the one that is needed first; else the one
/// whose update is going to. -1: none.
int OptimizerStream::next_unit() const {
  int ready = -1, handed_over = -1;
  const auto before = [&](int a, int b) {
    return b < 0 || units_[static_cast<std::size_t>(a)].rank < units_[static_cast<std::size_t>(b)].rank;
  };
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    const UnitState& state = units_[static_cast<std::size_t>(unit)];
    if (!state.job || state.committed) continue;
    if ((!unit_by_unit_ || state.job->ready.passed()) && before(unit, ready)) ready = unit;
    // Gradients land in the order in which they were handed over.
    if (handed_over < 0 || state.job->number < units_[static_cast<std::size_t>(handed_over)].job->number)
      handed_over = unit;
  }
  if (ready >= 0) return ready;
  if (handed_over >= 0) return handed_over;
  if (!expecting_ || pause_) return -1;
  int expected = -1;
  if (unit_by_unit_) {
    for (const int unit : arrivals_) {
      const UnitState& state = units_[static_cast<std::size_t>(unit)];
      const bool came = std::find(new_arrivals_.begin(), new_arrivals_.end(), unit) != new_arrivals_.end();
      if (!state.committed && !came) return unit;
    }
    return -1;
  }
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    const bool trains = context_.unit(unit).trainable > 0;
    const bool came = units_[static_cast<std::size_t>(unit)].committed;
    if (trains && !came && before(unit, expected)) expected = unit;
  }
  return expected;
}

/// A slot that is free, or that has become so; null where all are under way.
OptimizerStream::Slot* OptimizerStream::free_slot() {
  while (!leaving_.empty() && mover_.is_home(*leaving_.front())) {
    mover_.retire(*leaving_.front());
    free_.push_back(leaving_.front());
    leaving_.pop_front();
  }
  if (free_.empty()) return nullptr;
  Slot* const slot = free_.back();
  free_.pop_back();
  return slot;
}

/// Updates the first chunk of the ring, whose unit has a job.
void OptimizerStream::update_front(Lock& lock) {
  Slot& slot = *ring_.front();
  const int unit = slot.chunk.unit;
  const Job job = *units_[static_cast<std::size_t>(unit)].job;
  lock.unlock();
  job.ready.wait();
  if (conditional_) job.step->landed.wait();
  context_.device.check();
  lock.lock();
  if (!settle(*job.step)) {
    cancel(*job.step);
    return;
  }
  read_gradients(lock);
  lock.unlock();
  if (gradients_.spill() != nullptr && !slot.has_gradient) read_gradient(slot, job);
  mover_.bring(slot);
  update_chunk(slot, job);
  mover_.take_home(slot);
  lock.lock();
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  if (slot.high_write.number != 0) state.high_writes.push_back(slot.high_write);
  if (slot.gone.state() != nullptr) state.home = slot.gone;
  ring_.pop_front();
  leaving_.push_back(&slot);
  const bool was_last = slot.chunk.first + slot.chunk.state == context_.unit(unit).trainable;
  if (was_last) finish_unit(unit);
}

/// Under the mutex: starts the reads of gradients on NVMe that have landed, for all that the ring holds. One
/// whose step may yet be skipped is left alone: the next one is going to overwrite it.
void OptimizerStream::read_gradients(Lock& lock) {
  GradientSpill* const spill = gradients_.spill();
  if (spill == nullptr) return;
  for (Slot* const slot : ring_) {
    const auto& pending = units_[static_cast<std::size_t>(slot->chunk.unit)].job;
    if (slot->has_gradient || !pending || !pending->step->settled || pending->step->skipped ||
        !pending->ready.passed())
      continue;
    const Job job = *pending;
    lock.unlock();
    if (spill->is_written(slot->chunk.unit, job.generation, slot->chunk.first)) read_gradient(*slot, job);
    lock.lock();
  }
}

/// Of a job whose gradient has landed; waits until it has been written.
void OptimizerStream::read_gradient(Slot& slot, const Job& job) {
  slot.reads.push_back(
      gradients_.spill()->start_read(slot.chunk.unit, job.generation, slot.chunk.first, slot.host_gradient));
  slot.has_gradient = true;
}

/// Under the mutex, when its gradients have landed: settles the step and those before it. Returns whether it
/// counts.
bool OptimizerStream::settle(Step& step) {
  while (!step.settled) {
    settle_one(*unsettled_.front());
    unsettled_.pop_front();
  }
  return !step.skipped;
}

/// Under the mutex: numbers the step, or finds that it is to be skipped.
void OptimizerStream::settle_one(Step& step) {
  const Config& config = context_.config;
  const double average = 1.0 / step.micro_batches;
  double factor = average;
  if (conditional_) {
    if (config.check_finite && !step.norm.finite) {
      step.skipped = true;
      ++skipped_;
    } else if (config.gradient_clipping > 0) {
      // torch.nn.utils.clip_grad_norm_: the factor is max_norm / (norm + 1e-6), where that is below 1.
      const double norm = std::sqrt(step.norm.sum_of_squares) * average;
      factor *= std::min(1.0, config.gradient_clipping / (norm + 1e-6));
    }
  }
  if (!step.skipped) {
    step.number = ++steps_;
    for (const HyperParameters& group : step.groups)
      step.coefficients.push_back(update_coefficients(group, step.number, factor));
  }
  step.settled = true;
}

/// Under the mutex: the step's updates are not made. What the ring has read is as good for the next one.
void OptimizerStream::cancel(const Step& step) {
  for (UnitState& state : units_) {
    if (!state.job || state.job->step.get() != &step) continue;
    state.job.reset();
    --pending_;
  }
  done_.notify_all();
}

void OptimizerStream::update_chunk(Slot& slot, const Job& job) {
  const cpu_adam::Gradient whole = gradients_.gradient(slot.chunk.unit, job.generation);
  const cpu_adam::Gradient gradient = slot.has_gradient ? cpu_adam::Gradient{slot.host_gradient, whole.type}
                                                        : cpu_adam::advance(whole, slot.chunk.first);
  const auto work = [this, chunk = slot.chunk, gradient, step = job.step] {
    if (!update_with(chunk, gradient, step->coefficients, step->number)) return;
    throw Error(ErrorKind::numerics,
                fmt::format("a weight or moment is no longer finite after step {}", step->number),
                {.hint = "lower the learning rate, or set gradient_clipping"});
  };
  if (site_ == Site::device) {
    context_.stream(Lane::compute).call("adam", work, slot.chunk.unit);
    return;
  }
  TraceSpan span(context_.trace, Lane::adam, "adam", slot.chunk.unit,
                 context_.sizes.record.bytes(slot.chunk.state));
  work();
}

bool OptimizerStream::update_with(const Chunk& chunk, cpu_adam::Gradient gradient,
                                  std::span<const UpdateCoefficients> coefficients, std::int64_t step) const {
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
  return cpu_adam::update(context_.isa, context_.workers, chunk.planes(context_.sizes), gradient, segments);
}

/// Under the mutex.
void OptimizerStream::finish_unit(int unit) {
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  state.job.reset();
  state.committed = false;
  --pending_;
  done_.notify_all();
}

/// Under the mutex, when nothing in the ring has a job, and something else needs a slot.
void OptimizerStream::drop_ring(Lock& lock) {
  const auto has_job = [this](int unit) { return units_[static_cast<std::size_t>(unit)].job.has_value(); };
  if (!to_start_.empty() && !has_job(to_start_.front().unit)) to_start_.clear();
  for (UnitState& state : units_) state.committed = state.committed && state.job;
  lock.unlock();
  for (; !ring_.empty(); ring_.pop_front()) {
    mover_.drop(*ring_.front());
    free_.push_back(ring_.front());
  }
  lock.lock();
}

/// All slots are free afterwards, and nothing is committed.
void OptimizerStream::empty_ring() {
  while (!ring_.empty()) {
    mover_.drop(*ring_.front());
    free_.push_back(ring_.front());
    ring_.pop_front();
  }
  for (; !leaving_.empty(); leaving_.pop_front()) {
    mover_.retire(*leaving_.front());
    free_.push_back(leaving_.front());
  }
  to_start_.clear();
  const Lock lock(mutex_);
  for (UnitState& state : units_) state.committed = false;
}

}  // namespace spillway
