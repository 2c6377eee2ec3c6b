#include "queue.h"

#include "../core/error.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

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

const char* hint_for(int error_number) {
  switch (error_number) {
    case EIO:
    case ENODATA:
    case EREMOTEIO:
      return "the drive or its connection failed; the kernel's log (dmesg) says more";
    case ENOSPC:
    case EDQUOT:
      return "free some space there, or name a directory on a larger drive";
    default:
      return "";
  }
}

}  // namespace

Queue::Queue(unsigned depth, std::int64_t block_bytes) : Queue(make_io_uring(depth), block_bytes) {}

Queue::Queue(std::unique_ptr<Ring> ring, std::int64_t block_bytes)
    : ring_(std::move(ring)), block_bytes_(block_bytes) {
  if (block_bytes <= 0 || block_bytes > maximum_operation_bytes || block_bytes % direct_io_alignment != 0) {
    throw std::logic_error(fmt::format("Queue: block of {} bytes is not a multiple of {} up to {}", block_bytes,
                                       direct_io_alignment, maximum_operation_bytes));
  }
  if (!ring_) throw std::logic_error("Queue: no ring");
  const unsigned depth = ring_->depth();
  blocks_.resize(depth);
  completions_.resize(depth);
  to_start_.reserve(depth);
  free_.reserve(depth);
  for (unsigned tag = depth; tag > 0; --tag) free_.push_back(tag - 1);
}

Queue::~Queue() {
  std::size_t in_flight = blocks_.size() - free_.size();
  while (in_flight > 0) in_flight -= ring_->reap(completions_, true);
}

Ticket Queue::read(const DirectFile& file, std::int64_t offset, std::byte* destination, std::int64_t bytes) {
  return begin(Direction::read, file, offset, destination, bytes);
}

Ticket Queue::write(const DirectFile& file, std::int64_t offset, const std::byte* source, std::int64_t bytes) {
  // Operations of both directions share a type; one that writes only reads the memory.
  return begin(Direction::write, file, offset, const_cast<std::byte*>(source), bytes);
}

Ticket Queue::begin(Direction direction, const DirectFile& file, std::int64_t offset, std::byte* memory,
                    std::int64_t bytes) {
  const std::int64_t alignment = file.alignment();
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  if (offset < 0 || bytes < 0 || offset > file.size() || bytes > file.size() - offset) {
    throw std::logic_error(fmt::format("Queue::{}: {} bytes at offset {} are outside a file of {} bytes",
                                       verb(direction), bytes, offset, file.size()));
  }
  if (offset % alignment != 0 || bytes % alignment != 0 ||
      address % static_cast<std::uintptr_t>(alignment) != 0) {
    throw std::logic_error(
        fmt::format("Queue::{}: offset {}, length {} and address {:#x} must be multiples of {}",
                    verb(direction), offset, bytes, address, alignment));
  }
  if (bytes > 0 && memory == nullptr)
    throw std::logic_error(fmt::format("Queue::{}: no memory", verb(direction)));

  const Ticket ticket{++last_number_};
  if (bytes == 0) {
    ++(direction == Direction::read ? counters_.reads : counters_.writes);
    return ticket;
  }
  Transfer& transfer = under_way_[ticket.number];
  transfer.number = ticket.number;
  transfer.file = file.handle();
  transfer.direction = direction;
  transfer.offset = offset;
  transfer.memory = memory;
  transfer.bytes = bytes;
  waiting_.push_back(&transfer);
  reap(false);
  return ticket;
}

/// Starts waiting blocks while entries are free, and what settle() left to be started again.
void Queue::fill() {
  while (!free_.empty() && !waiting_.empty()) {
    Transfer& transfer = *waiting_.front();
    const std::int64_t alignment = transfer.file->alignment;
    const std::int64_t block = (block_bytes_ + alignment - 1) / alignment * alignment;
    const std::uint64_t tag = free_.back();
    free_.pop_back();
    const std::int64_t bytes = std::min(block, transfer.bytes);
    blocks_[tag] = {
        &transfer,
        {transfer.direction, transfer.file->descriptor, transfer.offset, transfer.memory, bytes, tag}};
    to_start_.push_back(blocks_[tag].operation);
    ++transfer.in_flight;
    transfer.offset += bytes;
    transfer.memory += bytes;
    transfer.bytes -= bytes;
    if (transfer.bytes == 0) waiting_.pop_front();
  }
  if (to_start_.empty()) return;
  ring_->start(to_start_);
  to_start_.clear();
}

/// Takes what has completed, at least one completion with `wait`, and starts what can be started. Returns
/// whether something advanced.
bool Queue::reap(bool wait) {
  const std::size_t count = ring_->reap(completions_, wait && free_.size() < blocks_.size());
  bool advanced = false;
  for (std::size_t i = 0; i < count; ++i) advanced |= settle(completions_[i]);
  fill();
  return advanced;
}

/// Returns whether bytes moved or the block came to its end.
bool Queue::settle(const Completion& completion) {
  Block& block = blocks_[completion.tag];
  Operation& operation = block.operation;
  const std::int64_t result = completion.result;
  // The queue cancels nothing itself; the kernel does when the thread that started an operation ends.
  if (result == -EINTR || result == -EAGAIN || result == -ECANCELED) {
    return resubmit(block, static_cast<int>(-result));
  }
  if (result < 0) {
    const auto error_number = static_cast<int>(-result);
    fail(block, error_number, "a transfer failed", hint_for(error_number));
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
  const std::int64_t alignment = block.transfer->file->alignment;
  const std::int64_t moved = result == operation.bytes ? result : result / alignment * alignment;
  (operation.direction == Direction::read ? counters_.read_bytes : counters_.written_bytes) += moved;
  operation.offset += moved;
  operation.memory += moved;
  operation.bytes -= moved;
  if (operation.bytes == 0) {
    retire(completion.tag);
    return true;
  }
  if (moved > 0) block.fruitless = 0;
  return resubmit(block, 0) || moved > 0;
}

/// Returns whether the block came to its end instead. The errno is that of the attempt, 0 for a short transfer.
bool Queue::resubmit(Block& block, int error_number) {
  if (block.transfer->error) {
    retire(block.operation.tag);  // the transfer has failed already; its rest is not worth moving
    return true;
  }
  const auto now = Clock::now();
  if (block.fruitless == 0) block.fruitless_since = now;
  if (block.fruitless >= maximum_fruitless && now - block.fruitless_since >= patience) {
    fail(block, error_number, "a transfer made no progress", hint_for(EIO));
    return true;
  }
  ++block.fruitless;
  ++counters_.resubmissions;
  to_start_.push_back(block.operation);
  return false;
}

void Queue::fail(Block& block, int error_number, const char* message, const char* hint) {
  Transfer& transfer = *block.transfer;
  if (!transfer.error) {
    const bool space = error_number == ENOSPC || error_number == EDQUOT;
    transfer.error = std::make_exception_ptr(Error(space ? ErrorKind::resources : ErrorKind::io, message,
                                                   {.operation = verb(transfer.direction),
                                                    .path = transfer.file->directory,
                                                    .offset = block.operation.offset,
                                                    .length = block.operation.bytes,
                                                    .error_number = error_number,
                                                    .hint = hint}));
    // Its blocks that have not started never do. Only the front of the row is begun, and blocks complete after
    // they started, so it can wait there only.
    if (transfer.bytes > 0) {
      waiting_.pop_front();
      transfer.bytes = 0;
    }
  }
  retire(block.operation.tag);
}

/// The block is no longer in flight; a transfer whose last one it was has landed.
void Queue::retire(std::uint64_t tag) {
  Transfer& transfer = *blocks_[tag].transfer;
  free_.push_back(tag);
  if (--transfer.in_flight == 0 && transfer.bytes == 0) finish(transfer);
}

void Queue::finish(Transfer& transfer) {
  if (transfer.error) {
    failed_.emplace(transfer.number, std::move(transfer.error));
  } else {
    ++(transfer.direction == Direction::read ? counters_.reads : counters_.writes);
  }
  under_way_.erase(transfer.number);
}

void Queue::check(Ticket ticket) const {
  if (ticket.number < 1 || ticket.number > last_number_) {
    throw std::logic_error(fmt::format("Queue: ticket {} is not of this queue", ticket.number));
  }
}

void Queue::wait(Ticket ticket) {
  check(ticket);
  while (under_way_.contains(ticket.number)) {
    if (!reap(true)) std::this_thread::sleep_for(pause);
  }
  const auto found = failed_.find(ticket.number);
  if (found == failed_.end()) return;
  const std::exception_ptr error = std::move(found->second);
  failed_.erase(found);
  std::rethrow_exception(error);
}

bool Queue::done(Ticket ticket) {
  check(ticket);
  reap(false);
  return !under_way_.contains(ticket.number);
}

void Queue::drain() {
  while (!under_way_.empty()) {
    if (!reap(true)) std::this_thread::sleep_for(pause);
  }
  if (!failed_.empty()) wait({failed_.begin()->first});
}

}  // namespace spillway::aio
