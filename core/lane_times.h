#pragma once
// For how long each lane of a step was busy, and for how long the device's compute lane stood still because of
// it. docs/step.md defines the words.
#include "tier.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

/// Who waits: the device's compute lane (or the calling thread, which gives it work), or the optimizer's
/// update.
enum class Waiter : std::uint8_t { compute, update };
constexpr int kWaiters = 2;
constexpr std::string_view name_of(Waiter waiter) {
  return waiter == Waiter::compute ? "compute" : "update";
}

/// What the lanes did in a piece of time. Arrays are in the order of Lane.
struct LaneTimes {
  std::array<double, kLanes> busy{};     ///< seconds with something to do: what overlaps counts once
  std::array<double, kLanes> forward{};  ///< of those, the ones before the first gradient began
  /// Seconds in which compute stood still and waited for that lane. Each moment is counted for one lane:
  /// exposed and `other` together are the time in which compute stood still.
  std::array<double, kLanes> exposed{};
  double other = 0;    ///< seconds in which compute stood still, and nobody is known to have waited
  double seconds = 0;  ///< of the piece
};

/// Times of one clock, in nanoseconds, that do not touch, in ascending order.
using Intervals = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// Adds spans and waits up. Needs no more memory, however long it runs. Not thread-safe.
class LaneClock {
 public:
  /// Something began: it counts from there on, whether or not it has ended when the times are taken.
  void begin_span(Lane lane, std::int64_t begin);
  void begin_wait(Waiter waiter, Lane lane, std::int64_t begin);
  /// What begin_span() or begin_wait() has told of has ended.
  void end_span(Lane lane, std::int64_t begin, std::int64_t end);
  void end_wait(Waiter waiter, Lane lane, std::int64_t begin, std::int64_t end);
  /// Something that is over, of which nothing was said before. What lies before the last take() is lost.
  void add_span(Lane lane, std::int64_t begin, std::int64_t end);
  void add_wait(Waiter waiter, Lane lane, std::int64_t begin, std::int64_t end);

  /// The first gradient begins. Only the first call counts until the times are taken.
  void mark_backward(std::int64_t now);

  /// The times from the last call, or 0, to `now`.
  LaneTimes take(std::int64_t now);

 private:
  struct Track {
    Intervals over;
    std::vector<std::int64_t> open;  ///< when that began which has not ended
  };
  void close(Track& track, std::int64_t begin, std::int64_t end);
  void add(Track& track, std::int64_t begin, std::int64_t end);
  void settle(std::int64_t now);
  Intervals cut_off(Track& track, std::int64_t now) const;

  Track& wait(Waiter waiter, Lane lane) {
    return waits_[static_cast<std::size_t>(waiter)][static_cast<std::size_t>(lane)];
  }
  Track& span(Lane lane) { return spans_[static_cast<std::size_t>(lane)]; }

  std::array<Track, kLanes> spans_;
  std::array<std::array<Track, kLanes>, kWaiters> waits_;
  std::optional<std::int64_t> backward_;
  LaneTimes sums_;
  std::int64_t settled_ = 0;  ///< what lies before is in the sums
};

}  // namespace spillway
