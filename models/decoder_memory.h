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

/// Places in the one allocation "activations". Offsets and sizes are bytes. With N tokens in a micro-batch, M
/// of them at once, hidden size H, inner size I, vocabulary V and c rows in a chunk of the head, in elements of
/// the type:
///   residual   activation_buffers() N H   the residual stream between layers, and its gradient
///   kept       M (5 N H + N I) for each layer that is kept; and log_sum_exp
///   workspace  N H + 3 N H + N max(I, H) + N max(I, 3H), at least N H + c V
/// Where every layer keeps its input and nothing else, I = 4H and M = 1, the model holds (layers + 14) N H
/// elements.
struct DecoderMemory {
  DecoderMemory(const DecoderConfig& config, const DecoderRun& run);

  ActivationChain chain;
  HeadChunks head;

  std::int64_t residual = 0;
  std::int64_t kept = 0;  ///< of layer layers - kept + i and micro-batch m at kept + (i M + m) kept_bytes
  // The workspace, inside a layer:
  std::int64_t expand = 0;  ///< [N, max(I, H)] the norms' outputs and gradients, and, unless kept, as below
  std::int64_t active = 0;  ///< [N, max(I, 3H)] ln_2's output; after GELU; in turn the gradients of I and 3H
  std::int64_t added = 0;   ///< [N, H] what is added to the residual stream; the same as `work.attended`
  /// What of a layer's forward pass its backward pass needs, besides the input.
  struct Layer {
    std::int64_t qkv = 0;          ///< [N, 3H]
    std::int64_t attended = 0;     ///< [N, H] what attention gives
    std::int64_t expand = 0;       ///< [N, I] the MLP before GELU
    std::int64_t middle = 0;       ///< [N, H] the residual stream behind attention; kept only
    std::int64_t log_sum_exp = 0;  ///< fp32[sequences, heads, length]
  };
  Layer work;        ///< in the workspace
  Layer kept_layer;  ///< from the begin of what a kept layer keeps
  // The workspace, in the head (`added` is the final norm's output):
  std::int64_t logits = 0;  ///< [rows, V]
  // fp32 and integers:
  std::int64_t mean = 0, inverse_deviation = 0;  ///< [N] of the norm computed last
  std::int64_t losses = 0;                       ///< [N]
  std::int64_t tokens = 0, targets = 0;          ///< int32[M, N]

  std::int64_t bytes = 0;  ///< of the whole
};

/// The lengths to which a context is rounded up when sampling, ascending; the last is the batch's length.
std::vector<std::int64_t> sampling_lengths(const Batch& batch);

/// All shapes with which the decoder calls its operations.
kernels::Shapes decoder_shapes(const DecoderConfig& config, const Batch& batch, const HeadChunks& head);

}  // namespace spillway::models
