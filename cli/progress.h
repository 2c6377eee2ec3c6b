#pragma once
// How far a training run is: one line kept up to date on a terminal, a table with few rows elsewhere.
#include "step_floor.h"
#include "terminal_line.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace spillway::cli {

struct StepStatus {
  std::int64_t step = 0;  ///< from 1
  double loss = 0;        ///< nats
  double gradient_norm = 0;
  bool skipped = false;
  double of_floor = 0;                 ///< the floor of a step over its time, of the steps so far but the first
  std::string_view bound;              ///< the lane that bounds them
  std::array<std::int64_t, 3> used{};  ///< bytes of each tier, in the order of kTiers
};

class Progress {
 public:
  /// flops_a_token: of training, for the rate that is shown. limits: bytes each tier may use, negative for
  /// none. Times count from here.
  Progress(std::int64_t steps, std::int64_t tokens_a_step, double flops_a_token,
           std::array<std::int64_t, 3> limits);
  void show(const StepStatus& status);
  /// A line of its own that stays, above the progress line.
  void note(std::string_view line);
  /// The progress line, for passing remarks in its place.
  TerminalLine& line() { return line_; }

  /// What runs while this lives, evaluation for example, does not count as time of the steps.
  class Pause {
   public:
    explicit Pause(Progress& progress) : progress_(progress), begin_(std::chrono::steady_clock::now()) {}
    ~Pause() { progress_.begin_ += std::chrono::steady_clock::now() - begin_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Progress& progress_;
    std::chrono::steady_clock::time_point begin_;
  };
  double seconds() const;  ///< since the construction, without the pauses

 private:
  std::string bar_line(const StepStatus& status) const;
  std::string row(const StepStatus& status) const;
  double tokens_per_second(std::int64_t step) const;
  double seconds_left(std::int64_t step) const;

  std::int64_t steps_, tokens_a_step_;
  double flops_a_token_;
  std::array<std::int64_t, 3> limits_;
  TerminalLine line_;
  std::chrono::steady_clock::time_point begin_, last_shown_;
  std::int64_t last_step_shown_ = 0;
};

}  // namespace spillway::cli
