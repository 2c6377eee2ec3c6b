#pragma once
// A line of JSON for every step, readable while the run goes on.
#include "../core/lane_times.h"
#include "step_floor.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

namespace spillway::cli {

struct StepMetrics {
  std::int64_t step = 0;   ///< from 1
  std::int64_t epoch = 0;  ///< of the data, from 0: that of the step's first sequence
  double loss = 0;         ///< nats
  double gradient_norm = 0;
  bool skipped = false;
  double learning_rate = 0;
  std::int64_t tokens = 0;  ///< of the step
  double seconds = 0;       ///< of the step, evaluation not included
  LaneTimes lanes;
  StepFloor floor;                  ///< of those
  std::optional<double> eval_loss;  ///< nats, where it was measured after this step
};

class Metrics {
 public:
  /// Creates or empties the file; an empty path: no metrics. Throws Error (io).
  explicit Metrics(const std::string& path);

  bool wanted() const { return file_ != nullptr; }
  /// Writes and flushes one line. Throws Error (io).
  void add(const StepMetrics& metrics);

 private:
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace spillway::cli
