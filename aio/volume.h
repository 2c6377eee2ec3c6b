#pragma once
// One space over one drive or several: what a Queue reads and writes.
#include "file.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace spillway::aio {

class Checksums;

struct VolumePath {
  std::string directory;
  /// How fast the drive is, in any unit: it gets its share of the bytes by this. 0 for all of them: equal
  /// shares.
  double bandwidth = 0;
};

struct VolumeOptions {
  FileOptions file = {};
  /// Every write leaves an XXH3 in memory (a few dozen bytes for each write and stripe), and a read is held
  /// against those of all writes that it covers as a whole. A write over a part of an earlier one ends the
  /// earlier one's.
  bool checksums = false;
  /// Bytes that stand together on one path, a multiple of direct_io_alignment; a volume whose alignment is
  /// larger uses the next multiple of that.
  std::int64_t stripe_bytes = std::int64_t{1} << 20;
};

/// Paths at most, and stripes after which their order repeats.
inline constexpr int maximum_cycle = 64;

/// Bytes [0, size()), striped over a file for each path. Stripe k lies on the path that a fixed cycle of at
/// most maximum_cycle stripes names, interleaved so that any few neighbours keep all drives busy in proportion
/// to their bandwidth; every path has at least one stripe of a cycle. With one path there are no stripes. A
/// Volume is a handle: copies are the same space, which is given back when the last of them and the last
/// transfer is gone. The const members may be called from several threads.
class Volume {
 public:
  /// Reserves `bytes` in all, rounded up to whole alignments, each path the part that lies on it (and at least
  /// one alignment). Throws what File::create throws, for the path that fails, and leaves nothing behind; Error
  /// of kind configuration for more than maximum_cycle paths; std::logic_error for no path, no bytes, a
  /// negative bandwidth, one of several that is 0, or a stripe that is no multiple of direct_io_alignment. The
  /// same path may stand twice.
  static Volume create(const std::vector<VolumePath>& paths, std::int64_t bytes,
                       const VolumeOptions& options = {});
  /// Over files that are there already, each from its start, with equal shares: as large as the smallest of
  /// them allows. Error of kind configuration where that is nothing; the other errors are those of create().
  static Volume over(std::vector<File> files, const VolumeOptions& options = {});

  Volume(const Volume&) = default;  // and no move: a handle always has its space
  Volume& operator=(const Volume&) = default;

  std::int64_t size() const;
  /// Transfers whose offset and length are multiples of this, and whose memory is one of memory_alignment(),
  /// move without a copy: the largest of the files'. (Others are right as well.)
  std::int64_t alignment() const;
  std::int64_t memory_alignment() const;
  std::size_t path_count() const;
  const File& file(std::size_t path) const;
  /// Bytes of this volume that lie on the path.
  std::int64_t bytes_on(std::size_t path) const;
  /// Null where none are kept.
  Checksums* checksums() const;
  /// Those of the files, each line once.
  std::vector<std::string> notes() const;

  /// Takes `bytes`, rounded up to the alignment, of what is not taken yet, and returns their offset. They stay
  /// taken as long as the volume lives. Error (resources) where too little is left; none are taken then. No
  /// bytes is an offset, too. Copies take from the same space. Not from several threads.
  std::int64_t allocate(std::int64_t bytes);

  /// Where a byte lies. std::logic_error outside the volume.
  struct Place {
    std::size_t path = 0;
    std::int64_t offset = 0;  ///< in the path's file
    std::int64_t bytes = 0;   ///< that follow one another there, this one included
  };
  Place locate(std::int64_t offset) const;

 private:
  struct State;
  explicit Volume(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace spillway::aio
