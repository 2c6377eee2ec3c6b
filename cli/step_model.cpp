#include "step_model.h"

#include "../core/device.h"
#include "../core/dtype.h"
#include "../core/random.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/prctl.h>

namespace spillway::cli {
namespace {

constexpr double kForwardShare = 1.0 / 3;
constexpr std::int64_t kTouched = 64;  ///< elements of a unit's gradient in a micro-batch, at most
constexpr std::size_t kDrawn = 16381;  ///< weights, again and again: no two chunks are alike
constexpr float kDeviation = 0.02f;
constexpr double kWeightDecay = 0.1;

void pass_time(double seconds) {
  if (seconds <= 0) return;
  // The kernel may round a thread's sleep up by 50 us, which is much of a short one.
  prctl(PR_SET_TIMERSLACK, 1000UL);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// In [-1, 1).
float drawn(std::int64_t step, int micro_batch, int unit, std::int64_t element) {
  std::uint64_t x = static_cast<std::uint64_t>(step) * 0x9e3779b97f4a7c15u +
                    static_cast<std::uint64_t>(micro_batch) * 0xbf58476d1ce4e5b9u +
                    static_cast<std::uint64_t>(unit) * 0x94d049bb133111ebu +
                    static_cast<std::uint64_t>(element);
  x ^= x >> 31;
  x *= 0xff51afd7ed558ccdu;
  x ^= x >> 33;
  return static_cast<float>(static_cast<double>(x >> 40) / 8388608.0 - 1.0);
}

}  // namespace

double StepModelShape::forward_seconds(int micro_batches, AccumulationOrder order) const {
  return step_seconds(order == AccumulationOrder::layer ? micro_batches : 1) * kForwardShare;
}

Layout step_layout(const StepModelShape& shape) {
  std::vector<UnitSpec> units;
  for (int unit = 0; unit < shape.units; ++unit) {
    const std::int64_t more = unit < shape.parameters % shape.units ? 1 : 0;
    units.push_back({.name = fmt::format("layer.{}", unit),
                     .parameters = {{.name = fmt::format("layer.{}.weight", unit),
                                     .shape = {shape.parameters / shape.units + more}}}});
  }
  return Layout(units);
}

StepModel::StepModel(Engine& engine, Device& device, const StepModelShape& shape)
    : engine_(engine), device_(device), shape_(shape) {
  if (!device.host_addressable()) throw std::logic_error("StepModel: the device's memory is not the host's");
}

void StepModel::load() {
  std::vector<float> weights(kDrawn);
  RandomStream{.seed = engine_.config().seed}.fill_normal(0, weights, kDeviation);
  for (int parameter = 0; parameter < shape_.units; ++parameter) {
    engine_.load(parameter, [&](std::int64_t first, std::span<float> values) {
      for (std::size_t i = 0; i < values.size();) {
        const std::size_t at = (static_cast<std::size_t>(first) + i) % kDrawn;
        const std::size_t count = std::min(kDrawn - at, values.size() - i);
        std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(at), count,
                    values.begin() + static_cast<std::ptrdiff_t>(i));
        i += count;
      }
    });
  }
}

void StepModel::forward(int unit) {
  const double seconds = shape_.compute_seconds * kForwardShare;
  device_.stream(Lane::compute)
      .call(
          "forward", [seconds] { pass_time(seconds); }, unit);
}

void StepModel::backward(int unit, int micro_batch, const UnitView& view) {
  const UnitGradient gradient = engine_.gradient(unit);
  const void* weights = view.parameter(unit);
  float* sums = gradient.parameter(unit);
  const std::int64_t elements = engine_.layout().parameters()[static_cast<std::size_t>(unit)].elements;
  const bool is_fp32 = engine_.config().precision == DType::fp32;
  const double seconds = shape_.compute_seconds * (1 - kForwardShare);
  device_.stream(Lane::compute)
      .call(
          "backward",
          [=, step = steps_] {
            pass_time(seconds);
            const std::int64_t stride = std::max<std::int64_t>(1, elements / kTouched);
            for (std::int64_t i = step % stride; i < elements; i += stride) {
              const float weight = is_fp32 ? static_cast<const float*>(weights)[i]
                                           : to_float(static_cast<const BFloat16*>(weights)[i]);
              sums[i] += 0.5f * weight + drawn(step, micro_batch, unit, i);
            }
          },
          unit);
  engine_.reduce(unit);
}

StepTicket StepModel::step() {
  const Config& config = engine_.config();
  const int micro_batches = config.accumulation, units = shape_.units;
  HyperParameters group = config.optimizer;
  group.weight_decay = kWeightDecay;  // or what has no gradient would stay as it is
  engine_.begin_step({.groups = {group}, .micro_batches = micro_batches});
  // Either all micro-batches pass through a unit together, or each through the whole model.
  const bool by_layer = config.accumulation_order == AccumulationOrder::layer;
  const int passes = by_layer ? 1 : micro_batches, together = by_layer ? micro_batches : 1;
  for (int pass = 0; pass < passes; ++pass) {
    for (int unit = 0; unit < units; ++unit) {
      const UnitView view = engine_.gather(unit);
      for (int i = 0; i < together; ++i) forward(unit);
    }
    for (int unit = units - 1; unit >= 0; --unit) {
      const UnitView view = engine_.gather(unit);
      for (int i = 0; i < together; ++i) backward(unit, pass + i, view);
    }
  }
  ++steps_;
  return engine_.step();
}

}  // namespace spillway::cli
