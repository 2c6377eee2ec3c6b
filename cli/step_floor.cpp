#include "step_floor.h"

#include <cstddef>

namespace spillway::cli {

bool updates_wait(const Config& config) {
  return (config.gradient_clipping > 0 || config.check_finite) && !config.delayed_update;
}

StepFloor step_floor(double compute, double forward, bool updates_wait, std::span<const LaneWork> beside) {
  // While updates wait for all gradients, only the forward pass has something going on beside it.
  const double before = updates_wait ? compute - forward : 0;
  StepFloor floor{.seconds = compute - before, .bound = name_of(Lane::compute)};
  for (const LaneWork& work : beside) {
    if (work.seconds > floor.seconds) floor = {.seconds = work.seconds, .bound = work.name};
  }
  floor.seconds += before;
  return floor;
}

StepFloor step_floor(const LaneTimes& times, bool updates_wait) {
  // Compute comes first, and stands where another lane does no more.
  StepFloor before{.seconds = 0, .bound = name_of(Lane::compute)}, after = before;
  for (std::size_t i = 0; i < times.busy.size(); ++i) {
    const std::string_view lane = name_of(static_cast<Lane>(i));
    const double first = updates_wait ? times.forward[i] : 0;
    if (first > before.seconds) before = {first, lane};
    if (times.busy[i] - first > after.seconds) after = {times.busy[i] - first, lane};
  }
  return {.seconds = before.seconds + after.seconds,
          .bound = before.seconds > after.seconds ? before.bound : after.bound};
}

LaneTimes& operator+=(LaneTimes& sum, const LaneTimes& more) {
  for (std::size_t lane = 0; lane < sum.busy.size(); ++lane) {
    sum.busy[lane] += more.busy[lane];
    sum.forward[lane] += more.forward[lane];
    sum.exposed[lane] += more.exposed[lane];
  }
  sum.other += more.other;
  sum.seconds += more.seconds;
  return sum;
}

LaneTimes operator/(LaneTimes times, double steps) {
  for (std::size_t lane = 0; lane < times.busy.size(); ++lane) {
    times.busy[lane] /= steps;
    times.forward[lane] /= steps;
    times.exposed[lane] /= steps;
  }
  times.other /= steps;
  times.seconds /= steps;
  return times;
}

}  // namespace spillway::cli
