#pragma once
#include "../core/budget.h"
#include "../core/device.h"
#include "../offload/engine.h"
#include "decoder_memory.h"

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

/// A decoder's memory and operations, and the passes through it. Uses of the tied unit: the head first, as its
/// gradient comes first.
struct Decoder::State {
  static constexpr int kHeadUse = 0, kLookupUse = 1;

  State(const DecoderConfig& decoder, const Batch& most, DType type, HostDevice& host, Engine& its_engine);
  ~State();

  /// Throws Error (configuration) where one is outside the vocabulary.
  void check_tokens(std::span<const std::int32_t> tokens) const;
  /// Copies tokens that have been checked to their place on the device.
  void upload(std::span<const std::int32_t> tokens, std::vector<std::int32_t>& staging, std::int64_t place);
  /// Uploads a batch and enqueues the forward pass up to the last layer's output.
  void start(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets);
  /// Blocks until the losses are there; the mean of the first `rows`, summed in double in their order.
  double mean_loss(std::int64_t rows);

  /// tokens -> inputs(0) -> ... -> inputs(layers).
  void forward(const Batch& shape);
  void forward_layer(const UnitView& view, const LayerParameters& p, const Batch& shape, std::int64_t layer);
  /// Computes what the two halves of a layer share between forward and backward: log_sum_exp, qkv, attended,
  /// the middle of the residual stream (where the layer's output lies), expand, active.
  void compute_layer(const UnitView& view, const LayerParameters& p, const Batch& shape, std::int64_t layer);
  /// The final norm of all rows into `attended`, then logits and losses by chunks; with gradients of the head
  /// where `gradients`.
  void head(bool gradients);
  /// Everything behind the head, down to the embedding.
  void backward();
  void backward_layer(const UnitView& view, const UnitGradient& gradient, const LayerParameters& p,
                      std::int64_t layer);

  template <class T = void>
  T* at(std::int64_t place) const {
    return reinterpret_cast<T*>(activations.data() + place);
  }
  void* input(std::int64_t layer) const { return at(memory.inputs + layer * memory.input_bytes); }

  DecoderConfig config;
  Batch batch;
  Engine& engine;
  Stream& compute;
  Device& device;
  DecoderMemory memory;
  Memory activations;
  std::unique_ptr<kernels::Operations> operations;

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
