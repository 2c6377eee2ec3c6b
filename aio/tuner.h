#pragma once
// Searches the settings that move an offloaded step's bytes fastest, on a drive whose speed changes from second
// to second: many short interleaved trials, each held against a reference measured beside it, intervals instead
// of maxima, and the cheapest of those settings that are as good as the best. docs/tuning.md explains it.
#include "measure.h"
#include "tuner_statistics.h"

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace spillway::aio {

struct TuneSetting {
  std::int64_t block_bytes = default_block_bytes;
  unsigned depth = 32;
  IoEngine engine = IoEngine::io_uring;
  bool overlap = true;  ///< reads and writes at the same time; else by turns

  /// What is under way at most, and must be held in memory.
  std::int64_t memory_bytes() const { return block_bytes * static_cast<std::int64_t>(depth); }
  Traffic traffic() const { return overlap ? Traffic::mixed : Traffic::alternating; }
  bool operator==(const TuneSetting&) const = default;
};

struct TuneProgress {
  std::string_view stage;  ///< "sustained writes", "engine and overlap", "all settings", ...
  double done = 0;         ///< share of the time
  double seconds_left = 0;
  double bytes_per_s = 0;  ///< of the last trial
};

/// What is tuned, and how time passes there.
struct TuneDrive {
  /// Moves bytes for about that long. What it throws ends the search and is thrown on.
  std::function<Sample(const TuneSetting&, Traffic, double seconds)> sample;
  std::function<double()> now;  ///< seconds on a steady clock
  /// Asked before every trial; true ends the search with what it has. May be empty, as may be `progress`.
  std::function<bool()> stopped = {};
  std::function<void(const TuneProgress&)> progress = {};
};

struct TuneOptions {
  std::vector<std::int64_t> block_sizes = {64 << 10, 128 << 10, 256 << 10, 512 << 10,
                                           1 << 20,  2 << 20,   4 << 20,   8 << 20};
  std::vector<unsigned> depths = {1, 2, 4, 8, 16, 32, 64, 128};
  std::vector<IoEngine> engines = {IoEngine::io_uring, IoEngine::posix};  ///< never automatic
  /// Settings with more under way are not tried.
  std::int64_t most_memory_bytes = std::int64_t{128} << 20;
  double seconds = 60;      ///< for everything
  double tolerance = 0.02;  ///< settings within this of the best count as good as it
  std::uint64_t seed = 1;   ///< of the order of trials
};

/// What is known of a setting.
struct TuneEstimate {
  TuneSetting setting;
  double bytes_per_s = 0;    ///< read and written
  double low = 0, high = 0;  ///< 95% interval, of the setting against the others: the drive's drift is out
  double of_best = 0;        ///< bytes_per_s as a share of the best's
  double cpu_s_per_gb = 0;   ///< of 10^9 bytes
  int trials = 0;
  bool finalist = false;  ///< was measured side by side with the best
};

enum class OverlapVerdict : std::uint8_t { helps, no_difference, hurts, unknown };
std::string_view name_of(OverlapVerdict verdict);  ///< "helps", "no difference", "hurts", "unknown"

/// Reads and writes at the same time against reads and writes by turns.
struct DuplexFinding {
  Estimate ratio = {};  ///< bytes a second of the one / of the other; 2 on a drive that is wholly full duplex
  OverlapVerdict verdict = OverlapVerdict::unknown;
};

/// Writes without a pause, with short looks at reads between them: where reads slow down as much, it is no
/// cache that is full.
struct SustainedFinding {
  double first_bytes_per_s = 0, last_bytes_per_s = 0;  ///< of the first and the last third of the writes
  std::int64_t written_bytes = 0;                      ///< in all
  bool fell = false;  ///< writes against reads, surely, to less than three quarters
  /// Where they fell: after so many bytes, or, if `later`, after more than that, during the search.
  std::int64_t bytes_before_fall = 0;
  bool later = false;
  double fell_to = 1;  ///< writes against reads afterwards, as a share of before
};

struct TuneResult {
  bool complete = false;  ///< false: it was stopped before it had looked at all settings and at the finalists
  TuneSetting chosen;
  TuneSetting best;  ///< what `of_best` counts from
  /// Every setting that was tried, in no particular order; `chosen` is among them if there is any.
  std::vector<TuneEstimate> estimates;
  DuplexFinding duplex;
  SustainedFinding sustained;
  double noise = 0;   ///< (75th percentile - 25th) / median of a reference trial / the reference trial before
  int trials = 0;     ///< all, those of the reference included
  int put_aside = 0;  ///< of them, because the drive changed its speed meanwhile
  /// Cheaper than the chosen one, and perhaps as fast: the time did not suffice to tell.
  int undecided = 0;
  double seconds = 0;
  std::int64_t read_bytes = 0, written_bytes = 0;

  /// Null where that setting was not tried.
  const TuneEstimate* find(const TuneSetting& setting) const;
};

/// Takes `options.seconds` by the drive's clock, as far as trials keep to their time. std::logic_error for
/// options that leave nothing to try.
TuneResult tune(const TuneDrive& drive, const TuneOptions& options);

/// The cheapest of several settings that are equally fast, which is what a run should use. Cost is, in this
/// order: memory under way; CPU seconds a GB, where 10% more than the least counts as the least; io_uring
/// before posix; larger blocks, which are fewer operations. `settings` must not be empty.
TuneEstimate cheapest(std::vector<TuneEstimate> settings);

/// What several drives can do, each alone, in the order they are given: short slices by turns, A B C C B A.
/// Bytes a second, the median of the slices. `sample(path, seconds)` moves bytes on that one.
std::vector<double> compare_paths(std::size_t paths, double seconds,
                                  const std::function<Sample(std::size_t path, double seconds)>& sample,
                                  const std::function<bool()>& stopped = {});

}  // namespace spillway::aio
