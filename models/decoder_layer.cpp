// The forward and backward passes through one layer. Comments give the mathematics of the step below; N tokens,
// H hidden, I inner; x is the layer's input, r the residual stream behind attention.
#include "decoder_state.h"

namespace spillway::models {

void Decoder::State::compute_layer(const UnitView& view, const LayerParameters& p, const Batch& shape,
                                   const void* input, const LayerValues& values) {
  const std::int64_t rows = shape.tokens(), hidden = config.hidden, inner = config.inner;
  const int unit = view.unit();
  void* const middle = values.middle;
  auto* const mean = at<float>(memory.mean);
  auto* const inverse_deviation = at<float>(memory.inverse_deviation);

  // r = x + attention(ln_1(x) Wqkv^T + b) Wo^T + b
  operations->layer_norm(at(memory.expand), mean, inverse_deviation, input, view.parameter(p.norm1_weight),
                         view.parameter(p.norm1_bias), rows, hidden, config.epsilon, unit);
  operations->linear(values.qkv, at(memory.expand), view.parameter(p.qkv_weight), view.parameter(p.qkv_bias),
                     {rows, hidden, 3 * hidden}, unit);
  operations->attention(values.attended, values.log_sum_exp, values.qkv,
                        {shape.sequences, shape.length, config.heads, hidden / config.heads}, unit);
  operations->linear(middle, values.attended, view.parameter(p.out_weight), view.parameter(p.out_bias),
                     {rows, hidden, hidden}, unit);
  operations->add(middle, input, middle, rows * hidden, unit);

  // expand = ln_2(r) Wfc^T + b; active = gelu(expand). The norm's output lies where `active` will.
  operations->layer_norm(at(memory.active), mean, inverse_deviation, middle, view.parameter(p.norm2_weight),
                         view.parameter(p.norm2_bias), rows, hidden, config.epsilon, unit);
  operations->linear(values.expand, at(memory.active), view.parameter(p.expand_weight),
                     view.parameter(p.expand_bias), {rows, hidden, inner}, unit);
}

void Decoder::State::forward_layer(const UnitView& view, const LayerParameters& p, const Batch& shape,
                                   const void* input, void* output, const LayerValues& values) {
  const std::int64_t rows = shape.tokens();
  compute_layer(view, p, shape, input, values);
  // x' = r + gelu(expand) Wproj^T + b
  operations->gelu(at(memory.active), values.expand, rows * config.inner, view.unit());
  operations->linear(at(memory.added), at(memory.active), view.parameter(p.contract_weight),
                     view.parameter(p.contract_bias), {rows, config.inner, config.hidden}, view.unit());
  operations->add(output, values.middle, at(memory.added), rows * config.hidden, view.unit());
}

void Decoder::State::backward_layer(const UnitView& view, const UnitGradient& gradient,
                                    const LayerParameters& p, const void* input, void* stream,
                                    const LayerValues& values) {
  const std::int64_t rows = batch.tokens(), hidden = config.hidden, inner = config.inner;
  const int unit = view.unit();
  // `stream` is the gradient of the layer's output, then of r, then of x.
  void* const middle = values.middle;
  auto* const mean = at<float>(memory.mean);
  auto* const inverse_deviation = at<float>(memory.inverse_deviation);
  const kernels::LinearShape contract{rows, inner, hidden}, expand{rows, hidden, inner};
  const kernels::LinearShape out{rows, hidden, hidden}, to_qkv{rows, hidden, 3 * hidden};
  const kernels::AttentionShape heads{batch.sequences, batch.length, config.heads, hidden / config.heads};

  // x' = r + gelu(expand) Wproj^T + b: `active` becomes the gradient of `expand`.
  operations->gelu(at(memory.active), values.expand, rows * inner, unit);
  operations->linear_backward_weight(gradient.parameter(p.contract_weight), gradient.parameter(p.contract_bias),
                                     stream, at(memory.active), contract, unit);
  operations->linear_backward_input(at(memory.active), stream, view.parameter(p.contract_weight), contract,
                                    unit);
  operations->gelu_backward(at(memory.active), at(memory.active), values.expand, rows * inner, unit);

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
                                     values.attended, out, unit);
  operations->linear_backward_input(at(memory.expand), stream, view.parameter(p.out_weight), out, unit);
  operations->attention_backward(at(memory.active), at(memory.expand), values.qkv, values.attended,
                                 values.log_sum_exp, heads, unit);

  // qkv = ln_1(x) Wqkv^T + b
  operations->layer_norm(at(memory.expand), mean, inverse_deviation, input, view.parameter(p.norm1_weight),
                         view.parameter(p.norm1_bias), rows, hidden, config.epsilon, unit);
  operations->linear_backward_weight(gradient.parameter(p.qkv_weight), gradient.parameter(p.qkv_bias),
                                     at(memory.active), at(memory.expand), to_qkv, unit);
  operations->linear_backward_input(at(memory.expand), at(memory.active), view.parameter(p.qkv_weight), to_qkv,
                                    unit);
  operations->layer_norm_backward(stream, gradient.parameter(p.norm1_weight), gradient.parameter(p.norm1_bias),
                                  stream, at(memory.expand), input, view.parameter(p.norm1_weight), mean,
                                  inverse_deviation, rows, hidden, unit);
}

}  // namespace spillway::models
