#include "io_uring_registrations.h"

#include "io_uring_support.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sys/uio.h>

namespace spillway::aio {
namespace {

constexpr auto slots = static_cast<std::size_t>(maximum_slots);

std::string file_note(int error_number) {
  return fmt::format("registering a file was refused ({}); transfers go on without",
                     std::strerror(error_number));
}

std::string memory_note(int error_number, std::size_t bytes) {
  const std::int64_t limit = locked_memory_limit();
  if (error_number == ENOMEM && limit >= 0) {
    return fmt::format(
        "registering {} bytes of memory was refused: this user may lock {} bytes (ulimit -l); transfers go on "
        "without",
        bytes, limit);
  }
  return fmt::format("registering {} bytes of memory was refused ({}); transfers go on without", bytes,
                     std::strerror(error_number));
}

}  // namespace

int Registrations::make_file_table(io_uring& ring) noexcept {
  files_.resize(slots, -1);
  // With -1 everywhere, not io_uring_register_files_sparse: kernels before 5.19 know that too.
  const std::vector<int> none(slots, -1);
  return -::io_uring_register_files(&ring, none.data(), slots);
}

int Registrations::make_memory_table(io_uring& ring) noexcept {
  memory_.resize(slots);
  const std::vector<iovec> none(slots);  // since 5.13
  return -::io_uring_register_buffers(&ring, none.data(), slots);
}

int Registrations::set_file(io_uring& ring, int slot, int descriptor) noexcept {
  Table& table = file_table_;
  if (!table.made && table.unusable == 0) {
    if (descriptor < 0) return 0;
    table.unusable = make_file_table(ring);
    table.made = table.unusable == 0;
  }
  int error = table.unusable;
  if (table.made) {
    const auto place = static_cast<std::size_t>(slot);
    const int wanted = descriptor < 0 ? -1 : descriptor;
    const int result = ::io_uring_register_files_update(&ring, static_cast<unsigned>(slot), &wanted, 1);
    error = result < 0 ? -result : 0;
    files_[place] = error == 0 ? wanted : -1;
  }
  if (descriptor < 0) return error;
  if (error == 0) table.some = true;
  if (error != 0 && !std::exchange(table.refused, true)) table.note = file_note(error);
  return error;
}

int Registrations::set_memory(io_uring& ring, int slot, std::span<std::byte> memory) noexcept {
  Table& table = memory_table_;
  if (!table.made && table.unusable == 0) {
    if (memory.empty()) return 0;
    table.unusable = make_memory_table(ring);
    table.made = table.unusable == 0;
  }
  int error = table.unusable;
  if (table.made) {
    const auto place = static_cast<std::size_t>(slot);
    const iovec wanted{memory.empty() ? nullptr : memory.data(), memory.size()};
    const __u64 tag = 0;
    const int result =
        ::io_uring_register_buffers_update_tag(&ring, static_cast<unsigned>(slot), &wanted, &tag, 1);
    error = result < 0 ? -result : 0;
    memory_[place] = error == 0 ? memory : std::span<std::byte>{};
  }
  if (memory.empty()) return error;
  if (error == 0) table.some = true;
  if (error != 0 && !std::exchange(table.refused, true)) table.note = memory_note(error, memory.size());
  return error;
}

bool Registrations::has_file(const Operation& operation) const noexcept {
  const auto slot = static_cast<std::size_t>(operation.file_slot);  // -1 becomes the largest
  return slot < files_.size() && operation.descriptor >= 0 && files_[slot] == operation.descriptor;
}

bool Registrations::has_memory(const Operation& operation) const noexcept {
  const auto slot = static_cast<std::size_t>(operation.memory_slot);
  if (slot >= memory_.size() || operation.memory < memory_[slot].data()) return false;
  const auto offset = static_cast<std::size_t>(operation.memory - memory_[slot].data());
  const auto bytes = static_cast<std::size_t>(operation.bytes);
  return bytes <= memory_[slot].size() && offset <= memory_[slot].size() - bytes;
}

void Registrations::move_to(io_uring& ring) noexcept {
  const std::vector<int> files = std::exchange(files_, {});
  const std::vector<std::span<std::byte>> memory = std::exchange(memory_, {});
  file_table_.made = memory_table_.made = false;
  for (std::size_t slot = 0; slot < files.size(); ++slot) {
    if (files[slot] >= 0) set_file(ring, static_cast<int>(slot), files[slot]);
  }
  for (std::size_t slot = 0; slot < memory.size(); ++slot) {
    if (!memory[slot].empty()) set_memory(ring, static_cast<int>(slot), memory[slot]);
  }
}

void Registrations::describe(RingReport& report) const {
  report.registered_files = file_table_.some && !file_table_.refused;
  report.registered_memory = memory_table_.some && !memory_table_.refused;
  for (const Table* const table : {&file_table_, &memory_table_}) {
    if (table->refused) report.notes.push_back(table->note);
  }
}

}  // namespace spillway::aio
