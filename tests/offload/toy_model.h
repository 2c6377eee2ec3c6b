#pragma once
// A model whose gradient is cheap and known, with everything that makes units awkward: tied, frozen, unused,
// tiny, and with sizes that divide nothing. And the same training written down plainly, as the reference for
// the engine.
#include "../../core/communicator.h"
#include "../../core/config.h"
#include "../../core/host_device.h"
#include "../../core/random.h"
#include "../../core/state_format.h"
#include "../../core/trace.h"
#include "../../core/update.h"
#include "../../offload/engine.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::toy {

inline Layout layout() {
  return Layout({
      {"embedding", {{"table", {37, 129}, 0}, {"scale", {129}, 1}}, /*uses=*/2},
      {"frozen", {{"constant", {300}, 0, false}}},
      {"layer.0", {{"bias", {7}, 1}, {"lookup", {50}, 0, false}, {"weight", {400, 801}, 0}}},
      {"layer.1", {{"weight.1", {1}, 0}}},
      {"unused", {{"never", {1000}, 0}}},
      {"layer.2", {{"weight.2", {3, 1000}, 0}, {"bias.2", {1000}, 1}}},
  });
}

inline float hash_to_float(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu + 12345;
  x ^= x >> 31;
  x *= 0xff51afd7ed558ccdu;
  x ^= x >> 33;
  return static_cast<float>(static_cast<double>(x >> 40) / 8388608.0 - 1.0);
}

inline float initial(int parameter, std::int64_t i) {
  return 0.3f * hash_to_float(static_cast<std::uint64_t>(parameter), static_cast<std::uint64_t>(i), 7);
}

/// What one use adds to the gradient of an element in one micro-batch: towards a target, with noise.
inline float gradient_of(float weight, int parameter, std::int64_t i, std::int64_t micro_batch, int use) {
  const float target = hash_to_float(static_cast<std::uint64_t>(parameter), static_cast<std::uint64_t>(i), 99);
  const float noise =
      hash_to_float(static_cast<std::uint64_t>(micro_batch * 3 + use + 1), static_cast<std::uint64_t>(i),
                    static_cast<std::uint64_t>(parameter + 1000));
  return (weight - target) * 0.5f + noise * 0.1f;
}

struct Run {
  Config config;
  int device_threads = 1;
  int steps = 5;
  std::int64_t device_memory = -1;
  Trace* trace = nullptr;
  Layout model = layout();
};

inline std::vector<HyperParameters> groups(std::int64_t step, Optimizer optimizer = Optimizer::adamw) {
  // The rate changes with the step and the groups differ: nothing of it may get lost on the way.
  HyperParameters decays{.optimizer = optimizer,
                         .learning_rate = 0.02 / static_cast<double>(step + 1),
                         .weight_decay = 0.1,
                         .momentum = 0.9};
  HyperParameters plain{.optimizer = optimizer,
                        .learning_rate = 0.01,
                        .beta1 = 0.8,
                        .weight_decay = 0.0,
                        .momentum = 0.5,
                        .nesterov = true};
  return {decays, plain};
}

inline bool is_used(const Layout::Unit& unit) {
  return unit.name != "unused" && unit.trainable > 0;
}

class Trainer {
 public:
  explicit Trainer(const Run& run)
      : run_(run),
        device(
            std::make_unique<HostDevice>(HostDeviceOptions{run.device_memory, run.device_threads}, run.trace)),
        engine(std::make_unique<Engine>(run.config, run.model, *device, communicator, run.trace)) {
    load_initial();
  }

  void load_initial() {
    for (int p = 0; p < static_cast<int>(engine->layout().parameters().size()); ++p) {
      engine->load(p, [p](std::int64_t first, std::span<float> values) {
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = initial(p, first + static_cast<std::int64_t>(i));
      });
    }
  }

  /// One use of a unit in one micro-batch: gather, add into the gradient, reduce.
  void use_unit(int unit, int use) {
    const Layout& shape = engine->layout();
    UnitView view = engine->gather(unit);
    UnitGradient gradient = engine->gradient(unit, use);
    for (const int p : shape.units()[static_cast<std::size_t>(unit)].parameters) {
      if (!shape.parameters()[static_cast<std::size_t>(p)].trainable) continue;
      const void* weights = view.parameter(p);
      float* sums = gradient.parameter(p);
      const std::int64_t n = shape.parameters()[static_cast<std::size_t>(p)].elements;
      device->stream(Lane::compute)
          .launch(
              "toy", (n + 999) / 1000,
              [=, this, mb = micro_batch](std::int64_t tile, int) {
                for (std::int64_t i = tile * 1000; i < std::min(n, (tile + 1) * 1000); ++i) {
                  const float w = run_.config.precision == DType::fp32
                                      ? static_cast<const float*>(weights)[i]
                                      : to_float(static_cast<const BFloat16*>(weights)[i]);
                  sums[i] += gradient_of(w, p, i, mb, use);
                }
              },
              unit);
    }
    engine->reduce(unit, use);
  }

  void run_micro_batch() {
    const auto& units = engine->layout().units();
    for (int unit = static_cast<int>(units.size()) - 1; unit >= 0; --unit) {
      if (!is_used(units[static_cast<std::size_t>(unit)])) continue;
      if (units[static_cast<std::size_t>(unit)].uses == 2) use_unit(unit, 1);
      use_unit(unit, 0);
    }
    ++micro_batch;
  }

  StepResult step() {
    engine->begin_step(
        {groups(engine->counters().steps, run_.config.optimizer.optimizer), run_.config.accumulation});
    for (int i = 0; i < run_.config.accumulation; ++i) run_micro_batch();
    return engine->step().wait();
  }

  std::vector<std::vector<float>> weights() {
    std::vector<std::vector<float>> all;
    for (int p = 0; p < static_cast<int>(engine->layout().parameters().size()); ++p) {
      all.emplace_back();
      engine->read(p, [&](std::int64_t first, std::span<const float> values) {
        EXPECT_EQ(first, static_cast<std::int64_t>(all.back().size()));
        all.back().insert(all.back().end(), values.begin(), values.end());
      });
    }
    return all;
  }

 private:
  Run run_;

 public:
  SingleRankCommunicator communicator;
  std::unique_ptr<HostDevice> device;
  std::unique_ptr<Engine> engine;
  std::int64_t micro_batch = 0;
};

/// The same training, plainly: one loop over elements, one thread, nothing shared with the engine but the
/// formulas for one element in core/.
struct Reference {
  explicit Reference(const Run& run) : run_(run), shape_(run.model) {
    for (int p = 0; p < static_cast<int>(shape_.parameters().size()); ++p) {
      const auto& parameter = shape_.parameters()[static_cast<std::size_t>(p)];
      weights.emplace_back();
      for (std::int64_t i = 0; i < parameter.elements; ++i) {
        const float w = initial(p, i);
        weights.back().push_back(is_fp32() ? w : parameter.trainable ? stored_weight(w) : to_float(to_bf16(w)));
      }
      m.emplace_back(weights.back().size());
      v.emplace_back(weights.back().size());
    }
  }

  bool is_fp32() const { return run_.config.precision == DType::fp32; }
  float moved(float x) const { return is_fp32() ? x : to_float(to_bf16(x)); }

  double step() {
    const int micro_batches = run_.config.accumulation;
    std::vector<std::vector<float>> gradients;
    double squares = 0;
    for (std::size_t p = 0; p < weights.size(); ++p) {
      const auto& parameter = shape_.parameters()[p];
      const auto& unit = shape_.units()[static_cast<std::size_t>(parameter.unit)];
      gradients.emplace_back(weights[p].size());
      if (!parameter.trainable || !is_used(unit)) continue;
      for (std::size_t i = 0; i < weights[p].size(); ++i) {
        const float seen = is_fp32() ? weights[p][i] : to_float(split_master(weights[p][i]).high);
        float total = 0;
        for (int use = 0; use < unit.uses; ++use) {
          float sum = 0;
          for (int k = 0; k < micro_batches; ++k) {
            sum += moved(0.0f + gradient_of(seen, static_cast<int>(p), static_cast<std::int64_t>(i),
                                            micro_batch + k, use));
          }
          total += sum;
        }
        gradients[p][i] = total;
        squares += static_cast<double>(total) * static_cast<double>(total);
      }
    }
    micro_batch += micro_batches;
    const double norm = std::sqrt(squares) / micro_batches;
    // The clip factor takes the engine's own norm: the order of the sum is tested apart.
    last_gradients = std::move(gradients);
    return norm;
  }

  void update(double norm) {
    double factor = 1.0 / run_.config.accumulation;
    if (run_.config.gradient_clipping > 0)
      factor *= std::min(1.0, run_.config.gradient_clipping / (norm + 1e-6));
    const auto hypers = groups(steps, run_.config.optimizer.optimizer);
    ++steps;
    for (std::size_t p = 0; p < weights.size(); ++p) {
      const auto& parameter = shape_.parameters()[p];
      if (!parameter.trainable) continue;
      const auto c = update_coefficients(hypers[static_cast<std::size_t>(parameter.group)], steps, factor);
      const RoundingKey key(
          {run_.config.seed, static_cast<std::uint32_t>(steps), static_cast<std::uint32_t>(p), 0});
      for (std::size_t i = 0; i < weights[p].size(); ++i) {
        const UpdateElement e = update_element({weights[p][i], m[p][i], v[p][i]}, last_gradients[p][i], c);
        weights[p][i] = is_fp32() ? e.master : stored_weight(e.master, key.bits(static_cast<std::uint32_t>(i)));
        m[p][i] = e.m;
        v[p][i] = e.v;
      }
      if (run_.config.state_format == StateFormat::bf16) round_moments(p, key);
      if (run_.config.state_format == StateFormat::compact8) {
        for (std::size_t i = 0; i < weights[p].size(); i += kCompactGroup) encode_group(p, i, key);
      }
    }
  }

  /// What is left of a master weight when it has been stored.
  float stored_weight(float w, std::uint32_t random = kToNearest) const {
    if (run_.config.state_format != StateFormat::compact8) return w;
    const SplitMaster halves = split_master(w);
    return join_master(halves.high, decode_low(encode_low(halves.low, random)));
  }

  void round_moments(std::size_t p, const RoundingKey& key) {
    for (std::size_t i = 0; i < m[p].size(); ++i) {
      const std::uint32_t random = key.bits(static_cast<std::uint32_t>(i));
      m[p][i] = to_float(to_bf16_stochastic(m[p][i], random));
      v[p][i] = to_float(to_bf16_stochastic(v[p][i], random));
    }
  }

  void encode_group(std::size_t p, std::size_t begin, const RoundingKey& key) {
    const std::size_t end = std::min(begin + kCompactGroup, m[p].size());
    float most_m = 0, most_root = 0;
    for (std::size_t i = begin; i < end; ++i) {
      most_m = std::max(most_m, std::abs(m[p][i]));
      most_root = std::max(most_root, std::sqrt(v[p][i]));
    }
    const std::uint32_t random = key.group_word(static_cast<std::uint32_t>(begin) / kCompactGroup);
    const float m_scale = decode_scale(encode_scale(most_m, random >> 17));
    const float v_scale = decode_scale(encode_scale(most_root, random & 0x7fffu));
    const float codes_per_root = codes_of_root(std::max(most_root, kSmallestRoot));
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint32_t bits = key.bits(static_cast<std::uint32_t>(i));
      m[p][i] = decode_m(encode_m(m[p][i], most_m > 0 ? most_m : kNoMaximum, bits), m_scale);
      v[p][i] = decode_v(encode_v(std::sqrt(v[p][i]), codes_per_root, bits), v_scale);
    }
  }

  Run run_;
  Layout shape_;
  std::vector<std::vector<float>> weights, m, v, last_gradients;
  std::int64_t micro_batch = 0, steps = 0;
};

}  // namespace spillway::toy
