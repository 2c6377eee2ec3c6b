#include "budget.h"

#include "error.h"
#include "size.h"
#include "trace.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

namespace spillway {

std::uint64_t Budget::reserve(std::string_view name, std::int64_t bytes) {
  if (bytes < 0) throw std::logic_error(fmt::format("Budget::reserve({}): {} bytes", name, bytes));
  std::lock_guard lock(mutex_);
  if (limit_ >= 0 && bytes > limit_ - total_.used) {
    throw Error(ErrorKind::resources,
                fmt::format("{} memory: {} for {} does not fit, {} of {} are in use", name_of(tier_),
                            format_size(bytes), name, format_size(total_.used), format_size(limit_)));
  }
  auto found = names_.find(name);
  if (found == names_.end()) found = names_.emplace(std::string(name), Use{}).first;
  for (Use* use : {&total_, &found->second}) {
    use->used += bytes;
    use->peak = std::max(use->peak, use->used);
  }
  if (trace_ == nullptr) return 0;
  const std::uint64_t buffer = trace_->next_buffer_id();
  trace_->add(BufferEvent{.action = BufferAction::allocate,
                          .id = buffer,
                          .kind = std::string(name),
                          .tier = tier_,
                          .bytes = bytes,
                          .cause = "allocate"});
  return buffer;
}

void Budget::release(std::string_view name, std::int64_t bytes, std::uint64_t buffer) noexcept {
  std::lock_guard lock(mutex_);
  total_.used -= bytes;
  if (auto found = names_.find(name); found != names_.end()) found->second.used -= bytes;
  if (trace_ == nullptr || buffer == 0) return;
  trace_->add(BufferEvent{.action = BufferAction::free,
                          .id = buffer,
                          .kind = std::string(name),
                          .tier = tier_,
                          .bytes = bytes,
                          .cause = "free"});
}

void Budget::set_trace(Trace* trace) {
  std::lock_guard lock(mutex_);
  trace_ = trace;
}

std::int64_t Budget::used() const {
  std::lock_guard lock(mutex_);
  return total_.used;
}

std::int64_t Budget::peak() const {
  std::lock_guard lock(mutex_);
  return total_.peak;
}

std::map<std::string, std::int64_t> Budget::peaks_by_name() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, std::int64_t> peaks;
  for (const auto& [name, use] : names_) peaks.emplace(name, use.peak);
  return peaks;
}

Memory::Memory(Budget& budget, std::string_view name, std::int64_t bytes, Pages pages) {
  if (bytes == 0) return;
  const std::uint64_t buffer = budget.reserve(name, bytes);
  // A page-aligned mapping of its own: exact in size, zero, and given back to the system at once.
  void* data = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | (pages == Pages::present ? MAP_POPULATE : 0), -1, 0);
  if (data == MAP_FAILED) {
    const int number = errno;
    budget.release(name, bytes, buffer);
    throw Error(ErrorKind::resources, fmt::format("no memory for {}", name),
                {.operation = "mmap", .length = bytes, .error_number = number});
  }
  budget_ = &budget;
  buffer_ = buffer;
  name_ = name;
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
}

void Memory::reset() noexcept {
  if (data_ == nullptr) return;
  munmap(data_, static_cast<std::size_t>(bytes_));
  budget_->release(name_, bytes_, buffer_);
  data_ = nullptr;
  bytes_ = 0;
  budget_ = nullptr;
}

void Memory::swap(Memory& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(name_, other.name_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(buffer_, other.buffer_);
}

}  // namespace spillway
