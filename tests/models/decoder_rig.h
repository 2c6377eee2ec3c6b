#pragma once
// A tiny decoder on an engine of its own, with the weights and tokens of make_decoder_reference.py.
#include "../../core/communicator.h"
#include "../../core/error.h"
#include "../../core/host_device.h"
#include "../../models/decoder.h"
#include "../../offload/engine.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace spillway::models {

inline constexpr DecoderConfig kTiny{
    .layers = 2, .heads = 2, .hidden = 32, .positions = 16, .vocabulary = 40, .inner = 96};
inline constexpr Batch kTinyBatch{.sequences = 2, .length = 12};
inline constexpr int kTinyMicroBatches = 2;
inline constexpr std::uint32_t kTokenStream = 1000;

/// A number in [0, 2^32), as in make_decoder_reference.py.
inline std::uint32_t hash32(std::uint32_t stream, std::uint32_t element) {
  std::uint32_t x = (element + 1u) * 2654435761u + stream * 2246822519u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  x *= 3266489917u;
  return x ^ (x >> 16);
}

inline bool is_norm_weight(const Layout::Parameter& parameter) {
  return parameter.group == 1 && parameter.name.ends_with(".weight");
}

inline std::vector<std::int32_t> tokens_of(std::uint32_t stream, std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(hash32(stream, static_cast<std::uint32_t>(i)) %
                                          static_cast<std::uint32_t>(vocabulary));
  }
  return tokens;
}

struct RigOptions {
  DecoderConfig decoder = kTiny;
  Batch batch = kTinyBatch;
  DType precision = DType::fp32;
  int threads = 1;
  double clip = 1.0;
  std::int64_t device_memory = -1;
  ActivationPolicy activations = ActivationPolicy::recompute;
  AccumulationOrder order = AccumulationOrder::micro_batch;
};

class Rig {
 public:
  explicit Rig(const RigOptions& options = {})
      : options_(options),
        device_({.memory = options.device_memory, .threads = options.threads}),
        run_(decoder_run(options.decoder, options.batch, config(options))),
        layout_(decoder_layout(options.decoder, run_)),
        engine_(config(options), layout_, device_, communicator_),
        decoder_(options.decoder, run_, device_, engine_) {}

  HostDevice& device() { return device_; }
  Engine& engine() { return engine_; }
  Decoder& decoder() { return decoder_; }
  const Layout& layout() const { return layout_; }
  int parameters() const { return static_cast<int>(layout_.parameters().size()); }
  const Layout::Parameter& parameter(int index) const {
    return layout_.parameters()[static_cast<std::size_t>(index)];
  }

  /// 0.4 (u - 0.5), and 1 more for the weights of the norms.
  void load_reference_weights() {
    for (int p = 0; p < parameters(); ++p) {
      const double base = is_norm_weight(parameter(p)) ? 1.0 : 0.0;
      engine_.load(p, [&](std::int64_t first, std::span<float> values) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          const auto element = static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(i);
          const double u = hash32(static_cast<std::uint32_t>(p), element) * 0x1p-32;
          values[i] = static_cast<float>(base + 0.4 * (u - 0.5));
        }
      });
    }
  }

  std::vector<float> weights(int p) {
    return collect(p, [&](const Engine::Sink& sink) { engine_.read(p, sink); });
  }
  std::vector<float> gradient(int p) {
    return collect(p, [&](const Engine::Sink& sink) { engine_.read_gradient(p, sink); });
  }
  void load(int p, const std::vector<float>& values) {
    engine_.load(p, [&](std::int64_t first, std::span<float> piece) {
      std::copy_n(values.begin() + first, piece.size(), piece.begin());
    });
  }

  std::vector<std::int32_t> tokens(std::uint32_t stream) const {
    return tokens_of(stream, options_.batch.tokens(), options_.decoder.vocabulary);
  }

  /// One step on the reference's tokens; adds its losses. `before_step` is called when the gradients are
  /// complete.
  StepResult step(int number, std::vector<double>& losses, const std::function<void()>& before_step = {}) {
    engine_.begin_step({.groups = groups(), .micro_batches = kTinyMicroBatches});
    std::vector<std::vector<std::int32_t>> rows;
    for (int i = 0; i < 2 * kTinyMicroBatches; ++i)
      rows.push_back(tokens(kTokenStream + static_cast<std::uint32_t>(2 * number * kTinyMicroBatches + i)));
    std::vector<MicroBatch> micro_batches;
    for (std::size_t i = 0; i < rows.size(); i += 2) micro_batches.push_back({rows[i], rows[i + 1]});
    for (const double loss : decoder_.train(micro_batches)) losses.push_back(loss);
    if (before_step) before_step();
    return engine_.step().wait();
  }

  static std::vector<HyperParameters> groups(double rate = 4e-3, double decay = 0.1) {
    const HyperParameters decaying{
        .learning_rate = rate, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = decay};
    HyperParameters plain = decaying;
    plain.weight_decay = 0;
    return {decaying, plain};
  }

 private:
  static Config config(const RigOptions& options) {
    Config config;
    config.precision = options.precision;
    config.accumulation = kTinyMicroBatches;
    config.gradient_clipping = options.clip;
    config.device_memory = options.device_memory;
    config.device_threads = options.threads;
    config.update_threads = options.threads;
    config.activations = options.activations;
    config.accumulation_order = options.order;
    return config;
  }
  std::vector<float> collect(int p, const std::function<void(const Engine::Sink&)>& reader) const {
    std::vector<float> values(static_cast<std::size_t>(parameter(p).elements));
    reader([&](std::int64_t first, std::span<const float> piece) {
      std::copy(piece.begin(), piece.end(), values.begin() + first);
    });
    return values;
  }

  RigOptions options_;
  HostDevice device_;
  SingleRankCommunicator communicator_;
  DecoderRun run_;
  Layout layout_;
  Engine engine_;
  Decoder decoder_;
};

}  // namespace spillway::models
