#pragma once
// A region of bytes in one tier, whatever the tier is.
#include "../aio/faults.h"
#include "../aio/queue.h"
#include "../aio/volume.h"
#include "../core/budget.h"
#include "../core/tier.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

class Device;
class Trace;
struct Config;
struct IoReport;

/// How what lies on NVMe is read and written.
struct SwapOptions {
  int queue_depth = 32;  ///< operations in flight for each directory
  std::int64_t block_bytes = aio::default_block_bytes;
  aio::IoEngine engine = aio::IoEngine::automatic;
  bool sqpoll = false, iopoll = false;
  bool direct = true;
  bool checksums = false;
  /// Of the directories of every request, in order; empty: measured where there are several.
  std::vector<double> bandwidth = {};
  aio::Faults faults = {};
};
/// Throws Error (configuration) where spillway.io_faults cannot be read.
SwapOptions swap_options(const Config& config);

/// What a transfer carries, for the trace.
struct Purpose {
  enum class Kind : std::uint8_t { other, record, high, parameters, gradient, activation };
  Kind kind = Kind::other;
  int unit = -1;
};

/// Swap space of one rank: a volume for each list of directories, reserved at once, and the queue that all
/// transfers go through.
class Swap {
 public:
  struct Region {
    const aio::Volume* volume = nullptr;
    std::int64_t offset = 0;
  };
  struct Request {
    std::string name;  ///< in the budget
    std::vector<std::string> directories;
    std::int64_t bytes = 0;  ///< a multiple of 4 KiB
  };

  /// Requests for the same directories share a volume. `checksum_bytes` are counted in the host's budget for
  /// what checksums occupy. Throws Error (io, resources).
  /// Each transfer becomes a span of its lane in the trace, from its call to its landing.
  Swap(Budget& nvme, Budget& host, const std::vector<Request>& requests, const SwapOptions& options,
       std::int64_t checksum_bytes, Trace* trace = nullptr);
  ~Swap();
  Swap(const Swap&) = delete;
  Swap& operator=(const Swap&) = delete;

  /// Where request number `i` lies.
  Region region(std::size_t i) const { return regions_[i]; }
  aio::Queue& queue() { return *queue_; }
  /// What it turned out to be, memory that was registered until now included.
  IoReport report() const;

 private:
  /// Bytes counted in a budget for as long as this lives.
  class Count {
   public:
    Count(Budget& budget, std::string name, std::int64_t bytes);
    ~Count();
    Count(const Count&) = delete;
    Count& operator=(const Count&) = delete;

   private:
    Budget& budget_;
    std::string name_;
    std::int64_t bytes_;
    std::uint64_t buffer_;
  };
  struct Space {
    std::vector<std::string> directories;
    aio::Volume volume;
  };

  void reserve(const std::vector<Request>& requests, const SwapOptions& options);

  std::int64_t block_bytes_;
  std::vector<std::string> notes_;
  std::vector<Space> spaces_;
  std::vector<Region> regions_;
  std::vector<std::unique_ptr<Count>> counts_;
  std::optional<aio::Queue> queue_;
};

/// Memory that transfers of a swap go through, registered with its queue for as long as this lives. Where the
/// kernel refuses, everything works without, and the swap's report says so. Declare it after the memory.
class SwapMemory {
 public:
  SwapMemory() = default;
  SwapMemory(Swap& swap, const Memory& memory);
  ~SwapMemory() { reset(); }
  SwapMemory(SwapMemory&& other) noexcept { take(other); }
  SwapMemory& operator=(SwapMemory&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }

 private:
  void reset() noexcept;
  void take(SwapMemory& other) noexcept {
    swap_ = std::exchange(other.swap_, nullptr);
    memory_ = other.memory_;
  }
  Swap* swap_ = nullptr;
  std::span<std::byte> memory_;
};

/// Bytes of one plane or of all records, in the tier where they are at home.
class Store {
 public:
  /// In `tier`, under `name` in its budget. `swap` (which outlives it) and `region` matter on NVMe only, where
  /// the swap has reserved the bytes.
  static Store make(Tier tier, Device& device, Budget& host, Swap* swap, Swap::Region region,
                    std::string_view name, std::int64_t bytes, Pages host_pages = Pages::present);

  Store() = default;  ///< of nothing
  /// In device memory.
  Store(Device& device, std::string_view name, std::int64_t bytes);
  /// In host memory.
  Store(Budget& host, std::string_view name, std::int64_t bytes, Pages pages = Pages::present);
  /// On NVMe; the swap outlives it.
  Store(Swap& swap, Swap::Region region);

  Tier tier() const { return tier_; }
  /// Address of the byte at `offset`: device or host memory. std::logic_error on NVMe.
  std::byte* at(std::int64_t offset) const;
  /// Start a transfer between the region and host memory, all multiples of 4 KiB. std::logic_error elsewhere.
  aio::Ticket read(std::int64_t offset, std::byte* destination, std::int64_t bytes, Purpose purpose = {});
  aio::Ticket write(std::int64_t offset, const std::byte* source, std::int64_t bytes, Purpose purpose = {});

 private:
  Swap& swap() const;
  Tier tier_ = Tier::host;
  Memory memory_;
  Swap* swap_ = nullptr;
  Swap::Region region_;
};

}  // namespace spillway
