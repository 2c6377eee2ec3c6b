#pragma once
// Cutting pieces from a worker's scratch memory. Measuring is the same walk from null, so that what is reserved
// and what is used cannot differ.
#include <cstddef>
#include <cstdint>

namespace spillway::kernels {

constexpr std::int64_t kScratchAlignment = 64;  // a cache line, and what oneDNN asks for

constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

class ScratchCursor {
 public:
  /// base: aligned memory, or null to measure.
  explicit ScratchCursor(std::byte* base) : base_(base) {}

  template <class T = std::byte>
  T* take(std::int64_t count) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += aligned(count * static_cast<std::int64_t>(sizeof(T)));
    return reinterpret_cast<T*>(piece);
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

}  // namespace spillway::kernels
