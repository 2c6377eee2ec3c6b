#pragma once
// A region of bytes in one tier, whatever the tier is.
#include "../aio/queue.h"
#include "../aio/volume.h"
#include "../core/budget.h"
#include "../core/tier.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace spillway {

class Device;

/// Swap space of one rank: one anonymous file for each directory, reserved at once, and the queue that all
/// transfers go through. Used by the engine's calling thread.
class Swap {
 public:
  struct Region {
    const aio::Volume* volume = nullptr;
    std::int64_t offset = 0;
  };
  struct Request {
    std::string name;  ///< in the budget
    std::string directory;
    std::int64_t bytes = 0;  ///< a multiple of 4 KiB
  };

  /// Requests for the same directory share its file. Depth and block size are the queue's. Throws Error (io,
  /// resources).
  Swap(Budget& budget, const std::vector<Request>& requests, int queue_depth, std::int64_t block_bytes);
  ~Swap();
  Swap(const Swap&) = delete;
  Swap& operator=(const Swap&) = delete;

  /// Where request number `i` lies.
  Region region(std::size_t i) const { return regions_[i]; }
  aio::Queue& queue() { return queue_; }

 private:
  Budget& budget_;
  std::vector<Request> requests_;
  std::vector<std::uint64_t> buffers_;
  std::vector<std::unique_ptr<aio::Volume>> volumes_;
  std::vector<Region> regions_;
  aio::Queue queue_;
};

/// Bytes of one plane or of all records, in the tier where they are at home.
class Store {
 public:
  /// In `tier`, under `name` in its budget. `swap` (which outlives it) and `region` matter on NVMe only, where
  /// the swap has reserved the bytes.
  static Store make(Tier tier, Device& device, Budget& host, Swap* swap, Swap::Region region,
                    std::string_view name, std::int64_t bytes, Pages host_pages = Pages::present);

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
  aio::Ticket read(std::int64_t offset, std::byte* destination, std::int64_t bytes);
  aio::Ticket write(std::int64_t offset, const std::byte* source, std::int64_t bytes);

 private:
  Swap& swap() const;
  Tier tier_;
  Memory memory_;
  Swap* swap_ = nullptr;
  Swap::Region region_;
};

}  // namespace spillway
