// One hash for a training, wherever its state lies and however many threads work on it (D9).
#include "../../core/communicator.h"
#include "../../core/host_device.h"
#include "../../cpu_adam/isa.h"
#include "../../models/decoder.h"
#include "../../offload/engine.h"
#include "../../offload/weights_hash.h"
#include "decoder_rig.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::models {
namespace {

struct Choice {
  Tier parameters = Tier::device, optimizer = Tier::device;
  int micro_batches = 1;
  double clip = 0;
  int update_threads = 1, device_threads = 1;
  cpu_adam::Isa isa = cpu_adam::Isa::scalar;
  StateFormat format = StateFormat::fp32;

  std::string name() const {
    return "parameters " + std::string(name_of(parameters)) + ", optimizer " + std::string(name_of(optimizer)) +
           ", micro-batches " + std::to_string(micro_batches) + ", clip " + std::to_string(clip) +
           ", threads " + std::to_string(update_threads) + "+" + std::to_string(device_threads) + ", " +
           std::string(cpu_adam::name_of(isa)) + ", " + std::string(name_of(format));
  }
};

constexpr DecoderConfig kDecoder{
    .layers = 2, .heads = 2, .hidden = 64, .positions = 24, .vocabulary = 96, .inner = 256};
constexpr Batch kBatch{.sequences = 2, .length = 24};

std::string train(const Choice& choice, int steps) {
  setenv("SPILLWAY_ISA", std::string(cpu_adam::name_of(choice.isa)).c_str(), 1);
  Config config;
  config.parameter_tier = choice.parameters;
  config.optimizer_tier = choice.optimizer;
  const char* directory = std::getenv("SPILLWAY_TEST_DIR");
  config.parameter_nvme_paths = config.optimizer_nvme_paths = {directory != nullptr ? directory : "."};
  config.accumulation = choice.micro_batches;
  config.gradient_clipping = choice.clip;
  config.update_threads = choice.update_threads;
  config.state_format = choice.format;
  config.device_threads = choice.device_threads;
  const DecoderRun run = decoder_run(kDecoder, kBatch, config);
  HostDevice device({.threads = choice.device_threads});
  SingleRankCommunicator communicator;
  Engine engine(config, decoder_layout(kDecoder, run), device, communicator);
  Decoder decoder(kDecoder, run, device, engine);
  decoder.initialize(7);
  std::uint32_t stream = 0;
  for (int step = 0; step < steps; ++step) {
    engine.begin_step({Rig::groups(), choice.micro_batches});
    for (int i = 0; i < choice.micro_batches; ++i, stream += 2) {
      decoder.train(tokens_of(stream, kBatch.tokens(), kDecoder.vocabulary),
                    tokens_of(stream + 1, kBatch.tokens(), kDecoder.vocabulary));
    }
    const StepResult result = engine.step().wait();
    EXPECT_FALSE(result.skipped);
    EXPECT_GT(result.gradient_norm, choice.clip) << "the clip has nothing to do";
  }
  unsetenv("SPILLWAY_ISA");
  return weights_xxh3(engine);
}

// Every placement with every number of micro-batches and either clip in the state format fp32, and once in each
// of the others; thread counts and instruction sets change
// along so that each meets each. SPILLWAY_FULL_GRID=1 runs all combinations.
TEST(DecoderPlacements, GiveOneHash) {
  const bool full = std::getenv("SPILLWAY_FULL_GRID") != nullptr;
  const auto isas = cpu_adam::supported_isas();
  const int isa_count = static_cast<int>(isas.size());
  std::vector<std::string> hashes;
  for (const StateFormat format : {StateFormat::fp32, StateFormat::bf16, StateFormat::compact8}) {
    for (const int micro_batches : {1, 3}) {
      for (const double clip : {0.0, 0.25}) {
        if (format != StateFormat::fp32 && !full && (micro_batches == 1 || clip == 0)) continue;
        std::string expected;
        int run = 0;
        for (const Tier parameters : kTiers) {
          for (const Tier optimizer : kTiers) {
            const int variants = full ? 9 * isa_count : 1;
            for (int variant = 0; variant < variants; ++variant, ++run) {
              const int threads = full ? variant / isa_count : run + run / 3;
              const Choice choice{parameters,
                                  optimizer,
                                  micro_batches,
                                  clip,
                                  1 + threads % 3,
                                  1 + (full ? threads / 3 : run + micro_batches) % 3,
                                  isas[static_cast<std::size_t>((full ? variant : run / 3) % isa_count)],
                                  format};
              const std::string hash = train(choice, 20);
              if (expected.empty()) expected = hash;
              ASSERT_EQ(hash, expected) << choice.name();
            }
          }
        }
        hashes.push_back(expected);
      }
    }
  }
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_NE(hashes[i], hashes[j]) << "what should change the weights does not";
  }
}

}  // namespace
}  // namespace spillway::models
