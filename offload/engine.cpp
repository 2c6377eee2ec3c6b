#include "engine.h"

#include "../core/communicator.h"
#include "../core/error.h"
#include "../core/topology.h"
#include "activation_stream.h"
#include "context.h"
#include "gradient_stream.h"
#include "optimizer_stream.h"
#include "parameter_stream.h"
#include "step.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace spillway {
namespace {

int update_threads(const Config& config) {
  return config.update_threads > 0 ? config.update_threads : default_threads(config.io_cores);
}

/// In the order of Swap's requests: parameters, records, gradients, activations.
std::vector<Swap::Request> swap_requests(const Config& config, const Plan& plan) {
  std::vector<Swap::Request> requests;
  const auto add = [&](Tier tier, const char* name, const std::vector<std::string>& directories,
                       const char* key) {
    if (tier != Tier::nvme) return;
    if (directories.empty()) {
      throw Error(ErrorKind::configuration, fmt::format("{} on nvme need a directory", name),
                  {.hint = fmt::format("give --nvme-path, or {} in the configuration", key)});
    }
    if (const std::int64_t bytes = plan.nvme.bytes_of(name); bytes > 0)
      requests.push_back({name, directories, bytes});
  };
  add(config.parameter_tier, "parameters", config.parameter_nvme_paths,
      "zero_optimization.offload_param.nvme_path");
  add(config.optimizer_tier, "optimizer records", config.optimizer_nvme_paths,
      "zero_optimization.offload_optimizer.nvme_path");
  if (plan.nvme.bytes_of("gradients") > 0)
    add(Tier::nvme, "gradients", config.optimizer_nvme_paths, "zero_optimization.offload_optimizer.nvme_path");
  if (plan.nvme.bytes_of("activations") > 0)
    add(Tier::nvme, "activations", activation_directories(config), "zero_optimization.offload_param.nvme_path");
  return requests;
}

}  // namespace

struct Engine::State {
  State(const Config& c, const Layout& l, Device& d, Communicator& communicator, Trace* t)
      : config(on_device(c, d)),
        layout(l),
        device(d),
        trace(t),
        plan(checked_plan(config, l, communicator)),
        host(Tier::host, c.host_memory),
        nvme(Tier::nvme),
        workers(update_threads(c), pool_processors(c.pin_threads, update_threads(c), c.io_cores)) {
    host.set_trace(t);
    nvme.set_trace(t);
    const StateSizes sizes(config);
    const cpu_adam::Isa isa = cpu_adam::chosen_isa();
    context.emplace(Context{config, layout, sizes, Chunks(layout, sizes), Room(layout, config), device, host,
                            workers, isa, DeviceState(device, workers, isa), t});
    const auto requests = swap_requests(config, plan);
    if (!requests.empty())
      swap.emplace(nvme, host, requests, swap_options(config), plan.host.bytes_of("checksums"), t);
    const auto region = [&](const char* name) {
      for (std::size_t i = 0; i < requests.size(); ++i) {
        if (requests[i].name == name) return swap->region(i);
      }
      return Swap::Region{};
    };
    Swap* swap_or_null = swap ? &*swap : nullptr;
    parameters.emplace(*context, swap_or_null, region("parameters"));
    gradients.emplace(*context, swap_or_null, region("gradients"));
    activations.emplace(*context, swap_or_null, region("activations"));
    optimizer.emplace(*context, *parameters, *gradients, swap_or_null, region("optimizer records"));
    conversion = Memory(host, "conversion", kConversionElements * 4);
  }

  /// The device knows best what it may use.
  static Config on_device(Config config, Device& device) {
    if (device.budget().limit() >= 0) config.device_memory = device.budget().limit();
    return config;
  }

  static Plan checked_plan(const Config& config, const Layout& layout, Communicator& communicator) {
    if (communicator.world() != 1 || layout.options().world != 1) {
      throw Error(ErrorKind::configuration, "the engine partitions over one rank only as yet");
    }
    if (const auto why =
            cpu_adam::RecordFormat::refusal(config.state_format, config.optimizer.optimizer, config.precision);
        !why.empty()) {
      throw Error(ErrorKind::configuration,
                  fmt::format("state format {} with {} and precision {}: {}", name_of(config.state_format),
                              name_of(config.optimizer.optimizer), name_of(config.precision), why));
    }
    if (config.accumulation < 1) throw std::logic_error("Engine: accumulation below 1");
    swap_options(config);  // refuses what cannot be read, wherever state lies
    check_plan(layout, config, {.device = config.device_memory, .host = config.host_memory});
    return make_plan(layout, config);
  }

  /// Every public call passes here: the first error is thrown by all later calls (D13).
  template <class Work>
  auto guarded(Work&& work) {
    if (failure) std::rethrow_exception(failure);
    if (busy) throw std::logic_error("the engine was called from inside one of its own calls");
    const struct Busy {
      explicit Busy(bool& flag) : flag_(flag) { flag_ = true; }
      ~Busy() { flag_ = false; }
      bool& flag_;
    } mark(busy);
    try {
      device.check();
      optimizer->check();
      return work();
    } catch (const std::logic_error&) {
      throw;  // misuse: nothing has been done
    } catch (...) {
      failure = std::current_exception();
      throw;
    }
  }

  const Layout::Parameter& parameter(int index) const {
    if (index < 0 || index >= static_cast<int>(layout.parameters().size())) {
      throw std::logic_error(fmt::format("there is no parameter {}", index));
    }
    return layout.parameters()[static_cast<std::size_t>(index)];
  }
  void check_unit(int unit) const {
    if (unit < 0 || unit >= static_cast<int>(layout.units().size())) {
      throw std::logic_error(fmt::format("there is no unit {}", unit));
    }
  }
  void check_step_open(bool expected, const char* call) const {
    if (in_step != expected) {
      throw std::logic_error(
          fmt::format("{} belongs {} begin_step() and step()", call, expected ? "between" : "outside of"));
    }
  }
  void check_no_views(const char* call) const {
    if (const std::string held = parameters->held(); !held.empty()) {
      throw std::logic_error(fmt::format("{}: there are views of {}; release them first", call, held));
    }
  }

  /// Hands over the update of a unit whose gradient of the open step is complete: with that gradient, or with
  /// the one of the step before where updates are delayed.
  void submit(int unit) {
    if (layout.units()[static_cast<std::size_t>(unit)].trainable == 0) return;
    const std::shared_ptr<Step>& applied = config.delayed_update ? delayed : step;
    if (applied == nullptr) return;
    submitted[static_cast<std::size_t>(unit)] = true;
    parameters->invalidate(unit);
    // With a global condition everything has landed; and the parameters must no longer be in use.
    const Event& ready = optimizer->is_unit_by_unit() ? gradients->landed(unit) : step->landed;
    optimizer->submit(unit, applied, applied == step ? generation : generation ^ 1, ready);
  }

  /// A frozen parameter has no record: it is kept as it computes.
  void store_frozen(const ChunkMover::Chunk& chunk, std::int64_t first, std::span<const float> weights) const {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto e = static_cast<std::size_t>(first) + i;
      if (config.precision == DType::fp32) {
        reinterpret_cast<float*>(chunk.high)[e] = weights[i];
      } else {
        reinterpret_cast<BFloat16*>(chunk.high)[e] = to_bf16(weights[i]);
      }
    }
  }
  void load_frozen(const ChunkMover::Chunk& chunk, std::int64_t first, std::span<float> weights) const {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto e = static_cast<std::size_t>(first) + i;
      weights[i] = config.precision == DType::fp32 ? reinterpret_cast<const float*>(chunk.high)[e]
                                                   : to_float(reinterpret_cast<const BFloat16*>(chunk.high)[e]);
    }
  }

  const Config config;
  const Layout layout;
  Device& device;
  Trace* const trace;
  const Plan plan;
  Budget host, nvme;
  Workers workers;
  std::optional<Context> context;
  std::optional<Swap> swap;
  std::optional<ParameterStream> parameters;
  std::optional<GradientStream> gradients;
  std::optional<ActivationStream> activations;
  std::optional<OptimizerStream> optimizer;
  Memory conversion;

  std::shared_ptr<Step> step;     ///< the one that is open, or was last
  std::shared_ptr<Step> delayed;  ///< with delayed_update: whose gradients are to be applied next
  int generation = 0;             ///< of planes, in which the open step's gradients land
  std::vector<bool> submitted;    ///< units whose update has been handed over in the open step
  const std::function<bool(int)> is_current = [this](int unit) { return optimizer->is_current(unit); };
  bool in_step = false;
  bool is_backward = false;  ///< the step has opened its first gradient
  bool busy = false;         ///< a call is in progress: its source or sink must not call again
  std::exception_ptr failure;
};

Engine::Engine(const Config& config, const Layout& layout, Device& device, Communicator& communicator,
               Trace* trace)
    : state_(std::make_unique<State>(config, layout, device, communicator, trace)) {}

Engine::~Engine() {
  state_->optimizer->stop();  // it gives work to the device's streams
  for (const Lane lane : {Lane::compute, Lane::communicate, Lane::copy_down, Lane::copy_up}) {
    state_->device.stream(lane).record().wait();
  }
  for (const Lane lane : {Lane::copy_down, Lane::copy_up}) state_->device.side_stream(lane).record().wait();
}

void Engine::load(int index, const Source& source) {
  State& s = *state_;
  s.guarded([&] {
    const Layout::Parameter& p = s.parameter(index);
    s.check_step_open(false, "load()");
    s.check_no_views("load()");
    s.device.synchronize();
    s.parameters->invalidate(p.unit);
    float* piece = s.conversion.as<float>();
    s.optimizer->visit(p.unit, p.offset, p.offset + p.elements, true, [&](const ChunkMover::Chunk& chunk) {
      const std::int64_t end = std::min(p.offset + p.elements, chunk.first + chunk.elements);
      for (std::int64_t at = std::max(p.offset, chunk.first); at < end;) {
        const std::int64_t n = std::min(kConversionElements, end - at);
        try {
          source(at - p.offset, std::span<float>(piece, static_cast<std::size_t>(n)));
        } catch (...) {
          s.failure = std::current_exception();  // whatever it is: the parameter is half filled now
          throw;
        }
        const std::span<const float> values(piece, static_cast<std::size_t>(n));
        if (p.trainable) {
          cpu_adam::store_weights(chunk.planes(s.context->sizes), at - chunk.first, values);
        } else {
          s.store_frozen(chunk, at - chunk.first, values);
        }
        at += n;
      }
    });
  });
}

void Engine::read(int index, const Sink& sink) {
  State& s = *state_;
  s.guarded([&] {
    const Layout::Parameter& p = s.parameter(index);
    s.device.synchronize();
    float* piece = s.conversion.as<float>();
    s.optimizer->visit(p.unit, p.offset, p.offset + p.elements, false, [&](const ChunkMover::Chunk& chunk) {
      const std::int64_t end = std::min(p.offset + p.elements, chunk.first + chunk.elements);
      for (std::int64_t at = std::max(p.offset, chunk.first); at < end;) {
        const std::int64_t n = std::min(kConversionElements, end - at);
        const std::span<float> values(piece, static_cast<std::size_t>(n));
        if (p.trainable) {
          cpu_adam::load_weights(chunk.planes(s.context->sizes), at - chunk.first, values);
        } else {
          s.load_frozen(chunk, at - chunk.first, values);
        }
        sink(at - p.offset, values);
        at += n;
      }
    });
  });
}

void Engine::read_gradient(int index, const Sink& sink) {
  State& s = *state_;
  s.guarded([&] {
    const Layout::Parameter& p = s.parameter(index);
    s.check_step_open(true, "read_gradient()");
    if (!p.trainable) throw std::logic_error(fmt::format("read_gradient(): {} is frozen", p.name));
    for (std::int64_t at = 0; at < p.elements; at += kConversionElements) {
      const std::int64_t n = std::min(kConversionElements, p.elements - at);
      s.gradients->read(p.unit, p.offset + at, n, s.conversion.as<float>());
      sink(at, std::span<const float>(s.conversion.as<float>(), static_cast<std::size_t>(n)));
    }
  });
}

void Engine::begin_step(const StepOptions& options) {
  State& s = *state_;
  s.guarded([&] {
    s.check_step_open(false, "begin_step()");
    if (static_cast<int>(options.groups.size()) < s.layout.groups()) {
      throw std::logic_error(fmt::format("begin_step(): {} groups of hyper-parameters for {} in the layout",
                                         options.groups.size(), s.layout.groups()));
    }
    if (options.micro_batches < 1 || options.micro_batches > s.config.accumulation) {
      throw std::logic_error(
          fmt::format("begin_step(): {} micro-batches, the configuration reserves room for 1 to {}",
                      options.micro_batches, s.config.accumulation));
    }
    const Optimizer optimizer = s.config.optimizer.optimizer;
    for (const HyperParameters& group : options.groups) {
      if (has_second_moment(group.optimizer) != has_second_moment(optimizer)) {
        throw std::logic_error(
            fmt::format("begin_step(): a group for {} in an engine whose state is laid out for {}",
                        name_of(group.optimizer), name_of(optimizer)));
      }
      update_coefficients(group, 1, 1.0);  // refuses before anything begins
    }
    s.step = std::make_shared<Step>();
    s.step->groups = options.groups;
    s.step->micro_batches = options.micro_batches;
    if (s.config.delayed_update) s.generation ^= 1;
    s.submitted.assign(s.layout.units().size(), false);
    s.gradients->begin_step(options.micro_batches, s.generation);
    s.optimizer->begin_step(s.step, !s.config.delayed_update || s.delayed != nullptr);
    s.in_step = true;
    s.is_backward = false;
    s.parameters->prefetch(s.is_current);
  });
}

UnitView Engine::gather(int unit) {
  State& s = *state_;
  return s.guarded([&] {
    s.check_unit(unit);
    if (s.in_step && s.submitted[static_cast<std::size_t>(unit)]) {
      throw std::logic_error(
          fmt::format("gather({}): its gradient of this step is complete, and its update has begun; gather it "
                      "before its last reduce(), or after step()",
                      s.layout.units()[static_cast<std::size_t>(unit)].name));
    }
    s.optimizer->wait(unit);
    const ParameterStream::View view = s.parameters->gather(unit, s.in_step, s.is_current);
    UnitView result;
    result.engine_ = this;
    result.unit_ = unit;
    result.data_ = view.data;
    result.slot_ = view.slot;
    return result;
  });
}

UnitGradient Engine::gradient(int unit, int use) {
  State& s = *state_;
  return s.guarded([&] {
    s.check_unit(unit);
    s.check_step_open(true, "gradient()");
    UnitGradient result;
    result.layout_ = &s.layout;
    result.unit_ = unit;
    result.data_ = s.gradients->open(unit, use);
    if (s.trace != nullptr && !std::exchange(s.is_backward, true)) {
      s.device.stream(Lane::compute).call("backward", [trace = s.trace] { trace->mark_backward(); });
    }
    return result;
  });
}

void Engine::reduce(int unit, int use) {
  State& s = *state_;
  s.guarded([&] {
    s.check_unit(unit);
    s.check_step_open(true, "reduce()");
    if (s.gradients->is_first(unit)) s.optimizer->wait(unit);  // its planes hold what is still to be applied
    if (s.gradients->reduce(unit, use) && s.optimizer->is_unit_by_unit() &&
        !s.parameters->is_expected_again(unit)) {
      s.submit(unit);
    }
  });
}

StepTicket Engine::step() {
  State& s = *state_;
  return s.guarded([&] {
    s.check_step_open(true, "step()");
    s.check_no_views("step()");
    s.gradients->check_reduced();
    const int units = static_cast<int>(s.layout.units().size());
    for (int unit = 0; unit < units; ++unit) {
      if (s.gradients->is_complete(unit)) continue;
      if (s.gradients->is_first(unit)) s.optimizer->wait(unit);
      s.gradients->complete(unit);
    }
    s.gradients->finish(s.step);
    s.in_step = false;
    s.parameters->end_iteration();
    s.optimizer->set_order(s.parameters->next_use_order());
    for (const int unit : s.parameters->next_use_order()) {
      if (!s.submitted[static_cast<std::size_t>(unit)]) s.submit(unit);
    }
    if (s.config.delayed_update) s.delayed = s.step;
    s.optimizer->end_step();
    s.parameters->prefetch(s.is_current);
    return StepTicket(*this, s.step);
  });
}

StepResult StepTicket::wait() const {
  Engine::State& s = *engine_->state_;
  step_->landed.wait();
  return s.guarded([&] {
    const double average = 1.0 / step_->micro_batches;
    return StepResult{.gradient_norm = std::sqrt(step_->norm.sum_of_squares) * average,
                      .skipped = s.config.check_finite && !step_->norm.finite};
  });
}

void Engine::drain() {
  State& s = *state_;
  s.guarded([&] {
    if (s.delayed != nullptr && !s.in_step) {
      s.submitted.assign(s.layout.units().size(), false);
      for (int unit = 0; unit < static_cast<int>(s.layout.units().size()); ++unit) {
        s.optimizer->wait(unit);
        s.submit(unit);
      }
      s.delayed = nullptr;
    }
    s.device.synchronize();
    s.optimizer->drain();
    s.device.synchronize();
    if (s.swap) s.swap->queue().drain();
  });
}

Event Engine::save_activation(int slot, const void* source) {
  return state_->guarded([&] { return state_->activations->save(slot, source); });
}

Event Engine::load_activation(int slot, void* destination, const Event& free) {
  return state_->guarded([&] { return state_->activations->load(slot, destination, free); });
}

void Engine::prefetch_activation(int slot) {
  state_->guarded([&] { state_->activations->prefetch(slot); });
}

double Engine::rehearse(Rehearsal what) {
  State& s = *state_;
  return s.guarded([&] {
    s.check_step_open(false, "rehearse()");
    return what == Rehearsal::transfers ? s.optimizer->rehearse_transfers() : s.optimizer->rehearse_updates();
  });
}

const Layout& Engine::layout() const {
  return state_->layout;
}
const Config& Engine::config() const {
  return state_->config;
}
const Plan& Engine::plan() const {
  return state_->plan;
}

const Budget& Engine::budget(Tier tier) const {
  return tier == Tier::device ? state_->device.budget() : tier == Tier::host ? state_->host : state_->nvme;
}

EngineCounters Engine::counters() const {
  const State& s = *state_;
  if (s.step != nullptr && !s.in_step) state_->optimizer->settle_when_landed(*s.step);
  EngineCounters counters{.steps = s.optimizer->steps(), .skipped_steps = s.optimizer->skipped()};
  counters.parameter_reads = s.parameters->reads();
  counters.parameter_copies = s.parameters->copies();
  counters.departures = s.parameters->departures();
  if (s.swap) {
    const aio::QueueCounters io = state_->swap->queue().counters();
    counters.nvme_read_bytes = io.read_bytes;
    counters.nvme_written_bytes = io.written_bytes;
    counters.nvme_copied_bytes = io.copied_bytes;
    counters.nvme_resubmissions = io.resubmissions;
  }
  return counters;
}

std::optional<IoReport> Engine::io() const {
  if (!state_->swap) return std::nullopt;
  return state_->swap->report();
}

const void* UnitView::parameter(int parameter) const {
  const auto& layout = engine_->state_->layout;
  const Layout::Parameter& p = engine_->state_->parameter(parameter);
  if (p.unit != unit_) {
    throw std::logic_error(fmt::format("parameter {} is not of unit {}", p.name,
                                       layout.units()[static_cast<std::size_t>(unit_)].name));
  }
  return data_ + p.offset * engine_->state_->context->sizes.weight_bytes;
}

void UnitView::release() noexcept {
  if (engine_ == nullptr) return;
  engine_->state_->parameters->release(unit_, slot_);
  engine_ = nullptr;
}

float* UnitGradient::parameter(int parameter) const {
  const Layout::Parameter& p = layout_->parameters().at(static_cast<std::size_t>(parameter));
  if (p.unit != unit_) throw std::logic_error(fmt::format("parameter {} is not of this unit", p.name));
  return p.trainable ? data_ + p.offset : nullptr;
}

}  // namespace spillway
