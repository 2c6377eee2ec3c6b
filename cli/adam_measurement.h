#pragma once
// What `spillway bench adam` measures: the update of one state format, first held against the scalar reference
// bit by bit, then timed beside the floor of its memory traffic.
#include "../core/dtype.h"
#include "../core/state_format.h"
#include "../core/update.h"
#include "../cpu_adam/isa.h"
#include "../cpu_adam/planes.h"
#include "slices.h"

#include <cstdint>
#include <functional>
#include <string>

namespace spillway {
class Workers;
}

namespace spillway::cli {

/// One row of the benchmark. The weights are bf16, with the master's other bits in the record.
struct AdamCase {
  StateFormat format = StateFormat::fp32;
  Optimizer optimizer = Optimizer::adamw;
  DType gradient = DType::bf16;
  cpu_adam::Isa isa = cpu_adam::Isa::scalar;
};

/// Bytes that measure_adam() occupies: weights, gradient and record, and for a narrow format those of fp32 too.
std::int64_t occupied_bytes(const AdamCase& what, std::int64_t parameters);

/// The first place in n elements where two of one kind differ in any bit, "plane m, element 17"; empty where
/// there is none.
std::string first_difference(const cpu_adam::Planes& actual, const cpu_adam::Planes& expected, std::int64_t n);

/// Elements and steps of verify_adam().
inline constexpr std::int64_t kVerifiedElements = 100'003;
inline constexpr int kVerifiedSteps = 3;

/// Updates drawn values, an odd number of them whose planes are aligned to their elements only, in two segments
/// with a gap between them, a few steps: with the case's ISA on the workers, and with Isa::scalar on one
/// thread. Error (numerics) that names plane and element, where a bit of any plane differs.
void verify_adam(const AdamCase& what, Workers& workers);

/// How the array is divided for the slices. Each slice updates one section.
struct Sections {
  std::int64_t count = 0;
  std::int64_t parameters = 0;  ///< of each; what does not fill a last one is not timed
};
/// At least 4 Mi parameters in a section, so that it is beyond the second-level caches and a slice takes
/// milliseconds; four smaller sections where that gives fewer, and one where those were less than an update's
/// blocks.
Sections sections_of(std::int64_t parameters);

/// With bytes = cpu_adam::streamed_bytes of a section (each plane read and written, the gradient read),
///   bytes_per_parameter = bytes / parameters of a section
///   parameters_per_s    = parameters of a section / median seconds of a slice of the update
///   bytes_per_s         = parameters_per_s * bytes_per_parameter
///   floor_bytes_per_s   = bytes / median seconds of a slice of the floor
///   of_floor            = comparison.ratio.median
///   of_fp32             = comparison.against_rival.median: of parameters_per_s, in units of those of fp32
/// where the floor is cpu_adam::move_streams on the same memory and workers with the fastest ISA, and fp32 the
/// same optimizer and gradient in the state format fp32, in memory of its own.
struct AdamFigures {
  Sections sections;
  double bytes_per_parameter = 0, parameters_per_s = 0, bytes_per_s = 0, floor_bytes_per_s = 0;
  Comparison comparison;
};

/// Fills the planes with drawn values, each page first touched by the worker that updates it, and compares.
/// Error (resources) where the system has no memory, Error (numerics) where a weight becomes non-finite.
AdamFigures measure_adam(const AdamCase& what, Workers& workers, std::int64_t parameters,
                         const SliceLimits& limits, const std::function<void(double done)>& progress);

}  // namespace spillway::cli
