#include "drive_speed.h"

#include "../core/budget.h"
#include "../core/error.h"
#include "store.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>

#include <fmt/format.h>

namespace spillway {
namespace {

constexpr std::int64_t kPiece = 1 << 20;
constexpr std::size_t kPieces = 8;  // at the same time
constexpr std::int64_t kLeast = 2 * kPieces * kPiece, kMost = 64 << 20;
constexpr int kRounds = 4;
constexpr std::chrono::milliseconds kSlice{50};

/// One drive, and the memory that passes through it.
class Drive {
 public:
  Drive(const std::string& directory, std::int64_t bytes, const SwapOptions& options, Memory& memory)
      : volume_(aio::Volume::create({{directory}}, bytes, {.file = {.direct = options.direct}})),
        memory_(memory),
        queue_({.ring = {.depth = static_cast<unsigned>(options.queue_depth), .engine = options.engine},
                .block_bytes = options.block_bytes}) {
    // First writes into reserved space are slower than what a run does.
    for (std::int64_t at = 0; at < volume_.size(); at += kPiece) move(/*write=*/true);
    queue_.drain();
    moved_ = 0;
  }

  void slice() {
    const auto begin = std::chrono::steady_clock::now();
    do {
      move(/*write=*/true);
      move(/*write=*/false);
    } while (std::chrono::steady_clock::now() - begin < kSlice);
    queue_.drain();
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  double bytes_per_s() const { return static_cast<double>(moved_) / std::max(seconds_, 1e-9); }

 private:
  /// Starts a transfer of the next piece, through the memory whose last one has landed.
  void move(bool write) {
    std::optional<aio::Ticket>& slot = tickets_[count_ % kPieces];
    if (slot) queue_.wait(*slot);
    std::byte* const memory = memory_.data() + static_cast<std::int64_t>(count_ % kPieces) * kPiece;
    // All that is in flight lies apart from one another: the volume has twice as many pieces.
    const std::int64_t at = static_cast<std::int64_t>(count_) * kPiece % volume_.size();
    slot = write ? queue_.write(volume_, at, memory, kPiece) : queue_.read(volume_, at, memory, kPiece);
    ++count_;
    moved_ += kPiece;
  }

  aio::Volume volume_;
  Memory& memory_;
  std::array<std::optional<aio::Ticket>, kPieces> tickets_{};
  std::size_t count_ = 0;
  std::int64_t moved_ = 0;
  double seconds_ = 0;
  aio::Queue queue_;
};

}  // namespace

DriveSpeeds measure_drives(const std::vector<std::string>& directories, std::int64_t bytes,
                           const SwapOptions& options) {
  Budget budget(Tier::host);
  Memory memory(budget, "measurement", static_cast<std::int64_t>(kPieces) * kPiece);
  const std::int64_t size = std::clamp(bytes / kPiece * kPiece, kLeast, kMost);
  std::vector<std::unique_ptr<Drive>> drives;
  try {
    for (const auto& directory : directories)
      drives.push_back(std::make_unique<Drive>(directory, size, options, memory));
    for (int round = 0; round < kRounds; ++round) {
      for (const auto& drive : drives) drive->slice();
    }
  } catch (const Error& error) {
    // What the run itself needs is reserved afterwards, and may be less.
    if (error.kind() != ErrorKind::resources) throw;
    return {.notes = {on_one_line(
                fmt::format("the drives could not be measured, and share equally: {}", error.what()))}};
  }
  DriveSpeeds speeds;
  for (const auto& drive : drives) speeds.bytes_per_s.push_back(drive->bytes_per_s());
  return speeds;
}

}  // namespace spillway
