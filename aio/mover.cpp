#include "mover.h"

#include "../core/error.h"
#include "checksums.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>

namespace spillway::aio {
namespace {

using Clock = std::chrono::steady_clock;

/// A transfer fails after this many attempts, and this long, without progress: a shortage of a moment is
/// outlived, and a file system that moves nothing at all cannot hang the run.
constexpr int maximum_fruitless = 100;
constexpr Clock::duration patience = std::chrono::seconds(1);

/// Between attempts that are all in vain.
constexpr auto pause = std::chrono::milliseconds(1);

const char* verb(Direction direction) {
  return direction == Direction::read ? "read" : "write";
}

std::string hint_for(int error_number, std::int64_t alignment) {
  switch (error_number) {
    case EIO:
    case ENODATA:
    case EREMOTEIO:
      return "the drive or its connection failed; the kernel's log (dmesg) says more";
    case ENOSPC:
    case EDQUOT:
      return "free some space there, or name a directory on a larger drive";
    case EINVAL:
      return fmt::format("the file system may want another alignment than the {} bytes it was asked about",
                         alignment);
    default:
      return "";
  }
}

std::int64_t round_up(std::int64_t bytes, std::int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

bool is_multiple(const std::byte* memory, std::int64_t of) {
  return reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(of) == 0;
}

}  // namespace

void forget_checksums(const Transfer& transfer) {
  Checksums* const sums = transfer.volume.checksums();
  if (sums != nullptr && transfer.direction == Direction::write) {
    sums->forget(transfer.first_offset, transfer.all_bytes);
  }
}

void Mover::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

Mover::Mover(std::unique_ptr<Ring> ring, const QueueOptions& options)
    : ring_(std::move(ring)),
      block_bytes_(options.block_bytes),
      on_block_(options.on_block),
      on_transfer_(options.on_transfer),
      file_slots_(maximum_slots),
      memory_slots_(maximum_slots) {
  if (!ring_) throw std::logic_error("Queue: no ring");
  const unsigned depth = ring_->depth();
  blocks_.resize(depth);
  completions_.resize(depth);
  to_start_.reserve(depth);
  free_.reserve(depth);
  for (unsigned tag = depth; tag > 0; --tag) free_.push_back(tag - 1);
}

Mover::~Mover() {
  if (in_flight_ > 0) ring_->cancel();
  while (in_flight_ > 0) in_flight_ -= ring_->reap(completions_, true);
  for (const auto& transfer : transfers_) forget_checksums(*transfer);
}

void Mover::add(std::unique_ptr<Transfer> transfer) {
  waiting_[static_cast<int>(transfer->direction)].push_back(transfer.get());
  transfer->place = transfers_.size();
  transfers_.push_back(std::move(transfer));
}

void Mover::start() {
  // A row rests while the piece that its first block is patched into is another write's.
  bool rests[2] = {false, false};
  while (!free_.empty()) {
    if (waiting_[turn_].empty() || rests[turn_]) turn_ ^= 1;
    if (waiting_[turn_].empty() || rests[turn_]) break;
    rests[turn_] = !begin_block(waiting_[turn_]);
    turn_ ^= 1;
  }
  if (to_start_.empty()) return;
  if (on_block_) {
    const auto now = Clock::now();
    for (const Operation& operation : to_start_) {
      Block& block = blocks_[operation.tag];
      if (block.started == Clock::time_point{}) block.started = now;
    }
  }
  ring_->start(to_start_);
  in_flight_ += to_start_.size();
  to_start_.clear();
}

/// Takes the next block of the row's first transfer. False where it has to wait for another one to land.
bool Mover::begin_block(std::deque<Transfer*>& row) {
  Transfer& transfer = *row.front();
  const Volume& volume = transfer.volume;
  const std::int64_t alignment = volume.alignment();
  const Volume::Place place = volume.locate(transfer.offset);
  const File& file = volume.file(place.path);
  const std::int64_t skip = transfer.offset % alignment;
  const bool partial = skip != 0 || transfer.bytes < alignment;
  const bool writes = transfer.direction == Direction::write;
  const std::int64_t bytes =
      partial
          ? std::min(transfer.bytes, alignment - skip)
          : std::min({round_up(block_bytes_, alignment), place.bytes, transfer.bytes / alignment * alignment});
  const Piece piece{file.descriptor(), place.offset - skip};
  if (partial && writes && patched_.contains(piece)) return false;

  const std::uint64_t tag = free_.back();
  Block& block = blocks_[tag];
  const bool copies = partial || !is_multiple(transfer.memory, volume.memory_alignment());
  const std::int64_t moved = partial ? alignment : bytes;
  if (copies && !reserve_copy(block, moved, std::max(alignment, direct_io_alignment))) {
    fail_transfer(transfer, std::make_exception_ptr(
                                Error(ErrorKind::resources, "no memory for the copy of an unaligned transfer",
                                      {.operation = verb(transfer.direction),
                                       .path = file.directory(),
                                       .offset = place.offset,
                                       .length = moved,
                                       .hint = "align offset, length and memory, or use smaller blocks"})));
    return true;
  }
  if (partial && writes) patched_.insert(piece);
  free_.pop_back();
  block.transfer = &transfer;
  block.step = partial && writes ? Step::patch : Step::move;
  block.user = copies ? transfer.memory : nullptr;
  block.skip = skip;
  block.user_bytes = bytes;
  block.piece = partial && writes ? piece.second : -1;
  block.fruitless = 0;
  block.started = {};
  std::byte* const memory = copies ? block.copy.get() : transfer.memory;
  block.operation = {.direction = partial ? Direction::read : transfer.direction,
                     .descriptor = file.descriptor(),
                     .offset = place.offset - skip,
                     .memory = memory,
                     .bytes = moved,
                     .tag = tag,
                     .file_slot = slot_of(file),
                     .memory_slot = copies ? -1 : slot_of(memory, moved)};
  if (copies && writes && !partial) std::memcpy(memory, transfer.memory, static_cast<std::size_t>(bytes));
  to_start_.push_back(block.operation);

  ++transfer.in_flight;
  transfer.offset += bytes;
  transfer.memory += bytes;
  transfer.bytes -= bytes;
  if (transfer.bytes == 0) row.pop_front();
  return true;
}

/// Kept for the entry's next unaligned block.
bool Mover::reserve_copy(Block& block, std::int64_t bytes, std::int64_t alignment) {
  if (block.copy_bytes >= bytes && is_multiple(block.copy.get(), alignment)) return true;
  block.copy_bytes = 0;
  block.copy.reset();  // before the new one is there: they need not both fit
  // Both are powers of two, so that the size is a multiple of the alignment.
  const std::int64_t size = round_up(bytes, alignment);
  block.copy.reset(static_cast<std::byte*>(
      std::aligned_alloc(static_cast<std::size_t>(alignment), static_cast<std::size_t>(size))));
  if (!block.copy) return false;
  block.copy_bytes = size;
  return true;
}

void Mover::settle(bool wait) {
  const std::size_t count = ring_->reap(completions_, wait && in_flight_ > 0);
  in_flight_ -= count;
  bool advanced = false;
  for (std::size_t i = 0; i < count; ++i) advanced |= settle_one(completions_[i]);
  if (count > 0 && !advanced) std::this_thread::sleep_for(pause);
}

/// Returns whether bytes moved or the block came to its end.
bool Mover::settle_one(const Completion& completion) {
  Block& block = blocks_[completion.tag];
  Operation& operation = block.operation;
  const Volume& volume = block.transfer->volume;
  const std::int64_t result = completion.result;
  // Nothing is cancelled while the queue lives, but the kernel may do so of its own.
  if (result == -EINTR || result == -EAGAIN || result == -ECANCELED) {
    return resubmit(block, static_cast<int>(-result));
  }
  if (result < 0) {
    const auto error_number = static_cast<int>(-result);
    fail(block, error_number, "a transfer failed", hint_for(error_number, volume.alignment()));
    return true;
  }
  if (result == 0 && operation.direction == Direction::read) {
    fail(block, 0, "unexpected end of file", "something has made the file shorter");
    return true;
  }
  if (result > operation.bytes) {
    fail(block, 0, "more bytes were reported than asked for", "");
    return true;
  }
  // What was moved of an unaligned tail is moved again.
  const std::int64_t moved =
      result == operation.bytes ? result : result / volume.alignment() * volume.alignment();
  if (block.user == nullptr) count(operation.direction, moved);
  operation.offset += moved;
  operation.memory += moved;
  operation.bytes -= moved;
  if (operation.bytes == 0) return finish_block(completion.tag);
  if (moved > 0) block.fruitless = 0;
  return resubmit(block, 0) || moved > 0;
}

/// All of the block's operation has been moved.
bool Mover::finish_block(std::uint64_t tag) {
  Block& block = blocks_[tag];
  Transfer& transfer = *block.transfer;
  Operation& operation = block.operation;
  if (block.user != nullptr && !transfer.error) {
    std::byte* const bytes = block.copy.get() + block.skip;
    const auto size = static_cast<std::size_t>(block.user_bytes);
    if (block.step == Step::patch) {
      std::memcpy(bytes, block.user, size);
      const std::int64_t piece_bytes = operation.memory - block.copy.get();
      operation.direction = Direction::write;
      operation.offset = block.piece;
      operation.memory = block.copy.get();
      operation.bytes = piece_bytes;
      block.step = Step::move;
      block.fruitless = 0;
      to_start_.push_back(operation);
      return true;
    }
    if (transfer.direction == Direction::read) std::memcpy(block.user, bytes, size);
    count(transfer.direction, block.user_bytes);
    counters_.copied_bytes += block.user_bytes;
  }
  if (on_block_ && !transfer.error) {
    on_block_({.direction = transfer.direction,
               .bytes = block.user_bytes,
               .seconds = std::chrono::duration<double>(Clock::now() - block.started).count()});
  }
  retire(tag);
  return true;
}

/// Returns whether the block came to its end instead. The errno is that of the attempt, 0 for a short transfer.
bool Mover::resubmit(Block& block, int error_number) {
  if (block.transfer->error) {
    retire(block.operation.tag);  // the transfer has failed already; its rest is not worth moving
    return true;
  }
  const auto now = Clock::now();
  if (block.fruitless == 0) block.fruitless_since = now;
  if (block.fruitless >= maximum_fruitless && now - block.fruitless_since >= patience) {
    fail(block, error_number, "a transfer made no progress", hint_for(EIO, 0));
    return true;
  }
  ++block.fruitless;
  ++counters_.resubmissions;
  to_start_.push_back(block.operation);
  return false;
}

void Mover::fail(Block& block, int error_number, const char* message, const std::string& hint) {
  Transfer& transfer = *block.transfer;
  if (!transfer.error) {
    const bool space = error_number == ENOSPC || error_number == EDQUOT;
    std::string directory;
    for (std::size_t path = 0; path < transfer.volume.path_count(); ++path) {
      const File& file = transfer.volume.file(path);
      if (file.descriptor() == block.operation.descriptor) directory = file.directory();
    }
    fail_transfer(transfer, std::make_exception_ptr(Error(space ? ErrorKind::resources : ErrorKind::io, message,
                                                          {.operation = verb(block.operation.direction),
                                                           .path = directory,
                                                           .offset = block.operation.offset,
                                                           .length = block.operation.bytes,
                                                           .error_number = error_number,
                                                           .hint = hint})));
  }
  retire(block.operation.tag);
}

/// Blocks of it that have not started never do.
void Mover::fail_transfer(Transfer& transfer, std::exception_ptr error) {
  transfer.error = std::move(error);
  if (transfer.bytes == 0) return;
  // Only the front of a row is begun, and blocks complete after they started, so it can wait there only.
  waiting_[static_cast<int>(transfer.direction)].pop_front();
  transfer.bytes = 0;
  if (transfer.in_flight == 0) finish(transfer);
}

/// The block is no longer in flight; a transfer whose last one it was has landed.
void Mover::retire(std::uint64_t tag) {
  Block& block = blocks_[tag];
  Transfer& transfer = *block.transfer;
  if (block.piece >= 0) patched_.erase({block.operation.descriptor, block.piece});
  free_.push_back(tag);
  if (--transfer.in_flight == 0 && transfer.bytes == 0) finish(transfer);
}

void Mover::finish(Transfer& transfer) {
  if (transfer.error) {
    forget_checksums(transfer);
  } else {
    ++(transfer.direction == Direction::read ? counters_.reads : counters_.writes);
    if (on_transfer_) {
      on_transfer_(
          {.direction = transfer.direction,
           .label = transfer.label,
           .bytes = transfer.all_bytes,
           .seconds =
               std::chrono::duration<double>(std::chrono::steady_clock::now() - transfer.called).count()});
    }
  }
  const std::size_t place = transfer.place;
  finished_.push_back(std::move(transfers_[place]));
  if (place + 1 < transfers_.size()) {
    transfers_[place] = std::move(transfers_.back());
    transfers_[place]->place = place;
  }
  transfers_.pop_back();
}

void Mover::count(Direction direction, std::int64_t bytes) {
  (direction == Direction::read ? counters_.read_bytes : counters_.written_bytes) += bytes;
}

int Mover::slot_of(const File& file) const {
  for (const RegisteredFile& registered : files_) {
    if (registered.file->descriptor == file.descriptor()) return registered.slot;
  }
  return -1;
}

int Mover::slot_of(const std::byte* memory, std::int64_t bytes) const {
  const auto after =
      std::upper_bound(memory_.begin(), memory_.end(), memory,
                       [](const std::byte* place, const auto& piece) { return place < piece.begin; });
  if (after == memory_.begin()) return -1;
  const RegisteredMemory& piece = *(after - 1);
  return memory + bytes <= piece.begin + piece.bytes ? piece.slot : -1;
}

/// A number that is not in use, taken; -1 where all are.
int Mover::take_slot(std::vector<bool>& used) {
  const auto found = std::find(used.begin(), used.end(), false);
  if (found == used.end()) return -1;
  *found = true;
  return static_cast<int>(found - used.begin());
}

bool Mover::register_volume(const Volume& volume) {
  for (std::size_t path = 0; path < volume.path_count(); ++path) {
    const File& file = volume.file(path);
    const auto found = std::find_if(files_.begin(), files_.end(),
                                    [&](const auto& other) { return other.file == file.handle(); });
    if (found != files_.end()) {
      ++found->uses;
      continue;
    }
    const int slot = take_slot(file_slots_);
    if (slot >= 0 && ring_->register_file(slot, file.descriptor()) == 0) {
      files_.push_back({file.handle(), slot, 1});
      continue;
    }
    if (slot >= 0) file_slots_[static_cast<std::size_t>(slot)] = false;
    for (std::size_t done = 0; done < path; ++done) drop_file(volume.file(done));
    return false;
  }
  return true;
}

void Mover::unregister_volume(const Volume& volume) {
  for (std::size_t path = 0; path < volume.path_count(); ++path) drop_file(volume.file(path));
}

void Mover::drop_file(const File& file) {
  const auto found = std::find_if(files_.begin(), files_.end(),
                                  [&](const auto& other) { return other.file == file.handle(); });
  if (found == files_.end() || --found->uses > 0) return;
  ring_->register_file(found->slot, -1);
  file_slots_[static_cast<std::size_t>(found->slot)] = false;
  files_.erase(found);
}

bool Mover::register_memory(std::span<std::byte> memory) {
  std::size_t done = 0;
  while (done < memory.size()) {
    const std::size_t bytes = std::min(memory.size() - done, static_cast<std::size_t>(maximum_operation_bytes));
    const std::span<std::byte> piece = memory.subspan(done, bytes);
    const int slot = take_slot(memory_slots_);
    if (slot < 0 || ring_->register_memory(slot, piece) != 0) {
      if (slot >= 0) memory_slots_[static_cast<std::size_t>(slot)] = false;
      unregister_memory(memory.first(done));
      return false;
    }
    const auto after =
        std::upper_bound(memory_.begin(), memory_.end(), piece.data(),
                         [](const std::byte* place, const auto& other) { return place < other.begin; });
    memory_.insert(after, {piece.data(), static_cast<std::int64_t>(bytes), slot});
    done += bytes;
  }
  return true;
}

void Mover::unregister_memory(std::span<std::byte> memory) {
  const std::byte* const begin = memory.data();
  const std::byte* const end = begin + memory.size();
  std::erase_if(memory_, [&](const RegisteredMemory& piece) {
    if (piece.begin < begin || piece.begin + piece.bytes > end) return false;
    ring_->register_memory(piece.slot, {});
    memory_slots_[static_cast<std::size_t>(piece.slot)] = false;
    return true;
  });
}

}  // namespace spillway::aio
