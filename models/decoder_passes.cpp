// The forward and backward passes. Comments give the mathematics of the step below; N tokens, H hidden, I
// inner, V vocabulary; x is a layer's input, r the residual stream behind attention.
#include "decoder_state.h"

namespace spillway::models {

void Decoder::State::forward(const Batch& shape) {
  {
    // x_0 = wte[token] + wpe[position]
    const UnitView tokens = engine.gather(embedding_unit);
    const UnitView positions = engine.gather(positions_unit);
    operations->embedding(input(0), at<std::int32_t>(memory.tokens), tokens.parameter(token_table),
                          positions.parameter(position_table), shape.tokens(), shape.length, config.hidden,
                          embedding_unit);
  }
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const UnitView view = engine.gather(first_layer_unit + static_cast<int>(layer));
    forward_layer(view, layers[static_cast<std::size_t>(layer)], shape, layer);
  }
}

void Decoder::State::compute_layer(const UnitView& view, const LayerParameters& p, const Batch& shape,
                                   std::int64_t layer) {
  const std::int64_t rows = shape.tokens(), hidden = config.hidden, inner = config.inner;
  const int unit = view.unit();
  void* const middle = input(layer + 1);
  auto* const mean = at<float>(memory.mean);
  auto* const inverse_deviation = at<float>(memory.inverse_deviation);

  // r = x + attention(ln_1(x) Wqkv^T + b) Wo^T + b
  operations->layer_norm(at(memory.expand), mean, inverse_deviation, input(layer),
                         view.parameter(p.norm1_weight), view.parameter(p.norm1_bias), rows, hidden,
                         config.epsilon, unit);
  operations->linear(at(memory.qkv), at(memory.expand), view.parameter(p.qkv_weight),
                     view.parameter(p.qkv_bias), {rows, hidden, 3 * hidden}, unit);
  operations->attention(at(memory.attended), at<float>(memory.log_sum_exp), at(memory.qkv),
                        {shape.sequences, shape.length, config.heads, hidden / config.heads}, unit);
  operations->linear(middle, at(memory.attended), view.parameter(p.out_weight), view.parameter(p.out_bias),
                     {rows, hidden, hidden}, unit);
  operations->add(middle, input(layer), middle, rows * hidden, unit);

  // expand = ln_2(r) Wfc^T + b; active = gelu(expand). The norm's output lies where `active` will.
  operations->layer_norm(at(memory.active), mean, inverse_deviation, middle, view.parameter(p.norm2_weight),
                         view.parameter(p.norm2_bias), rows, hidden, config.epsilon, unit);
  operations->linear(at(memory.expand), at(memory.active), view.parameter(p.expand_weight),
                     view.parameter(p.expand_bias), {rows, hidden, inner}, unit);
  operations->gelu(at(memory.active), at(memory.expand), rows * inner, unit);
}

void Decoder::State::forward_layer(const UnitView& view, const LayerParameters& p, const Batch& shape,
                                   std::int64_t layer) {
  const std::int64_t rows = shape.tokens();
  compute_layer(view, p, shape, layer);
  // x' = r + active Wproj^T + b
  operations->linear(at(memory.attended), at(memory.active), view.parameter(p.contract_weight),
                     view.parameter(p.contract_bias), {rows, config.inner, config.hidden}, view.unit());
  operations->add(input(layer + 1), input(layer + 1), at(memory.attended), rows * config.hidden, view.unit());
}

void Decoder::State::head(bool gradients) {
  const std::int64_t hidden = config.hidden, rows = batch.tokens();
  const std::int64_t row_bytes = hidden * size_of(operations->type());
  {
    const UnitView view = engine.gather(final_unit);
    operations->layer_norm(at(memory.attended), at<float>(memory.mean), at<float>(memory.inverse_deviation),
                           input(config.layers), view.parameter(final_weight), view.parameter(final_bias), rows,
                           hidden, config.epsilon, final_unit);
  }
  const UnitView view = engine.gather(embedding_unit);
  const UnitGradient gradient = gradients ? engine.gradient(embedding_unit, kHeadUse) : UnitGradient();
  const float scale = 1.0f / static_cast<float>(rows);
  for (std::int64_t chunk = 0; chunk < memory.head.count; ++chunk) {
    const std::int64_t first = chunk * memory.head.rows;
    const kernels::LinearShape shape{chunk + 1 < memory.head.count ? memory.head.rows : memory.head.last,
                                     hidden, config.vocabulary};
    const void* const x = at(memory.attended + first * row_bytes);
    // logits = ln_f(x) wte^T; then their gradient (softmax - one hot) / N
    operations->linear(at(memory.logits), x, view.parameter(token_table), nullptr, shape, embedding_unit);
    operations->cross_entropy(at<float>(memory.losses) + first, at(memory.logits),
                              at<std::int32_t>(memory.targets) + first, shape.rows, config.vocabulary, scale,
                              embedding_unit);
    if (!gradients) continue;
    operations->linear_backward_input(at(memory.head_gradient + first * row_bytes), at(memory.logits),
                                      view.parameter(token_table), shape, embedding_unit);
    operations->linear_backward_weight(gradient.parameter(token_table), nullptr, at(memory.logits), x, shape,
                                       embedding_unit);
  }
  if (gradients) engine.reduce(embedding_unit, kHeadUse);
  compute.copy(host_losses.data(), at(memory.losses), rows * 4, "losses");
  copied = compute.record();
}

void Decoder::State::backward() {
  const std::int64_t rows = batch.tokens(), hidden = config.hidden;
  {
    const UnitView view = engine.gather(final_unit);
    const UnitGradient gradient = engine.gradient(final_unit);
    operations->layer_norm_backward(at(memory.stream), gradient.parameter(final_weight),
                                    gradient.parameter(final_bias), nullptr, at(memory.head_gradient),
                                    input(config.layers), view.parameter(final_weight), at<float>(memory.mean),
                                    at<float>(memory.inverse_deviation), rows, hidden, final_unit);
    engine.reduce(final_unit);
  }
  for (std::int64_t layer = config.layers - 1; layer >= 0; --layer) {
    const int unit = first_layer_unit + static_cast<int>(layer);
    const UnitView view = engine.gather(unit);
    compute_layer(view, layers[static_cast<std::size_t>(layer)], batch, layer);
    backward_layer(view, engine.gradient(unit), layers[static_cast<std::size_t>(layer)], layer);
    engine.reduce(unit);
  }
  const UnitGradient positions = engine.gradient(positions_unit);
  operations->position_backward(positions.parameter(position_table), at(memory.stream), rows, batch.length,
                                hidden, positions_unit);
  engine.reduce(positions_unit);
  const UnitGradient tokens = engine.gradient(embedding_unit, kLookupUse);
  operations->embedding_backward(tokens.parameter(token_table), at<std::int32_t>(memory.tokens),
                                 at(memory.stream), rows, config.vocabulary, hidden, embedding_unit);
  engine.reduce(embedding_unit, kLookupUse);
}

void Decoder::State::backward_layer(const UnitView& view, const UnitGradient& gradient,
                                    const LayerParameters& p, std::int64_t layer) {
  const std::int64_t rows = batch.tokens(), hidden = config.hidden, inner = config.inner;
  const int unit = view.unit();
  void* const stream = at(memory.stream);  // the gradient of the layer's output, then of r, then of x
  void* const middle = input(layer + 1);
  auto* const mean = at<float>(memory.mean);
  auto* const inverse_deviation = at<float>(memory.inverse_deviation);
  const kernels::LinearShape contract{rows, inner, hidden}, expand{rows, hidden, inner};
  const kernels::LinearShape out{rows, hidden, hidden}, to_qkv{rows, hidden, 3 * hidden};
  const kernels::AttentionShape heads{batch.sequences, batch.length, config.heads, hidden / config.heads};

  // x' = r + gelu(expand) Wproj^T + b: `active` becomes the gradient of `expand`.
  operations->linear_backward_weight(gradient.parameter(p.contract_weight), gradient.parameter(p.contract_bias),
                                     stream, at(memory.active), contract, unit);
  operations->linear_backward_input(at(memory.active), stream, view.parameter(p.contract_weight), contract,
                                    unit);
  operations->gelu_backward(at(memory.active), at(memory.active), at(memory.expand), rows * inner, unit);

  // expand = ln_2(r) Wfc^T + b: the norm again, where `expand` is dead; then its gradient in the same place.
  operations->layer_norm(at(memory.expand), mean, inverse_deviation, middle, view.parameter(p.norm2_weight),
                         view.parameter(p.norm2_bias), rows, hidden, config.epsilon, unit);
  operations->linear_backward_weight(gradient.parameter(p.expand_weight), gradient.parameter(p.expand_bias),
                                     at(memory.active), at(memory.expand), expand, unit);
  operations->linear_backward_input(at(memory.expand), at(memory.active), view.parameter(p.expand_weight),
                                    expand, unit);
  operations->layer_norm_backward(stream, gradient.parameter(p.norm2_weight), gradient.parameter(p.norm2_bias),
                                  stream, at(memory.expand), middle, view.parameter(p.norm2_weight), mean,
                                  inverse_deviation, rows, hidden, unit);

  // r = x + attention(qkv) Wo^T + b: `expand` becomes the gradient of what attention gave, `active` that of
  // qkv.
  operations->linear_backward_weight(gradient.parameter(p.out_weight), gradient.parameter(p.out_bias), stream,
                                     at(memory.attended), out, unit);
  operations->linear_backward_input(at(memory.expand), stream, view.parameter(p.out_weight), out, unit);
  operations->attention_backward(at(memory.active), at(memory.expand), at(memory.qkv), at(memory.attended),
                                 at<float>(memory.log_sum_exp), heads, unit);

  // qkv = ln_1(x) Wqkv^T + b
  operations->layer_norm(at(memory.expand), mean, inverse_deviation, input(layer),
                         view.parameter(p.norm1_weight), view.parameter(p.norm1_bias), rows, hidden,
                         config.epsilon, unit);
  operations->linear_backward_weight(gradient.parameter(p.qkv_weight), gradient.parameter(p.qkv_bias),
                                     at(memory.active), at(memory.expand), to_qkv, unit);
  operations->linear_backward_input(at(memory.expand), at(memory.active), view.parameter(p.qkv_weight), to_qkv,
                                    unit);
  operations->layer_norm_backward(stream, gradient.parameter(p.norm1_weight), gradient.parameter(p.norm1_bias),
                                  stream, at(memory.expand), input(layer), view.parameter(p.norm1_weight), mean,
                                  inverse_deviation, rows, hidden, unit);
}

}  // namespace spillway::models
