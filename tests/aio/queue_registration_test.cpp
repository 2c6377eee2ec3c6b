// Volumes and memory that the ring knows by a number: every operation that can names them, and nothing depends
// on it.
#include "queue_support.h"

#include <set>

#include <sys/mman.h>

namespace spillway::aio {
namespace {

using QueueRegistration = OverFakeRing;

TEST_F(QueueRegistration, OperationsNameTheSlotsOfRegisteredVolumesAndMemory) {
  FakeDrive drive;
  const auto queue = queue_of(drive, 4);
  const Volume three = volume_in(scratch.path(), 2 * MiB, 3, {.stripe_bytes = block});
  EXPECT_TRUE(queue->register_volume(*volume));
  EXPECT_TRUE(queue->register_volume(three));
  EXPECT_TRUE(queue->register_memory({memory.get(), static_cast<std::size_t>(volume_bytes)}));
  EXPECT_EQ(drive.files().size(), 4u);
  EXPECT_EQ(drive.memory().size(), 1u);
  write(*queue, 0, MiB);
  queue->write(three, 0, memory.get(), 2 * MiB);
  queue->drain();
  std::set<int> slots;
  for (const Operation& operation : drive.started()) {  // that they are the right ones FakeRing checks
    EXPECT_GE(operation.memory_slot, 0);
    slots.insert(operation.file_slot);
  }
  EXPECT_EQ(slots.size(), 4u);
  EXPECT_EQ(slots.count(-1), 0u);

  drive.forget_started();
  queue->unregister_volume(three);
  queue->unregister_memory({memory.get(), static_cast<std::size_t>(volume_bytes)});
  EXPECT_EQ(drive.files().size(), 1u);
  EXPECT_TRUE(drive.memory().empty());
  queue->wait(queue->read(three, 0, memory.get(), MiB));
  for (const Operation& operation : drive.started()) {
    EXPECT_EQ(operation.file_slot, -1);
    EXPECT_EQ(operation.memory_slot, -1);
  }
}

TEST_F(QueueRegistration, WhatLiesOnlyInPartInRegisteredMemoryOrIsCopiedNamesNone) {
  FakeDrive drive;
  const auto queue = queue_of(drive, 4);
  // From the middle of block 1 to the middle of block 3.
  EXPECT_TRUE(queue->register_memory({memory.get() + block * 3 / 2, static_cast<std::size_t>(2 * block)}));
  queue->wait(write(*queue, 0, 5 * block));
  for (const Operation& operation : drive.started()) {
    EXPECT_EQ(operation.memory_slot >= 0, operation.offset == 2 * block) << operation.offset;
  }
  drive.forget_started();
  queue->wait(queue->write(*volume, 0, memory.get() + 2 * block + 1, 4096));
  queue->wait(queue->write(*volume, 5, memory.get() + 2 * block, 11));
  for (const Operation& operation : drive.started()) EXPECT_EQ(operation.memory_slot, -1);
}

TEST_F(QueueRegistration, NeighbouringPiecesAreFoundEachByItsOwnSlot) {
  FakeDrive drive;
  const auto queue = queue_of(drive, 4);
  for (const std::int64_t i : {5, 1, 3, 4, 0, 2}) {
    EXPECT_TRUE(queue->register_memory({memory.get() + i * block, static_cast<std::size_t>(block)}));
  }
  queue->unregister_memory({memory.get() + 3 * block, static_cast<std::size_t>(block)});
  EXPECT_EQ(drive.memory().size(), 5u);
  queue->wait(write(*queue, 0, 7 * block));
  for (const Operation& operation : drive.started()) {
    const std::int64_t at = operation.offset / block;
    EXPECT_EQ(operation.memory_slot >= 0, at != 3 && at < 6) << at;
  }
  // A piece that is only in part in what is unregistered stays.
  queue->unregister_memory({memory.get() + 4 * block, static_cast<std::size_t>(block + block / 2)});
  EXPECT_EQ(drive.memory().size(), 4u);
}

TEST_F(QueueRegistration, MemoryOfMoreThan1GiBIsRegisteredInPieces) {
  const std::size_t size = (std::size_t{5} << 29) + 4096;  // 2.5 GiB
  void* const region = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) GTEST_SKIP() << "2.5 GiB of address space are not to be had";
  std::byte* const begin = static_cast<std::byte*>(region);
  FakeDrive drive;
  drive.moves_bytes = false;
  const auto queue = queue_of(drive, 4);
  EXPECT_TRUE(queue->register_memory({begin, size}));
  std::byte* next = begin;
  std::map<const std::byte*, std::span<std::byte>> by_place;
  for (const auto& [slot, piece] : drive.memory()) by_place[piece.data()] = piece;
  EXPECT_EQ(by_place.size(), 3u);
  for (const auto& [place, piece] : by_place) {
    EXPECT_EQ(place, next);
    next += piece.size();
  }
  EXPECT_EQ(next, begin + size);

  // A block over the border of two pieces has no slot; those beside it have two.
  queue->wait(queue->read(*volume, 0, begin + maximum_operation_bytes - block * 3 / 2, 3 * block));
  std::vector<int> slots;
  for (const Operation& operation : drive.started()) slots.push_back(operation.memory_slot);
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_GE(slots[0], 0);
  EXPECT_EQ(slots[1], -1);
  EXPECT_GE(slots[2], 0);
  EXPECT_NE(slots[0], slots[2]);

  queue->unregister_memory({begin, size});
  EXPECT_TRUE(drive.memory().empty());
  ::munmap(region, size);
}

TEST_F(QueueRegistration, ARefusalIsFalseLeavesNothingAndTransfersGoOn) {
  FakeDrive drive;
  drive.register_file = [](int slot) { return slot == 2 ? ENOMEM : 0; };
  drive.register_memory = [](int slot) { return slot == 1 ? ENOMEM : 0; };
  const auto queue = queue_of(drive, 4);
  const Volume three = volume_in(scratch.path(), 2 * MiB, 3, {.stripe_bytes = block});
  EXPECT_FALSE(queue->register_volume(three));
  EXPECT_TRUE(drive.files().empty());
  const std::size_t size = (std::size_t{1} << 30) + 4096;  // two pieces, of which the second is refused
  void* const region = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region != MAP_FAILED) {
    EXPECT_FALSE(queue->register_memory({static_cast<std::byte*>(region), size}));
    EXPECT_TRUE(drive.memory().empty());
    ::munmap(region, size);
  }
  queue->wait(queue->write(three, 0, memory.get(), 2 * MiB));
  EXPECT_EQ(queue->counters().written_bytes, 2 * MiB);
  for (const Operation& operation : drive.started()) {
    EXPECT_EQ(operation.file_slot, -1);
    EXPECT_EQ(operation.memory_slot, -1);
  }
  // What was freed is used again.
  EXPECT_TRUE(queue->register_volume(*volume));
  EXPECT_EQ(drive.files().begin()->first, 0);
}

TEST_F(QueueRegistration, AVolumeRegisteredTwiceStaysUntilTheSecondUnregister) {
  FakeDrive drive;
  const auto queue = queue_of(drive, 4);
  EXPECT_TRUE(queue->register_volume(*volume));
  EXPECT_TRUE(queue->register_volume(*volume));
  EXPECT_EQ(drive.files().size(), 1u);
  queue->unregister_volume(*volume);
  EXPECT_EQ(drive.files().size(), 1u);
  queue->unregister_volume(*volume);
  EXPECT_TRUE(drive.files().empty());
  EXPECT_NO_THROW(queue->unregister_volume(*volume)) << "one that is not registered";
}

TEST_F(QueueRegistration, MemoryRegisteredTwiceIsUnregisteredAtOnce) {
  FakeDrive drive;
  const auto queue = queue_of(drive, 4);
  const std::span<std::byte> all(memory.get(), static_cast<std::size_t>(volume_bytes));
  EXPECT_TRUE(queue->register_memory(all));
  EXPECT_TRUE(queue->register_memory(all));
  queue->wait(write(*queue, 0, 4 * block));
  queue->unregister_memory(all);
  EXPECT_TRUE(drive.memory().empty());
  queue->wait(write(*queue, 0, 4 * block));
  EXPECT_NO_THROW(queue->unregister_memory(all));
}

TEST_F(QueueRegistration, SlotsThatRunOutAreARefusal) {
  FakeDrive drive;
  const auto queue = queue_of(drive, 4);
  std::vector<std::byte> many(maximum_slots + 1);
  for (std::size_t i = 0; i < maximum_slots; ++i) ASSERT_TRUE(queue->register_memory({&many[i], 1}));
  EXPECT_FALSE(queue->register_memory({&many[maximum_slots], 1}));
  EXPECT_EQ(drive.memory().size(), static_cast<std::size_t>(maximum_slots));
  queue->unregister_memory({many.data() + 500, 1});
  EXPECT_TRUE(queue->register_memory({&many[maximum_slots], 1}));
  queue->unregister_memory(many);
  EXPECT_TRUE(drive.memory().empty());
}

TEST_F(QueueRegistration, RegisteringWhileTransfersAreUnderWayHelpsThoseThatStartLater) {
  FakeDrive drive;
  drive.hold();
  const auto queue = queue_of(drive, 2);
  const Ticket ticket = write(*queue, 0, 6 * block);
  ASSERT_TRUE(drive.await_started(2));
  EXPECT_TRUE(queue->register_volume(*volume));
  drive.release();
  queue->wait(ticket);
  const auto started = drive.started();
  for (std::size_t i = 0; i < started.size(); ++i) EXPECT_EQ(started[i].file_slot >= 0, i >= 2);
}

class QueueRegistered : public OverEngine {};

TEST_P(QueueRegistered, TheBytesAreTheSameWhetherOrNotTheKernelTakesIt) {
  const AlignedBytes memory = aligned_bytes(4 * MiB);
  const std::span<std::byte> all(memory.get(), static_cast<std::size_t>(4 * MiB));
  Queue queue(options(16));
  const Volume volume = volume_in(scratch.path(), 4 * MiB, 2, {.stripe_bytes = 128 * KiB});
  const bool files = queue.register_volume(volume);
  const bool pinned = queue.register_memory(all);
  write_pattern(memory.get(), 4 * MiB, 3, 0);
  queue.wait(queue.write(volume, 0, memory.get(), 4 * MiB));
  std::fill_n(memory.get(), 4 * MiB, std::byte{});
  queue.wait(queue.read(volume, 0, memory.get(), 4 * MiB));
  EXPECT_EQ(first_difference(memory.get(), 4 * MiB, 3, 0), -1);
  const RingReport report = queue.report();
  EXPECT_EQ(report.engine, GetParam());
  EXPECT_EQ(report.registered_files, files);
  EXPECT_EQ(report.registered_memory, pinned);
  if (GetParam() == IoEngine::posix) {
    EXPECT_FALSE(files || pinned);
  }
  queue.unregister_memory(all);
  queue.unregister_volume(volume);
  queue.wait(queue.read(volume, 0, memory.get(), 4 * MiB));
  EXPECT_EQ(first_difference(memory.get(), 4 * MiB, 3, 0), -1);
}

TEST_P(QueueRegistered, AClosedVolumeIsHeldUntilItIsUnregisteredOrTheQueueEnds) {
  const std::int64_t without = open_descriptors();
  {
    Queue queue(options(4));
    const std::int64_t before = open_descriptors();
    for (int round = 0; round < 3; ++round) {
      std::optional<Volume> volume = volume_in(scratch.path(), MiB, 2);
      if (queue.register_volume(*volume)) queue.unregister_volume(*volume);
      volume.reset();
      EXPECT_EQ(open_descriptors(), before);
    }
    std::optional<Volume> volume = volume_in(scratch.path(), MiB, 2);
    const bool registered = queue.register_volume(*volume);
    volume.reset();
    EXPECT_EQ(open_descriptors(), before + (registered ? 2 : 0));
  }
  EXPECT_EQ(open_descriptors(), without);
}

INSTANTIATE_TEST_SUITE_P(Engines, QueueRegistered, ::testing::Values(IoEngine::io_uring, IoEngine::posix),
                         engine_name);

}  // namespace
}  // namespace spillway::aio
