#pragma once
// A GPT-2 style decoder: learned positions, pre-normalisation with LayerNorm, GELU (tanh form), causal
// attention, the token embedding tied to the output. Backward passes are written by hand; layer inputs are
// kept, the rest of a layer is computed again in its backward pass.
#include "../core/dtype.h"
#include "../offload/layout.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {
class Device;
class Engine;
class HostDevice;
namespace kernels {
class Operations;
}
}  // namespace spillway

namespace spillway::models {

/// Hugging Face's names for GPT-2 in behind each.
struct DecoderConfig {
  std::int64_t layers = 0;          ///< n_layer
  std::int64_t heads = 0;           ///< n_head; divides hidden
  std::int64_t hidden = 0;          ///< n_embd
  std::int64_t positions = 0;       ///< n_positions (or n_ctx): the longest sequence
  std::int64_t vocabulary = 0;      ///< vocab_size
  std::int64_t inner = 0;           ///< n_inner; where the JSON has 0, null or nothing: 4 * hidden
  float epsilon = 1e-5f;            ///< layer_norm_epsilon
  double initializer_range = 0.02;  ///< initializer_range: deviation of fresh weights
};

/// From a JSON object ("model_type": "gpt2" and the keys above). `source` names it in messages. Keys of GPT-2
/// files that change nothing here are allowed: there is no dropout, whatever *_pdrop say. Throws Error
/// (configuration) naming the key for what is missing, unknown, of a wrong type, out of range or not
/// implemented.
DecoderConfig parse_decoder_config(std::string_view json, std::string_view source);

/// What is computed at once.
struct Batch {
  std::int64_t sequences = 1;
  std::int64_t length = 1;  ///< tokens a sequence, at most the model's positions
  std::int64_t tokens() const { return sequences * length; }
};

/// Units: "embedding" (wte, used twice: tied), "positions" (wpe), "layer.0" ..., "final" (ln_f). Parameter
/// names are Hugging Face's: "wte.weight", "h.0.attn.c_attn.weight", ... with weights stored [out, in]. Group 0
/// decays, group 1 (biases and norms) does not. The model's own memory on a host device with that many threads
/// ("activations", "scratch") is part of it. Throws Error (configuration) where the batch's length exceeds the
/// model's positions, the batch 2^24 tokens, or the model 2^45 parameters.
Layout decoder_layout(const DecoderConfig& config, const Batch& batch, DType precision, int device_threads,
                      const std::optional<std::vector<std::string>>& no_decay = std::nullopt);

/// Floating-point operations of training on one token of a sequence of `length`: 6 for each weight of a matrix
/// product (2 forward, 4 backward; the tied table as the head, not as a lookup) and 12 * layers * hidden *
/// length for attention over the whole sequence. That is the convention of PaLM (Chowdhery et al.,
/// arXiv:2204.02311, appendix B): what is computed again in the backward pass does not count, nor do norms and
/// other vector loops.
double flops_per_token(const DecoderConfig& config, std::int64_t length);

class Decoder {
 public:
  /// The engine must have been made with decoder_layout() of the same arguments; device and engine outlive the
  /// model.
  Decoder(const DecoderConfig& config, const Batch& batch, DType precision, HostDevice& device, Engine& engine);
  ~Decoder();

  /// Weights from N(0, initializer_range^2), the two projections into the residual stream scaled by 1/sqrt(2
  /// layers); biases 0, norms 1. Each value follows from (seed, parameter, element) alone.
  void initialize(std::uint64_t seed);

  /// Forward and backward for tokens[sequences * length] and targets of the same size (the next tokens);
  /// gradients of the mean loss are handed to the engine. Returns the mean loss in nats, once it is known: the
  /// backward pass may still be running. Throws Error (configuration) for a token outside the vocabulary.
  double train(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets);
  /// Forward only: the mean loss of the first `counted` sequences of the batch, of all where it is negative.
  /// What is in the others changes nothing.
  double loss(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
              std::int64_t counted = -1);

  /// Continues `prompt` (at least one token) by `count` tokens, drawn at the temperature (0: the likeliest)
  /// with random numbers by (seed, position), and returns those. The context is the last tokens, as many as a
  /// sequence of the batch has. Throws Error (numerics) where the output is not finite. `progress`, if given,
  /// is called with the number of tokens drawn so far.
  std::vector<std::int32_t> sample(std::span<const std::int32_t> prompt, std::int64_t count, double temperature,
                                   std::uint64_t seed, const std::function<void(std::int64_t)>& progress = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::models
