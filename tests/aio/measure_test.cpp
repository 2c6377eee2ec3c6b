// Slices of traffic: every byte is counted and known, what is wrong is found, and reads and writes stay where
// they belong. Speeds are not tested.
#include "../../aio/measure.h"

#include "../../aio/pattern.h"
#include "scratch.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace spillway::aio {
namespace {

constexpr Traffic kAll[] = {Traffic::read, Traffic::write, Traffic::mixed, Traffic::alternating};
constexpr MeasureSetting kSmall{.block_bytes = 64 * KiB, .depth = 4};
constexpr std::int64_t kTransfer = 256 * KiB;
/// Long enough to walk through a volume of 8 MiB more than once on most drives; nothing depends on it.
constexpr double kSeconds = 0.02;

/// A part of a volume's file, through a descriptor of its own and the page cache's side left as it is.
class Meddler {
 public:
  explicit Meddler(const File& file) {
    descriptor_ = ::open(fmt::format("/proc/self/fd/{}", file.descriptor()).c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor_ < 0) throw std::runtime_error("the file cannot be opened again");
  }
  ~Meddler() { ::close(descriptor_); }
  Meddler(const Meddler&) = delete;
  Meddler& operator=(const Meddler&) = delete;

  std::uint64_t word(std::int64_t offset) const {
    std::uint64_t value = 0;
    EXPECT_EQ(::pread(descriptor_, &value, sizeof value, offset), static_cast<ssize_t>(sizeof value));
    return value;
  }
  void set_word(std::int64_t offset, std::uint64_t value) const {
    ASSERT_EQ(::pwrite(descriptor_, &value, sizeof value, offset), static_cast<ssize_t>(sizeof value));
    ASSERT_EQ(::fdatasync(descriptor_), 0);
  }
  /// Every word in [begin, end) becomes `value`.
  void fill(std::int64_t begin, std::int64_t end, std::uint64_t value) const {
    const std::vector<std::uint64_t> words(static_cast<std::size_t>(end - begin) / 8, value);
    ASSERT_EQ(::pwrite(descriptor_, words.data(), 8 * words.size(), begin), static_cast<ssize_t>(end - begin));
    ASSERT_EQ(::fdatasync(descriptor_), 0);
  }
  std::vector<std::byte> contents(std::int64_t bytes) const {
    std::vector<std::byte> all(static_cast<std::size_t>(bytes));
    EXPECT_EQ(::pread(descriptor_, all.data(), all.size(), 0), static_cast<ssize_t>(bytes));
    return all;
  }

 private:
  int descriptor_ = -1;
};

std::uint64_t pattern_word(std::int64_t place) {
  std::uint64_t word = 0;
  fill_pattern(reinterpret_cast<std::byte*>(&word), 8, place);
  return word;
}

class Measure : public OnDrive {
 protected:
  Volume volume_of(std::int64_t bytes, std::size_t paths = 1) {
    return Volume::create(std::vector<VolumePath>(paths, {.directory = scratch.path()}), bytes);
  }
  /// Written once, and `volume` for a look past it.
  std::unique_ptr<Measurement> prepared(const Volume& volume) {
    auto measurement = std::make_unique<Measurement>(volume, kTransfer);
    measurement->prepare(false, {});
    return measurement;
  }
};

TEST(Pattern, EveryWordOfAPeriodIsItsOwn) {
  Pattern pattern(64 * KiB);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(pattern_period / 8));
  std::memcpy(words.data(), pattern.at(0), static_cast<std::size_t>(pattern_period));
  std::sort(words.begin(), words.end());
  EXPECT_EQ(std::adjacent_find(words.begin(), words.end()), words.end());
  EXPECT_NE(words.front(), 0u);  // unwritten space is zeros
}

TEST(Pattern, OfAPlaceIsTheSameHoweverItIsMade) {
  const Pattern pattern(1 * MiB);
  std::vector<std::byte> piece(static_cast<std::size_t>(1 * MiB));
  for (const std::int64_t place : {std::int64_t{0}, 4 * KiB, 13 * MiB + 8, pattern_period - 4096,
                                   pattern_period, 5 * pattern_period + 24 * KiB, std::int64_t{1} << 42}) {
    fill_pattern(piece.data(), 1 * MiB, place);
    EXPECT_EQ(std::memcmp(pattern.at(place), piece.data(), piece.size()), 0) << place;
    EXPECT_EQ(pattern.first_wrong(piece.data(), 1 * MiB, place), -1);
    EXPECT_EQ(pattern.first_wrong(piece.data(), 1 * MiB, place + 4096), 0);
    EXPECT_EQ(pattern.first_wrong(piece.data(), 1 * MiB, place + 1 * MiB), 0);
    piece[777'777] ^= std::byte{1};
    EXPECT_EQ(pattern.first_wrong(piece.data(), 1 * MiB, place), 777'776);
  }
}

TEST(LatencyHistogram, QuantilesAreThoseOfTheValuesWithinABucket) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> around(std::log(300e-6), 2.0);
  LatencyHistogram histogram;
  std::vector<double> values;
  for (int i = 0; i < 20'000; ++i) {
    values.push_back(around(random));
    histogram.add(values.back());
  }
  std::sort(values.begin(), values.end());
  EXPECT_EQ(histogram.count(), 20'000);
  for (const double share : {0.0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<std::size_t>(std::max(1.0, std::ceil(share * 20'000.0)));
    const double exact = values[rank - 1];
    // Half a microsecond of rounding, and half a bucket.
    EXPECT_NEAR(histogram.quantile(share), exact, 0.5e-6 + exact / 32 + 1e-12) << share;
  }
}

TEST(LatencyHistogram, SmallValuesAreExactAndStrangeOnesHarmless) {
  for (int us = 0; us < 16; ++us) {
    LatencyHistogram one;
    one.add(us * 1e-6);
    EXPECT_DOUBLE_EQ(one.quantile(0.5), us * 1e-6);
  }
  LatencyHistogram strange;
  EXPECT_EQ(strange.quantile(0.5), 0.0);
  strange.add(-1.0);
  strange.add(std::nan(""));
  EXPECT_EQ(strange.quantile(1.0), 0.0);
  strange.add(1e300);
  EXPECT_EQ(strange.count(), 3);
  EXPECT_GT(strange.quantile(1.0), 1e5);
  LatencyHistogram sum;
  sum.add(5e-6);
  sum.add(strange);
  EXPECT_EQ(sum.count(), 4);
  EXPECT_EQ(sum.quantile(0.5), 0.0);
  EXPECT_DOUBLE_EQ(sum.quantile(0.75), 5e-6);
}

TEST_F(Measure, PreparationWritesEveryWord) {
  for (const std::size_t paths : {1u, 3u}) {
    const Volume volume = volume_of(8 * MiB + 12 * KiB, paths);
    double last = 0;
    Measurement measurement(volume, kTransfer);
    measurement.prepare(false, [&](double done) {
      EXPECT_GE(done, last);
      last = done;
    });
    EXPECT_EQ(last, 1.0);
    EXPECT_EQ(measurement.written_bytes(), volume.size());
    for (std::int64_t place = 0; place < volume.size();) {
      const Volume::Place at = volume.locate(place);
      const Meddler file(volume.file(at.path));
      ASSERT_EQ(file.word(at.offset), pattern_word(place)) << place;
      place += 8 * 509;  // all words of a page come up
    }
  }
}

TEST_F(Measure, ASliceCountsEveryByteAndBlock) {
  const Volume volume = volume_of(8 * MiB);
  const auto measurement = prepared(volume);
  for (const Traffic traffic : kAll) {
    for (const double seconds : {0.0, kSeconds}) {
      SCOPED_TRACE(fmt::format("traffic {}, {} s", static_cast<int>(traffic), seconds));
      const std::int64_t before = measurement->written_bytes();
      const Sample sample = measurement->run(kSmall, traffic, seconds);
      EXPECT_GT(sample.seconds, seconds);
      EXPECT_GT(sample.cpu_seconds, 0.0);
      EXPECT_EQ(sample.read_bytes > 0, traffic != Traffic::write);
      EXPECT_EQ(sample.written_bytes > 0, traffic != Traffic::read);
      const std::int64_t bytes = sample.read_bytes + sample.written_bytes;
      EXPECT_EQ(sample.operations * kSmall.block_bytes, bytes);  // by the queue's own account
      EXPECT_EQ(sample.latency.count(), sample.operations);
      std::int64_t course = 0;
      for (const std::int64_t piece : sample.course) course += piece;
      EXPECT_EQ(course, bytes);
      if (traffic == Traffic::mixed) {
        EXPECT_LE(std::abs(sample.read_bytes - sample.written_bytes), kTransfer);
      }
      if (traffic == Traffic::alternating) {
        EXPECT_EQ(sample.read_bytes, sample.written_bytes);
      }
      // The marks are pages of 4 KiB beside what was written.
      const std::int64_t marks = measurement->written_bytes() - before - sample.written_bytes;
      EXPECT_GE(marks, 0);
      EXPECT_LE(marks, 16 * 4096);
      EXPECT_NO_THROW(measurement->verify());
    }
  }
}

TEST_F(Measure, TheKernelCountsTheSameBytes) {
  const auto counted = [](const std::string& name) {
    std::ifstream file("/proc/self/io");
    std::string key;
    for (std::int64_t value = 0; file >> key >> value;) {
      if (key == name + ":") return value;
    }
    return std::int64_t{-1};
  };
  if (counted("write_bytes") < 0) GTEST_SKIP() << "/proc/self/io says nothing here";
  const Volume volume = volume_of(8 * MiB);
  Measurement measurement(volume, kTransfer);
  std::int64_t before = counted("write_bytes");
  measurement.prepare(false, {});
  // A file system charges a page of its own to the process now and then.
  constexpr std::int64_t kOwn = 64 * KiB;
  const auto agree = [](std::int64_t kernels, std::int64_t ours) {
    return kernels >= ours && kernels <= ours + kOwn;
  };
  if (!agree(counted("write_bytes") - before, volume.size()))
    GTEST_SKIP() << "this file system is not accounted for in /proc/self/io";
  for (const Traffic traffic : kAll) {
    before = counted("write_bytes");
    const std::int64_t read_before = counted("read_bytes"), own_before = measurement.written_bytes();
    const Sample sample = measurement.run(kSmall, traffic, kSeconds);
    EXPECT_PRED2(agree, counted("write_bytes") - before, measurement.written_bytes() - own_before);
    EXPECT_PRED2(agree, counted("read_bytes") - read_before, sample.read_bytes);
  }
}

TEST_F(Measure, SlicesWalkOnWhereTheLastOneEnded) {
  const Volume volume = volume_of(64 * MiB);
  const auto measurement = prepared(volume);
  // What is written over shows where: the whole volume is spoilt, and each slice leaves its extent right.
  const Meddler file(volume.file(0));
  file.fill(0, volume.size(), 0x1111);
  std::int64_t end = 0;
  for (int slice = 0; slice < 3 && end < 32 * MiB; ++slice) {
    const Sample sample = measurement->run(kSmall, Traffic::write, 0.0);
    EXPECT_EQ(file.word(end), pattern_word(end));
    end += sample.written_bytes;
    ASSERT_LT(end, volume.size());
    EXPECT_EQ(file.word(end - 8), pattern_word(end - 8));
    // (Marks that were not reached are given the pattern; they lie further on.)
    EXPECT_NO_THROW(measurement->verify());
  }
}

TEST_F(Measure, MixedAndAlternatingWriteTheSecondHalfOnly) {
  for (const Traffic traffic : {Traffic::mixed, Traffic::alternating}) {
    const Volume volume = volume_of(8 * MiB);
    const auto measurement = prepared(volume);
    const Meddler file(volume.file(0));
    file.set_word(4 * MiB - 8, 0x2222);  // the last word that is read
    const Sample sample = measurement->run(kSmall, traffic, 0.05);
    EXPECT_EQ(file.word(4 * MiB - 8), 0x2222u);
    file.set_word(4 * MiB - 8, pattern_word(4 * MiB - 8));
    if (sample.written_bytes >= 4 * MiB) {
      const std::vector<std::byte> contents = file.contents(8 * MiB);
      EXPECT_EQ(Pattern(8 * MiB).first_wrong(contents.data(), 8 * MiB, 0), -1);
    }
  }
}

TEST_F(Measure, AVolumeSmallerThanWhatCouldBeUnderWayServes) {
  for (const std::int64_t bytes : {8 * KiB, 12 * KiB, 100 * KiB, 1 * MiB}) {
    const Volume volume = volume_of(bytes);
    const auto measurement = prepared(volume);
    for (const Traffic traffic : kAll) {
      const Sample sample = measurement->run({.block_bytes = 64 * KiB, .depth = 16}, traffic, 0.005);
      EXPECT_GT(sample.read_bytes + sample.written_bytes, 0);
      EXPECT_NO_THROW(measurement->verify()) << bytes;
    }
  }
  EXPECT_THROW(Measurement(volume_of(4 * KiB), kTransfer), std::logic_error);
  EXPECT_THROW(Measurement(volume_of(1 * MiB), 0), std::logic_error);
}

TEST_F(Measure, SettingsMayChangeBetweenSlices) {
  const Volume volume = volume_of(8 * MiB + 4 * KiB, 2);
  const auto measurement = prepared(volume);
  for (const MeasureSetting& setting :
       {MeasureSetting{.block_bytes = 4 * KiB, .depth = 1}, MeasureSetting{.block_bytes = 1 * MiB, .depth = 2},
        MeasureSetting{.block_bytes = 64 * KiB, .depth = 64},
        MeasureSetting{.block_bytes = 2 * MiB, .depth = 3}, MeasureSetting{.block_bytes = 68 * KiB, .depth = 5},
        MeasureSetting{.block_bytes = 64 * KiB, .depth = 4, .engine = IoEngine::posix}}) {
    for (const Traffic traffic : kAll) {
      EXPECT_GT(measurement->run(setting, traffic, 0.002).operations, 0);
      EXPECT_NO_THROW(measurement->verify());
    }
  }
  EXPECT_EQ(measurement->report().engine, IoEngine::posix);
  const std::int64_t written = measurement->written_bytes();
  measurement->open({.block_bytes = 4 * KiB, .depth = 1, .engine = IoEngine::posix});
  EXPECT_EQ(measurement->report().engine, IoEngine::posix);
  EXPECT_EQ(measurement->written_bytes(), written);
  EXPECT_THROW(measurement->run({.block_bytes = 100, .depth = 1}, Traffic::read, 0), std::logic_error);
  EXPECT_GT(measurement->run(kSmall, Traffic::read, 0.0).operations, 0);  // goes on after an error
}

TEST_F(Measure, VerifyFindsOneFlippedBitOfWhatWasRead) {
  const Volume volume = volume_of(2 * MiB, 2);
  const auto measurement = prepared(volume);
  measurement->run(kSmall, Traffic::read, kSeconds);
  EXPECT_NO_THROW(measurement->verify());
  const Volume::Place at = volume.locate(1 * MiB + 123 * KiB + 8);
  const Meddler file(volume.file(at.path));
  const std::uint64_t right = file.word(at.offset);
  file.set_word(at.offset, right ^ 0x100);
  // A slice of no time still moves what a full queue holds: at some point it comes by, and within 2 MiB the
  // last reads cover the volume a few slices on.
  std::optional<Error> found;
  for (int slice = 0; slice < 40 && !found; ++slice) {
    try {
      measurement->run(kSmall, Traffic::read, 0.0);
      measurement->verify();
    } catch (const Error& error) {
      found = error;
    }
  }
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind(), ErrorKind::io);
  EXPECT_EQ(found->detail().offset, at.offset);
  EXPECT_EQ(found->detail().path, scratch.path());
  EXPECT_NE(std::string(found->what()).find(fmt::format("{:#018x}", right)), std::string::npos)
      << found->what();
  EXPECT_NE(std::string(found->what()).find(fmt::format("{:#018x}", right ^ 0x100)), std::string::npos);
  file.set_word(at.offset, right);
  measurement->run(kSmall, Traffic::read, 0.0);
  EXPECT_NO_THROW(measurement->verify());
}

TEST_F(Measure, VerifyFindsWhatWasWrittenAndIsNotThere) {
  const Volume volume = volume_of(2 * MiB);
  const auto measurement = prepared(volume);
  const Meddler file(volume.file(0));
  measurement->run(kSmall, Traffic::write, kSeconds);
  file.fill(0, volume.size(), 0x3333);  // as if the writes had gone nowhere
  const auto error = error_of([&] { measurement->verify(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::io);
  EXPECT_NE(std::string(error->what()).find("0x0000000000003333"), std::string::npos) << error->what();
}

TEST_F(Measure, EachSliceHasToOverwriteItsMarks) {
  const Volume volume = volume_of(2 * MiB);
  const auto measurement = prepared(volume);
  const Meddler file(volume.file(0));
  std::vector<std::byte> before = file.contents(volume.size());
  const std::int64_t written = measurement->written_bytes();
  const Sample sample = measurement->run(kSmall, Traffic::write, 0.0);
  EXPECT_GE(measurement->written_bytes() - written - sample.written_bytes,
            4 * 4096);                              // pages were spoilt first
  EXPECT_EQ(file.contents(volume.size()), before);  // and none is left so
}

TEST_F(Measure, PreparationLeavesAKnownVolumeAloneWhereItMay) {
  const std::string path = scratch.path() + "/file";
  ASSERT_EQ(std::ofstream(path).put('x').flush().good(), true);
  std::filesystem::resize_file(path, 8 * MiB);
  const auto volume = [&] {
    std::vector<File> files;
    files.push_back(File::open_existing(path));
    return Volume::over(std::move(files));
  };
  const auto written_by = [&](bool keep, Traffic traffic) {
    Measurement measurement(volume(), kTransfer);
    measurement.prepare(keep, {}, traffic);
    return measurement.written_bytes();
  };
  EXPECT_EQ(written_by(true, Traffic::read), 8 * MiB);  // holes
  EXPECT_EQ(written_by(true, Traffic::read), 0);
  EXPECT_EQ(written_by(true, Traffic::mixed), 0);
  EXPECT_EQ(written_by(true, Traffic::write), 0);
  EXPECT_EQ(written_by(false, Traffic::read), 8 * MiB);

  Measurement measurement(volume(), kTransfer);
  const Volume look = volume();
  const Meddler file(look.file(0));
  file.fill(4 * MiB, 8 * MiB, 0x4444);  // someone else's data, where nothing will be read
  EXPECT_EQ(written_by(true, Traffic::mixed), 0);
  EXPECT_EQ(written_by(true, Traffic::write), 0);
  EXPECT_EQ(file.word(8 * MiB - 8), 0x4444u);
  EXPECT_EQ(written_by(true, Traffic::read), 8 * MiB);
  EXPECT_EQ(file.word(8 * MiB - 8), pattern_word(8 * MiB - 8));
  file.fill(0, 4 * MiB, 0x4444);  // and where it will
  EXPECT_EQ(written_by(true, Traffic::write), 0);
  EXPECT_EQ(written_by(true, Traffic::mixed), 8 * MiB);
  file.fill(0, 8 * MiB, 0);  // as what was only reserved reads
  EXPECT_EQ(written_by(true, Traffic::write), 8 * MiB);
}

TEST_F(Measure, NothingIsLeftInTheDirectoryOrOpen) {
  const std::int64_t descriptors = open_descriptors();
  {
    const auto measurement = prepared(volume_of(2 * MiB));
    measurement->run(kSmall, Traffic::mixed, 0.0);
    EXPECT_EQ(scratch.entries(), 0);
  }
  EXPECT_EQ(scratch.entries(), 0);
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST_F(Measure, MemoryServesWhereItMay) {
  struct statfs status {};
  if (::statfs("/dev/shm", &status) != 0 || status.f_type != TMPFS_MAGIC)
    GTEST_SKIP() << "/dev/shm is no tmpfs";
  Measurement measurement(
      Volume::create({{.directory = "/dev/shm"}}, 2 * MiB, {.file = {.allow_memory = true}}), kTransfer);
  measurement.prepare(false, {});
  for (const Traffic traffic : kAll) {
    EXPECT_GT(measurement.run(kSmall, traffic, 0.005).operations, 0);
    EXPECT_NO_THROW(measurement.verify());
  }
}

TEST_F(Measure, ThePageCacheServesWithOddSizes) {
  Measurement measurement(
      Volume::create({{.directory = scratch.path()}}, 1 * MiB + 4100, {.file = {.direct = false}}), kTransfer);
  measurement.prepare(false, {});
  for (const Traffic traffic : kAll) {
    EXPECT_GT(measurement.run(kSmall, traffic, 0.005).operations, 0);
    EXPECT_NO_THROW(measurement.verify());
  }
}

}  // namespace
}  // namespace spillway::aio
