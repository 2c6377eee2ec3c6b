#pragma once
// The optimizer's update: one fused pass over gradient and planes (D6). A plain function of its arguments; its
// bits depend on no ISA, thread count or position in a chunk (core/update.h and core/state_format.h have the
// formulas).
#include "../core/random.h"
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
/// state. `place` is that of the first element: the stochastic rounding of the state formats bf16 and compact8
/// is keyed by it, fp32 needs none. Returns true where a master weight, its bf16 half or the last moment became
/// non-finite (in the state format bf16: could be rounded to infinity), as they do after a non-finite gradient:
/// the run cannot go on. All elements are written all the same; where one is NaN, its payload may differ
/// between ISAs, and in compact8 so may the group of one that is NaN or infinite. std::logic_error for a
/// negative n, null planes (v may be null for Lion and SGD, which do not touch it), and on compact8 for a place
/// inside a group and an optimizer without a second moment; Error(configuration) for an ISA that this processor
/// lacks.
bool update(Isa isa, const Planes& planes, Gradient gradient, std::int64_t n,
            const UpdateCoefficients& coefficients, const RandomPlace& place = {});

/// A range of a chunk whose elements share the settings of one parameter group, and are of one parameter.
struct UpdateSegment {
  std::int64_t offset = 0;  ///< first element, counted from the start of planes and gradient; of compact8 a
                            ///< multiple of 32
  std::int64_t count = 0;
  UpdateCoefficients coefficients;
  RandomPlace place;  ///< of the first element
};

/// Elements of one piece of work: its planes and gradient stay within a second-level cache.
inline constexpr std::int64_t kUpdateBlock = 16384;

/// Updates the segments, spread over the workers in blocks of kUpdateBlock; elements outside every segment
/// (frozen parameters, padding) are neither read nor written, but in compact8 a segment's last group has its
/// scales to itself. Segments ascend and do not overlap (std::logic_error). Returns what update() returns, over
/// all of them.
bool update(Isa isa, Workers& workers, const Planes& planes, Gradient gradient,
            std::span<const UpdateSegment> segments);

}  // namespace spillway::cpu_adam
