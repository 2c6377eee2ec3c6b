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

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// A mapping of its own: zero, and given back to the system at once. Null, with errno, where there is no room.
/// Large ones ask for huge pages: a drive's transfer then has a few long pieces instead of hundreds of pages
/// (on a virtual drive twice as fast, for a tenth of the processor's time), and the update misses fewer
/// translations. The mapping ends with the last page that is counted, so that no huge page reaches beyond it.
std::byte* map(std::int64_t bytes, Pages pages) {
  const auto page = static_cast<std::size_t>(getpagesize());
  const std::size_t size = (static_cast<std::size_t>(bytes) + page - 1) / page * page;
  const std::size_t surplus = size >= kHugePage ? kHugePage : 0;
  void* const mapping =
      mmap(nullptr, size + surplus, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* data = static_cast<std::byte*>(mapping);
  if (surplus > 0) {
    const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(data) % kHugePage) % kHugePage;
    if (before > 0) munmap(data, before);
    data += before;
    if (surplus > before) munmap(data + size, surplus - before);
    madvise(data, size, MADV_HUGEPAGE);  // a wish
  }
  if (pages == Pages::present && madvise(data, size, MADV_POPULATE_WRITE) != 0) {
    if (errno == ENOMEM) {
      munmap(data, size);
      errno = ENOMEM;
      return nullptr;
    }
    // A kernel before 5.14.
    for (std::size_t place = 0; place < size; place += page)
      static_cast<volatile std::byte*>(data)[place] = std::byte{};
  }
  return data;
}

}  // namespace

Memory::Memory(Budget& budget, std::string_view name, std::int64_t bytes, Pages pages) {
  if (bytes == 0) return;
  const std::uint64_t buffer = budget.reserve(name, bytes);
  std::byte* const data = map(bytes, pages);
  if (data == nullptr) {
    const int number = errno;
    budget.release(name, bytes, buffer);
    throw Error(ErrorKind::resources, fmt::format("no memory for {}", name),
                {.operation = "mmap", .length = bytes, .error_number = number});
  }
  budget_ = &budget;
  buffer_ = buffer;
  name_ = name;
  data_ = data;
  bytes_ = bytes;
}

void Memory::reset() noexcept {
  if (data_ == nullptr) return;
  munmap(data_, static_cast<std::size_t>(bytes_));  // which rounds up to whole pages
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
