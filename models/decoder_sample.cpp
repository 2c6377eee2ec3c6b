// Drawing a continuation, in the memory that training uses.
#include "../core/error.h"
#include "../core/random.h"
#include "decoder_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace spillway::models {
namespace {

std::vector<double> to_double(std::span<const std::byte> bytes, DType type) {
  std::vector<double> values(bytes.size() / static_cast<std::size_t>(size_of(type)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type == DType::fp32) {
      float value;
      std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
      values[i] = static_cast<double>(value);
    } else {
      BFloat16 value;
      std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
      values[i] = static_cast<double>(to_float(value));
    }
  }
  return values;
}

/// The class at `place` in [0, 1) of softmax(logits / temperature) laid end to end; the first of the largest at
/// temperature 0.
std::int32_t draw(std::vector<double> logits, double temperature, double place) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (!std::all_of(logits.begin(), logits.end(), [](double x) { return std::isfinite(x); })) {
    throw Error(ErrorKind::numerics, "the model's output is not finite; nothing can be sampled from it");
  }
  if (temperature == 0) return static_cast<std::int32_t>(largest - logits.begin());
  const double top = *largest;
  double sum = 0;
  for (double& x : logits) sum += (x = std::exp((x - top) / temperature));
  double left = place * sum;
  std::int32_t last_possible = 0;  // where rounding leaves something over
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] <= 0) continue;
    last_possible = static_cast<std::int32_t>(i);
    if (left < logits[i]) break;
    left -= logits[i];
  }
  return last_possible;
}

}  // namespace

std::vector<std::int32_t> Decoder::sample(std::span<const std::int32_t> prompt, std::int64_t count,
                                          double temperature, std::uint64_t seed,
                                          const std::function<void(std::int64_t)>& progress) {
  if (prompt.empty()) throw std::logic_error("Decoder::sample: the prompt is empty");
  if (count < 0 || !(temperature >= 0) || !std::isfinite(temperature)) {
    throw std::logic_error("Decoder::sample: count and temperature must not be negative");
  }
  State& s = *state_;
  s.check_tokens(prompt);
  const DType type = s.operations->type();
  const std::int64_t hidden = s.config.hidden;
  const std::vector<std::int64_t> lengths = sampling_lengths(s.batch);
  const RandomStream random{.seed = seed, .stream = kSamplingStream};

  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  for (std::int64_t drawn = 0; drawn < count; ++drawn) {
    // What was read last stands at the end of the context. Padding behind it changes nothing before it:
    // attention is causal.
    const auto used = std::min(static_cast<std::int64_t>(text.size()), lengths.back());
    const std::int64_t length = *std::lower_bound(lengths.begin(), lengths.end(), used);
    std::vector<std::int32_t> context(text.end() - used, text.end());
    context.resize(static_cast<std::size_t>(length), 0);
    s.reserve_host(1);
    s.upload({.tokens = context, .targets = {}}, 0, 0);
    s.residual.begin(false);
    s.forward({1, length}, 1);

    {
      const UnitView view = s.engine.gather(s.final_unit);
      const auto* const outputs = static_cast<const std::byte*>(s.residual.read(s.config.layers, 0));
      s.operations->layer_norm(s.at(s.memory.added), s.at<float>(s.memory.mean),
                               s.at<float>(s.memory.inverse_deviation),
                               outputs + (used - 1) * hidden * size_of(type), view.parameter(s.final_weight),
                               view.parameter(s.final_bias), 1, hidden, s.config.epsilon, s.final_unit);
    }
    {
      const UnitView view = s.engine.gather(s.embedding_unit);
      s.operations->linear(s.at(s.memory.logits), s.at(s.memory.added), view.parameter(s.token_table), nullptr,
                           {1, hidden, s.config.vocabulary}, s.embedding_unit);
    }
    s.compute.copy(s.host_logits.data(), s.at(s.memory.logits), static_cast<std::int64_t>(s.host_logits.size()),
                   "logits");
    s.copied = s.compute.record();
    s.copied.wait();
    s.device.check();
    const double place = random.uniform(text.size());
    text.push_back(draw(to_double(s.host_logits, type), temperature, place));
    if (progress) progress(drawn + 1);
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace spillway::models
