#include "pattern.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace spillway::aio {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// A bijection of 32 bits, in operations that every instruction set has for vectors.
inline std::uint32_t mixed(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}

constexpr std::int64_t kPeriodWords = pattern_period / 8;
static_assert(kPeriodWords < (std::int64_t{1} << 32), "a word is a bijection of its number");

/// Words [first, first + count), none of them beyond the period.
void fill_words(std::byte* memory, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<std::uint32_t>(first + i + 1);  // no word is 0
    const std::uint32_t low = mixed(number);
    const std::uint64_t word = static_cast<std::uint64_t>(low ^ (number * 0x9e3779b1U)) << 32 | low;
    std::memcpy(memory + 8 * i, &word, sizeof word);
  }
}

}  // namespace

Pages::Pages(std::int64_t bytes) : bytes_(bytes) {
  if (bytes <= 0) return;
  const std::size_t alignment = bytes >= static_cast<std::int64_t>(kHugePage) ? kHugePage : 4096;
  mapped_ = static_cast<std::size_t>(bytes) + alignment;
  mapping_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw std::bad_alloc();
  }
  const auto start = reinterpret_cast<std::uintptr_t>(mapping_);
  memory_ = static_cast<std::byte*>(mapping_) + ((start + alignment - 1) / alignment * alignment - start);
  if (alignment == kHugePage) ::madvise(memory_, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
}

Pages::~Pages() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
}

Pages::Pages(Pages&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void fill_pattern(std::byte* memory, std::int64_t bytes, std::int64_t place) {
  std::int64_t word = place / 8 % kPeriodWords;
  for (std::int64_t done = 0; done < bytes / 8;) {
    const std::int64_t count = std::min(bytes / 8 - done, kPeriodWords - word);
    fill_words(memory + 8 * done, word, count);
    done += count;
    word = 0;
  }
}

Pattern::Pattern(std::int64_t longest) : pages_(pattern_period + (longest + 7) / 8 * 8) {
  fill_pattern(pages_.data(), pages_.size(), 0);
}

std::int64_t Pattern::first_wrong(const std::byte* memory, std::int64_t bytes, std::int64_t place) const {
  const std::byte* const expected = at(place);
  if (std::memcmp(memory, expected, static_cast<std::size_t>(bytes)) == 0) return -1;
  const auto [wrong, other] = std::mismatch(memory, memory + bytes, expected);
  return (wrong - memory) / 8 * 8;
}

}  // namespace spillway::aio
