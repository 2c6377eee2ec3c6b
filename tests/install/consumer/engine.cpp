// The engine beside headers of the consumer's own that have the names of Spillway's.
#include "aio/queue.h"

#include <cstdint>
#include <span>

#include <spillway/aio/queue.h>
#include <spillway/core/communicator.h>
#include <spillway/core/host_device.h>
#include <spillway/offload/engine.h>
#include <spillway/offload/weights_hash.h>

#ifndef CONSUMER_ERROR_H
#error "the consumer's own core/error.h was not found"
#endif

int main() {
  const aio::Queue own;
  spillway::Config config;
  config.optimizer_tier = spillway::Tier::host;
  spillway::HostDevice device({});
  spillway::SingleRankCommunicator communicator;
  spillway::Engine engine(config, spillway::Layout({{"unit", {{"weight", {1000}}}}}), device, communicator);
  const auto value = static_cast<float>(own.last.code);
  engine.load(0, [&](std::int64_t, std::span<float> values) {
    for (float& x : values) x = value;
  });
  bool is_right = true;
  engine.read(0, [&](std::int64_t, std::span<const float> values) {
    for (const float x : values) is_right = is_right && x == value;
  });
  return is_right ? 0 : 1;
}
