#include "store.h"

#include "../core/device.h"

#include <stdexcept>

namespace spillway {

Swap::Swap(Budget& budget, const std::vector<Request>& requests, int queue_depth, std::int64_t block_bytes)
    : budget_(budget),
      requests_(requests),
      regions_(requests.size()),
      queue_({.ring = {.depth = static_cast<unsigned>(queue_depth)}, .block_bytes = block_bytes}) {
  std::vector<bool> placed(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (placed[i]) continue;
    std::int64_t bytes = 0;
    for (std::size_t j = i; j < requests.size(); ++j) {
      if (requests[j].directory == requests[i].directory) bytes += requests[j].bytes;
    }
    volumes_.push_back(std::make_unique<aio::Volume>(aio::Volume::create({{requests[i].directory}}, bytes)));
    for (std::size_t j = i; j < requests.size(); ++j) {
      if (requests[j].directory != requests[i].directory) continue;
      regions_[j] = {volumes_.back().get(), volumes_.back()->allocate(requests[j].bytes)};
      placed[j] = true;
    }
  }
  for (const Request& request : requests_) buffers_.push_back(budget_.reserve(request.name, request.bytes));
}

Swap::~Swap() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    budget_.release(requests_[i].name, requests_[i].bytes, buffers_[i]);
  }
}

Store Store::make(Tier tier, Device& device, Budget& host, Swap* swap, Swap::Region region,
                  std::string_view name, std::int64_t bytes, Pages host_pages) {
  if (tier == Tier::device) return Store(device, name, bytes);
  // Of nothing there is no region in a file.
  if (tier == Tier::host || bytes == 0) return Store(host, name, bytes, host_pages);
  return Store(*swap, region);
}

Store::Store(Device& device, std::string_view name, std::int64_t bytes)
    : tier_(Tier::device), memory_(device.allocate(name, bytes)) {}

Store::Store(Budget& host, std::string_view name, std::int64_t bytes, Pages pages)
    : tier_(Tier::host), memory_(host, name, bytes, pages) {}

Store::Store(Swap& swap, Swap::Region region) : tier_(Tier::nvme), swap_(&swap), region_(region) {}

std::byte* Store::at(std::int64_t offset) const {
  if (tier_ == Tier::nvme) throw std::logic_error("Store::at: on NVMe nothing has an address");
  return memory_.data() + offset;
}

Swap& Store::swap() const {
  if (swap_ == nullptr) throw std::logic_error("Store: only what lies on NVMe is read and written");
  return *swap_;
}

aio::Ticket Store::read(std::int64_t offset, std::byte* destination, std::int64_t bytes) {
  return swap().queue().read(*region_.volume, region_.offset + offset, destination, bytes);
}

aio::Ticket Store::write(std::int64_t offset, const std::byte* source, std::int64_t bytes) {
  return swap().queue().write(*region_.volume, region_.offset + offset, source, bytes);
}

}  // namespace spillway
