#pragma once
// The learning rate of a step.
#include "config.h"

#include <cstdint>

namespace spillway {

/// The rate for the update after `updates` updates have been made (0 at the first step; a skipped step does not
/// count). `base` is the optimizer's rate: that of a constant schedule, and what WarmupCosineLR's ratios
/// multiply. The formulas are those of DeepSpeed's runtime/lr_schedules.py with last_batch_iteration = updates.
/// With w = max(2, warmup_steps), t = updates and the warm-up g(t) = log(t + 1) / log(w), or t / w where it is
/// linear:
///   WarmupLR        minimum + (maximum - minimum) g(t) while t < w, then maximum
///   WarmupDecayLR   the same, then minimum + (maximum - minimum) max(0, (total - t) / max(1, total - w))
///   WarmupCosineLR  base (r0 + (1 - r0) g(t)) while t < w, then
///                   base (r1 + (1 - r1) (1 + cos(pi (t - w + 1) / (total - w))) / 2)
/// A cosine that has reached its end stays there (DeepSpeed's would rise again). DeepSpeed's engine moves its
/// scheduler after each update, from -1 on, and so makes its second update with t = 0 too: it is one update
/// behind.
double learning_rate(const ScheduleConfig& schedule, double base, std::int64_t updates);

}  // namespace spillway
