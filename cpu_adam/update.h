#pragma once
// The optimizer's update: one fused pass over gradient and planes (D6). A plain function of its arguments; its
// bits depend on no ISA, thread count or position in a chunk (core/update.h has the formula).
#include "../core/update.h"
#include "isa.h"
#include "planes.h"

#include <cstdint>
#include <span>

namespace spillway {
class Workers;
}

namespace spillway::cpu_adam {

/// Updates n elements in place on the calling thread, subnormals kept whatever the caller's floating-point
/// state. Returns true where a master weight, its bf16 half or a second moment became non-finite, as they do
/// after a non-finite gradient: the run cannot go on. All elements are written all the same; where one is NaN,
/// its payload may differ between ISAs.
/// std::logic_error for a negative n, null planes or a gradient type other than bf16 and fp32;
/// Error(configuration) for an ISA that this processor lacks.
bool update(Isa isa, const Planes& planes, Gradient gradient, std::int64_t n,
            const AdamCoefficients& coefficients);

/// A range of a chunk whose elements share the settings of one parameter group.
struct UpdateSegment {
  std::int64_t offset = 0;  ///< first element, counted from the start of planes and gradient
  std::int64_t count = 0;
  AdamCoefficients coefficients;
};

/// Elements of one piece of work: its planes and gradient stay within a second-level cache.
inline constexpr std::int64_t kUpdateBlock = 16384;

/// Updates the segments, spread over the workers in blocks of kUpdateBlock; elements outside every segment
/// (frozen parameters, padding) are neither read nor written. Segments ascend and do not overlap
/// (std::logic_error). Returns what update() returns, over all of them.
bool update(Isa isa, Workers& workers, const Planes& planes, Gradient gradient,
            std::span<const UpdateSegment> segments);

}  // namespace spillway::cpu_adam
