#include "io_setting.h"

#include "../aio/drive.h"
#include "../core/error.h"
#include "../core/machine.h"
#include "../core/size.h"
#include "bench_support.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spillway::cli {
namespace {

using aio::Traffic;

constexpr Traffic kModes[] = {Traffic::read, Traffic::write, Traffic::mixed};
constexpr std::int64_t MiB = std::int64_t{1} << 20;
constexpr std::int64_t kDefaultSize = 1024 * MiB;
constexpr int kMostJobs = 256;

/// A size that a transfer may have.
std::int64_t transferable(const std::string& typed, std::string_view flag) {
  const std::int64_t bytes = parse_size(typed, flag);
  if (bytes > 0 && bytes <= aio::maximum_operation_bytes && bytes % aio::direct_io_alignment == 0) return bytes;
  throw usage(fmt::format("{}: {} is not a multiple of {} from there to {}", flag, typed,
                          format_size(aio::direct_io_alignment), format_size(aio::maximum_operation_bytes)),
              "such as 256K, 1M or 4M");
}

void check_between(std::string_view flag, int value, int least, int most, std::string hint) {
  if (value >= least && value <= most) return;
  throw usage(fmt::format("{}: {} is not between {} and {}", flag, value, least, most), std::move(hint));
}

std::vector<Traffic> modes_of(const std::vector<std::string>& typed) {
  std::vector<Traffic> modes;
  for (const auto& name : typed) {
    const auto* const mode =
        std::find_if(std::begin(kModes), std::end(kModes), [&](Traffic t) { return name_of_mode(t) == name; });
    if (mode == std::end(kModes)) {
      throw usage(fmt::format("--mode: '{}' is not known", name),
                  "use read, write or mixed, several with commas; without --mode all are measured");
    }
    if (std::find(modes.begin(), modes.end(), *mode) == modes.end()) modes.push_back(*mode);
  }
  if (modes.empty()) modes.assign(std::begin(kModes), std::end(kModes));
  return modes;
}

aio::IoEngine engine_of(const std::string& typed) {
  for (const auto engine : {aio::IoEngine::automatic, aio::IoEngine::io_uring, aio::IoEngine::posix}) {
    if (name_of(engine) == typed) return engine;
  }
  throw usage(fmt::format("--engine: '{}' is not known", typed), "use auto, io_uring or posix");
}

bool direct_of(const std::string& typed) {
  if (typed.empty() || typed == "on") return true;
  if (typed == "off") return false;
  throw usage(fmt::format("--direct: '{}' is not known", typed), "use on or off");
}

/// One of the paths, as the system has it.
struct Place {
  std::string path;
  struct stat status {};
  aio::Drive drive;
  bool is_directory() const { return S_ISDIR(status.st_mode); }
};

Place place_of(const std::string& path, bool overwrite) {
  Place place{.path = path, .status = {}, .drive = {}};
  if (::stat(path.c_str(), &place.status) != 0) {
    throw Error(ErrorKind::io, "--path: there is nothing to measure in",
                {.operation = "stat",
                 .path = path,
                 .error_number = errno,
                 .hint = "name a directory on the drive, or a file that exists"});
  }
  const bool is_file = S_ISREG(place.status.st_mode) || S_ISBLK(place.status.st_mode);
  if (!place.is_directory() && !is_file) {
    throw usage(fmt::format("--path: {} is neither a directory nor a file nor a block device", path),
                "name a directory on the drive");
  }
  if (is_file && !overwrite) {
    throw usage(fmt::format("--path: {} is a {}, and what it holds would be lost", path,
                            S_ISBLK(place.status.st_mode) ? "block device" : "file"),
                "--overwrite says that it may be; a directory needs no such thing");
  }
  place.drive = aio::describe_drive(path);
  return place;
}

bool is_memory(const Place& place) {
  return place.drive.file_system == "tmpfs" || place.drive.file_system == "ramfs";
}

std::string drive_of(const Place& place) {
  if (S_ISBLK(place.status.st_mode)) return fmt::format("block device {}", place.path);
  if (is_memory(place)) return fmt::format("memory ({})", place.drive.file_system);
  return place.drive.describe();
}

/// Whether transfers there can be polled for: the system says so of a device below it, or nothing at all.
bool may_poll(const Place& place) {
  const auto& layers = place.drive.layers;
  return layers.empty() || std::any_of(layers.begin(), layers.end(),
                                       [](const aio::BlockDevice& device) { return device.polled_queues; });
}

std::string each_once(const std::vector<Place>& places, std::string (*text)(const Place&)) {
  std::vector<std::string> all;
  for (const Place& place : places) {
    if (std::string one = text(place); std::find(all.begin(), all.end(), one) == all.end())
      all.push_back(std::move(one));
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

/// What a file system has for the volumes: half of its free space, in bytes for one job.
std::int64_t room_in(const std::vector<Place>& places, int jobs) {
  std::map<dev_t, int> paths_on;  // several paths may lie on one file system
  for (const Place& place : places) ++paths_on[place.status.st_dev];
  std::int64_t room = std::numeric_limits<std::int64_t>::max();
  for (const Place& place : places) {
    // Equal shares of the volume lie on each path.
    const std::int64_t for_a_path = place.drive.free_bytes / 2 / jobs / paths_on[place.status.st_dev];
    room = std::min(room, for_a_path);
  }
  const auto paths = static_cast<std::int64_t>(places.size());
  return room > std::numeric_limits<std::int64_t>::max() / paths ? room : room * paths;
}

std::int64_t size_in_directories(const IoBenchOptions& options, const std::vector<Place>& places,
                                 const aio::FileOptions& file) {
  // What a directory is refused for comes before how much is free there.
  for (const Place& place : places) aio::File::create(place.path, aio::direct_io_alignment, file);
  const std::int64_t room = room_in(places, options.jobs);
  if (options.size.empty()) return std::min(kDefaultSize, room / MiB * MiB);
  const std::int64_t size = parse_size(options.size, "--size");
  if (size <= room) return size;
  std::vector<std::string> free;
  for (const Place& place : places) {
    free.push_back(fmt::format("{} free in {}", format_size(place.drive.free_bytes), place.path));
  }
  throw Error(ErrorKind::resources,
              fmt::format("--size: {}{} is more than half of what is free ({})", options.size,
                          options.jobs > 1 ? fmt::format(" for each of {} jobs", options.jobs) : "",
                          fmt::join(free, ", ")),
              {.hint = fmt::format("--size {}M fits, or name a larger drive", room / MiB)});
}

/// Of files that exist.
std::int64_t size_of_files(const IoBenchOptions& options, const std::vector<Place>& places) {
  if (!options.size.empty()) {
    throw usage("--size: a file that exists has its own", "leave --size away, or name a directory");
  }
  if (options.jobs > 1) {
    throw usage("--jobs: several processes would write to the same file",
                "name a directory, where each has a file of its own");
  }
  std::set<std::pair<dev_t, ino_t>> seen;
  std::int64_t size = 0;
  for (const Place& place : places) {
    if (!seen.insert({place.status.st_dev, place.status.st_ino}).second)
      throw usage(fmt::format("--path: {} is named twice", place.path), "name each file once");
    std::int64_t bytes = place.status.st_size;
    if (S_ISBLK(place.status.st_mode)) {
      const int descriptor = ::open(place.path.c_str(), O_RDONLY | O_CLOEXEC);
      if (descriptor < 0) {
        throw Error(ErrorKind::io, "the device cannot be opened",
                    {.operation = "open", .path = place.path, .error_number = errno});
      }
      bytes = ::lseek(descriptor, 0, SEEK_END);
      ::close(descriptor);
    }
    size += bytes;
  }
  return size;
}

/// Error (resources) where the memory through which transfers pass does not fit.
void check_memory(const IoSetting& setting) {
  const aio::MeasureSetting& s = setting.task.setting;
  const std::int64_t transfer = std::max(setting.task.transfer_bytes, s.block_bytes);
  // As aio/measure_state.cpp has it: what is under way, half of that again, and the pattern.
  const std::int64_t each =
      static_cast<std::int64_t>(s.depth) * s.block_bytes * 3 / 2 + 4 * transfer + 64 * MiB;
  const MachineMemory memory = machine_memory();
  if (memory.total == 0 || each <= memory.available / 2 / setting.jobs) return;
  throw Error(ErrorKind::resources,
              fmt::format("{} blocks of {} under way{} take {} of memory, and {} are available", s.depth,
                          format_size(s.block_bytes),
                          setting.jobs > 1 ? fmt::format(" in each of {} jobs", setting.jobs) : "",
                          format_size(each * setting.jobs), format_size(memory.available)),
              {.hint = "a smaller --queue-depth, --block-size or --jobs takes less"});
}

void check_size(const IoSetting& setting, bool memory_full) {
  const aio::MeasureSetting& s = setting.task.setting;
  const std::int64_t least = 2 * s.block_bytes * static_cast<std::int64_t>(s.depth);
  if (setting.task.bytes >= least) return;
  throw Error(memory_full ? ErrorKind::resources : ErrorKind::usage,
              fmt::format("{} are less than twice what is under way at once: {} blocks of {}",
                          format_size(setting.task.bytes), s.depth, format_size(s.block_bytes)),
              {.hint = fmt::format("a volume of at least {}, or a smaller --queue-depth or --block-size",
                                   format_size(least))});
}

}  // namespace

std::string_view name_of_mode(Traffic mode) {
  switch (mode) {
    case Traffic::read:
      return "read";
    case Traffic::write:
      return "write";
    case Traffic::mixed:
      return "mixed";
    case Traffic::alternating:
      return "alternating";
  }
  return "";
}

IoSetting settle(const IoBenchOptions& options) {
  IoSetting setting;
  IoTask& task = setting.task;
  task.setting.block_bytes = transferable(options.block_size, "--block-size");
  task.transfer_bytes = transferable(options.transfer_size, "--transfer-size");
  check_between("--queue-depth", options.queue_depth, 1, static_cast<int>(aio::maximum_depth),
                "blocks in flight at once, such as 32");
  task.setting.depth = static_cast<unsigned>(options.queue_depth);
  check_between("--jobs", options.jobs, 1, kMostJobs, "processes at once, as the ranks of a run");
  setting.jobs = options.jobs;
  setting.modes = modes_of(options.modes);
  task.first = setting.modes.front();
  task.only_first = setting.modes.size() == 1;
  task.setting.engine = engine_of(options.engine);
  task.setting.sqpoll = options.sqpoll;
  task.file.direct = direct_of(options.direct);
  check_seconds(options.seconds, false, "the time for each mode, such as 5");
  setting.seconds = options.seconds;

  if (options.paths.empty())
    throw usage("--path is missing", "name a directory on the drive that a run would swap to");
  std::vector<Place> places;
  for (const auto& path : options.paths) places.push_back(place_of(path, options.overwrite));
  task.paths = options.paths;
  const auto directories =
      std::count_if(places.begin(), places.end(), [](const Place& place) { return place.is_directory(); });
  task.existing = directories == 0;
  if (!task.existing && directories != static_cast<std::ptrdiff_t>(places.size()))
    throw usage("--path: some are directories and some are files", "name only directories, or only files");
  if (!task.existing && options.overwrite)
    throw usage("--overwrite: every --path is a directory, where nothing is overwritten", "leave it away");
  setting.memory = std::any_of(places.begin(), places.end(), is_memory);
  task.file.allow_memory = options.direct == "on";
  if (setting.memory && !task.file.allow_memory) {
    throw usage(fmt::format("--path: {} is memory, not a drive",
                            std::find_if(places.begin(), places.end(), is_memory)->path),
                "name a directory on a drive; --direct on measures what the software itself costs there");
  }
  task.setting.iopoll = options.iopoll && std::all_of(places.begin(), places.end(), may_poll);
  if (options.iopoll && !task.setting.iopoll)
    setting.notes.push_back("--iopoll: the drive has no queues that can be polled; it interrupts instead");
  setting.drive = each_once(places, drive_of);
  setting.file_system = each_once(places, [](const Place& place) {
    return S_ISBLK(place.status.st_mode) ? std::string("none") : place.drive.file_system;
  });

  task.bytes = task.existing ? size_of_files(options, places) : size_in_directories(options, places, task.file);
  check_size(setting, !task.existing && options.size.empty());
  check_memory(setting);
  if (!task.existing && options.size.empty() && task.bytes < kDefaultSize) {
    setting.notes.push_back(fmt::format("the volume has {}, since no more than half of the free space is taken",
                                        format_size(task.bytes)));
  }
  if (!task.file.direct) {
    setting.notes.push_back(
        "--direct off: what the page cache holds is read from memory, and what is written goes to it first; "
        "these are no figures of a drive");
  }
  return setting;
}

}  // namespace spillway::cli
