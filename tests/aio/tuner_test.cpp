// The search, on drives that exist only here: their speed, noise and time are made up, so that what is best is
// known, and nothing waits.
#include "../../aio/tuner.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace spillway::aio {
namespace {

constexpr double kGB = 1e9;

/// A drive that is as fast as it is told, with noise on top.
class MadeUpDrive {
 public:
  explicit MadeUpDrive(std::uint64_t seed) : random_(seed) {}

  // What it is; all may be changed.
  /// Bytes a second of reads and writes by turns, without noise.
  std::function<double(const TuneSetting&)> rate = [](const TuneSetting&) { return 3 * kGB; };
  double noise = 0.03;        ///< standard deviation of a trial's logarithm
  double together = 1;        ///< reads and writes at the same time / by turns
  double outliers = 0;        ///< share of the trials that run twice as fast
  bool drifts = false;        ///< by a factor of two, in random steps of a second and a half
  double cache_bytes = 1e18;  ///< writes beyond fall to a third
  bool reads_fall_too = false;
  std::function<double(const TuneSetting&)> cpu_s_per_gb = [](const TuneSetting&) { return 0.1; };
  double overhead = 0.004;  ///< seconds of a trial beyond what it was asked for

  TuneDrive drive() {
    return {.sample = [this](const TuneSetting& s, Traffic t, double seconds) { return sample(s, t, seconds); },
            .now = [this] { return now_; }};
  }

  double now() const { return now_; }
  const std::vector<TuneSetting>& tried() const { return tried_; }
  double longest_trial() const { return longest_; }

 private:
  Sample sample(const TuneSetting& setting, Traffic traffic, double seconds) {
    tried_.push_back(setting);
    longest_ = std::max(longest_, seconds);
    double speed = rate(setting) * std::exp(noise * normal_(random_));
    if (traffic == Traffic::mixed) speed *= together;
    if (uniform_(random_) < outliers) speed *= 2;
    const bool full = written_ > cache_bytes;
    if (full && traffic == Traffic::write) speed /= 3;
    if (full && traffic == Traffic::read && reads_fall_too) speed /= 3;
    double bytes = 0;
    // The drift steps within a trial too.
    for (double left = seconds; left > 0;) {
      const double piece = drifts ? std::min(left, next_step_ - now_) : left;
      bytes += speed * level_ * piece;
      now_ += piece;
      left -= piece;
      if (drifts && now_ >= next_step_ - 1e-12) {
        level_ = std::exp2(-uniform_(random_));
        next_step_ = now_ - 1.5 * std::log(1 - uniform_(random_));
      }
    }
    now_ += overhead;
    const bool reads = traffic != Traffic::write, writes = traffic != Traffic::read;
    Sample result{.seconds = seconds, .cpu_seconds = cpu_s_per_gb(setting) * bytes / kGB};
    result.read_bytes = static_cast<std::int64_t>(reads ? (writes ? bytes / 2 : bytes) : 0);
    result.written_bytes = static_cast<std::int64_t>(writes ? (reads ? bytes / 2 : bytes) : 0);
    written_ += static_cast<double>(result.written_bytes);
    return result;
  }

  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
  double now_ = 0, level_ = 1, next_step_ = 0, written_ = 0, longest_ = 0;
  std::vector<TuneSetting> tried_;
};

/// Rises with what is under way until it is full: a knee at `memory_bytes`.
std::function<double(const TuneSetting&)> knee(double memory_bytes) {
  return [=](const TuneSetting& s) {
    return 3 * kGB * std::min(1.0, std::sqrt(static_cast<double>(s.memory_bytes()) / memory_bytes));
  };
}
/// Rises with the depth alone, and smoothly.
double by_depth(const TuneSetting& s) {
  return 3 * kGB * (1 - std::exp(-static_cast<double>(s.depth) / 3));
}

double fastest(const MadeUpDrive& drive, const TuneOptions& options) {
  double most = 0;
  for (const std::int64_t block : options.block_sizes) {
    for (const unsigned depth : options.depths) {
      for (const IoEngine engine : options.engines) {
        const TuneSetting setting{.block_bytes = block, .depth = depth, .engine = engine};
        if (setting.memory_bytes() <= options.most_memory_bytes) most = std::max(most, drive.rate(setting));
      }
    }
  }
  return most;
}

std::string text(const TuneSetting& s) {
  return std::to_string(s.block_bytes >> 10) + "K x " + std::to_string(s.depth) + " " +
         std::string(s.engine == IoEngine::io_uring ? "io_uring" : "posix") + (s.overlap ? "" : " by turns");
}

struct Score {
  int within = 0;    ///< chosen at least 0.97 of the fastest
  int cheapest = 0;  ///< and with no more than twice the memory of the cheapest that is within 2%
  std::string list;
};

Score over_seeds(int seeds, const std::function<void(MadeUpDrive&)>& make) {
  Score score;
  for (int seed = 1; seed <= seeds; ++seed) {
    MadeUpDrive drive(static_cast<std::uint64_t>(seed) * 7919);
    make(drive);
    const TuneOptions options{.seed = static_cast<std::uint64_t>(seed)};
    const TuneResult result = tune(drive.drive(), options);
    const double best = fastest(drive, options);
    std::int64_t least = INT64_MAX;
    for (const std::int64_t block : options.block_sizes) {
      for (const unsigned depth : options.depths) {
        for (const IoEngine engine : options.engines) {
          const TuneSetting setting{.block_bytes = block, .depth = depth, .engine = engine};
          if (drive.rate(setting) >= 0.98 * best) least = std::min(least, setting.memory_bytes());
        }
      }
    }
    const double share = drive.rate(result.chosen) / best;
    score.within += share >= 0.97;
    score.cheapest += share >= 0.97 && result.chosen.memory_bytes() <= 2 * least;
    score.list += std::to_string(seed) + ": " + text(result.chosen) + " " + std::to_string(share) + "\n";
  }
  return score;
}

TEST(Tuner, OnAFlatDriveTakesTheCheapestOfAll) {
  const Score score = over_seeds(50, [](MadeUpDrive&) {});
  EXPECT_EQ(score.within, 50) << score.list;
  EXPECT_GE(score.cheapest, 48) << score.list;
}

TEST(Tuner, FindsTheKneeAndNothingBeyondIt) {
  const Score score = over_seeds(50, [](MadeUpDrive& drive) { drive.rate = knee(4 << 20); });
  EXPECT_GE(score.within, 48) << score.list;
  EXPECT_GE(score.cheapest, 45) << score.list;
}

TEST(Tuner, FindsTheDepthWhereOnlyThatCounts) {
  const Score score = over_seeds(50, [](MadeUpDrive& drive) { drive.rate = by_depth; });
  EXPECT_GE(score.within, 48) << score.list;
  EXPECT_GE(score.cheapest, 45) << score.list;
}

TEST(Tuner, ADriveThatDriftsByAFactorOfTwoMisleadsItRarely) {
  const Score score = over_seeds(50, [](MadeUpDrive& drive) {
    drive.rate = by_depth;
    drive.drifts = true;
  });
  EXPECT_GE(score.within, 48) << score.list;
  EXPECT_GE(score.cheapest, 42) << score.list;
}

TEST(Tuner, ARareTrialTwiceAsFastDoesNotWin) {
  const Score score = over_seeds(50, [](MadeUpDrive& drive) {
    drive.rate = by_depth;
    drive.outliers = 0.03;
  });
  EXPECT_GE(score.within, 48) << score.list;
  EXPECT_GE(score.cheapest, 42) << score.list;
}

TEST(Tuner, NoiseOfAFifthMakesItNeitherWastefulNorSlow) {
  int good = 0, thrifty = 0, misled = 0;
  std::string list;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    MadeUpDrive drive(seed * 31);
    drive.rate = by_depth;
    drive.noise = 0.2;
    const TuneResult result = tune(drive.drive(), {.seed = seed});
    good += by_depth(result.chosen) > 0.9 * 3 * kGB;
    thrifty += result.chosen.memory_bytes() <= 16 << 20;
    misled += result.chosen.engine == IoEngine::posix;  // it is nowhere better
    list += text(result.chosen) + " " + std::to_string(result.undecided) + "\n";
  }
  EXPECT_GE(good, 45) << list;
  EXPECT_GE(thrifty, 40) << list;
  EXPECT_LE(misled, 3) << list;
}

TEST(Tuner, OfEnginesThatAreEquallyFastTakesTheOneWithLessProcessorTime) {
  const Score score = over_seeds(10, [&](MadeUpDrive& drive) {
    drive.rate = by_depth;
    drive.cpu_s_per_gb = [](const TuneSetting& s) { return s.engine == IoEngine::io_uring ? 0.1 : 0.2; };
  });
  EXPECT_EQ(score.list.find("posix"), std::string::npos) << score.list;
  EXPECT_EQ(score.within, 10) << score.list;
}

TEST(Tuner, AnEngineThatIsClearlyFasterIsSearchedThroughAndChosen) {
  const Score score = over_seeds(10, [](MadeUpDrive& drive) {
    drive.rate = [](const TuneSetting& s) { return by_depth(s) * (s.engine == IoEngine::posix ? 1.2 : 1.0); };
  });
  EXPECT_EQ(score.list.find("io_uring"), std::string::npos) << score.list;
  EXPECT_EQ(score.within, 10) << score.list;
  EXPECT_GE(score.cheapest, 9) << score.list;
}

TEST(Tuner, SaysWhetherReadsAndWritesAtTheSameTimeHelp) {
  const auto verdict = [](double together, bool drifts) {
    MadeUpDrive drive(11);
    drive.rate = by_depth;
    drive.together = together;
    drive.drifts = drifts;
    return tune(drive.drive(), {});
  };
  for (const bool drifts : {false, true}) {
    const TuneResult half = verdict(1.0, drifts);
    EXPECT_EQ(half.duplex.verdict, OverlapVerdict::no_difference) << half.duplex.ratio.value;
    EXPECT_NEAR(half.duplex.ratio.value, 1.0, 0.03);
    EXPECT_TRUE(half.chosen.overlap);

    const TuneResult full = verdict(1.9, drifts);
    EXPECT_EQ(full.duplex.verdict, OverlapVerdict::helps);
    EXPECT_NEAR(full.duplex.ratio.value, 1.9, 0.06);
    EXPECT_LT(full.duplex.ratio.low, 1.9);
    EXPECT_GT(full.duplex.ratio.high, 1.85);
    EXPECT_TRUE(full.chosen.overlap);

    const TuneResult hurting = verdict(0.8, drifts);
    EXPECT_EQ(hurting.duplex.verdict, OverlapVerdict::hurts);
    EXPECT_NEAR(hurting.duplex.ratio.value, 0.8, 0.03);
    EXPECT_FALSE(hurting.chosen.overlap);
  }
}

TEST(Tuner, SeesThatSustainedWritesFallAndWhere) {
  int seen = 0, exact = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    MadeUpDrive drive(seed);
    drive.cache_bytes = 8 * kGB;
    drive.drifts = seed % 2 == 0;
    const SustainedFinding found = tune(drive.drive(), {}).sustained;
    const bool right = found.fell && std::abs(found.fell_to - 1.0 / 3) < 0.05;
    EXPECT_TRUE(right || drive.drifts) << seed;
    seen += right;
    // On a slow drive it may come so late that only the look at the end sees it.
    const bool early = std::abs(static_cast<double>(found.bytes_before_fall) - 8 * kGB) < 0.7 * kGB;
    exact += !found.later && early;
    if (drive.drifts) continue;
    EXPECT_NEAR(found.first_bytes_per_s, 3 * kGB, 0.2 * kGB);
    EXPECT_LT(found.last_bytes_per_s, 1.2 * kGB);
  }
  EXPECT_GE(seen, 17);
  EXPECT_GE(exact, 15);
}

TEST(Tuner, SeesThatWritesFellDuringTheSearch) {
  MadeUpDrive drive(5);
  drive.cache_bytes = 30 * kGB;  // more than the first stage writes
  const SustainedFinding found = tune(drive.drive(), {}).sustained;
  EXPECT_TRUE(found.fell);
  EXPECT_TRUE(found.later);
  EXPECT_GT(found.bytes_before_fall, 5 * kGB);
  EXPECT_LT(found.bytes_before_fall, 30 * kGB);
  EXPECT_NEAR(found.fell_to, 1.0 / 3, 0.05);
}

TEST(Tuner, ADriveThatDriftsOrSlowsDownAsAWholeHasNoFullCache) {
  int fell = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    MadeUpDrive drive(seed);
    drive.drifts = true;
    fell += tune(drive.drive(), {}).sustained.fell;
  }
  EXPECT_LE(fell, 1);
  MadeUpDrive slower(1);
  slower.cache_bytes = 8 * kGB;
  slower.reads_fall_too = true;
  const SustainedFinding found = tune(slower.drive(), {}).sustained;
  EXPECT_FALSE(found.fell);
  EXPECT_LT(found.last_bytes_per_s, 0.5 * found.first_bytes_per_s);
}

TEST(Tuner, KeepsToItsTime) {
  for (const double seconds : {2.0, 10.0, 60.0, 300.0}) {
    for (const double overhead : {0.0, 0.02}) {
      MadeUpDrive drive(3);
      drive.overhead = overhead;
      drive.drifts = true;
      double least_left = 1e9, last_done = 0;
      TuneDrive watched = drive.drive();
      watched.progress = [&](const TuneProgress& progress) {
        EXPECT_FALSE(progress.stage.empty());
        EXPECT_GE(progress.done, last_done);
        EXPECT_LE(progress.seconds_left, least_left);
        last_done = progress.done;
        least_left = progress.seconds_left;
      };
      const TuneResult result = tune(watched, {.seconds = seconds});
      EXPECT_TRUE(result.complete);
      EXPECT_NEAR(drive.now(), seconds, 0.1 * seconds) << overhead;
      EXPECT_NEAR(result.seconds, drive.now(), 1e-9);
      EXPECT_GT(last_done, 0.9);
      EXPECT_LE(drive.longest_trial(), 0.21);
      EXPECT_EQ(result.trials, static_cast<int>(drive.tried().size()));
    }
  }
}

TEST(Tuner, WithFarTooLittleTimeItStillKnowsSomething) {
  MadeUpDrive drive(3);
  drive.overhead = 0.3;
  const TuneResult result = tune(drive.drive(), {.seconds = 1});
  EXPECT_TRUE(result.complete);
  EXPECT_NE(result.find(result.chosen), nullptr);
  EXPECT_LT(drive.now(), 8);
}

TEST(Tuner, WithLittleTimeOnAWildDriveItStillKnowsSomething) {
  int put_aside = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    MadeUpDrive drive(seed);
    drive.noise = 0.7;
    drive.overhead = 0.02;
    const TuneResult result =
        tune(drive.drive(), {.seconds = 1 + static_cast<double>(seed % 4) / 2, .seed = seed});
    EXPECT_NE(result.find(result.chosen), nullptr) << seed;
    put_aside += result.put_aside;
  }
  EXPECT_GT(put_aside, 300) << "the drive is not wild enough";
}

TEST(Tuner, StopsBeforeTheNextTrialAndTellsWhatItHas) {
  for (const int after : {0, 1, 7, 40, 100, 150, 220}) {
    MadeUpDrive drive(17);
    drive.rate = by_depth;
    TuneDrive stoppable = drive.drive();
    int asked = 0;
    stoppable.stopped = [&] { return asked++ >= after; };
    const TuneResult result = tune(stoppable, {});
    EXPECT_FALSE(result.complete);
    EXPECT_EQ(static_cast<int>(drive.tried().size()), after);
    EXPECT_EQ(result.trials, after);
    if (after < 100) continue;
    ASSERT_NE(result.find(result.chosen), nullptr);
    EXPECT_GT(by_depth(result.chosen), 0.9 * 3 * kGB) << text(result.chosen);
  }
}

TEST(Tuner, TellsOfEverySettingWhatItIsWorth) {
  MadeUpDrive drive(23);
  drive.rate = by_depth;
  drive.drifts = true;
  const TuneOptions options;
  const TuneResult result = tune(drive.drive(), options);
  int cells = 0, covered = 0;
  double best = 0;
  for (const TuneEstimate& one : result.estimates) {
    EXPECT_LE(one.setting.memory_bytes(), options.most_memory_bytes);
    EXPECT_GT(one.trials, 0);
    EXPECT_LE(one.low, one.bytes_per_s);
    EXPECT_GE(one.high, one.bytes_per_s);
    EXPECT_NEAR(one.cpu_s_per_gb, 0.1, 0.02);
    cells += one.setting.engine == result.chosen.engine;
    best = std::max(best, one.setting == result.best ? one.bytes_per_s : 0);
  }
  EXPECT_EQ(cells, 58);  // 64 less those with more than 128 MiB under way
  for (const TuneEstimate& one : result.estimates) {
    EXPECT_NEAR(one.of_best, one.bytes_per_s / best, 1e-9);
    const double truth = by_depth(one.setting) / by_depth(result.best) * best;
    covered += one.low <= truth && truth <= one.high;
  }
  EXPECT_GE(covered, static_cast<int>(0.85 * static_cast<double>(result.estimates.size())));
  const TuneEstimate* const chosen = result.find(result.chosen);
  ASSERT_NE(chosen, nullptr);
  EXPECT_TRUE(chosen->finalist);
  EXPECT_GE(chosen->of_best, 0.98);
  EXPECT_GT(result.noise, 0.01);
  EXPECT_LT(result.noise, 0.3);
  EXPECT_GT(result.put_aside, 0);
  EXPECT_GT(result.written_bytes, 30 * kGB);
  EXPECT_EQ(result.find({.block_bytes = 3}), nullptr);
}

TEST(Tuner, TheSameSeedMakesTheSameSearch) {
  const auto order = [](std::uint64_t seed) {
    MadeUpDrive drive(1);
    tune(drive.drive(), {.seconds = 10, .seed = seed});
    return drive.tried();
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(Tuner, ADriveThatMovesNothingEndsAllTheSame) {
  MadeUpDrive drive(1);
  drive.rate = [](const TuneSetting&) { return 0.0; };
  const TuneResult result = tune(drive.drive(), {.seconds = 5});
  EXPECT_TRUE(result.estimates.empty());
  EXPECT_LE(drive.now(), 5.5);
}

TEST(Tuner, WhatATrialThrowsEndsTheSearch) {
  MadeUpDrive drive(1);
  TuneDrive failing = drive.drive();
  int trials = 0;
  failing.sample = [&](const TuneSetting&, Traffic, double) -> Sample {
    if (++trials == 50) throw std::runtime_error("the drive is gone");
    return drive.drive().sample({}, Traffic::mixed, 0.1);
  };
  EXPECT_THROW(tune(failing, {}), std::runtime_error);
  EXPECT_EQ(trials, 50);
}

TEST(Tuner, OptionsThatLeaveNothingToTryAreRefused) {
  MadeUpDrive drive(1);
  EXPECT_THROW(tune(drive.drive(), {.block_sizes = {}}), std::logic_error);
  EXPECT_THROW(tune(drive.drive(), {.depths = {}}), std::logic_error);
  EXPECT_THROW(tune(drive.drive(), {.engines = {}}), std::logic_error);
  EXPECT_THROW(tune(drive.drive(), {.engines = {IoEngine::automatic}}), std::logic_error);
  EXPECT_THROW(tune(drive.drive(), {.most_memory_bytes = 1024}), std::logic_error);
  EXPECT_THROW(tune(drive.drive(), {.seconds = 0}), std::logic_error);
}

TEST(Tuner, OneEngineOneBlockOneDepthIsASearchToo) {
  MadeUpDrive drive(1);
  const TuneResult result = tune(
      drive.drive(), {.block_sizes = {1 << 20}, .depths = {4}, .engines = {IoEngine::posix}, .seconds = 5});
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.chosen, (TuneSetting{.block_bytes = 1 << 20, .depth = 4, .engine = IoEngine::posix}));
  EXPECT_EQ(result.undecided, 0);
}

TuneEstimate costing(std::int64_t block, unsigned depth, IoEngine engine, double cpu) {
  return {.setting = {.block_bytes = block, .depth = depth, .engine = engine}, .cpu_s_per_gb = cpu};
}

TEST(Cheapest, MemoryComesFirstThenProcessorTimeThenWhatIsSimpler) {
  const TuneEstimate thrifty = costing(1 << 20, 8, IoEngine::posix, 0.9);
  const TuneEstimate fast = costing(1 << 20, 16, IoEngine::io_uring, 0.1);
  EXPECT_EQ(cheapest({fast, thrifty}).setting, thrifty.setting);  // less memory

  const TuneEstimate small_blocks = costing(64 << 10, 128, IoEngine::io_uring, 0.5);
  const TuneEstimate large_blocks = costing(8 << 20, 1, IoEngine::posix, 0.4);
  EXPECT_EQ(cheapest({small_blocks, large_blocks}).setting, large_blocks.setting);  // less processor time

  const TuneEstimate nearly = costing(2 << 20, 4, IoEngine::io_uring, 0.43);  // within a tenth
  EXPECT_EQ(cheapest({nearly, large_blocks}).setting, nearly.setting);        // io_uring

  const TuneEstimate larger = costing(4 << 20, 2, IoEngine::io_uring, 0.43);
  EXPECT_EQ(cheapest({nearly, larger}).setting, larger.setting);  // fewer operations
  EXPECT_EQ(cheapest({larger, nearly}).setting, larger.setting);
  EXPECT_THROW(cheapest({}), std::logic_error);
}

TEST(ComparePaths, GoesThroughThemForthAndBackAndGivesTheirMedians) {
  std::vector<std::size_t> order;
  const std::vector<double> rates = compare_paths(3, 2.4, [&](std::size_t path, double seconds) {
    order.push_back(path);
    EXPECT_NEAR(seconds, 0.1, 1e-9);
    const bool outlier = order.size() < 4;
    return Sample{.seconds = 1, .read_bytes = static_cast<std::int64_t>(path + 1) * (outlier ? 90 : 10)};
  });
  EXPECT_EQ(rates, (std::vector<double>{10, 20, 30}));
  EXPECT_EQ((std::vector<std::size_t>{order.begin(), order.begin() + 6}),
            (std::vector<std::size_t>{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(order.size(), 24u);
}

TEST(TrimmedMean, TakesNoNoticeOfAFewFarOff) {
  const NoisePrior prior{0.01, 4};
  EXPECT_EQ(trimmed_mean({1, 1, 1, 1, 1, 1, 1, 1, 1, 100}, prior).value, 1);
  EXPECT_EQ(trimmed_mean({1, 50, 2}, prior).value, 2);
  EXPECT_EQ(trimmed_mean({1, 3}, prior).value, 2);
  EXPECT_EQ(trimmed_mean({}, prior).count, 0);
}

TEST(TrimmedMean, ItsIntervalHoldsTheTruth95TimesOfAHundred) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(5, 2);
  for (const int count : {1, 2, 3, 6, 20}) {
    int inside = 0;
    constexpr int kTimes = 4000;
    for (int i = 0; i < kTimes; ++i) {
      std::vector<double> values;
      for (int j = 0; j < count; ++j) values.push_back(normal(random));
      const Estimate estimate = trimmed_mean(values, {4, 6});  // the prior is the truth
      inside += estimate.low <= 5 && 5 <= estimate.high;
    }
    EXPECT_GT(inside, 0.92 * kTimes) << count;
    if (count == 3) continue;  // the middle one of three: wider than need be
    EXPECT_LT(inside, 0.995 * kTimes) << count;
  }
}

TEST(Statistics, QuantilesAndStepsAreWhereTheyShouldBe) {
  EXPECT_EQ(quantile_of({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile_of({1, 2}, 0.25), 1.25);
  EXPECT_EQ(quantile_of({}, 0.5), 0);
  EXPECT_NEAR(robust_deviation({-1, 0, 1, 1000}), 1.4826 * 1.0, 0.6);
  EXPECT_NEAR(t95(1), 12.706, 1e-3);
  EXPECT_NEAR(t95(5), 2.571, 0.02);
  EXPECT_NEAR(t95(30), 2.042, 2e-3);
  EXPECT_EQ(change_point({5, 5, 5, 5, 1, 1, 1, 1}, 2), 4u);
  EXPECT_EQ(change_point({5, 5, 1}, 2), 0u);
}

}  // namespace
}  // namespace spillway::aio
