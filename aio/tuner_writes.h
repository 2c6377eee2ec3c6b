#pragma once
// Whether writes without a pause fall, because a cache of the drive is full.
#include "tuner_trials.h"

#include <vector>

namespace spillway::aio {

/// Writes, with short looks at reads between them: the drive as a whole may change its speed too.
class SustainedWrites {
 public:
  /// Fills result.sustained. Both must outlive this.
  SustainedWrites(Trials& trials, double seconds_a_trial, TuneResult& result)
      : trials_(trials), seconds_(seconds_a_trial), result_(result), found_(result.sustained) {}
  void begin_with(const TuneSetting& setting) { setting_ = setting; }

  /// Until `end`, in seconds since the search began.
  void look_first(double end);
  /// Whether they have fallen since then.
  void look_again(double end);

 private:
  void update_thirds(const std::vector<double>& log_rates);

  Trials& trials_;
  double seconds_;
  TuneResult& result_;
  SustainedFinding& found_;
  TuneSetting setting_;
  std::vector<double> at_first_;  ///< logarithms of writes against reads
};

}  // namespace spillway::aio
