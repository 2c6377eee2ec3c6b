#include "../core/error.h"
#include "../kernels/host/operations.h"
#include "decoder_memory.h"
#include "groups.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace spillway::models {
namespace {

/// Gives out places one after another, each on a cache line of its own.
class Places {
 public:
  explicit Places(std::int64_t begin = 0) : end_(begin) {}
  std::int64_t next(std::int64_t bytes) {
    const std::int64_t place = end_;
    end_ += (bytes + 63) / 64 * 64;
    return place;
  }
  std::int64_t next_end(std::int64_t bytes) {
    next(bytes);
    return end_;
  }
  std::int64_t end() const { return end_; }

 private:
  std::int64_t end_;
};

void add_once(std::vector<kernels::LinearShape>& shapes, const kernels::LinearShape& shape) {
  const auto same = [&](const kernels::LinearShape& other) {
    return other.rows == shape.rows && other.in == shape.in && other.out == shape.out;
  };
  if (std::none_of(shapes.begin(), shapes.end(), same)) shapes.push_back(shape);
}

UnitSpec layer_unit(const DecoderConfig& config, std::int64_t layer) {
  const std::string prefix = "h." + std::to_string(layer) + ".";
  const std::int64_t hidden = config.hidden;
  UnitSpec unit;
  unit.name = "layer." + std::to_string(layer);
  const auto norm = [&](const std::string& name) {
    unit.parameters.push_back({.name = prefix + name + ".weight", .shape = {hidden}});
    unit.parameters.push_back({.name = prefix + name + ".bias", .shape = {hidden}});
  };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    unit.parameters.push_back({.name = prefix + name + ".weight", .shape = {out, in}});
    unit.parameters.push_back({.name = prefix + name + ".bias", .shape = {out}});
  };
  norm("ln_1");
  linear("attn.c_attn", 3 * hidden, hidden);
  linear("attn.c_proj", hidden, hidden);
  norm("ln_2");
  linear("mlp.c_fc", config.inner, hidden);
  linear("mlp.c_proj", hidden, config.inner);
  return unit;
}

/// Refuses what no machine holds, so that every number of bytes that follows fits 64 bits.
void check_size(const DecoderConfig& config) {
  constexpr std::int64_t kMost = std::int64_t{1} << 45;
  // In double, which does not overflow; the biases and norms count little.
  const auto hidden = static_cast<double>(config.hidden), inner = static_cast<double>(config.inner);
  const double count =
      (static_cast<double>(config.vocabulary) + static_cast<double>(config.positions)) * hidden +
      static_cast<double>(config.layers) * (4 * hidden + 2 * inner + 13) * hidden;
  if (count <= static_cast<double>(kMost)) return;
  throw Error(ErrorKind::configuration,
              fmt::format("the model has about {:.3g} parameters, more than {} (2^45)", count, kMost),
              {.hint = "lower n_layer, n_embd, n_inner, n_positions or vocab_size"});
}

}  // namespace

void check_batch(const DecoderConfig& config, const Batch& batch) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;  // also of tokens: indices of rows are far from a limit
  check_size(config);
  if (batch.sequences < 1 || batch.sequences > kMost) {
    throw Error(ErrorKind::configuration, "a micro-batch needs between 1 and " + std::to_string(kMost) +
                                              " sequences, not " + std::to_string(batch.sequences));
  }
  if (batch.length < 1 || batch.length > config.positions) {
    throw Error(ErrorKind::configuration, "sequence_length is " + std::to_string(batch.length) +
                                              ", but the model has positions for 1 to " +
                                              std::to_string(config.positions) + " tokens (n_positions)");
  }
  if (batch.tokens() > kMost) {
    throw Error(ErrorKind::configuration,
                "a micro-batch of " + std::to_string(batch.sequences) + " sequences of " +
                    std::to_string(batch.length) + " tokens has " + std::to_string(batch.tokens()) +
                    " tokens, more than " + std::to_string(kMost),
                {.hint = "lower train_micro_batch_size_per_gpu or spillway.sequence_length"});
  }
}

namespace {

/// Gives a layer its places, and returns where they end.
Places kept_places(const DecoderConfig& config, const Batch& batch, DType type, DecoderMemory::Layer& layer) {
  const std::int64_t count = batch.tokens(), row = config.hidden * size_of(type);
  Places places;
  layer.qkv = places.next(count * 3 * row);
  layer.attended = places.next(count * row);
  layer.expand = places.next(count * config.inner * size_of(type));
  layer.middle = places.next(count * row);
  layer.log_sum_exp = places.next(count * config.heads * 4);
  return places;
}

}  // namespace

ActivationChain decoder_chain(const DecoderConfig& config, const DecoderRun& run) {
  const Batch& batch = run.batch;
  const auto tokens = static_cast<double>(batch.tokens()), hidden = static_cast<double>(config.hidden);
  DecoderMemory::Layer layer;
  return {.layers = config.layers,
          .micro_batches = run.at_once,
          .input_bytes = Places().next_end(batch.tokens() * config.hidden * size_of(run.precision)),
          .kept_bytes = kept_places(config, batch, run.precision, layer).end(),
          // The products of a layer but for the last one, and attention over the whole sequence.
          .layer_flops = tokens * (2 * hidden * (4 * hidden + static_cast<double>(config.inner)) +
                                   4 * static_cast<double>(batch.length) * hidden)};
}

DecoderMemory::DecoderMemory(const DecoderConfig& config, const DecoderRun& run) {
  const Batch& batch = run.batch;
  check_batch(config, batch);
  const std::int64_t count = batch.tokens(), element = size_of(run.precision);
  const std::int64_t row = config.hidden * element;  // bytes of a token in the residual stream

  Places places;
  chain = decoder_chain(config, run);
  kept_places(config, batch, run.precision, kept_layer);
  residual = places.next(activation_buffers(chain, run.activations) * chain.input_bytes);
  kept = places.next(run.activations.kept * chain.micro_batches * chain.kept_bytes);
  added = work.attended = places.next(count * row);
  work.qkv = places.next(count * 3 * row);
  expand = work.expand = places.next(count * std::max(config.inner, config.hidden) * element);
  active = places.next(count * std::max(config.inner, 3 * config.hidden) * element);

  // In the head, logits for as many rows as fit behind the norm's output.
  logits = work.qkv;
  const std::int64_t logits_row = config.vocabulary * element;
  const std::int64_t fitting = std::clamp((places.end() - logits) / logits_row, std::int64_t{1}, count);
  head.count = (count + fitting - 1) / fitting;
  head.rows = (count + head.count - 1) / head.count;
  head.count = (count + head.rows - 1) / head.rows;
  head.last = count - (head.count - 1) * head.rows;

  places = Places(std::max(places.end(), Places(logits).next_end(head.rows * logits_row)));
  mean = places.next(count * 4);
  inverse_deviation = places.next(count * 4);
  work.log_sum_exp = places.next(count * config.heads * 4);
  losses = places.next(count * 4);
  tokens = places.next(chain.micro_batches * count * 4);
  targets = places.next(chain.micro_batches * count * 4);
  bytes = places.end();
}

std::vector<std::int64_t> sampling_lengths(const Batch& batch) {
  constexpr std::int64_t kLengths = 8;
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 1; i <= kLengths; ++i) {
    const std::int64_t length = (batch.length * i + kLengths - 1) / kLengths;
    if (lengths.empty() || lengths.back() < length) lengths.push_back(length);
  }
  return lengths;
}

kernels::Shapes decoder_shapes(const DecoderConfig& config, const Batch& batch, const HeadChunks& head) {
  kernels::Shapes shapes;
  const auto add_layer = [&](std::int64_t sequences, std::int64_t length) {
    const std::int64_t rows = sequences * length;
    add_once(shapes.linears, {rows, config.hidden, 3 * config.hidden});
    add_once(shapes.linears, {rows, config.hidden, config.hidden});
    add_once(shapes.linears, {rows, config.hidden, config.inner});
    add_once(shapes.linears, {rows, config.inner, config.hidden});
    shapes.attentions.push_back({sequences, length, config.heads, config.hidden / config.heads});
  };
  add_layer(batch.sequences, batch.length);
  for (const std::int64_t length : sampling_lengths(batch)) {
    if (batch.sequences != 1 || length != batch.length) add_layer(1, length);
  }
  for (const std::int64_t rows : {head.rows, head.last, std::int64_t{1}}) {
    add_once(shapes.linears, {rows, config.hidden, config.vocabulary});
  }
  return shapes;
}

double flops_per_token(const DecoderConfig& config, std::int64_t length) {
  const auto hidden = static_cast<double>(config.hidden), layers = static_cast<double>(config.layers);
  const double weights = layers * (4 * hidden + 2 * static_cast<double>(config.inner)) * hidden +
                         static_cast<double>(config.vocabulary) * hidden;
  return 6 * weights + 12 * layers * hidden * static_cast<double>(length);
}

Layout decoder_layout(const DecoderConfig& config, const DecoderRun& run) {
  const DecoderMemory memory(config, run);
  std::vector<UnitSpec> units;
  units.push_back({.name = "embedding",
                   .parameters = {{.name = "wte.weight", .shape = {config.vocabulary, config.hidden}}},
                   .uses = 2});
  units.push_back({.name = "positions",
                   .parameters = {{.name = "wpe.weight", .shape = {config.positions, config.hidden}}}});
  for (std::int64_t layer = 0; layer < config.layers; ++layer) units.push_back(layer_unit(config, layer));
  units.push_back({.name = "final",
                   .parameters = {{.name = "ln_f.weight", .shape = {config.hidden}},
                                  {.name = "ln_f.bias", .shape = {config.hidden}}}});
  assign_decay_groups(units, run.no_decay);

  LayoutOptions options;
  options.live_units = 2;
  options.live_gradients = 1;
  options.model_memory = {
      {"activations", memory.bytes},
      {"scratch", kernels::HostOperations::scratch_bytes(
                      run.precision, decoder_shapes(config, run.batch, memory.head), run.device_threads)}};
  // In the order of ResidualStore's slots: inputs, the last layer's output, the gradient.
  const ActivationChoice& choice = run.activations;
  const auto add_slots = [&](std::int64_t rows, std::int64_t saves, std::int64_t loads) {
    options.activations.insert(options.activations.end(), static_cast<std::size_t>(rows * run.at_once),
                               {.tier = choice.tier,
                                .bytes = memory.chain.input_bytes,
                                .saves = static_cast<int>(saves),
                                .loads = static_cast<int>(loads)});
  };
  add_slots(choice.moved, 1, choice.moves_between ? 2 : 1);
  if (choice.moves_between) {
    add_slots(1, 1, 2);
    add_slots(1, config.layers + 2, config.layers + 3);
  }
  return Layout(units, options);
}

}  // namespace spillway::models
