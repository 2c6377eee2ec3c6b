#pragma once
// Memory is a budget (D10): every allocation has a name, a tier has a limit, and peaks are known by name.
#include "tier.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace spillway {

class Trace;

/// The bytes of one tier. Thread-safe.
class Budget {
 public:
  /// limit: bytes, negative for none.
  explicit Budget(Tier tier, std::int64_t limit = -1) : tier_(tier), limit_(limit) {}

  /// Counts bytes under a name; throws Error (resources) with the numbers where the limit would be exceeded.
  /// Returns the buffer's number in the trace, 0 without one.
  std::uint64_t reserve(std::string_view name, std::int64_t bytes);
  void release(std::string_view name, std::int64_t bytes, std::uint64_t buffer = 0) noexcept;

  /// From now on allocations are recorded there; null ends it. The trace must outlive its use here.
  void set_trace(Trace* trace);

  Tier tier() const { return tier_; }
  std::int64_t limit() const { return limit_; }  ///< bytes, negative for none
  std::int64_t used() const;
  std::int64_t peak() const;                                  ///< the most bytes in use at one moment
  std::map<std::string, std::int64_t> peaks_by_name() const;  ///< of each name for itself

 private:
  struct Use {
    std::int64_t used = 0, peak = 0;
  };
  Tier tier_;
  std::int64_t limit_;
  mutable std::mutex mutex_;
  Use total_;
  std::map<std::string, Use, std::less<>> names_;
  Trace* trace_ = nullptr;
};

enum class Pages {
  present,    ///< no later page fault
  untouched,  ///< whoever writes a page first places it near its processor: the owner sees to it that all are
};

/// Memory of exact size, zeroed, counted in a budget while it lives. Aligned to pages, and from 2 MiB on to
/// huge pages, which it asks for.
class Memory {
 public:
  Memory() = default;
  /// Throws Error (resources). 0 bytes: empty.
  Memory(Budget& budget, std::string_view name, std::int64_t bytes, Pages pages = Pages::present);
  ~Memory() { reset(); }
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  void reset() noexcept;

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Memory& other) noexcept;
  Budget* budget_ = nullptr;
  std::string name_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::uint64_t buffer_ = 0;
};

}  // namespace spillway
