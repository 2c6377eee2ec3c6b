#pragma once
// How fast a drive moves what an offloaded step moves: timed slices of traffic through a Queue, of which every
// byte is known, so that it can be verified outside the timing.
#include "queue.h"
#include "volume.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>

namespace spillway::aio {

enum class Traffic : std::uint8_t {
  read,
  write,
  mixed,        ///< as many bytes read as written, both at the same time
  alternating,  ///< as many bytes read as written, by turns: a phase of reads, then one of writes
};

/// How long operations took, in buckets 1/16 wide of their value; exact below 16 us.
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

/// What one slice moved.
struct Sample {
  double seconds = 0;
  std::int64_t read_bytes = 0;
  std::int64_t written_bytes = 0;
  std::int64_t operations = 0;  ///< blocks
  double cpu_seconds = 0;  ///< user and system, of the whole process; the kernel's own workers included where
                           ///< they are charged to it
  LatencyHistogram latency = {};

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

/// A volume whose every word tells where it belongs, and the memory through which slices pass. Used by one
/// thread.
class Measurement {
 public:
  /// Takes the whole volume. `transfer_bytes` is what one call of the queue moves, cut into blocks there:
  /// larger than any block that will be measured.
  Measurement(Volume volume, std::int64_t transfer_bytes);
  ~Measurement();
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  /// Writes every extent once: first writes into reserved space are slower, and what is read must be known.
  /// Extents that hold the pattern already (a sample of them is looked at) are left alone where `keep` is set.
  /// `progress` is called with the share that is done.
  void prepare(bool keep, const std::function<void(double done)>& progress);

  /// Walks on through the volume for that long, starting where the last slice ended: sequentially, at the end
  /// from the beginning again. Reads and writes use halves of the volume of their own where both happen.
  Sample run(const MeasureSetting& setting, Traffic traffic, double seconds);

  /// Reads back a sample of what was written since the last call and looks at what the last reads brought.
  /// Throws Error (io) naming the first word that is wrong.
  void verify();

  std::int64_t written_bytes() const;  ///< in all, preparation included: what the drive had to bear
  /// Of the queue of the last slice.
  RingReport report() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::aio
