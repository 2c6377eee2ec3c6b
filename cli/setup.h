#pragma once
// From what was typed to what will be run: the configuration with every value settled, the model, the layout,
// and what the machine leaves to it. Nothing is allocated here.
#include "../core/config.h"
#include "../models/decoder.h"
#include "../offload/layout.h"
#include "../offload/plan.h"
#include "train.h"

#include <optional>
#include <string>

namespace spillway::cli {

struct Setup {
  Config config;  ///< nothing left open; what was settled here stands in `assumed`
  models::DecoderConfig model;
  models::Batch batch;
  models::DecoderRun run;
  Layout layout;
  Limits limits;  ///< of the configuration and the machine

  std::int64_t tokens_a_step() const { return batch.tokens() * config.accumulation; }
};

/// What of the machine a run may use, where nobody has said it: threads and memory.
void settle_machine(Config& config, Limits& limits);

/// Throws Error for everything that is wrong with it, short of what does not fit.
Setup prepare(const TrainOptions& options);

/// The placement that fits and moves the least, on a drive that is still to be named if it must be; nothing
/// where none fits.
std::optional<Config> cheapest_that_fits(const Setup& setup);
/// The flags that choose it, with "--nvme-path DIR" where the directory is still to be named.
std::string flags_of(const Setup& setup, const Config& placement);

/// Throws Error (resources) with the placement that fits, where the one chosen does not.
void check_fits(const Setup& setup);

}  // namespace spillway::cli
