// The passes through all units. What lies between them is asked of the residual store, a layer before it is
// needed.
#include "decoder_state.h"

namespace spillway::models {
namespace {

/// A layer and a micro-batch, in the order of a pass.
struct Turn {
  std::int64_t layer = 0;
  int micro = 0;
};

}  // namespace

LayerValues Decoder::State::values_of(std::int64_t layer, int micro, void* middle) const {
  const bool keeps = is_kept(layer);
  const DecoderMemory::Layer& its = keeps ? memory.kept_layer : memory.work;
  std::int64_t begin = 0;
  if (keeps) {
    const std::int64_t index = layer - (config.layers - choice.kept);
    begin = memory.kept + (index * memory.chain.micro_batches + micro) * memory.chain.kept_bytes;
  }
  return {.qkv = at(begin + its.qkv),
          .attended = at(begin + its.attended),
          .expand = at(begin + its.expand),
          .middle = keeps ? at(begin + its.middle) : middle,
          .log_sum_exp = at<float>(begin + its.log_sum_exp)};
}

void Decoder::State::pass(int count, std::size_t index) {
  residual.begin(true);
  forward(batch, count);
  // What the backward pass begins with.
  residual.announce(config.layers - 1, 0);
  if (count > 1 || config.layers > 1) residual.announce(config.layers - (count > 1 ? 1 : 2), count > 1 ? 1 : 0);
  head(count, index, true);
  backward(count);
}

void Decoder::State::forward(const Batch& shape, int count) {
  {
    // x_0 = wte[token] + wpe[position]
    const UnitView tokens = engine.gather(embedding_unit);
    const UnitView positions = engine.gather(positions_unit);
    for (int micro = 0; micro < count; ++micro) {
      operations->embedding(residual.write(0, micro), tokens_of(micro), tokens.parameter(token_table),
                            positions.parameter(position_table), shape.tokens(), shape.length, config.hidden,
                            embedding_unit);
      residual.written(0, micro);
    }
  }
  const auto behind = [&](Turn turn) {
    return turn.micro + 1 < count ? Turn{turn.layer, turn.micro + 1} : Turn{turn.layer + 1, 0};
  };
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const UnitView view = engine.gather(first_layer_unit + static_cast<int>(layer));
    for (int micro = 0; micro < count; ++micro) {
      const Turn next = behind({layer, micro}), later = behind(next);
      if (later.layer <= config.layers) residual.announce(later.layer, later.micro);
      const void* const input = residual.read(layer, micro);
      void* const output = residual.write(layer + 1, micro);
      // Without a place of its own, the middle of the residual stream lies where the output will.
      forward_layer(view, layers[static_cast<std::size_t>(layer)], shape, input, output,
                    values_of(layer, micro, output));
      residual.fetch(next.layer, next.micro);
      residual.leave(layer, micro);
      residual.written(layer + 1, micro);
    }
  }
}

void Decoder::State::head(int count, std::size_t index, bool gradients) {
  const UnitView final_view = engine.gather(final_unit);
  {
    const UnitView view = engine.gather(embedding_unit);
    for (int micro = 0; micro < count; ++micro) {
      if (micro + 2 < count) residual.announce(config.layers, micro + 2);
      head_of(final_view, view, micro, index + static_cast<std::size_t>(micro), gradients);
      if (micro + 1 < count) residual.fetch(config.layers, micro + 1);
    }
  }
  if (gradients) final_backward(final_view, count);
}

void Decoder::State::head_of(const UnitView& final_view, const UnitView& view, int micro, std::size_t index,
                             bool gradients) {
  const std::int64_t hidden = config.hidden, rows = batch.tokens();
  const std::int64_t row_bytes = hidden * size_of(operations->type());
  operations->layer_norm(at(memory.added), at<float>(memory.mean), at<float>(memory.inverse_deviation),
                         residual.read(config.layers, micro), final_view.parameter(final_weight),
                         final_view.parameter(final_bias), rows, hidden, config.epsilon, final_unit);
  residual.leave(config.layers, micro);
  const UnitGradient gradient = gradients ? engine.gradient(embedding_unit, kHeadUse) : UnitGradient();
  auto* const normed_gradient =
      gradients ? static_cast<std::byte*>(residual.write(residual.gradient(), micro)) : nullptr;
  const float scale = 1.0f / static_cast<float>(rows);
  for (std::int64_t chunk = 0; chunk < memory.head.count; ++chunk) {
    const std::int64_t first = chunk * memory.head.rows;
    const kernels::LinearShape shape{chunk + 1 < memory.head.count ? memory.head.rows : memory.head.last,
                                     hidden, config.vocabulary};
    const void* const x = at(memory.added + first * row_bytes);
    // logits = ln_f(x) wte^T; then their gradient (softmax - one hot) / N
    operations->linear(at(memory.logits), x, view.parameter(token_table), nullptr, shape, embedding_unit);
    operations->cross_entropy(at<float>(memory.losses) + first, at(memory.logits), targets_of(micro) + first,
                              shape.rows, config.vocabulary, scale, embedding_unit);
    if (!gradients) continue;
    operations->linear_backward_input(normed_gradient + first * row_bytes, at(memory.logits),
                                      view.parameter(token_table), shape, embedding_unit);
    operations->linear_backward_weight(gradient.parameter(token_table), nullptr, at(memory.logits), x, shape,
                                       embedding_unit);
  }
  compute.copy(host_losses.data() + static_cast<std::int64_t>(index) * rows, at(memory.losses), rows * 4,
               "losses");
  copied = compute.record();
  if (!gradients) return;
  engine.reduce(embedding_unit, kHeadUse);
  residual.written(residual.gradient(), micro);
}

void Decoder::State::final_backward(const UnitView& view, int count) {
  const std::int64_t rows = batch.tokens(), hidden = config.hidden;
  auto* const mean = at<float>(memory.mean);
  auto* const inverse_deviation = at<float>(memory.inverse_deviation);
  for (int micro = 0; micro < count; ++micro) {
    if (micro + 2 < count) {
      residual.announce(config.layers, micro + 2);
      residual.announce(residual.gradient(), micro + 2);
    }
    const void* const x = residual.read(config.layers, micro);
    void* const stream = residual.read(residual.gradient(), micro);
    // The norm again, for its mean and deviation.
    operations->layer_norm(at(memory.added), mean, inverse_deviation, x, view.parameter(final_weight),
                           view.parameter(final_bias), rows, hidden, config.epsilon, final_unit);
    const UnitGradient gradient = engine.gradient(final_unit);
    operations->layer_norm_backward(stream, gradient.parameter(final_weight), gradient.parameter(final_bias),
                                    nullptr, stream, x, view.parameter(final_weight), mean, inverse_deviation,
                                    rows, hidden, final_unit);
    engine.reduce(final_unit);
    if (micro + 1 < count) {
      residual.fetch(config.layers, micro + 1);
      residual.fetch(residual.gradient(), micro + 1);
    } else {
      residual.fetch(config.layers - 1, 0);
    }
    residual.drop(config.layers, micro);
    residual.written(residual.gradient(), micro);
  }
}

void Decoder::State::backward(int count) {
  const std::int64_t rows = batch.tokens(), hidden = config.hidden;
  const auto behind = [&](Turn turn) {
    return turn.micro + 1 < count ? Turn{turn.layer, turn.micro + 1} : Turn{turn.layer - 1, 0};
  };
  for (std::int64_t layer = config.layers - 1; layer >= 0; --layer) {
    const UnitView view = engine.gather(first_layer_unit + static_cast<int>(layer));
    for (int micro = 0; micro < count; ++micro) {
      const Turn next = behind({layer, micro}), later = behind(next);
      if (later.layer >= 0) residual.announce(later.layer, later.micro);
      residual.announce(residual.gradient(), later.micro);
      backward_of(view, layer, micro);
      if (next.layer >= 0) residual.fetch(next.layer, next.micro);
      if (count > 1) residual.fetch(residual.gradient(), next.micro);
      residual.drop(layer, micro);
      residual.written(residual.gradient(), micro);
    }
  }
  for (int micro = 0; micro < count; ++micro) {
    const UnitGradient positions = engine.gradient(positions_unit);
    operations->position_backward(positions.parameter(position_table),
                                  residual.read(residual.gradient(), micro), rows, batch.length, hidden,
                                  positions_unit);
    engine.reduce(positions_unit);
    if (count > 1) residual.fetch(residual.gradient(), (micro + 1) % count);
    residual.leave(residual.gradient(), micro);
  }
  for (int micro = 0; micro < count; ++micro) {
    const UnitGradient tokens = engine.gradient(embedding_unit, kLookupUse);
    operations->embedding_backward(tokens.parameter(token_table), tokens_of(micro),
                                   residual.read(residual.gradient(), micro), rows, config.vocabulary, hidden,
                                   embedding_unit);
    engine.reduce(embedding_unit, kLookupUse);
    if (micro + 1 < count) residual.fetch(residual.gradient(), micro + 1);
    residual.drop(residual.gradient(), micro);
  }
}

void Decoder::State::backward_of(const UnitView& view, std::int64_t layer, int micro) {
  const LayerParameters& p = layers[static_cast<std::size_t>(layer)];
  const void* const input = residual.read(layer, micro);
  void* const stream = residual.read(residual.gradient(), micro);
  void* const middle = is_kept(layer) ? nullptr : residual.take_scratch();
  const LayerValues values = values_of(layer, micro, middle);
  if (!is_kept(layer)) compute_layer(view, p, batch, input, values);
  const int unit = view.unit();
  backward_layer(view, engine.gradient(unit), p, input, stream, values);
  engine.reduce(unit);
  if (middle != nullptr) residual.drop_scratch(middle);
}

}  // namespace spillway::models
