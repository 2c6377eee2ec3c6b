#pragma once
#include "../core/budget.h"
#include "../core/device.h"
#include "../offload/engine.h"
#include "decoder_memory.h"
#include "residual_store.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace spillway::models {

/// Indices of a layer's parameters in the layout.
struct LayerParameters {
  int norm1_weight, norm1_bias, qkv_weight, qkv_bias, out_weight, out_bias;
  int norm2_weight, norm2_bias, expand_weight, expand_bias, contract_weight, contract_bias;
};

/// Where the values of one layer and micro-batch lie that its backward pass needs: see DecoderMemory::Layer.
struct LayerValues {
  void *qkv, *attended, *expand, *middle;
  float* log_sum_exp;
};

/// A decoder's memory and operations, and the passes through it. Uses of the tied unit: the head first, as its
/// gradient comes first.
struct Decoder::State {
  static constexpr int kHeadUse = 0, kLookupUse = 1;

  State(const DecoderConfig& decoder, const DecoderRun& its_run, HostDevice& host, Engine& its_engine);
  ~State();

  /// Throws std::logic_error for other sizes than the batch's, Error (configuration) where a token is outside
  /// the vocabulary.
  void check(const MicroBatch& micro_batch) const;
  void check_tokens(std::span<const std::int32_t> tokens) const;
  /// Waits until the host's side of all copies is free, and makes it large enough for so many micro-batches.
  void reserve_host(std::size_t micro_batches);
  /// Copies tokens that have been checked to their places on the device: micro-batch `index` of those that were
  /// reserved, which is number `micro` of those at once.
  void upload(const MicroBatch& micro_batch, std::size_t index, int micro);
  /// Blocks until the losses are there; the mean of the first `rows` of a micro-batch, summed in double in
  /// their order.
  double mean_loss(std::size_t index, std::int64_t rows);

  /// Forward and backward for those that have been uploaded: `count` at once, the first of which is number
  /// `index` on the host.
  void pass(int count, std::size_t index);
  /// tokens -> inputs of the layers -> output of the last one, unit by unit.
  void forward(const Batch& shape, int count);
  /// What the two halves of a layer share between forward and backward: all of `at`, from the layer's input.
  void compute_layer(const UnitView& view, const LayerParameters& p, const Batch& shape, const void* input,
                     const LayerValues& values);
  void forward_layer(const UnitView& view, const LayerParameters& p, const Batch& shape, const void* input,
                     void* output, const LayerValues& values);
  /// The final norm, then logits and losses by chunks; with gradients of the head where `gradients`. Losses go
  /// to the host, from micro-batch `index` on.
  void head(int count, std::size_t index, bool gradients);
  void head_of(const UnitView& final_view, const UnitView& view, int micro, std::size_t index, bool gradients);
  /// The final norm's own gradients, and that of its input.
  void final_backward(const UnitView& view, int count);
  /// Everything behind the head, down to the embedding.
  void backward(int count);
  void backward_of(const UnitView& view, std::int64_t layer, int micro);
  /// `stream` becomes the gradient of the layer's input.
  void backward_layer(const UnitView& view, const UnitGradient& gradient, const LayerParameters& p,
                      const void* input, void* stream, const LayerValues& values);

  template <class T = void>
  T* at(std::int64_t place) const {
    return reinterpret_cast<T*>(activations.data() + place);
  }
  std::int32_t* tokens_of(int micro) const { return at<std::int32_t>(memory.tokens) + micro * batch.tokens(); }
  std::int32_t* targets_of(int micro) const {
    return at<std::int32_t>(memory.targets) + micro * batch.tokens();
  }
  bool is_kept(std::int64_t layer) const { return layer >= config.layers - choice.kept; }
  /// In what the layer keeps, where it does; else in the workspace, with `middle` in that buffer.
  LayerValues values_of(std::int64_t layer, int micro, void* middle) const;

  DecoderConfig config;
  Batch batch;
  ActivationChoice choice;
  Engine& engine;
  Stream& compute;
  Device& device;
  DecoderMemory memory;
  Memory activations;
  std::unique_ptr<kernels::Operations> operations;
  ResidualStore residual;

  int embedding_unit, positions_unit, first_layer_unit, final_unit;
  int token_table, position_table, final_weight, final_bias;
  std::vector<LayerParameters> layers;

  // The host's side of copies: alive until `copied` has passed.
  std::vector<std::int32_t> host_tokens, host_targets;
  std::vector<float> host_losses;
  std::vector<std::byte> host_logits;  ///< of one row, for sampling
  Event copied;
};

}  // namespace spillway::models
