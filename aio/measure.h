#pragma once
// How fast a drive moves what an offloaded step moves: timed slices of traffic through a Queue, of which every
// byte is known, so that it can be verified outside the timing.
#include "queue.h"
#include "volume.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace spillway::aio {

enum class Traffic : std::uint8_t {
  read,
  write,
  mixed,        ///< as many bytes read as written, both at the same time
  alternating,  ///< as many bytes read as written, by turns: a phase of reads, then one of writes
};

/// How long operations took, in whole microseconds up to 16, and above in buckets 1/16 wide of their value.
class LatencyHistogram {
 public:
  void add(double seconds) noexcept;
  void add(const LatencyHistogram& other) noexcept;
  std::int64_t count() const noexcept { return count_; }
  /// In seconds, the middle of the bucket that holds it; share in [0, 1]. 0 where nothing was added.
  double quantile(double share) const noexcept;

 private:
  static constexpr std::size_t kBuckets = 16 * 40;  ///< microseconds up to 2^40
  std::array<std::uint32_t, kBuckets> buckets_{};
  std::int64_t count_ = 0;
};

/// Pieces of time in which a slice's course is kept.
inline constexpr double course_seconds = 0.05;

/// What one slice moved.
struct Sample {
  double seconds = 0;
  std::int64_t read_bytes = 0;
  std::int64_t written_bytes = 0;
  std::int64_t operations = 0;  ///< blocks
  double cpu_seconds = 0;  ///< user and system, of the whole process; the kernel's own workers included where
                           ///< they are charged to it
  LatencyHistogram latency = {};
  /// Bytes that landed in each course_seconds from the start on; the last one lasts shorter.
  std::vector<std::int64_t> course = {};

  double bytes_per_s() const {
    return seconds > 0 ? static_cast<double>(read_bytes + written_bytes) / seconds : 0;
  }
};

/// How a slice moves bytes.
struct MeasureSetting {
  std::int64_t block_bytes = default_block_bytes;
  unsigned depth = 32;
  IoEngine engine = IoEngine::automatic;
  bool sqpoll = false;
  bool iopoll = false;
};

/// A volume whose every word tells where it belongs (pattern.h), and the memory through which slices pass. Used
/// by one thread.
///
/// All members throw the errors of a Queue and of its transfers; the measurement may be used again then.
class Measurement {
 public:
  /// Takes the whole volume. `transfer_bytes` is what one call of the queue moves, cut into blocks there:
  /// the next multiple of the block that is measured.
  Measurement(Volume volume, std::int64_t transfer_bytes);
  ~Measurement();
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  /// Writes every extent once: first writes into reserved space are slower, and what is read must be known.
  /// With `keep`, a sample is looked at first, and a volume that was written before is left alone: one that
  /// holds the pattern wherever `traffic` reads, and anything but zeros wherever it only writes.
  /// `progress`, where given, is called with the share that is done.
  void prepare(bool keep, const std::function<void(double done)>& progress, Traffic traffic = Traffic::read);

  /// Makes the ring and the memory of a setting, so that the next run() has nothing left to do before its
  /// slice; report() is that ring's from then on. Nothing is moved: a drive's cache or credit is left as it is.
  void open(const MeasureSetting& setting);

  /// Walks on through the volume for that long, starting where the last slice ended: sequentially, at the end
  /// from the beginning again. Reads and writes use halves of the volume of their own where both happen, the
  /// writes the second. At every moment more is under way than the ring takes, as far as the volume has room.
  /// What was under way at the end is waited for, and counts, as does its time. Outside the timed part are the
  /// ring's making (where the setting is not that of the last slice), and marks: some pages that will be
  /// written are spoilt first, and all memory that will be read into, so that a transfer that moves nothing is
  /// found by verify().
  Sample run(const MeasureSetting& setting, Traffic traffic, double seconds);

  /// Reads back marks and a sample of what was written since the last call, without the queue, and looks at
  /// all that the last reads brought. Throws Error (io) naming the first word that is wrong.
  void verify();

  std::int64_t written_bytes() const;  ///< in all, preparation included: what the drive had to bear
  /// Of the queue of the last slice.
  RingReport report() const;

 private:
  struct State;
  class Flow;
  static void alternate(Flow& flow, std::int64_t phase, const std::function<bool()>& due);
  std::unique_ptr<State> state_;
};

}  // namespace spillway::aio
