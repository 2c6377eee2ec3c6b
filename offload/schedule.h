#pragma once
// Training repeats, so the future is known (D4): the order in which units are used, which slots will have to be
// filled for that, and what can be read before it is asked for. No I/O; one thread.
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace spillway {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// A row of units, and where in it each of them comes next.
class UnitRow {
 public:
  UnitRow() = default;
  /// Of units 0 .. units-1; -1: none at this place.
  UnitRow(std::vector<int> row, int units);

  std::int64_t size() const { return static_cast<std::int64_t>(row_.size()); }
  int operator[](std::int64_t place) const { return row_[static_cast<std::size_t>(place)]; }
  /// The first place of `unit` at or after `from`; kNever where there is none.
  std::int64_t next(int unit, std::int64_t from) const;
  /// The last place of `unit` before `before`; -1 where there is none.
  std::int64_t last(int unit, std::int64_t before) const;

 private:
  std::vector<int> row_;
  std::vector<std::vector<std::int64_t>> places_;  ///< of each unit, ascending
};

/// The uses of units in one iteration, recorded while they happen, and followed in the next.
class Schedule {
 public:
  explicit Schedule(int units);

  /// A unit is used. One that is not what the record says comes now is a departure, and the cursor goes on
  /// behind the unit's next place, where it has one; if what was expected comes after all, it goes back.
  /// Outside a step every use is a departure, is not recorded, and moves nothing. Returns whether it was as
  /// recorded; false, but no departure, where there is no record yet.
  bool use(int unit, bool in_step);
  /// The unit's last use has ended: nobody holds it.
  void release(int unit) noexcept;
  /// What was seen becomes the record, and the cursor returns to its begin. An iteration without any use leaves
  /// the record as it is.
  void end_iteration();

  const UnitRow& record() const { return record_; }  ///< of one iteration; empty where there is none yet
  std::int64_t cursor() const { return cursor_; }    ///< the place in it that comes next
  /// How many uses had been seen when the one at this place of the record had ended: it ended before that place
  /// (and after the one before it).
  std::int64_t until(std::int64_t place) const { return until_[static_cast<std::size_t>(place)]; }
  /// The first place of `unit` at or after `from`, in the record repeated for ever; kNever where there is none.
  std::int64_t next_use(int unit, std::int64_t from) const;
  std::int64_t next_use(int unit) const { return next_use(unit, cursor_); }
  /// Whether the record has the unit at the cursor or behind it; without a record it may come.
  bool is_expected_again(int unit) const {
    return record_.size() == 0 || record_.next(unit, cursor_) != kNever;
  }
  /// All units in the order of their first place in the record, then those without one; without a record all,
  /// ascending.
  const std::vector<int>& order() const { return order_; }
  std::int64_t departures() const { return departures_; }

 private:
  int units_;
  UnitRow record_;
  std::vector<std::int64_t> until_;
  std::vector<int> order_;
  std::int64_t cursor_ = 0;
  std::int64_t left_ = -1;  ///< the place that the cursor has jumped away from, until a use matches again
  std::int64_t departures_ = 0;
  std::vector<int> seen_;
  std::vector<std::int64_t> seen_until_;
  std::vector<std::int64_t> last_seen_;  ///< of each unit, its last place in `seen_`, or -1
};

/// Of slots that are offered one after another, the one whose contents are the first to leave: farthest next
/// use, and of equal ones that which has been waiting for longest.
class FirstToLeave {
 public:
  void offer(int slot, std::int64_t next_use, std::uint64_t since) {
    if (slot_ >= 0 && (next_use < next_use_ || (next_use == next_use_ && since >= since_))) return;
    slot_ = slot;
    next_use_ = next_use;
    since_ = since;
  }
  int slot() const { return slot_; }  ///< -1: none was offered

 private:
  int slot_ = -1;
  std::int64_t next_use_ = 0;
  std::uint64_t since_ = 0;
};

/// The uses, from a schedule's cursor to the end of the coming iteration, that will not find their unit in one
/// of some slots, each of which has to be filled then.
struct Fills {
  /// The units. -1 beyond the border of this iteration for one that the update changes there: what is known of
  /// it now is of no use then.
  UnitRow units;
  std::vector<std::int64_t> places;  ///< of each of them in the record repeated for ever, ascending
  std::int64_t in_iteration = 0;     ///< how many lie in this iteration
};

struct SlotContents {
  int unit = -1;  ///< -1: nothing
  bool held = false;
};

/// What follows from the schedule, these contents, and the rule that the farthest next use leaves first.
/// `changes` says of each unit whether an update between iterations makes its copies stale.
Fills foresee(const Schedule& schedule, std::span<const SlotContents> slots, std::span<const char> changes);

struct HostSlot {
  int unit = -1;      ///< -1: nothing
  bool free = false;  ///< it could be filled now: nothing is on its way into it or out of it
  std::uint64_t since = 0;
};
struct Fill {
  int slot = -1, unit = -1;
};

/// Which of these slots can be filled ahead of time, for the fills from number `from` on to the end of this
/// iteration, without one more fill than on demand: the slot that the rule would empty for it is free, and will
/// not be used before. Units that are not current take their slot, but are not filled. In the order of use.
std::vector<Fill> fills_ahead(const Fills& fills, std::int64_t from, std::span<const HostSlot> slots,
                              const std::function<bool(int unit)>& is_current);

}  // namespace spillway
