#pragma once
// What a decoder keeps on the device besides parameters and gradients: one description, from which both the
// plan and the allocation follow.
#include "../kernels/operations.h"
#include "decoder.h"

#include <cstdint>
#include <vector>

namespace spillway::models {

/// Throws Error (configuration) for a batch that the model can't hold, for more than 2^24 tokens in it, and for
/// a model of more than 2^45 parameters.
void check_batch(const DecoderConfig& config, const Batch& batch);

/// Rows of the output head that are computed at once, so that logits never exist for all tokens.
struct HeadChunks {
  std::int64_t rows = 0;   ///< of every chunk but the last
  std::int64_t count = 0;  ///< chunks
  std::int64_t last = 0;   ///< rows of the last chunk
};

/// Places in the one allocation "activations". Offsets and sizes are bytes. With N tokens, hidden size H, inner
/// size I, vocabulary V and c rows in a chunk of the head, in elements of the type:
///   inputs     (layers + 1) N H    the input of each layer, and the last layer's output
///   stream     N H                 the gradient of the residual stream
///   workspace  N H + 3 N H + N max(I, H) + N max(I, 3H), at least 2 N H + c V
/// With I = 4H the model holds (layers + 14) N H elements. All that lies within a layer is computed again in
/// its backward pass; the middle of the residual stream lies where the layer's output was, which is dead by
/// then.
struct DecoderMemory {
  DecoderMemory(const DecoderConfig& config, const Batch& batch, DType type);

  HeadChunks head;

  std::int64_t inputs = 0, input_bytes = 0;  ///< layer l's input lies at inputs + l * input_bytes
  std::int64_t stream = 0;
  // The workspace, inside a layer:
  std::int64_t attended = 0;  ///< [N, H] what attention gives; later what is added to the residual stream
  std::int64_t qkv = 0;       ///< [N, 3H]
  std::int64_t expand = 0;  ///< [N, max(I, H)] the MLP before GELU; in turn ln_1's output and gradients [N, H]
  std::int64_t active = 0;  ///< [N, max(I, 3H)] after GELU; in turn ln_2's output and the gradients of I and 3H
  // The workspace, in the head (`attended` is the final norm's output):
  std::int64_t head_gradient = 0;  ///< [N, H] with respect to the final norm's output
  std::int64_t logits = 0;         ///< [rows, V]
  // fp32 and integers:
  std::int64_t mean = 0, inverse_deviation = 0;  ///< [N] of the norm computed last
  std::int64_t log_sum_exp = 0;                  ///< [sequences, heads, length]
  std::int64_t losses = 0;                       ///< [N]
  std::int64_t tokens = 0, targets = 0;          ///< int32[N]

  std::int64_t bytes = 0;  ///< of the whole
};

/// The lengths to which a context is rounded up when sampling, ascending; the last is the batch's length.
std::vector<std::int64_t> sampling_lengths(const Batch& batch);

/// All shapes with which the decoder calls its operations.
kernels::Shapes decoder_shapes(const DecoderConfig& config, const Batch& batch, const DecoderMemory& memory);

}  // namespace spillway::models
