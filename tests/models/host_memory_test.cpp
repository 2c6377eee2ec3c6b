// What the system says a process occupies, held against the plan: with everything on NVMe, more layers take
// more host memory by their gradients and by nothing else.
#include "../../core/communicator.h"
#include "../../core/host_device.h"
#include "../../models/decoder.h"
#include "../../offload/engine.h"
#include "decoder_rig.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SPILLWAY_SANITIZED 1
#else
#define SPILLWAY_SANITIZED 0
#endif

namespace spillway::models {
namespace {

struct Measured {
  std::int64_t resident = 0;  ///< bytes
  std::int64_t planned = 0;   ///< host and device: both are this process's memory here
  std::int64_t gradients = 0, records = 0;
};

std::int64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::int64_t kib = 0;
  while (status >> word) {
    if (word == "VmRSS:") status >> kib;
  }
  return kib * 1024;
}

Measured train(std::int64_t layers) {
  const DecoderConfig decoder{
      .layers = layers, .heads = 4, .hidden = 512, .positions = 32, .vocabulary = 128, .inner = 2048};
  const Batch batch{.sequences = 1, .length = 32};
  Config config;
  config.parameter_tier = config.optimizer_tier = Tier::nvme;
  const char* directory = std::getenv("SPILLWAY_TEST_DIR");
  config.parameter_nvme_paths = config.optimizer_nvme_paths = {directory != nullptr ? directory : "."};
  config.update_threads = 1;
  HostDevice device({.threads = 1});
  SingleRankCommunicator communicator;
  const DecoderRun run{.batch = batch};
  Engine engine(config, decoder_layout(decoder, run), device, communicator);
  Decoder model(decoder, run, device, engine);
  model.initialize(1);
  for (int step = 0; step < 2; ++step) {
    engine.begin_step({Rig::groups(), 1});
    model.train(tokens_of(1, batch.tokens(), 128), tokens_of(2, batch.tokens(), 128));
    engine.step().wait();
  }
  const Plan& plan = engine.plan();
  return {resident_bytes(), plan.host.total() + plan.device.total(), plan.host.bytes_of("gradients"),
          plan.nvme.bytes_of("optimizer records")};
}

/// In a process of its own, so that nothing of another run is counted.
Measured train_apart(std::int64_t layers) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    try {
      const Measured measured = train(layers);
      _exit(write(ends[1], &measured, sizeof measured) == sizeof measured ? 0 : 1);
    } catch (const std::exception& error) {
      std::fputs(error.what(), stderr);
      _exit(2);
    }
  }
  close(ends[1]);
  Measured measured;
  EXPECT_EQ(read(ends[0], &measured, sizeof measured), static_cast<ssize_t>(sizeof measured));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return measured;
}

TEST(HostMemory, GrowsWithTheLayersAsThePlanSays) {
  if (SPILLWAY_SANITIZED) GTEST_SKIP() << "a sanitizer's own memory would be counted";
  const Measured few = train_apart(4), many = train_apart(16);
  const auto resident = static_cast<double>(many.resident - few.resident);
  const auto planned = static_cast<double>(many.planned - few.planned);
  RecordProperty("resident_difference_bytes", std::to_string(many.resident - few.resident));
  RecordProperty("planned_difference_bytes", std::to_string(many.planned - few.planned));
  EXPECT_NEAR(resident, planned, 0.05 * planned);
  // The state is five times the gradients: were any plane of it there, this would not hold.
  EXPECT_GT(many.records - few.records, 4 * (many.gradients - few.gradients));
  EXPECT_NEAR(planned, static_cast<double>(many.gradients - few.gradients), 0.05 * planned);
}

}  // namespace
}  // namespace spillway::models
