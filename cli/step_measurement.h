#pragma once
// What `spillway bench step` measures: steps of the engine in their steady state, by turns with the parts of a
// step done alone, which are the floor that it is held against. docs/step.md defines the figures.
#include "../core/config.h"
#include "../core/lane_times.h"
#include "../offload/engine.h"
#include "slices.h"
#include "step_floor.h"
#include "step_model.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::cli {

class OutputFile;

/// All settled.
struct StepTask {
  Config config;
  StepModelShape shape;
  double copy_bandwidth = 0;  ///< bytes/s of each direction between host and device; 0: as fast as memory
  int block = 2;              ///< consecutive steps that are timed together
  int pairs = 7;              ///< of a block and the parts alone, at least
  double seconds = 0;         ///< of all pairs, at least
};

/// One pair, in seconds of one step.
struct StepSample {
  double step = 0;
  double transfers = 0;  ///< what an update moves on NVMe, alone
  double adam = 0;       ///< Adam alone
};

/// What the steps between two moments in which everything had landed have moved on NVMe.
struct StepBytes {
  std::int64_t steps = 0;
  std::int64_t read = 0, written = 0;                ///< as the engine counts
  std::int64_t kernel_read = 0, kernel_written = 0;  ///< as /proc/self/io does
  double read_per_step() const;
  double written_per_step() const;
};

/// With the medians over the pairs of
///   drive   = seconds of the transfers x bytes that a step moves on NVMe / bytes of the transfers
///   floor   = step_floor() of that pair's drive and adam, and of the computing that was asked for
///   of_floor = floor / step
struct StepFigures {
  double first_step = 0;  ///< seconds, its update included
  double step = 0, drive = 0, adam = 0, floor = 0;
  double compute = 0, forward = 0;  ///< seconds that the model computes, without anything else
  std::string_view bound;           ///< of the median floor
  Ratio of_floor;
  std::optional<Ratio> control;  ///< floors of neighbouring pairs against one another: 1 without noise
  std::int64_t pairs = 0;
  LaneTimes lanes;         ///< mean of a timed step
  double cpu_seconds = 0;  ///< of a timed step, all threads
  StepBytes bytes;
  bool kernel_counts = false;                      ///< /proc/self/io says something about this file system
  double expected_read = 0, expected_written = 0;  ///< bytes of a step by the format and the placement
  std::optional<IoReport> io;
  std::int64_t host_peak = 0, host_plan = 0, device_peak = 0, device_plan = 0;
  std::string weights_xxh3;  ///< of the verified run
  std::int64_t verified_parameters = 0, verified_steps = 0;
};

/// The figures from the samples. `moved`: bytes on NVMe of a step over those of the transfers.
void summarize(StepFigures& figures, const Config& config, const std::vector<StepSample>& samples,
               double moved);

/// Whether the counted bytes are those expected, within two hundredths, and a few MiB in all
/// that the program itself may have read.
bool bytes_agree(double counted, double expected, std::int64_t steps);

/// Runs, measures and verifies: the weights at the end are those of the same steps with everything on the
/// device (of a smaller model where that does not fit), and the bytes those of the format. Throws Error
/// (numerics) and (io) where they are not, and whatever the engine throws. `say_progress` is called often;
/// `say_start` once, when everything is reserved. The trace is written to `trace_file`, where that is wanted.
StepFigures measure_steps(const StepTask& task, const OutputFile& trace_file,
                          const std::function<void(const Engine&)>& say_start,
                          const std::function<void(const std::string&)>& say_progress);

}  // namespace spillway::cli
