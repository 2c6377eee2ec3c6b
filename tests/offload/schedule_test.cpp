// The future as it follows from what happened before.
#include "../../offload/schedule.h"

#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace spillway {
namespace {

/// One iteration in which each unit is released before the next is used. Whether all was as recorded.
bool iterate(Schedule& schedule, const std::vector<int>& units) {
  bool as_recorded = true;
  for (const int unit : units) {
    as_recorded = schedule.use(unit, true) && as_recorded;
    schedule.release(unit);
  }
  schedule.end_iteration();
  return as_recorded;
}

TEST(Schedule, KnowsNothingBeforeAnIterationHasEnded) {
  Schedule schedule(3);
  EXPECT_EQ(schedule.next_use(1), kNever);
  EXPECT_EQ(schedule.order(), (std::vector<int>{0, 1, 2}));
  EXPECT_FALSE(schedule.use(1, true));
  EXPECT_FALSE(schedule.use(2, false)) << "evaluation before the first step";
  EXPECT_EQ(schedule.next_use(1), kNever);
  EXPECT_EQ(schedule.departures(), 0) << "from what?";
}

TEST(Schedule, FollowsTheRecord) {
  Schedule schedule(4);
  iterate(schedule, {2, 0, 1, 1, 0, 2});
  EXPECT_EQ(schedule.record().size(), 6);
  EXPECT_EQ(schedule.next_use(2), 0);
  EXPECT_EQ(schedule.next_use(1), 2);
  EXPECT_EQ(schedule.next_use(3), kNever) << "not used";
  EXPECT_TRUE(schedule.use(2, true));
  EXPECT_EQ(schedule.cursor(), 1);
  EXPECT_EQ(schedule.next_use(2), 5);
  EXPECT_EQ(schedule.next_use(0, 5), 7) << "in the coming iteration";
  EXPECT_EQ(schedule.next_use(2, 6 * 1000 + 1), 6 * 1000 + 5) << "and in all later ones";
  for (const int unit : {0, 1, 1, 0, 2}) EXPECT_TRUE(schedule.use(unit, true));
  EXPECT_EQ(schedule.cursor(), 6);
  EXPECT_EQ(schedule.next_use(2), 6);
  EXPECT_EQ(schedule.next_use(3), kNever);
  schedule.end_iteration();
  EXPECT_EQ(schedule.cursor(), 0);
  EXPECT_EQ(schedule.departures(), 0);
}

TEST(Schedule, AUnitThatIsLeftOutIsOneDeparture) {
  Schedule schedule(5);
  iterate(schedule, {0, 1, 2, 3, 4});
  EXPECT_FALSE(iterate(schedule, {0, 1, 3, 4}));
  EXPECT_EQ(schedule.departures(), 1);
}

TEST(Schedule, AUnitThatIsPutInBetweenIsOneDepartureAndTheRecordGoesOn) {
  Schedule schedule(4);
  iterate(schedule, {0, 1, 2, 3, 3, 2, 1, 0});
  schedule.use(0, true);
  EXPECT_FALSE(schedule.use(0, true));
  EXPECT_EQ(schedule.cursor(), 8) << "behind its next place";
  EXPECT_FALSE(schedule.use(1, true));
  EXPECT_EQ(schedule.cursor(), 2) << "it goes back when what was expected comes";
  for (const int unit : {2, 3, 3, 2, 1, 0}) EXPECT_TRUE(schedule.use(unit, true));
  EXPECT_EQ(schedule.departures(), 1);
}

TEST(Schedule, GoesOnBehindTheNextPlaceOfWhatIsUsedInstead) {
  Schedule schedule(6);
  iterate(schedule, {0, 1, 2, 3, 4, 0});
  schedule.use(0, true);
  EXPECT_FALSE(schedule.use(3, true));
  EXPECT_EQ(schedule.cursor(), 4);
  EXPECT_TRUE(schedule.use(4, true));
  EXPECT_FALSE(schedule.use(5, true)) << "has no place in the record";
  EXPECT_EQ(schedule.cursor(), 5);
  EXPECT_TRUE(schedule.use(0, true));
  EXPECT_FALSE(schedule.use(0, true)) << "the record is at its end";
  EXPECT_EQ(schedule.cursor(), 6);
  EXPECT_EQ(schedule.departures(), 3);
}

TEST(Schedule, AChangeThatStaysIsTheRecordFromThenOn) {
  Schedule schedule(4);
  iterate(schedule, {0, 1, 2, 3});
  EXPECT_FALSE(iterate(schedule, {3, 1, 0, 2}));
  const std::int64_t departures = schedule.departures();
  EXPECT_GT(departures, 0);
  EXPECT_TRUE(iterate(schedule, {3, 1, 0, 2}));
  EXPECT_EQ(schedule.departures(), departures);
  EXPECT_EQ(schedule.order(), (std::vector<int>{3, 1, 0, 2}));
  EXPECT_FALSE(iterate(schedule, {3, 2}));
  EXPECT_EQ(schedule.order(), (std::vector<int>{3, 2, 0, 1})) << "those without a place last, ascending";
}

TEST(Schedule, EvaluationIsCountedAndLeavesNoTrace) {
  Schedule schedule(3);
  iterate(schedule, {0, 1, 2, 1, 0});
  for (const int unit : {2, 0, 1}) {
    EXPECT_FALSE(schedule.use(unit, false));
    schedule.release(unit);
  }
  EXPECT_EQ(schedule.departures(), 3);
  EXPECT_EQ(schedule.cursor(), 0);
  EXPECT_TRUE(iterate(schedule, {0, 1, 2, 1, 0}));
  EXPECT_EQ(schedule.record().size(), 5);
  EXPECT_EQ(schedule.departures(), 3);
}

TEST(Schedule, AnIterationWithoutAnyUseLeavesTheRecord) {
  Schedule schedule(2);
  iterate(schedule, {1, 0});
  iterate(schedule, {});
  EXPECT_TRUE(iterate(schedule, {1, 0}));
}

TEST(Schedule, RemembersHowLongUnitsWereHeld) {
  Schedule schedule(3);
  schedule.use(0, true);
  schedule.use(1, true);
  schedule.release(1);
  schedule.use(2, true);
  schedule.release(0);
  schedule.use(1, true);
  schedule.release(2);
  schedule.end_iteration();
  EXPECT_EQ(schedule.until(0), 3);
  EXPECT_EQ(schedule.until(1), 2);
  EXPECT_EQ(schedule.until(2), 4);
  EXPECT_EQ(schedule.until(3), 4) << "never released: until the end";
}

std::vector<int> row(const Fills& fills) {
  std::vector<int> units;
  for (std::int64_t i = 0; i < fills.units.size(); ++i) units.push_back(fills.units[i]);
  return units;
}

TEST(Foresee, TellsWhatWillBeMissingUntilTheEndOfTheComingIteration) {
  Schedule schedule(4);
  iterate(schedule, {0, 1, 2, 3, 2, 1, 0});
  const std::vector<SlotContents> empty(2);
  // Units 0 and 1 stay what they are; 2 and 3 are updated between iterations.
  const Fills fills = foresee(schedule, empty, std::vector<char>{0, 0, 1, 1});
  EXPECT_EQ(fills.places, (std::vector<std::int64_t>{0, 1, 2, 3, 5, 6, 9, 10, 12, 13}));
  EXPECT_EQ(row(fills), (std::vector<int>{0, 1, 2, 3, 1, 0, -1, -1, 1, 0}));
  EXPECT_EQ(fills.in_iteration, 6);
  EXPECT_EQ(fills.units.next(1, 2), 4);
}

TEST(Foresee, BeginsWithWhatIsThereAtTheCursor) {
  Schedule schedule(3);
  iterate(schedule, {0, 1, 2});
  schedule.use(0, true);
  const std::vector<SlotContents> slots{{.unit = 2}, {.unit = 0}};
  const std::vector<char> frozen(3, 0);
  EXPECT_EQ(foresee(schedule, slots, frozen).places, (std::vector<std::int64_t>{1, 3, 5}));
  const std::vector<char> changing(3, 1);
  EXPECT_EQ(foresee(schedule, slots, changing).places, (std::vector<std::int64_t>{1, 3, 4, 5}));
}

TEST(Foresee, WhatAnUpdateMakesStaleLeavesBeforeWhatStays) {
  Schedule schedule(5);
  iterate(schedule, {1, 2, 0, 3, 4});
  // In the place of unit 0, which stays what it is, nobody has to come: the others are of no use after theirs.
  EXPECT_EQ(foresee(schedule, std::vector<SlotContents>(3), std::vector<char>{0, 1, 1, 1, 1}).places,
            (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 8, 9}));
}

TEST(Foresee, WhatIsHeldDoesNotLeave) {
  Schedule schedule(3);
  const auto record = [&] {
    schedule.use(0, true);
    schedule.use(1, true);
    schedule.release(1);
    schedule.use(2, true);
    schedule.release(2);
    schedule.release(0);
    schedule.use(1, true);
    schedule.release(1);
  };
  record();
  schedule.end_iteration();
  // Unit 0 has no next use and would leave for unit 2, but is held then: unit 1 leaves, and comes once more.
  EXPECT_EQ(foresee(schedule, std::vector<SlotContents>(2), std::vector<char>(3, 1)).in_iteration, 4);
  schedule.use(0, true);
  schedule.use(1, true);
  const std::vector<SlotContents> held{{0, true}, {1, false}}, free{{0, false}, {1, false}};
  EXPECT_EQ(foresee(schedule, held, std::vector<char>(3, 1)).in_iteration, 2);
  EXPECT_EQ(foresee(schedule, free, std::vector<char>(3, 1)).in_iteration, 1);
}

Fills fills_of(const std::vector<int>& units, std::int64_t in_iteration) {
  Fills fills;
  fills.units = UnitRow(units, 10);
  fills.in_iteration = in_iteration;
  return fills;
}

std::vector<std::pair<int, int>> ahead(
    const Fills& fills, std::int64_t from, const std::vector<HostSlot>& slots,
    const std::function<bool(int)>& is_current = [](int) { return true; }) {
  std::vector<std::pair<int, int>> pairs;
  for (const Fill& fill : fills_ahead(fills, from, slots, is_current)) pairs.emplace_back(fill.slot, fill.unit);
  return pairs;
}
using Pairs = std::vector<std::pair<int, int>>;

TEST(FillsAhead, FillWhatIsEmpty) {
  const Fills fills = fills_of({0, 1, 2, 3}, 4);
  EXPECT_EQ(ahead(fills, 0, {{.free = true}, {.free = true}, {.free = true}}), (Pairs{{0, 0}, {1, 1}, {2, 2}}));
  EXPECT_EQ(ahead(fills, 2, {{.free = true}, {.free = true}, {.free = true}}), (Pairs{{0, 2}, {1, 3}}));
}

TEST(FillsAhead, TakeNoSlotBeforeItsContentsAreUsed) {
  // For unit 2, slot 1 is emptied, but only when unit 5 has been used.
  const Fills fills = fills_of({5, 2, 4, 4, 5}, 3);
  EXPECT_EQ(ahead(fills, 0, {{.unit = 4, .free = true}, {.unit = 5, .free = true}}), (Pairs{}));
  EXPECT_EQ(ahead(fills, 1, {{.unit = 4, .free = true}, {.unit = 5, .free = true}}), (Pairs{{1, 2}}));
}

TEST(FillsAhead, TakeTheFarthestNextUseWhereItLiesBeyondTheIterationToo) {
  const Fills fills = fills_of({3, 1, 2}, 1);
  EXPECT_EQ(ahead(fills, 0, {{.unit = 1, .free = true}, {.unit = 2, .free = true}}), (Pairs{{1, 3}}));
  EXPECT_EQ(ahead(fills, 0, {{.unit = 1, .free = true}, {.unit = 7, .free = true}}), (Pairs{{1, 3}}));
}

TEST(FillsAhead, EndWithTheIteration) {
  const Fills fills = fills_of({0, 1, 2}, 1);
  EXPECT_EQ(ahead(fills, 0, {{.free = true}, {.free = true}}), (Pairs{{0, 0}}));
}

TEST(FillsAhead, LeaveASlotForWhatIsNotCurrentYet) {
  const Fills fills = fills_of({0, 1, 2}, 3);
  EXPECT_EQ(ahead(fills, 0, {{.free = true}, {.free = true}}, [](int unit) { return unit != 0; }),
            (Pairs{{1, 1}}));
}

TEST(FillsAhead, LeaveWhatIsUnderWay) {
  // Slot 1 is being copied from and has no further use: the rule empties it for unit 2. Slot 0 is for unit 3.
  const Fills fills = fills_of({0, 2, 3, 4}, 4);
  EXPECT_EQ(ahead(fills, 0, {{.unit = 0}, {.unit = 1}, {.unit = 4, .free = true}}), (Pairs{}));
  // Of two without a next use, one that is free.
  EXPECT_EQ(ahead(fills, 1, {{.unit = 1, .since = 1}, {.unit = 7, .free = true, .since = 2}}), (Pairs{{1, 2}}));
}

}  // namespace
}  // namespace spillway
