#include "decoder.h"

#include "../core/error.h"
#include "../core/host_device.h"
#include "../core/random.h"
#include "../kernels/host/operations.h"
#include "decoder_state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

namespace spillway::models {

Decoder::State::State(const DecoderConfig& decoder, const DecoderRun& run, HostDevice& host, Engine& its_engine)
    : config(decoder),
      batch(run.batch),
      choice(run.activations),
      engine(its_engine),
      compute(host.stream(Lane::compute)),
      device(host),
      memory(decoder, run),
      activations(host.allocate("activations", memory.bytes)),
      operations(std::make_unique<kernels::HostOperations>(host, run.precision,
                                                           decoder_shapes(decoder, batch, memory.head))),
      residual(engine, host, memory.chain, choice, activations.data() + memory.residual),
      host_logits(static_cast<std::size_t>(decoder.vocabulary * size_of(run.precision))) {
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

void Decoder::State::check(const MicroBatch& micro_batch) const {
  const auto expected = static_cast<std::size_t>(batch.tokens());
  if (micro_batch.tokens.size() != expected || micro_batch.targets.size() != expected) {
    throw std::logic_error("Decoder: a batch must have " + std::to_string(expected) +
                           " tokens and targets, not " + std::to_string(micro_batch.tokens.size()) + " and " +
                           std::to_string(micro_batch.targets.size()));
  }
  check_tokens(micro_batch.tokens);
  check_tokens(micro_batch.targets);
}

void Decoder::State::reserve_host(std::size_t micro_batches) {
  copied.wait();
  const auto tokens = micro_batches * static_cast<std::size_t>(batch.tokens());
  if (host_tokens.size() >= tokens) return;
  host_tokens.resize(tokens);
  host_targets.resize(tokens);
  host_losses.resize(tokens);
}

void Decoder::State::upload(const MicroBatch& micro_batch, std::size_t index, int micro) {
  const auto first = static_cast<std::ptrdiff_t>(index) * batch.tokens();
  const auto copy = [&](std::int32_t* place, std::span<const std::int32_t> from,
                        std::vector<std::int32_t>& host) {
    const auto staged = std::copy(from.begin(), from.end(), host.begin() + first) - std::ssize(from);
    compute.copy(place, &*staged, static_cast<std::int64_t>(from.size_bytes()), "tokens");
  };
  copy(tokens_of(micro), micro_batch.tokens, host_tokens);
  if (!micro_batch.targets.empty()) copy(targets_of(micro), micro_batch.targets, host_targets);
  copied = compute.record();
}

double Decoder::State::mean_loss(std::size_t index, std::int64_t rows) {
  copied.wait();
  device.check();
  const std::span<const float> losses(host_losses);
  double sum = 0;
  for (const float loss :
       losses.subspan(index * static_cast<std::size_t>(batch.tokens()), static_cast<std::size_t>(rows))) {
    sum += static_cast<double>(loss);
  }
  return sum / static_cast<double>(rows);
}

Decoder::Decoder(const DecoderConfig& config, const DecoderRun& run, HostDevice& device, Engine& engine)
    : state_(std::make_unique<State>(config, run, device, engine)) {}
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

std::vector<double> Decoder::train(std::span<const MicroBatch> micro_batches) {
  State& s = *state_;
  for (const MicroBatch& one : micro_batches) s.check(one);
  s.reserve_host(micro_batches.size());
  const auto at_once = static_cast<std::size_t>(s.memory.chain.micro_batches);
  for (std::size_t first = 0; first < micro_batches.size(); first += at_once) {
    const std::size_t count = std::min(at_once, micro_batches.size() - first);
    for (std::size_t i = 0; i < count; ++i) s.upload(micro_batches[first + i], first + i, static_cast<int>(i));
    s.pass(static_cast<int>(count), first);
  }
  std::vector<double> losses;
  for (std::size_t i = 0; i < micro_batches.size(); ++i) losses.push_back(s.mean_loss(i, s.batch.tokens()));
  return losses;
}

double Decoder::train(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
  return train(std::array{MicroBatch{tokens, targets}}).front();
}

double Decoder::loss(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                     std::int64_t counted) {
  State& s = *state_;
  if (counted == 0 || counted > s.batch.sequences) {
    throw std::logic_error("Decoder::loss: there are no such sequences to count");
  }
  s.check({tokens, targets});
  s.reserve_host(1);
  s.upload({tokens, targets}, 0, 0);
  s.residual.begin(false);
  s.forward(s.batch, 1);
  s.head(1, 0, false);
  return s.mean_loss(0, counted < 0 ? s.batch.tokens() : counted * s.batch.length);
}

}  // namespace spillway::models
