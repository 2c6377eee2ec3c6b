#include "measure_state.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

namespace spillway::aio {
namespace {

/// Pages that are spoilt before a slice and must have been written after it.
constexpr int kMarks = 8;
/// Of an extent, to see whether it was written before.
constexpr int kSampledPages = 64;
/// Memory that a ring can register in one piece.
constexpr std::int64_t kMostRegistered = std::int64_t{1} << 30;

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Extent Measurement::State::region(Direction direction, Traffic traffic) const {
  const Extent whole{0, volume.size()};
  if (traffic == Traffic::read || traffic == Traffic::write) return whole;
  const std::int64_t half = volume.size() / 2 / page * page;
  return direction == Direction::read ? Extent{0, half} : Extent{half, whole.end};
}

void Measurement::State::make_queue(const MeasureSetting& wanted) {
  const bool same = wanted.block_bytes == setting.block_bytes && wanted.depth == setting.depth &&
                    wanted.engine == setting.engine && wanted.sqpoll == setting.sqpoll &&
                    wanted.iopoll == setting.iopoll;
  if (queue && same) return;
  queue.reset();
  setting = wanted;
  const std::int64_t block = rounded_up(wanted.block_bytes, volume.alignment());
  unit = rounded_up(transfer_bytes, block);
  // What the ring takes, and half as much again, so that it is full while the oldest transfer is waited for
  // although later ones have landed.
  const std::int64_t full = rounded_up(static_cast<std::int64_t>(wanted.depth) * block, unit) / unit;
  under_way = static_cast<std::size_t>(full + std::max<std::int64_t>(2, (full + 1) / 2));
  last_reads.clear();
  if (!pattern || pattern->longest() < unit) pattern.emplace(unit);
  const std::int64_t bytes = unit * static_cast<std::int64_t>(under_way);
  if (slots.size() < bytes) {
    slots = Pages();  // the old ones first
    slots = Pages(bytes);
  }
  queue = std::make_unique<Queue>(QueueOptions{
      .ring =
          {.depth = wanted.depth, .engine = wanted.engine, .sqpoll = wanted.sqpoll, .iopoll = wanted.iopoll},
      .block_bytes = wanted.block_bytes,
      .faults = {},
      .on_block = [this](const BlockTiming& block_timing) { tally.note(block_timing); }});
  queue->register_volume(volume);
  if (pattern->memory().size() <= static_cast<std::size_t>(kMostRegistered))
    queue->register_memory(pattern->memory());
  const std::int64_t piece = std::max<std::int64_t>(1, kMostRegistered / unit) * unit;
  for (std::int64_t done = 0; done < bytes; done += piece) {
    queue->register_memory(slots.span().subspan(static_cast<std::size_t>(done),
                                                static_cast<std::size_t>(std::min(piece, bytes - done))));
  }
}

/// Into page_memory, past the queue.
void Measurement::State::read_page(std::int64_t place) {
  const Volume::Place at = volume.locate(place);
  const auto bytes = static_cast<std::size_t>(page_bytes(place));
  const ssize_t moved = ::pread(volume.file(at.path).descriptor(), page_memory.data(), bytes, at.offset);
  if (moved == static_cast<ssize_t>(bytes)) return;
  throw Error(ErrorKind::io, moved < 0 ? "a page cannot be read back" : "a page is only read back in part",
              {.operation = "verify",
               .path = volume.file(at.path).directory(),
               .offset = at.offset,
               .length = page_bytes(place),
               .error_number = moved < 0 ? errno : 0});
}

void Measurement::State::write_page(std::int64_t place) {
  const Volume::Place at = volume.locate(place);
  const auto bytes = static_cast<std::size_t>(page_bytes(place));
  const ssize_t moved = ::pwrite(volume.file(at.path).descriptor(), page_memory.data(), bytes, at.offset);
  if (moved == static_cast<ssize_t>(bytes)) {
    written_bytes += moved;
    return;
  }
  throw Error(ErrorKind::io, moved < 0 ? "a page cannot be written" : "a page is only written in part",
              {.operation = "write",
               .path = volume.file(at.path).directory(),
               .offset = at.offset,
               .length = page_bytes(place),
               .error_number = moved < 0 ? errno : 0});
}

Error Measurement::State::wrong(std::int64_t place, const std::byte* found) const {
  std::uint64_t is = 0, expected = 0;
  std::memcpy(&is, found, sizeof is);
  std::memcpy(&expected, pattern->at(place), sizeof expected);
  const Volume::Place at = volume.locate(place);
  return Error(ErrorKind::io,
               fmt::format("verification: a word is {:#018x}, and {:#018x} belongs there", is, expected),
               {.operation = "verify",
                .path = volume.file(at.path).directory(),
                .offset = at.offset,
                .length = 8,
                .hint = "the drive, or something else that writes there, has changed it"});
}

/// Spoils pages of the region from the cursor on, which is where the slice will write.
void Measurement::State::spoil_marks(const Extent& region, std::int64_t span) {
  span = std::min(span, region.bytes());
  for (int i = 0; i < kMarks; ++i) {
    const std::int64_t ahead = span * i / kMarks / page * page;
    std::int64_t place = cursor[index_of(Direction::write)] + ahead;
    if (place >= region.end) place = region.begin + (place - region.end) / page * page;
    if (place + page > region.end || std::find(marks.begin(), marks.end(), place) != marks.end()) continue;
    const std::byte* const right = pattern->at(place);
    std::transform(right, right + page, page_memory.data(), [](std::byte byte) { return ~byte; });
    marks.push_back(place);
    write_page(place);
  }
}

/// Those that the slice has not reached.
void Measurement::State::restore_marks() {
  std::erase_if(marks, [&](std::int64_t place) {
    for (const Extent& extent : written) {
      if (extent.holds(place)) return false;
    }
    std::memcpy(page_memory.data(), pattern->at(place), static_cast<std::size_t>(page));
    write_page(place);
    return true;
  });
}

/// Whether pages here and there, the first and the last among them, hold the pattern, or anything but zeros.
bool Measurement::State::sample_holds(const Extent& extent, bool any_contents) {
  const std::int64_t pages = extent.bytes() / page;
  for (int i = 0; i < kSampledPages; ++i) {
    std::int64_t number = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(pages));
    if (i == 0) number = 0;
    if (i == 1) number = pages - 1;
    const std::int64_t place = extent.begin + number * page;
    read_page(place);
    const std::byte* const found = page_memory.data();
    const bool good = any_contents
                          ? std::any_of(found, found + page, [](std::byte byte) { return byte != std::byte{}; })
                          : pattern->first_wrong(found, page_bytes(place), place) < 0;
    if (!good) return false;
  }
  return true;
}

}  // namespace spillway::aio
