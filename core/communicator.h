#pragma once
// Collectives of the ranks. One communicator a rank; all ranks make the same calls in the same order (D12).
#include <cstdint>

namespace spillway {

class Stream;

/// Collectives are enqueued on a stream and return at once; buffers are device memory and must live until the
/// work has been done. Offsets and sizes are bytes and equal on every rank.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;

  /// whole[world * bytes_each] = every rank's `slice`, in rank order. `slice` may lie at its place in `whole`.
  virtual void all_gather(Stream& stream, void* whole, const void* slice, std::int64_t bytes_each) = 0;
  /// received[i * bytes_each ...] on rank r = sent[r * bytes_each ...] of rank i. `received` may be `sent`
  /// where the world is one.
  virtual void all_to_all(Stream& stream, void* received, const void* sent, std::int64_t bytes_each) = 0;
  virtual void broadcast(Stream& stream, void* data, std::int64_t bytes, int root) = 0;
  virtual void barrier() = 0;
};

/// The world of one rank: collectives are copies, or nothing where source and destination are the same.
class SingleRankCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world() const override { return 1; }
  void all_gather(Stream& stream, void* whole, const void* slice, std::int64_t bytes_each) override;
  void all_to_all(Stream& stream, void* received, const void* sent, std::int64_t bytes_each) override;
  void broadcast(Stream& stream, void* data, std::int64_t bytes, int root) override;
  void barrier() override {}
};

}  // namespace spillway
