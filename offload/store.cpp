#include "store.h"

#include "../aio/checksums.h"
#include "../core/config.h"
#include "../core/device.h"
#include "../core/error.h"
#include "../core/trace.h"
#include "drive_speed.h"
#include "engine.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>

namespace spillway {
namespace {

std::vector<aio::VolumePath> paths_of(const std::vector<std::string>& directories,
                                      const std::vector<double>& bandwidth) {
  std::vector<aio::VolumePath> paths;
  for (std::size_t i = 0; i < directories.size(); ++i)
    paths.push_back({directories[i], bandwidth.empty() ? 0.0 : bandwidth[i]});
  return paths;
}

/// Two directories of one file system share one drive: what lies on both is no faster than on one of them.
std::optional<std::string> shared_drive(const aio::Volume& volume) {
  std::vector<std::pair<dev_t, std::string>> seen;
  for (std::size_t i = 0; i < volume.path_count(); ++i) {
    struct stat status {};
    if (fstat(volume.file(i).descriptor(), &status) != 0) continue;
    for (const auto& [number, directory] : seen) {
      if (number != status.st_dev) continue;
      return on_one_line(
          fmt::format("{} and {} are on one file system: striping over both makes nothing faster", directory,
                      volume.file(i).directory()));
    }
    seen.emplace_back(status.st_dev, volume.file(i).directory());
  }
  return std::nullopt;
}

std::uint64_t label_of(Purpose purpose) {
  return static_cast<std::uint64_t>(purpose.kind) << 32 | static_cast<std::uint32_t>(purpose.unit);
}

void add_span(Trace& trace, const aio::TransferTiming& timing) {
  constexpr std::string_view kNames[] = {"transfer", "record", "high", "parameters", "gradient", "activation"};
  const std::int64_t now = trace.now_ns();
  trace.add(Span{.lane = timing.direction == aio::Direction::read ? Lane::read : Lane::write,
                 .name = std::string(kNames[timing.label >> 32]),
                 .unit = static_cast<int>(static_cast<std::uint32_t>(timing.label)),
                 .begin_ns = now - static_cast<std::int64_t>(timing.seconds * 1e9),
                 .end_ns = now,
                 .bytes = timing.bytes});
}

void add_once(std::vector<std::string>& lines, const std::vector<std::string>& more) {
  for (const std::string& line : more) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  }
}

}  // namespace

SwapOptions swap_options(const Config& config) {
  SwapOptions options{.queue_depth = config.queue_depth,
                      .block_bytes = config.block_bytes,
                      .sqpoll = config.io_sqpoll,
                      .iopoll = config.io_iopoll,
                      .direct = config.direct_io,
                      .checksums = config.checksums,
                      .bandwidth = config.nvme_bandwidth};
  bool known = false;
  for (const auto engine : {aio::IoEngine::automatic, aio::IoEngine::io_uring, aio::IoEngine::posix}) {
    if (config.io_engine != aio::name_of(engine)) continue;
    options.engine = engine;
    known = true;
  }
  if (!known) throw std::logic_error("Config::io_engine: there is no engine " + config.io_engine);
  if (!config.io_faults.empty())
    options.faults = aio::parse_faults(config.io_faults, "spillway.io_faults (--io-faults)");
  return options;
}

Swap::Count::Count(Budget& budget, std::string name, std::int64_t bytes)
    : budget_(budget), name_(std::move(name)), bytes_(bytes), buffer_(budget.reserve(name_, bytes)) {}

Swap::Count::~Count() {
  budget_.release(name_, bytes_, buffer_);
}

Swap::Swap(Budget& nvme, Budget& host, const std::vector<Request>& requests, const SwapOptions& options,
           std::int64_t checksum_bytes, Trace* trace)
    : block_bytes_(options.block_bytes), regions_(requests.size()) {
  reserve(requests, options);
  for (const Request& request : requests)
    counts_.push_back(std::make_unique<Count>(nvme, request.name, request.bytes));
  if (checksum_bytes > 0) counts_.push_back(std::make_unique<Count>(host, "checksums", checksum_bytes));

  std::set<std::string> directories;
  for (const Space& space : spaces_) directories.insert(space.directories.begin(), space.directories.end());
  const auto depth =
      static_cast<std::size_t>(options.queue_depth) * std::max<std::size_t>(directories.size(), 1);
  queue_.emplace(aio::QueueOptions{
      .ring = {.depth = static_cast<unsigned>(std::min<std::size_t>(depth, aio::maximum_depth)),
               .engine = options.engine,
               .sqpoll = options.sqpoll,
               .iopoll = options.iopoll},
      .block_bytes = options.block_bytes,
      .faults = options.faults,
      .on_transfer = trace == nullptr
                         ? std::function<void(const aio::TransferTiming&)>()
                         : [trace](const aio::TransferTiming& timing) { add_span(*trace, timing); }});
  for (const Space& space : spaces_) queue_->register_volume(space.volume);
}

Swap::~Swap() = default;

/// A volume for each list of directories, and in it an extent for each request.
void Swap::reserve(const std::vector<Request>& requests, const SwapOptions& options) {
  for (const Request& first : requests) {
    const auto same = [&](const auto& other) { return other.directories == first.directories; };
    if (std::any_of(spaces_.begin(), spaces_.end(), same)) continue;
    std::int64_t bytes = 0;
    for (const Request& request : requests) {
      if (same(request)) bytes += request.bytes;
    }
    std::vector<double> bandwidth = options.bandwidth;
    if (first.directories.size() == 1) {
      bandwidth.clear();
    } else if (bandwidth.empty()) {
      DriveSpeeds speeds = measure_drives(first.directories, bytes, options);
      bandwidth = std::move(speeds.bytes_per_s);
      add_once(notes_, speeds.notes);
    }
    spaces_.push_back({first.directories, aio::Volume::create(paths_of(first.directories, bandwidth), bytes,
                                                              {.file = {.direct = options.direct},
                                                               .checksums = options.checksums})});
    if (const auto note = shared_drive(spaces_.back().volume)) add_once(notes_, {*note});
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto space = std::find_if(spaces_.begin(), spaces_.end(), [&](const Space& one) {
      return one.directories == requests[i].directories;
    });
    regions_[i] = {&space->volume, space->volume.allocate(requests[i].bytes)};
  }
}

IoReport Swap::report() const {
  const aio::RingReport ring = queue_->report();
  IoReport report{.engine = std::string(aio::name_of(ring.engine)),
                  .registered_files = ring.registered_files,
                  .registered_memory = ring.registered_memory,
                  .single_issuer = ring.single_issuer,
                  .deferred_task_run = ring.deferred_task_run,
                  .sqpoll = ring.sqpoll,
                  .iopoll = ring.iopoll,
                  .depth = static_cast<int>(queue_->depth()),
                  .block_bytes = block_bytes_,
                  .notes = ring.notes};
  for (const Space& space : spaces_) {
    add_once(report.notes, space.volume.notes());
    if (const aio::Checksums* const sums = space.volume.checksums())
      report.checksums += static_cast<std::int64_t>(sums->size());
    for (std::size_t i = 0; i < space.volume.path_count(); ++i) {
      report.direct = report.direct && space.volume.file(i).direct();
      const std::string& directory = space.volume.file(i).directory();
      const auto place = std::find_if(report.places.begin(), report.places.end(),
                                      [&](const IoReport::Place& one) { return one.directory == directory; });
      const std::int64_t bytes = space.volume.bytes_on(i);
      if (place == report.places.end()) {
        report.places.push_back({directory, bytes});
      } else {
        place->bytes += bytes;
      }
    }
  }
  add_once(report.notes, notes_);
  return report;
}

SwapMemory::SwapMemory(Swap& swap, const Memory& memory) {
  if (memory.bytes() == 0) return;
  memory_ = {memory.data(), static_cast<std::size_t>(memory.bytes())};
  if (swap.queue().register_memory(memory_)) swap_ = &swap;
}

void SwapMemory::reset() noexcept {
  if (Swap* const swap = std::exchange(swap_, nullptr)) {
    try {
      swap->queue().unregister_memory(memory_);
    } catch (const std::exception&) {
      // The queue is at its end, and keeps nothing.
    }
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

aio::Ticket Store::read(std::int64_t offset, std::byte* destination, std::int64_t bytes, Purpose purpose) {
  return swap().queue().read(*region_.volume, region_.offset + offset, destination, bytes, label_of(purpose));
}

aio::Ticket Store::write(std::int64_t offset, const std::byte* source, std::int64_t bytes, Purpose purpose) {
  return swap().queue().write(*region_.volume, region_.offset + offset, source, bytes, label_of(purpose));
}

}  // namespace spillway
