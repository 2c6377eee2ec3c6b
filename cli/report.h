#pragma once
// What `spillway train` says before and after training, as text and as JSON.
#include "../core/config.h"
#include "../core/plan.h"
#include "../models/decoder.h"
#include "../offload/engine.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace spillway::cli {

/// All that a run is.
struct RunSetting {
  const Config& config;
  const models::DecoderConfig& model;
  const Engine& engine;
  std::vector<std::string> data_files;
  std::int64_t data_bytes = 0;
  double unigram_entropy = 0;  ///< nats

  std::int64_t tokens_a_step() const;
};

/// All that came out of it.
struct RunResult {
  double loss_first = 0, loss_last = 0;  ///< nats, mean over the first and the last step's micro-batches
  double seconds = 0;                    ///< of all steps, the last update included
  EngineCounters counters;               ///< after the last step
  std::string weights_xxh3;
  std::string sample;     ///< as printable() made it
  std::string no_sample;  ///< why there is none; empty where there is one
};

/// The bytes that a tier may use, negative for no limit: what Config says, none for NVMe.
std::int64_t limit_of(const Config& config, Tier tier);

std::string start_block(const RunSetting& setting);
std::string end_block(const RunSetting& setting, const RunResult& result);
/// A list with one row, as text.
std::string json_report(const RunSetting& setting, const RunResult& result);

}  // namespace spillway::cli
