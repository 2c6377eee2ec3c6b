#include "engine.h"

#include "../core/communicator.h"
#include "../core/error.h"
#include "../core/topology.h"
#include "activation_stream.h"
#include "context.h"
#include "gradient_stream.h"
#include "optimizer_stream.h"
#include "parameter_stream.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway {
namespace {

int update_threads(const Config& config) {
  return config.update_threads > 0 ? config.update_threads : default_threads(config.io_cores);
}

/// In the order of Swap's requests: parameters, records, activations.
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
  if (plan.nvme.bytes_of("activations") > 0)
    add(Tier::nvme, "activations", activation_directories(config), "zero_optimization.offload_param.nvme_path");
  return requests;
}

/// An update is over when step() returns.
bool always_current(int) {
  return true;
}

}  // namespace

struct Engine::State {
  State(const Config& c, const Layout& l, Device& d, Communicator& communicator, Trace* t)
      : config(c),
        layout(l),
        device(d),
        plan(checked_plan(c, l, d, communicator)),
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
      swap.emplace(nvme, host, requests, swap_options(config), plan.host.bytes_of("checksums"));
    const auto region = [&](const char* name) {
      for (std::size_t i = 0; i < requests.size(); ++i) {
        if (requests[i].name == name) return swap->region(i);
      }
      return Swap::Region{};
    };
    Swap* swap_or_null = swap ? &*swap : nullptr;
    parameters.emplace(*context, swap_or_null, region("parameters"));
    gradients.emplace(*context);
    optimizer.emplace(*context, *parameters, swap_or_null, region("optimizer records"));
    activations.emplace(*context, swap_or_null, region("activations"));
    conversion = Memory(host, "conversion", kConversionElements * 4);
  }

  static Plan checked_plan(const Config& config, const Layout& layout, Device& device,
                           Communicator& communicator) {
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
    check_plan(layout, config, {.device = device.budget().limit(), .host = config.host_memory});
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

  /// A frozen parameter has no record: it is kept as it computes.
  void store_frozen(const OptimizerStream::Chunk& chunk, std::int64_t first,
                    std::span<const float> weights) const {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto e = static_cast<std::size_t>(first) + i;
      if (config.precision == DType::fp32) {
        reinterpret_cast<float*>(chunk.high)[e] = weights[i];
      } else {
        reinterpret_cast<BFloat16*>(chunk.high)[e] = to_bf16(weights[i]);
      }
    }
  }
  void load_frozen(const OptimizerStream::Chunk& chunk, std::int64_t first, std::span<float> weights) const {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto e = static_cast<std::size_t>(first) + i;
      weights[i] = config.precision == DType::fp32 ? reinterpret_cast<const float*>(chunk.high)[e]
                                                   : to_float(reinterpret_cast<const BFloat16*>(chunk.high)[e]);
    }
  }

  const Config config;
  const Layout layout;
  Device& device;
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
  StepOptions step_options;
  bool in_step = false;
  bool busy = false;  ///< a call is in progress: its source or sink must not call again
  EngineCounters counters;
  std::exception_ptr failure;
};

Engine::Engine(const Config& config, const Layout& layout, Device& device, Communicator& communicator,
               Trace* trace)
    : state_(std::make_unique<State>(config, layout, device, communicator, trace)) {}

Engine::~Engine() {
  for (const Lane lane : {Lane::compute, Lane::communicate, Lane::copy_down, Lane::copy_up}) {
    state_->device.stream(lane).record().wait();
  }
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
    s.optimizer->visit(p.unit, p.offset, p.offset + p.elements, true, [&](const OptimizerStream::Chunk& chunk) {
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
    s.optimizer->visit(p.unit, p.offset, p.offset + p.elements, false,
                       [&](const OptimizerStream::Chunk& chunk) {
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
    s.step_options = options;
    s.gradients->begin_step(options.micro_batches);
    s.in_step = true;
    s.parameters->prefetch(always_current);
  });
}

UnitView Engine::gather(int unit) {
  State& s = *state_;
  return s.guarded([&] {
    s.check_unit(unit);
    const ParameterStream::View view = s.parameters->gather(unit, s.in_step, always_current);
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
    return result;
  });
}

void Engine::reduce(int unit, int use) {
  State& s = *state_;
  s.guarded([&] {
    s.check_unit(unit);
    s.check_step_open(true, "reduce()");
    s.gradients->reduce(unit, use);
  });
}

StepTicket Engine::step() {
  State& s = *state_;
  return s.guarded([&] {
    s.check_step_open(true, "step()");
    s.check_no_views("step()");
    const cpu_adam::SquaredNorm norm = s.gradients->finish();
    s.device.synchronize();
    s.in_step = false;
    s.parameters->end_iteration();
    const double average = 1.0 / s.step_options.micro_batches;
    StepResult result{.gradient_norm = std::sqrt(norm.sum_of_squares) * average};
    if (s.config.check_finite && !norm.finite) {
      ++s.counters.skipped_steps;
      result.skipped = true;
      return StepTicket(result);
    }
    // torch.nn.utils.clip_grad_norm_: the factor is max_norm / (norm + 1e-6), where that is below 1.
    double factor = average;
    if (s.config.gradient_clipping > 0) {
      factor *= std::min(1.0, s.config.gradient_clipping / (result.gradient_norm + 1e-6));
    }
    std::vector<UpdateCoefficients> coefficients;
    for (const HyperParameters& group : s.step_options.groups) {
      coefficients.push_back(update_coefficients(group, s.counters.steps + 1, factor));
    }
    for (int unit = 0; unit < static_cast<int>(s.layout.units().size()); ++unit) {
      if (s.context->unit(unit).trainable > 0) s.parameters->invalidate(unit);
    }
    const bool non_finite = s.optimizer->update(*s.gradients, coefficients, s.counters.steps + 1);
    ++s.counters.steps;
    if (non_finite) {
      throw Error(ErrorKind::numerics,
                  fmt::format("a weight or moment is no longer finite after step {}", s.counters.steps),
                  {.hint = "lower the learning rate, or set gradient_clipping"});
    }
    s.parameters->prefetch(always_current);
    return StepTicket(result);
  });
}

void Engine::drain() {
  State& s = *state_;
  s.guarded([&] {
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
  EngineCounters counters = state_->counters;
  counters.parameter_reads = state_->parameters->reads();
  counters.parameter_copies = state_->parameters->copies();
  counters.departures = state_->parameters->departures();
  if (state_->swap) {
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
