#include "measure.h"

#include "measure_state.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <sys/resource.h>

namespace spillway::aio {
namespace {

using Clock = std::chrono::steady_clock;

/// Pages that verify() looks at, of what was written.
constexpr int kSampledPages = 64;
/// Bytes of one direction at a time where reads and writes come by turns, and how often what is under way goes
/// into them at least: between two phases the queue runs empty.
constexpr std::int64_t kPhaseBytes = std::int64_t{32} << 20;
constexpr std::int64_t kPhaseWindows = 4;

/// User and system time of this process, all threads that it had included.
double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto in_seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return in_seconds(usage.ru_utime) + in_seconds(usage.ru_stime);
}

}  // namespace

void LatencyHistogram::add(double seconds) noexcept {
  const double microseconds = std::clamp(seconds * 1e6, 0.0, 1e12);  // not a number becomes 0
  const auto value = static_cast<std::uint64_t>(std::llround(microseconds > 0 ? microseconds : 0.0));
  const int exponent = std::bit_width(value) - 5;  // 16 buckets for each doubling from 16 on
  const std::size_t bucket =
      exponent < 0 ? value
                   : static_cast<std::size_t>(16 * exponent) + (value >> static_cast<unsigned>(exponent));
  ++buckets_[std::min(bucket, kBuckets - 1)];
  ++count_;
}

void LatencyHistogram::add(const LatencyHistogram& other) noexcept {
  for (std::size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
}

double LatencyHistogram::quantile(double share) const noexcept {
  if (count_ == 0) return 0;
  const double rank = std::ceil(std::clamp(share, 0.0, 1.0) * static_cast<double>(count_));
  std::int64_t left = std::max<std::int64_t>(1, static_cast<std::int64_t>(rank));
  std::size_t bucket = 0;
  while ((left -= buckets_[bucket]) > 0) ++bucket;
  if (bucket < 16) return 1e-6 * static_cast<double>(bucket);
  const auto exponent = bucket / 16 - 1;
  const auto width = static_cast<double>(std::uint64_t{1} << exponent);
  return 1e-6 * (static_cast<double>(bucket - 16 * exponent) * width + (width - 1) / 2);
}

Measurement::Measurement(Volume volume, std::int64_t transfer_bytes)
    : state_(std::make_unique<State>(std::move(volume), transfer_bytes)) {
  State& s = *state_;
  if (transfer_bytes <= 0 || transfer_bytes > maximum_operation_bytes)
    throw std::logic_error(fmt::format("Measurement: transfers of {} bytes", transfer_bytes));
  s.page = std::max(s.volume.alignment(), direct_io_alignment);
  if (s.volume.size() < 2 * s.page) {
    throw std::logic_error(
        fmt::format("Measurement: a volume of {} bytes is less than two pages of {}", s.volume.size(), s.page));
  }
  s.page_memory = Pages(s.page);
}

Measurement::~Measurement() = default;

void Measurement::prepare(bool keep, const std::function<void(double done)>& progress, Traffic traffic) {
  State& s = *state_;
  s.make_queue(s.setting);
  if (keep) {
    const bool reads = traffic != Traffic::write, writes = traffic != Traffic::read;
    if ((!reads || s.sample_holds(s.region(Direction::read, traffic), false)) &&
        (!writes || s.sample_holds(s.region(Direction::write, traffic), true))) {
      return;
    }
  }
  try {
    s.cursor = {};
    Flow flow(s, Traffic::write);
    while (flow.landed(Direction::write) < s.volume.size()) {
      while (flow.started(Direction::write) < s.volume.size() &&
             flow.start(Direction::write, s.volume.size())) {
      }
      flow.land();
      if (progress)
        progress(static_cast<double>(flow.landed(Direction::write)) / static_cast<double>(s.volume.size()));
    }
  } catch (...) {
    s.queue.reset();  // what is under way has to end before its memory is used again
    throw;
  }
}

void Measurement::open(const MeasureSetting& setting) {
  state_->make_queue(setting);
}

Sample Measurement::run(const MeasureSetting& setting, Traffic traffic, double seconds) {
  State& s = *state_;
  s.make_queue(setting);
  Flow flow(s, traffic);
  const std::int64_t window = s.unit * static_cast<std::int64_t>(s.under_way);
  const bool reads = traffic != Traffic::write, writes = traffic != Traffic::read;
  s.last_reads.assign(s.under_way, {});
  if (reads) {
    // So that no page can pass for what the slice brings, should nothing come into it.
    for (std::int64_t i = 0; i < window; i += direct_io_alignment) s.slots.data()[i] = ~s.slots.data()[i];
  }
  Sample sample;
  try {
    if (writes) s.spoil_marks(flow.region(Direction::write), window);
    s.tally.begin(seconds);
    const double cpu = cpu_seconds();
    const Clock::time_point begin = Clock::now();
    const auto due = [&] { return seconds_between(begin, Clock::now()) >= seconds; };
    if (traffic == Traffic::alternating) {
      alternate(flow, std::max(kPhaseBytes, kPhaseWindows * window), due);
    } else {
      const auto next = [&] {
        if (traffic == Traffic::read) return Direction::read;
        if (traffic == Traffic::write) return Direction::write;
        return flow.started(Direction::read) <= flow.started(Direction::write) ? Direction::read
                                                                               : Direction::write;
      };
      do {
        while (flow.start(next(), s.unit)) {
        }
        flow.land();
      } while (!due());
      flow.land_all();
    }
    sample.seconds = seconds_between(begin, Clock::now());
    sample.cpu_seconds = cpu_seconds() - cpu;
  } catch (...) {
    s.queue.reset();  // as above
    try {
      s.restore_marks();
    } catch (const Error&) {  // the first one says what happened
    }
    s.marks.clear();
    throw;
  }
  s.tally.end(sample);
  sample.read_bytes = flow.landed(Direction::read);
  sample.written_bytes = flow.landed(Direction::write);
  for (const Extent& extent : flow.covered(Direction::write)) s.written.push_back(extent);
  s.restore_marks();
  return sample;
}

/// A phase of reads, then as many bytes written, and so on, until it is due and both are equal.
void Measurement::alternate(Flow& flow, std::int64_t phase, const std::function<bool()>& due) {
  phase = std::min({phase, flow.region(Direction::read).bytes(), flow.region(Direction::write).bytes()});
  do {
    const std::int64_t before = flow.started(Direction::read);
    const auto left = [&] { return before + phase - flow.started(Direction::read); };
    do {
      while (left() > 0 && flow.start(Direction::read, left())) {
      }
      flow.land();
    } while (left() > 0 && !due());
    flow.land_all();
    while (flow.started(Direction::write) < flow.started(Direction::read)) {
      if (!flow.start(Direction::write, flow.started(Direction::read) - flow.started(Direction::write)))
        flow.land();
    }
    flow.land_all();
  } while (!due());
}

void Measurement::verify() {
  State& s = *state_;
  for (std::size_t slot = 0; slot < s.last_reads.size(); ++slot) {
    const Extent& extent = s.last_reads[slot];
    if (extent.bytes() == 0) continue;
    const std::byte* const memory = s.slots.data() + static_cast<std::int64_t>(slot) * s.unit;
    const std::int64_t at = s.pattern->first_wrong(memory, extent.bytes(), extent.begin);
    if (at >= 0) throw s.wrong(extent.begin + at, memory + at);
  }
  s.last_reads.clear();

  std::vector<std::int64_t> places = std::exchange(s.marks, {});
  const std::vector<Extent> written = std::exchange(s.written, {});
  for (int i = 0; i < kSampledPages && !written.empty(); ++i) {
    const Extent& extent = written[s.random() % written.size()];
    const auto pages = static_cast<std::uint64_t>((extent.bytes() + s.page - 1) / s.page);
    places.push_back(extent.begin + static_cast<std::int64_t>(s.random() % pages) * s.page);
  }
  std::sort(places.begin(), places.end());
  for (const std::int64_t place : places) {
    s.read_page(place);
    const std::int64_t at = s.pattern->first_wrong(s.page_memory.data(), s.page_bytes(place), place);
    if (at >= 0) throw s.wrong(place + at, s.page_memory.data() + at);
  }
}

std::int64_t Measurement::written_bytes() const {
  return state_->written_bytes;
}

RingReport Measurement::report() const {
  return state_->queue ? state_->queue->report() : RingReport{};
}

}  // namespace spillway::aio
