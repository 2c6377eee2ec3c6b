#include "checksums.h"

#include <iterator>
#include <stdexcept>

#include <fmt/format.h>
#include <xxhash.h>

namespace spillway::aio {
namespace {

void check_range(const char* what, std::int64_t offset, std::int64_t bytes) {
  if (offset < 0 || bytes < 0) {
    throw std::logic_error(fmt::format("Checksums::{}: {} bytes at {}", what, bytes, offset));
  }
}

/// Removes the extents that share a byte with [offset, offset + bytes). Those of the map never overlap, so that
/// only the one before can reach into the range from outside.
void remove_overlapping(std::map<std::int64_t, Checksums::Extent>& extents, std::int64_t offset,
                        std::int64_t bytes) {
  auto first = extents.lower_bound(offset);
  if (first != extents.begin()) {
    const auto before = std::prev(first);
    if (before->second.offset + before->second.bytes > offset) first = before;
  }
  extents.erase(first, extents.lower_bound(offset + bytes));
}

}  // namespace

std::uint64_t Checksums::hash(const std::byte* data, std::int64_t bytes) {
  return XXH3_64bits(data, static_cast<std::size_t>(bytes));
}

void Checksums::note(std::int64_t offset, const std::byte* data, std::int64_t bytes) {
  check_range("note", offset, bytes);
  if (bytes == 0) return;
  const Extent extent{offset, bytes, hash(data, bytes)};  // not under the lock: the only slow part
  const std::lock_guard lock(mutex_);
  remove_overlapping(extents_, offset, bytes);
  extents_.emplace(offset, extent);
}

void Checksums::forget(std::int64_t offset, std::int64_t bytes) {
  check_range("forget", offset, bytes);
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  remove_overlapping(extents_, offset, bytes);
}

std::vector<Checksums::Extent> Checksums::within(std::int64_t offset, std::int64_t bytes) const {
  check_range("within", offset, bytes);
  std::vector<Extent> found;
  const std::lock_guard lock(mutex_);
  for (auto at = extents_.lower_bound(offset); at != extents_.end(); ++at) {
    const Extent& extent = at->second;
    if (extent.bytes > offset + bytes - extent.offset) break;
    found.push_back(extent);
  }
  return found;
}

std::optional<Checksums::Mismatch> Checksums::verify(std::span<const Extent> extents, std::int64_t offset,
                                                     const std::byte* data) {
  for (const Extent& extent : extents) {
    const std::uint64_t found = hash(data + (extent.offset - offset), extent.bytes);
    if (found != extent.hash) return Mismatch{extent, found};
  }
  return std::nullopt;
}

std::size_t Checksums::size() const {
  const std::lock_guard lock(mutex_);
  return extents_.size();
}

}  // namespace spillway::aio
