#pragma once
// The trials of a search: each setting's speed against that of a reference, measured just before and just
// after.
#include "tuner.h"

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway::aio {

/// A setting and the logarithms of its speed against the reference's.
struct Arm {
  TuneSetting setting;
  std::vector<double> coarse = {};  ///< against the first reference
  std::vector<double> paired = {};  ///< against the best of the coarse ones
  double cpu_seconds = 0;
  std::int64_t bytes = 0;
  int trials = 0;
};

struct Trial {
  double log_rate = 0;
  double at = 0;        ///< its middle, in seconds since the search began
  bool usable = false;  ///< moved something
};

class Trials {
 public:
  /// Thrown before a trial where the drive says that it is over.
  struct Stopped {};

  /// `result` gets the counts. All three must outlive this.
  Trials(const TuneDrive& drive, const TuneOptions& options, TuneResult& result);

  double elapsed() const { return drive_.now() - begin_; }
  double end_of(double share) const { return share * options_.seconds; }
  /// Whether so many trials end before `end`, or not much later.
  bool time_for(int trials, double seconds, double end) const;
  /// What a trial takes / what it was asked for: what is under way has to land.
  double longer() const { return longer_; }
  void begin_stage(std::string_view stage) { stage_ = stage; }

  Trial take(const TuneSetting& setting, Traffic traffic, double seconds, Arm* arm = nullptr);

  void begin_with(const TuneSetting& reference);
  const TuneSetting& reference() const { return reference_; }
  /// Reference, the arms, reference: each arm's speed against the reference's at its moment, between the two,
  /// is added to the arm's `values`. (The last reference is the next one's first.) Where the two lie too far
  /// apart, the drive has changed its speed meanwhile, and nothing is added.
  /// `whatever`: then too.
  void visit(std::span<Arm* const> arms, double seconds, std::vector<double> Arm::*values,
             bool whatever = false);
  /// Visits all of them once, in a random order, as long as there is time. Returns whether there was.
  bool visit_all(std::vector<Arm*> arms, double seconds, double end, std::vector<double> Arm::*values);

  void shuffle(std::vector<Arm*>& arms);
  /// Of a visit, from how far the reference is off itself.
  NoisePrior noise() const;
  /// Logarithms of the reference's speed since it was last forgotten, and of each step to the next.
  const std::vector<double>& reference_rates() const { return rates_; }
  const std::vector<double>& reference_steps() const { return steps_; }
  void forget_rates() { rates_.clear(); }

 private:
  void take_reference(double seconds);
  double widest_step() const;

  const TuneDrive& drive_;
  const TuneOptions& options_;
  TuneResult& result_;
  std::mt19937_64 random_;
  double begin_;
  double longer_ = 1;
  std::string_view stage_;
  TuneSetting reference_;
  std::optional<Trial> last_reference_;
  std::vector<double> rates_, steps_;
};

}  // namespace spillway::aio
