#pragma once
// A GPT-2 style decoder: learned positions, pre-normalisation with LayerNorm, GELU (tanh form), causal
// attention, the token embedding tied to the output. Backward passes are written by hand; what they need of a
// layer is kept, computed again from the layer's input, or that input is moved out and brought back: all with
// the same bits.
#include "../core/config.h"
#include "../core/dtype.h"
#include "../offload/layout.h"
#include "activation_choice.h"

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

/// How a decoder is run: what of a configuration it needs.
struct DecoderRun {
  Batch batch;
  DType precision = DType::bf16;
  int device_threads = 1;
  std::optional<std::vector<std::string>> no_decay = {};  ///< as Config::no_decay
  int at_once = 1;  ///< micro-batches that pass through a unit together before the next one is gathered
  ActivationChoice activations =
      {};  ///< nothing given: every layer keeps its input, and computes the rest again
};

/// The run that a configuration, its device_threads settled, asks for. What Config::activations leaves open is
/// chosen from device_memory (and host_memory, for what is moved there), less what the rest of the plan needs;
/// without limits everything is kept. `memory`: the limit of device and host memory together, where the
/// device's memory is the host's own; negative: none. A pure function.
DecoderRun decoder_run(const DecoderConfig& decoder, const Batch& batch, const Config& config,
                       std::int64_t memory = -1);

/// What the choice is made from, and what describe() takes.
ActivationChain decoder_chain(const DecoderConfig& decoder, const DecoderRun& run);

/// Units: "embedding" (wte, used twice: tied), "positions" (wpe), "layer.0" ..., "final" (ln_f). Parameter
/// names are Hugging Face's: "wte.weight", "h.0.attn.c_attn.weight", ... with weights stored [out, in]. Group 0
/// decays, group 1 (biases and norms) does not. The model's own memory on a host device with that many threads
/// ("activations", "scratch") is part of it, and so are the slots for what is moved out of it. Throws Error
/// (configuration) where the batch's length exceeds the model's positions, the batch 2^24 tokens, or the model
/// 2^45 parameters.
Layout decoder_layout(const DecoderConfig& config, const DecoderRun& run);

/// Floating-point operations of training on one token of a sequence of `length`: 6 for each weight of a matrix
/// product (2 forward, 4 backward; the tied table as the head, not as a lookup) and 12 * layers * hidden *
/// length for attention over the whole sequence. That is the convention of PaLM (Chowdhery et al.,
/// arXiv:2204.02311, appendix B): what is computed again in the backward pass does not count, nor do norms and
/// other vector loops.
double flops_per_token(const DecoderConfig& config, std::int64_t length);

/// What a model trains on at once: tokens[sequences * length] and the same number of next tokens.
struct MicroBatch {
  std::span<const std::int32_t> tokens, targets;
};

class Decoder {
 public:
  /// The engine must have been made with decoder_layout() of the same arguments; device and engine outlive the
  /// model.
  Decoder(const DecoderConfig& config, const DecoderRun& run, HostDevice& device, Engine& engine);
  ~Decoder();

  /// Weights from N(0, initializer_range^2), the two projections into the residual stream scaled by 1/sqrt(2
  /// layers); biases 0, norms 1. Each value follows from (seed, parameter, element) alone.
  void initialize(std::uint64_t seed);

  /// Forward and backward for micro-batches of a step; gradients of the mean loss of each are handed to the
  /// engine, those of one unit in their order. Returns the mean losses in nats, once they are known: the
  /// backward pass may still be running. As many as DecoderRun::at_once pass through the model together;
  /// results do not depend on it. Throws Error (configuration) for a token outside the vocabulary.
  std::vector<double> train(std::span<const MicroBatch> micro_batches);
  /// One micro-batch.
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
