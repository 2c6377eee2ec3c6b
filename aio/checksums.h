#pragma once
// What a drive does not report: XXH3 of everything that was written, held against what is read.
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace spillway::aio {

/// Of extents as they were written, by their offset. From several threads.
class Checksums {
 public:
  struct Extent {
    std::int64_t offset = 0, bytes = 0;
    std::uint64_t hash = 0;  ///< XXH3, 64 bits, of its bytes
  };
  struct Mismatch {
    Extent extent;
    std::uint64_t found = 0;
  };

  static std::uint64_t hash(const std::byte* data, std::int64_t bytes);

  /// Notes an extent that is about to be written. Extents that it overlaps are forgotten: parts of them cannot
  /// be checked any more.
  void note(std::int64_t offset, const std::byte* data, std::int64_t bytes);
  /// What a failed write may have left in [offset, offset + bytes) is not known.
  void forget(std::int64_t offset, std::int64_t bytes);
  /// The extents that lie entirely in [offset, offset + bytes), ascending.
  std::vector<Extent> within(std::int64_t offset, std::int64_t bytes) const;

  /// The first of `extents` whose bytes have another hash; data is what was read from `offset` on.
  static std::optional<Mismatch> verify(std::span<const Extent> extents, std::int64_t offset,
                                        const std::byte* data);

  std::size_t size() const;  ///< extents that are known

 private:
  mutable std::mutex mutex_;
  std::map<std::int64_t, Extent> extents_;
};

}  // namespace spillway::aio
