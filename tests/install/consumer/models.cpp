// One step of a decoder: what links to the models links to everything.
#include <cmath>
#include <cstdint>
#include <vector>

#include <spillway/core/communicator.h>
#include <spillway/core/host_device.h>
#include <spillway/models/decoder.h>
#include <spillway/offload/engine.h>

int main() {
  const auto decoder = spillway::models::parse_decoder_config(
      R"({"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 64})",
      "consumer");
  const spillway::models::DecoderRun run{.batch = {.sequences = 1, .length = 16}};
  const spillway::Config config;
  spillway::HostDevice device({});
  spillway::SingleRankCommunicator communicator;
  spillway::Engine engine(config, spillway::models::decoder_layout(decoder, run), device, communicator);
  spillway::models::Decoder model(decoder, run, device, engine);
  model.initialize(1);
  const std::vector<std::int32_t> tokens(16, 7);
  engine.begin_step({.groups = {{}, {}}});
  const double loss = model.train(tokens, tokens);
  engine.step().wait();
  return std::abs(loss - std::log(64.0)) < 1.0 ? 0 : 1;
}
