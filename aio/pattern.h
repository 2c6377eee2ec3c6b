#pragma once
// What a measured volume holds: every 8-byte word tells where it belongs. A piece of it need not be made anew
// for each write: it repeats after a number of pages that is prime, so that one area of memory has the words of
// any place ready, at the price of a read.
#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::aio {

/// Anonymous memory, aligned to pages and, where it is large, to huge pages, which it asks for. Zeros.
class Pages {
 public:
  Pages() = default;
  /// std::bad_alloc where the system has no room.
  explicit Pages(std::int64_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() const { return memory_; }
  std::int64_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {memory_, static_cast<std::size_t>(bytes_)}; }

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  std::byte* memory_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// The words of places p and p + pattern_period are the same, and any two others differ. The period is a prime
/// number of pages: no power of two and no sum of a few stripes takes one place for another.
inline constexpr std::int64_t pattern_period = std::int64_t{8191} * 4096;

/// Writes the words of [place, place + bytes) to memory. Both are multiples of 8.
void fill_pattern(std::byte* memory, std::int64_t bytes, std::int64_t place);

/// The pattern of any extent of at most `longest` bytes, ready to be written or compared with. Any of its
/// members may be called by several threads.
class Pattern {
 public:
  explicit Pattern(std::int64_t longest);

  /// What belongs at [place, place + longest). Aligned to pages where the place is.
  const std::byte* at(std::int64_t place) const { return pages_.data() + place % pattern_period; }
  std::int64_t longest() const { return pages_.size() - pattern_period; }
  /// The offset of the first word of memory that is not that of its place, or -1. At most `longest` bytes.
  std::int64_t first_wrong(const std::byte* memory, std::int64_t bytes, std::int64_t place) const;
  std::span<std::byte> memory() const { return pages_.span(); }

 private:
  Pages pages_;
};

}  // namespace spillway::aio
