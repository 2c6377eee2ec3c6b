#pragma once
// How two things are timed against each other where the machine's speed changes from second to second (a shared
// memory bus, a drive): in short slices that alternate, many of them, and never one whole run after the other.
#include <cstdint>
#include <functional>
#include <vector>

namespace spillway::cli {

/// Does its work once on the piece with that number.
using Slice = std::function<void(std::int64_t piece)>;

/// The median and the quartiles are those of the sorted values, interpolated linearly between neighbours.
struct Ratio {
  double median = 0;
  double spread = 0;  ///< (75th percentile - 25th percentile) / median
};

/// In one round stand the subject A and the reference B, and beside them, as a control, B against itself:
///   A B  B B'  B A  B' B
/// and where there is a rival R, after that A R and R A. Each two neighbours are a pair; the pairs of A and B
/// are taken in either order by turns (A B B A), so that neither a drift nor what one leaves behind for the
/// next favours a side.
struct Comparison {
  double subject_seconds = 0;    ///< median over the slices of A
  double reference_seconds = 0;  ///< median over the slices of B in those pairs
  Ratio ratio;          ///< of seconds of B / seconds of A, taken pair by pair: A's speed as a share of B's
  Ratio against_rival;  ///< of seconds of R / seconds of A, likewise: A's speed in units of R's; 0 without R
  Ratio control;  ///< of seconds of B / seconds of B', likewise: 1 and no spread on a machine without noise
  std::int64_t slices = 0;  ///< of A, and so many of each of B, and of B and B' of the control
};

struct SliceLimits {
  double seconds = 3;        ///< at least, all slices together
  std::int64_t slices = 24;  ///< at least, of A; both have to be reached
};

/// The work is cut in `pieces` of one size, numbered from 0. A pair takes two pieces that are half of them
/// apart, and the pairs walk over all pieces, so that nearly all others are used before a piece is used again:
/// it is in no cache then, if they are larger than the caches together. With fewer than four pieces that cannot
/// be. Before the timing all are run once on each piece. `progress`, where given, is called between rounds
/// with the share that is done.
/// std::logic_error for less than one piece. Whatever the slices throw is thrown.
Comparison compare(const Slice& subject, const Slice& reference, std::int64_t pieces, const SliceLimits& limits,
                   const std::function<void(double done)>& progress = {}, const Slice& rival = {});

/// share in [0, 1]: 0.5 is the median. std::logic_error for no values.
double quantile(std::vector<double> values, double share);
Ratio ratio_of(const std::vector<double>& values);

}  // namespace spillway::cli
