#pragma once
// What HostOperations holds; shared by the files that implement it.
#include "../../core/host_device.h"
#include "attention.h"
#include "linear.h"
#include "operations.h"
#include "scratch.h"
#include "vector_table.h"

#include <functional>
#include <map>
#include <string_view>

namespace spillway::kernels {

/// Bytes of each worker, and of the zeros that stand for a missing bias.
struct ScratchSizes {
  ScratchSizes(DType type, const Shapes& shapes);
  std::int64_t worker = 0;
  std::int64_t onednn_own = 0;  ///< of each worker: what oneDNN allocates itself; counted, not provided
  std::int64_t zeros = 0;
  std::int64_t provided(int threads) const { return worker * threads + zeros; }
  std::int64_t total(int threads) const { return provided(threads) + onednn_own * threads; }
};

/// Counts bytes that another library allocates.
class LibraryReservation {
 public:
  LibraryReservation(Budget& budget, std::int64_t bytes) : budget_(budget), bytes_(bytes) {
    if (bytes_ > 0) buffer_ = budget_.reserve("scratch", bytes_);
  }
  ~LibraryReservation() {
    if (bytes_ > 0) budget_.release("scratch", bytes_, buffer_);
  }
  LibraryReservation(const LibraryReservation&) = delete;
  LibraryReservation& operator=(const LibraryReservation&) = delete;

 private:
  Budget& budget_;
  std::int64_t bytes_;
  std::uint64_t buffer_ = 0;
};

struct HostOperations::State {
  State(HostDevice& on, DType element, const Shapes& shapes);

  const LinearPlan& plan(const LinearShape& shape) const;
  const AttentionPlan& plan(const AttentionShape& shape) const;
  std::byte* scratch_of(int worker) const { return scratch.data() + sizes.zeros + worker * sizes.worker; }

  void launch(std::string_view name, std::int64_t tiles, std::function<void(std::int64_t, int)> body,
              int unit) {
    if (tiles > 0) stream.launch(name, tiles, std::move(body), unit);
  }
  /// body(first, count) for blocks of rows that hold enough elements to be worth a tile.
  void launch_rows(std::string_view name, std::int64_t rows, std::int64_t width,
                   std::function<void(std::int64_t, std::int64_t)> body, int unit);

  HostDevice& device;
  HostStream& stream;
  DType type;
  std::int64_t element;  ///< bytes
  const VectorTable& vector;
  ScratchSizes sizes;
  LibraryReservation library;
  Memory scratch;
  ProductSet products;
  std::map<std::array<std::int64_t, 3>, LinearPlan> linears;
  std::map<std::array<std::int64_t, 4>, AttentionPlan> attentions;
};

/// Element `index` of an array of elements of `bytes` bytes.
inline std::byte* at(void* p, std::int64_t index, std::int64_t bytes) {
  return static_cast<std::byte*>(p) + index * bytes;
}
inline const std::byte* at(const void* p, std::int64_t index, std::int64_t bytes) {
  return static_cast<const std::byte*>(p) + index * bytes;
}

}  // namespace spillway::kernels
