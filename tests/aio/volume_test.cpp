#include "../../aio/volume.h"

#include "../../aio/checksums.h"
#include "scratch.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spillway::aio {
namespace {

using VolumeTest = OnDrive;

constexpr std::int64_t kStripe = 4 * KiB;

std::vector<VolumePath> paths_of(const std::string& directory, const std::vector<double>& bandwidths) {
  std::vector<VolumePath> paths;
  for (const double bandwidth : bandwidths) paths.push_back({directory, bandwidth});
  return paths;
}

/// With small stripes, so that small volumes have many.
Volume striped(const std::string& directory, const std::vector<double>& bandwidths, std::int64_t bytes) {
  return Volume::create(paths_of(directory, bandwidths), bytes, {.stripe_bytes = kStripe});
}

/// The path of each stripe.
std::vector<std::size_t> stripes_of(const Volume& volume) {
  std::vector<std::size_t> paths;
  for (std::int64_t at = 0; at < volume.size(); at += kStripe) paths.push_back(volume.locate(at).path);
  return paths;
}

std::vector<int> counts_of(const std::vector<std::size_t>& stripes, std::size_t first, std::size_t count,
                           std::size_t paths) {
  std::vector<int> counts(paths);
  for (std::size_t i = first; i < first + count; ++i) ++counts[stripes[i]];
  return counts;
}

/// Every byte that locate() names, once, and in a file that is large enough.
void expect_bijection(const Volume& volume) {
  std::vector<std::vector<bool>> taken(volume.path_count());
  std::int64_t sum = 0;
  for (std::size_t path = 0; path < volume.path_count(); ++path) {
    ASSERT_LE(volume.bytes_on(path), volume.file(path).size());
    taken[path].resize(static_cast<std::size_t>(volume.bytes_on(path)));
    sum += volume.bytes_on(path);
  }
  EXPECT_EQ(sum, volume.size());
  Volume::Place last = volume.locate(0);
  for (std::int64_t at = 0; at < volume.size(); ++at) {
    const Volume::Place place = volume.locate(at);
    ASSERT_LT(place.path, volume.path_count());
    ASSERT_GE(place.offset, 0);
    ASSERT_LT(place.offset, volume.bytes_on(place.path));
    auto reference = taken[place.path][static_cast<std::size_t>(place.offset)];
    ASSERT_FALSE(reference) << "byte " << at;
    reference = true;
    ASSERT_GE(place.bytes, 1);
    ASSERT_LE(place.bytes, volume.size() - at);
    // A run and the walk from byte to byte say the same, and a run goes as far as it can.
    if (at > 0) {
      const bool follows = place.path == last.path && place.offset == last.offset + 1;
      ASSERT_EQ(last.bytes > 1, follows) << "byte " << at;
      if (follows) {
        ASSERT_EQ(place.bytes, last.bytes - 1) << "byte " << at;
      }
    }
    last = place;
  }
  EXPECT_EQ(last.bytes, 1);
}

TEST_F(VolumeTest, LocateIsABijectionOntoTheFiles) {
  for (const std::vector<double>& bandwidths :
       {std::vector<double>{3, 1, 2}, {0, 0}, {0, 0, 0, 0, 0}, {1, 1000}, {6.9, 3.4, 0.2}, {0, 0, 0}}) {
    for (const std::int64_t bytes : {std::int64_t{1}, kStripe, 5 * kStripe, 61 * kStripe, 131 * kStripe}) {
      SCOPED_TRACE(std::to_string(bandwidths.size()) + " paths, " + std::to_string(bytes) + " bytes");
      expect_bijection(striped(scratch.path(), bandwidths, bytes));
    }
  }
}

TEST_F(VolumeTest, APartOfTheLastStripeIsThere) {
  const Volume volume = Volume::create(paths_of(scratch.path(), {3, 1, 2}), 9 * 16 * KiB + 4 * KiB + 1,
                                       {.stripe_bytes = 16 * KiB});
  EXPECT_EQ(volume.size(), 9 * 16 * KiB + 8 * KiB);
  expect_bijection(volume);
  EXPECT_EQ(volume.locate(volume.size() - 8 * KiB).bytes, 8 * KiB);
}

TEST_F(VolumeTest, FilesReserveWhatLiesOnThem) {
  const Volume volume = striped(scratch.path(), {3, 1, 2}, 6 * 40 * kStripe);
  EXPECT_EQ(volume.bytes_on(0), 3 * 40 * kStripe);
  EXPECT_EQ(volume.bytes_on(1), 1 * 40 * kStripe);
  EXPECT_EQ(volume.bytes_on(2), 2 * 40 * kStripe);
  for (std::size_t path = 0; path < 3; ++path) {
    struct stat status {};
    ASSERT_EQ(::fstat(volume.file(path).descriptor(), &status), 0);
    EXPECT_EQ(volume.file(path).size(), volume.bytes_on(path));
    EXPECT_GE(status.st_blocks * 512, volume.bytes_on(path));
  }
}

TEST_F(VolumeTest, AnyNeighboursKeepTheProportions) {
  const Volume volume = striped(scratch.path(), {3, 1, 2}, 6 * 20 * kStripe);
  const auto stripes = stripes_of(volume);
  const std::vector<double> shares{3. / 6, 1. / 6, 2. / 6};
  for (std::size_t count = 1; count <= stripes.size(); ++count) {
    for (std::size_t first = 0; first + count <= stripes.size(); ++first) {
      const auto counts = counts_of(stripes, first, count, 3);
      for (std::size_t path = 0; path < 3; ++path) {
        ASSERT_LE(std::abs(counts[path] - shares[path] * static_cast<double>(count)), 1.5)
            << count << " stripes from " << first << ", path " << path;
        if (count % 6 == 0) {
          ASSERT_EQ(counts[path], shares[path] * static_cast<double>(count));
        }
      }
    }
  }
}

TEST_F(VolumeTest, MeasuredBandwidthsAreMetWithinOneStripeOfACycle) {
  const std::vector<double> bandwidths{6.93e9, 3.41e9, 5.02e9};
  const double sum = 6.93e9 + 3.41e9 + 5.02e9;
  const Volume volume = striped(scratch.path(), bandwidths, 640 * kStripe);
  for (std::size_t path = 0; path < 3; ++path) {
    const double share = static_cast<double>(volume.bytes_on(path)) / static_cast<double>(volume.size());
    EXPECT_NEAR(share, bandwidths[path] / sum, 1. / maximum_cycle) << path;
    // None is so far above its share that it would hold up the others.
    EXPECT_LT(share, bandwidths[path] / sum * 1.02) << path;
  }
}

TEST_F(VolumeTest, EqualPathsTakeTurns) {
  for (const double bandwidth : {0., 1., 0.1, 7.3e9}) {
    for (const std::size_t paths : {2u, 3u, 5u, 7u}) {
      const Volume volume = striped(scratch.path(), std::vector<double>(paths, bandwidth),
                                    static_cast<std::int64_t>(paths) * 20 * kStripe);
      const auto stripes = stripes_of(volume);
      for (std::size_t i = 0; i < stripes.size(); ++i) ASSERT_EQ(stripes[i], i % paths);
    }
  }
}

TEST_F(VolumeTest, ASlowPathStillHasAStripeOfEachCycle) {
  const auto stripes = stripes_of(striped(scratch.path(), {1000, 1, 1000}, 4 * maximum_cycle * kStripe));
  for (std::size_t cycle = 0; cycle < 4; ++cycle) {
    EXPECT_EQ(counts_of(stripes, cycle * maximum_cycle, maximum_cycle, 3), (std::vector<int>{32, 1, 31}));
  }
}

TEST_F(VolumeTest, BandwidthsInAnyUnitAreProportions) {
  for (const std::vector<double>& bandwidths :
       {std::vector<double>{1e308, 1e308}, std::vector<double>{1e-320, 1e300},
        std::vector<double>{5e-324, 5e-324}, std::vector<double>{1e308, 1, 1e-308}}) {
    std::vector<VolumePath> paths;
    for (const double bandwidth : bandwidths) paths.push_back({scratch.path(), bandwidth});
    const Volume volume = Volume::create(paths, 8 * MiB, {.stripe_bytes = 4096});
    std::int64_t bytes = 0;
    for (std::size_t path = 0; path < paths.size(); ++path) {
      EXPECT_GT(volume.bytes_on(path), 0);
      bytes += volume.bytes_on(path);
    }
    EXPECT_EQ(bytes, volume.size());
    if (bandwidths[0] == bandwidths[1]) {
      EXPECT_EQ(volume.bytes_on(0), volume.bytes_on(1));
    }
  }
}

TEST_F(VolumeTest, AsManyPathsAsACycleHasStripes) {
  const Volume volume = striped(scratch.path(), std::vector<double>(64, 2.), 128 * kStripe);
  EXPECT_EQ(volume.path_count(), 64u);
  expect_bijection(striped(scratch.path(), std::vector<double>(64, 0.), 65 * kStripe));
  const auto error = error_of([&] { striped(scratch.path(), std::vector<double>(65, 0.), kStripe); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::configuration);
}

TEST_F(VolumeTest, TheSameOrderEveryTime) {
  const std::vector<double> bandwidths{0.7, 3.3, 1.9, 0.2};
  EXPECT_EQ(stripes_of(striped(scratch.path(), bandwidths, 200 * kStripe)),
            stripes_of(striped(scratch.path(), bandwidths, 200 * kStripe)));
  // 3 : 1 : 2, written out: what is on a drive is found by this.
  EXPECT_EQ(stripes_of(striped(scratch.path(), {3, 1, 2}, 6 * kStripe)),
            (std::vector<std::size_t>{0, 2, 0, 1, 2, 0}));
}

TEST_F(VolumeTest, OnePathHasNoStripes) {
  const Volume volume = Volume::create({{scratch.path(), 3}}, 5 * MiB + 1);
  EXPECT_EQ(volume.size(), 5 * MiB + volume.alignment());
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{1}, MiB - 1, 3 * MiB + 17, volume.size() - 1}) {
    const Volume::Place place = volume.locate(at);
    EXPECT_EQ(place.path, 0u);
    EXPECT_EQ(place.offset, at);
    EXPECT_EQ(place.bytes, volume.size() - at);
  }
  EXPECT_EQ(volume.file(0).size(), volume.size());
}

TEST_F(VolumeTest, OutsideTheVolumeIsALogicError) {
  const Volume volume = striped(scratch.path(), {0, 0}, 10 * kStripe);
  EXPECT_THROW(volume.locate(-1), std::logic_error);
  EXPECT_THROW(volume.locate(volume.size()), std::logic_error);
  EXPECT_THROW(volume.locate(std::numeric_limits<std::int64_t>::max()), std::logic_error);
  EXPECT_THROW(volume.bytes_on(2), std::logic_error);
  EXPECT_THROW(volume.file(2), std::logic_error);
}

TEST_F(VolumeTest, MisuseIsALogicError) {
  const std::string& here = scratch.path();
  EXPECT_THROW(Volume::create({}, MiB), std::logic_error);
  EXPECT_THROW(Volume::over({}), std::logic_error);
  EXPECT_THROW(Volume::create({{here}}, 0), std::logic_error);
  EXPECT_THROW(Volume::create({{here}}, -1), std::logic_error);
  EXPECT_THROW(Volume::create({{here, 1}, {here, -1}}, MiB), std::logic_error);
  EXPECT_THROW(Volume::create({{here, 1}, {here, 0}}, MiB), std::logic_error);
  EXPECT_THROW(Volume::create({{here, NAN}}, MiB), std::logic_error);
  EXPECT_THROW(Volume::create({{here, INFINITY}}, MiB), std::logic_error);
  for (const std::int64_t stripe : {std::int64_t{0}, -4 * KiB, std::int64_t{512}, 6 * KiB}) {
    EXPECT_THROW(Volume::create({{here}, {here}}, MiB, {.stripe_bytes = stripe}), std::logic_error) << stripe;
  }
  EXPECT_EQ(scratch.entries(), 0);
}

TEST_F(VolumeTest, AnAbsurdSizeIsRefused) {
  for (const std::size_t paths : {1u, 3u}) {
    const auto error = error_of([&] {
      Volume::create(std::vector<VolumePath>(paths, {scratch.path()}),
                     std::numeric_limits<std::int64_t>::max());
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::resources);
  }
}

TEST_F(VolumeTest, ThePathThatFailsIsNamedAndNothingStays) {
  const std::int64_t before = open_descriptors();
  const std::string missing = scratch.path() + "/none";
  const auto error = error_of([&] { Volume::create({{scratch.path()}, {missing}, {scratch.path()}}, MiB); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_EQ(error->detail().path, missing);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(scratch.entries(), 0);
}

TEST_F(VolumeTest, ExtentsAreTakenOnceFromAllCopies) {
  Volume volume = striped(scratch.path(), {0, 0}, 10 * kStripe);
  Volume copy = volume;
  EXPECT_EQ(volume.allocate(1), 0);
  EXPECT_EQ(copy.allocate(kStripe + 1), kStripe);
  EXPECT_EQ(volume.allocate(0), 3 * kStripe);
  EXPECT_EQ(volume.allocate(6 * kStripe), 3 * kStripe);
  const auto error = error_of([&] { volume.allocate(kStripe + 1); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::resources);
  EXPECT_EQ(error->detail().length, kStripe + 1);
  EXPECT_TRUE(error_of([&] { volume.allocate(std::numeric_limits<std::int64_t>::max()); }));
  EXPECT_EQ(copy.allocate(kStripe), 9 * kStripe);
  EXPECT_TRUE(error_of([&] { volume.allocate(1); }));
  EXPECT_THROW(volume.allocate(-1), std::logic_error);
}

TEST_F(VolumeTest, TheLastCopyGivesTheSpaceBack) {
  const std::int64_t before = open_descriptors();
  {
    std::optional<Volume> volume = striped(scratch.path(), {0, 0, 0}, 10 * kStripe);
    const Volume copy = *volume;
    volume.reset();
    EXPECT_EQ(open_descriptors(), before + 3);
    EXPECT_EQ(copy.size(), 10 * kStripe);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(VolumeTest, ChecksumsAreKeptOnlyWhereAskedFor) {
  EXPECT_EQ(Volume::create({{scratch.path()}}, MiB).checksums(), nullptr);
  const Volume volume = Volume::create({{scratch.path()}}, MiB, {.checksums = true});
  ASSERT_NE(volume.checksums(), nullptr);
  const Volume copy = volume;
  EXPECT_EQ(copy.checksums(), volume.checksums());
}

/// Where a byte of a volume really lies: through the descriptors, by the page cache.
void write_through(const Volume& volume, std::uint64_t key) {
  for (std::int64_t at = 0; at < volume.size();) {
    const Volume::Place place = volume.locate(at);
    const AlignedBytes memory = aligned_bytes(place.bytes);
    write_pattern(memory.get(), place.bytes, key, at);
    ASSERT_EQ(::pwrite(volume.file(place.path).descriptor(), memory.get(),
                       static_cast<std::size_t>(place.bytes), place.offset),
              place.bytes);
    at += place.bytes;
  }
}

void expect_through(const Volume& volume, std::uint64_t key) {
  for (std::int64_t at = 0; at < volume.size();) {
    const Volume::Place place = volume.locate(at);
    const AlignedBytes memory = aligned_bytes(place.bytes);
    ASSERT_EQ(::pread(volume.file(place.path).descriptor(), memory.get(), static_cast<std::size_t>(place.bytes),
                      place.offset),
              place.bytes);
    ASSERT_EQ(first_difference(memory.get(), place.bytes, key, at), -1);
    at += place.bytes;
  }
}

TEST_F(VolumeTest, AHandleThatWasMovedIsACopy) {
  Volume first = Volume::create({{scratch.path()}}, MiB);
  const Volume second = std::move(first);
  EXPECT_EQ(first.size(), MiB);  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_EQ(first.file(0).descriptor(), second.file(0).descriptor());
}

TEST_F(VolumeTest, TwoVolumesOnOnePathDoNotTouchEachOther) {
  const Volume one = striped(scratch.path(), {2, 1}, 40 * kStripe);
  const Volume two = striped(scratch.path(), {1, 3}, 44 * kStripe);
  write_through(one, 1);
  write_through(two, 2);
  expect_through(one, 1);
  expect_through(two, 2);
  EXPECT_EQ(scratch.entries(), 0);
}

TEST_F(VolumeTest, BufferedOnesHaveTheirSizeToTheByte) {
  const Volume volume = Volume::create({{scratch.path()}, {scratch.path()}}, 3 * kStripe + 5,
                                       {.file = {.direct = false}, .stripe_bytes = kStripe});
  EXPECT_EQ(volume.alignment(), 1);
  EXPECT_EQ(volume.memory_alignment(), 1);
  EXPECT_EQ(volume.size(), 3 * kStripe + 5);
  EXPECT_EQ(volume.bytes_on(0), 2 * kStripe);
  EXPECT_EQ(volume.bytes_on(1), kStripe + 5);
  expect_bijection(volume);
}

TEST_F(VolumeTest, OverFilesEachHoldsItsShare) {
  // What the smallest holds decides, to the stripe and the block.
  for (const std::vector<std::int64_t>& blocks : {std::vector<std::int64_t>{64},
                                                  {16, 64},
                                                  {64, 16},
                                                  {17, 16},
                                                  {16, 17},
                                                  {18, 21, 19},
                                                  {3, 1},
                                                  {1, 3},
                                                  {9, 4}}) {
    std::vector<File> files;
    for (const std::int64_t count : blocks) files.push_back(File::create(scratch.path(), count * 4 * KiB));
    const Volume volume = Volume::over(std::move(files), {.stripe_bytes = 16 * KiB});
    expect_bijection(volume);
    // One block more would not fit: it would lie behind the end of a file.
    std::vector<File> larger;
    std::int64_t sum = 0;
    for (const std::int64_t count : blocks) sum += count;
    const Volume next = Volume::create(std::vector<VolumePath>(blocks.size(), {scratch.path()}),
                                       volume.size() + 4 * KiB, {.stripe_bytes = 16 * KiB});
    bool fits = true;
    for (std::size_t path = 0; path < blocks.size(); ++path) {
      fits = fits && next.bytes_on(path) <= blocks[path] * 4 * KiB;
    }
    EXPECT_FALSE(fits) << blocks.size() << " files, the first of " << blocks.front() << " blocks";
    EXPECT_LE(volume.size(), sum * 4 * KiB);
  }
}

}  // namespace
}  // namespace spillway::aio
