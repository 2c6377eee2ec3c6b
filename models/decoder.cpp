#include "decoder.h"

#include "../core/error.h"
#include "../core/host_device.h"
#include "../core/random.h"
#include "../kernels/host/operations.h"
#include "decoder_state.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace spillway::models {

Decoder::State::State(const DecoderConfig& decoder, const Batch& most, DType type, HostDevice& host,
                      Engine& its_engine)
    : config(decoder),
      batch(most),
      engine(its_engine),
      compute(host.stream(Lane::compute)),
      device(host),
      memory(decoder, most, type),
      activations(host.allocate("activations", memory.bytes)),
      operations(std::make_unique<kernels::HostOperations>(host, type, decoder_shapes(decoder, most, memory))),
      host_tokens(static_cast<std::size_t>(most.tokens())),
      host_targets(host_tokens.size()),
      host_losses(host_tokens.size()),
      host_logits(static_cast<std::size_t>(decoder.vocabulary * size_of(type))) {
  const Layout& layout = engine.layout();
  embedding_unit = layout.unit("embedding");
  positions_unit = layout.unit("positions");
  first_layer_unit = layout.unit("layer.0");
  final_unit = layout.unit("final");
  token_table = layout.parameter("wte.weight");
  position_table = layout.parameter("wpe.weight");
  final_weight = layout.parameter("ln_f.weight");
  final_bias = layout.parameter("ln_f.bias");
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const auto index = [&, prefix = "h." + std::to_string(layer) + "."](const char* name) {
      return layout.parameter(prefix + name);
    };
    layers.push_back({.norm1_weight = index("ln_1.weight"),
                      .norm1_bias = index("ln_1.bias"),
                      .qkv_weight = index("attn.c_attn.weight"),
                      .qkv_bias = index("attn.c_attn.bias"),
                      .out_weight = index("attn.c_proj.weight"),
                      .out_bias = index("attn.c_proj.bias"),
                      .norm2_weight = index("ln_2.weight"),
                      .norm2_bias = index("ln_2.bias"),
                      .expand_weight = index("mlp.c_fc.weight"),
                      .expand_bias = index("mlp.c_fc.bias"),
                      .contract_weight = index("mlp.c_proj.weight"),
                      .contract_bias = index("mlp.c_proj.bias")});
  }
}

Decoder::State::~State() {
  try {
    compute.record().wait();  // enqueued work names the memory that goes now
  } catch (...) {             // out of memory for an event: nothing can be waited for
  }
}

void Decoder::State::check_tokens(std::span<const std::int32_t> tokens) const {
  const auto outside = [&](std::int32_t token) { return token < 0 || token >= config.vocabulary; };
  if (const auto bad = std::find_if(tokens.begin(), tokens.end(), outside); bad != tokens.end()) {
    throw Error(ErrorKind::configuration, "token " + std::to_string(*bad) +
                                              " lies outside the model's vocabulary of " +
                                              std::to_string(config.vocabulary) + " (vocab_size)");
  }
}

void Decoder::State::upload(std::span<const std::int32_t> tokens, std::vector<std::int32_t>& staging,
                            std::int64_t place) {
  copied.wait();
  std::copy(tokens.begin(), tokens.end(), staging.begin());
  compute.copy(at(place), staging.data(), static_cast<std::int64_t>(tokens.size_bytes()), "tokens");
}

void Decoder::State::start(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  const auto expected = static_cast<std::size_t>(batch.tokens());
  if (tokens.size() != expected || targets.size() != expected) {
    throw std::logic_error("Decoder: a batch must have " + std::to_string(expected) +
                           " tokens and targets, not " + std::to_string(tokens.size()) + " and " +
                           std::to_string(targets.size()));
  }
  check_tokens(tokens);
  check_tokens(targets);
  upload(tokens, host_tokens, memory.tokens);
  upload(targets, host_targets, memory.targets);
  copied = compute.record();
  forward(batch);
}

double Decoder::State::mean_loss(std::int64_t rows) {
  copied.wait();
  device.check();
  double sum = 0;
  for (const float loss : std::span(host_losses).first(static_cast<std::size_t>(rows))) {
    sum += static_cast<double>(loss);
  }
  return sum / static_cast<double>(rows);
}

Decoder::Decoder(const DecoderConfig& config, const Batch& batch, DType precision, HostDevice& device,
                 Engine& engine)
    : state_(std::make_unique<State>(config, batch, precision, device, engine)) {}
Decoder::~Decoder() = default;

void Decoder::initialize(std::uint64_t seed) {
  State& s = *state_;
  const double deviation = s.config.initializer_range;
  const double residual = deviation / std::sqrt(2.0 * static_cast<double>(s.config.layers));
  const auto constant = [&](int parameter, float value) {
    s.engine.load(parameter, [=](std::int64_t, std::span<float> values) { std::ranges::fill(values, value); });
  };
  const auto normal = [&](int parameter, double its_deviation) {
    const RandomStream stream{.seed = seed, .stream = static_cast<std::uint32_t>(parameter)};
    s.engine.load(parameter, [=](std::int64_t first, std::span<float> values) {
      stream.fill_normal(static_cast<std::uint64_t>(first), values, its_deviation);
    });
  };
  normal(s.token_table, deviation);
  normal(s.position_table, deviation);
  for (const LayerParameters& p : s.layers) {
    constant(p.norm1_weight, 1.0f);
    constant(p.norm1_bias, 0.0f);
    normal(p.qkv_weight, deviation);
    constant(p.qkv_bias, 0.0f);
    normal(p.out_weight, residual);
    constant(p.out_bias, 0.0f);
    constant(p.norm2_weight, 1.0f);
    constant(p.norm2_bias, 0.0f);
    normal(p.expand_weight, deviation);
    constant(p.expand_bias, 0.0f);
    normal(p.contract_weight, residual);
    constant(p.contract_bias, 0.0f);
  }
  constant(s.final_weight, 1.0f);
  constant(s.final_bias, 0.0f);
}

double Decoder::train(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  state_->start(tokens, targets);
  state_->head(true);
  state_->backward();
  return state_->mean_loss(state_->batch.tokens());
}

double Decoder::loss(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                     std::int64_t counted) {
  const Batch& batch = state_->batch;
  if (counted == 0 || counted > batch.sequences) {
    throw std::logic_error("Decoder::loss: there are no such sequences to count");
  }
  state_->start(tokens, targets);
  state_->head(false);
  return state_->mean_loss(counted < 0 ? batch.tokens() : counted * batch.length);
}

}  // namespace spillway::models
