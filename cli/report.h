#pragma once
// What `spillway train` says before and after training, as text and as JSON.
#include "../core/plan.h"
#include "../models/token_data.h"
#include "../offload/engine.h"
#include "setup.h"
#include "step_floor.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace spillway::cli {

/// All that a run is.
struct RunSetting {
  const Setup& setup;
  const Engine& engine;
  const models::TokenData& data;
  const models::TokenData* eval_data = nullptr;
};

/// All that came out of it.
struct RunResult {
  double loss_first = 0, loss_last = 0;  ///< nats, mean over the first and the last step's micro-batches
  std::optional<double> eval_loss;       ///< nats, after the last step
  double seconds = 0;                    ///< of all steps, the last update included, evaluation not
  LaneTimes lanes;          ///< the mean of all steps but the first, which learns the order of calls
  StepFloor floor;          ///< of those
  EngineCounters counters;  ///< after the last step
  std::string weights_xxh3;
  std::string sample;     ///< as printable() made it
  std::string no_sample;  ///< why there is none; empty where there is one
};

/// Model, data, training, places, and what was assumed and noted. `data` may be null; `io` is how the drive is
/// used, where that is known.
std::string description(const Setup& setup, const models::TokenData* data, const models::TokenData* eval_data,
                        const std::optional<IoReport>& io = std::nullopt);
/// What a plan needs by tier and name.
std::string plan_block(const Setup& setup, const Plan& plan);
std::string end_block(const RunSetting& setting, const RunResult& result);
/// A list with one row, as text.
std::string json_report(const RunSetting& setting, const RunResult& result);

/// "host", "nvme (/mnt/a, /mnt/b)".
std::string place(Tier tier, const std::vector<std::string>& paths);
/// "io_uring, registered files and memory, up to 64 operations of 1 MiB at a time".
std::string io_text(const Config& config, const IoReport& io);
nlohmann::json io_json(const IoReport& io);
/// Seconds by the names of the lanes, and "other" where that is given.
nlohmann::json lanes_json(const std::array<double, kLanes>& seconds,
                          std::optional<double> other = std::nullopt);
/// "name        text", broken at spaces where it is long.
std::string entry(std::string_view name, std::string_view text);
/// What every row begins with: version, command, the resolved configuration, the machine.
nlohmann::json row_of(const Setup& setup, std::string_view command);
nlohmann::json planned_by_name(const TierPlan& plan);
/// A list with one row as text; names of files need not be UTF-8.
std::string list_of(nlohmann::json row);

}  // namespace spillway::cli
