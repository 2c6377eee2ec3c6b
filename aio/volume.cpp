#include "volume.h"

#include "../core/error.h"
#include "checksums.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace spillway::aio {
namespace {

constexpr std::int64_t round_up(std::int64_t bytes, std::int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Shares that add up to 1. All bandwidths 0: equal ones.
std::vector<double> shares_of(const std::vector<VolumePath>& paths) {
  double fastest = 0;
  for (const VolumePath& path : paths) {
    if (!std::isfinite(path.bandwidth) || path.bandwidth < 0) {
      throw std::logic_error(fmt::format("Volume: a bandwidth of {}", path.bandwidth));
    }
    fastest = std::max(fastest, path.bandwidth);
  }
  // Far below the one stripe of a cycle that every path gets: what is slower still makes no difference.
  constexpr double slowest = 1e-6;
  std::vector<double> shares;
  for (const VolumePath& path : paths) {
    if (fastest > 0 && path.bandwidth == 0) throw std::logic_error("Volume: one bandwidth of several is 0");
    shares.push_back(fastest > 0 ? std::max(path.bandwidth / fastest, slowest) : 1);
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

/// How many of `stripes` each path gets: at least one, and otherwise by largest remainder.
std::vector<int> apportion(const std::vector<double>& shares, int stripes) {
  std::vector<int> counts;
  std::vector<double> owed;  // what a path is short of its exact share
  int left = stripes;
  for (const double share : shares) {
    const double exact = share * stripes;
    // What rounding took off an integer is given back first.
    counts.push_back(std::max(1, static_cast<int>(exact + 1e-9)));
    owed.push_back(exact - counts.back());
    left -= counts.back();
  }
  for (; left != 0; left += left > 0 ? -1 : 1) {
    // Too many only where slow paths were given one each: the others pay for it.
    std::size_t chosen = counts.size();
    for (std::size_t path = 0; path < counts.size(); ++path) {
      if (left < 0 && counts[path] == 1) continue;
      if (chosen == counts.size() || (left > 0 ? owed[path] > owed[chosen] : owed[path] < owed[chosen])) {
        chosen = path;
      }
    }
    const int change = left > 0 ? 1 : -1;
    counts[chosen] += change;
    owed[chosen] -= change;
  }
  return counts;
}

/// By how much the slowest path makes the whole slower than the sum of the bandwidths; 1: not at all.
double slowdown(const std::vector<double>& shares, const std::vector<int>& counts, int stripes) {
  double worst = 0;
  for (std::size_t path = 0; path < shares.size(); ++path) {
    worst = std::max(worst, counts[path] / (shares[path] * stripes));
  }
  return worst;
}

/// The paths of a cycle's stripes. Of all lengths up to the maximum the shortest that is as fast as any.
std::vector<std::size_t> make_cycle(const std::vector<double>& shares) {
  std::vector<int> best;
  double best_slowdown = std::numeric_limits<double>::infinity();
  for (int stripes = static_cast<int>(shares.size()); stripes <= maximum_cycle; ++stripes) {
    const std::vector<int> counts = apportion(shares, stripes);
    const double slower = slowdown(shares, counts, stripes);
    if (slower < best_slowdown * (1 - 1e-9)) {
      best = counts;
      best_slowdown = slower;
    }
  }
  // Smooth weighted round robin: every path earns its count with each stripe, the richest pays for it.
  const int stripes = std::accumulate(best.begin(), best.end(), 0);
  std::vector<int> credit(best.size());
  std::vector<std::size_t> cycle;
  for (int stripe = 0; stripe < stripes; ++stripe) {
    for (std::size_t path = 0; path < best.size(); ++path) credit[path] += best[path];
    const auto richest =
        static_cast<std::size_t>(std::max_element(credit.begin(), credit.end()) - credit.begin());
    credit[richest] -= stripes;
    cycle.push_back(richest);
  }
  return cycle;
}

/// Which stripe lies where.
class Layout {
 public:
  Layout(const std::vector<double>& shares, std::int64_t stripe_bytes)
      : stripe_bytes_(stripe_bytes), cycle_(make_cycle(shares)), counts_(shares.size()) {
    for (const std::size_t path : cycle_) before_.push_back(counts_[path]++);
    for (std::size_t position = 0; position < cycle_.size(); ++position) {
      std::int64_t run = 1;
      while (run < stripes() && cycle_[next(position, run)] == cycle_[position]) ++run;
      runs_.push_back(run);
    }
  }

  std::int64_t stripe_bytes() const { return stripe_bytes_; }

  /// As Volume::locate, in a volume of `size` bytes.
  Volume::Place locate(std::int64_t offset, std::int64_t size) const {
    if (counts_.size() == 1) return {0, offset, size - offset};
    const std::int64_t stripe = offset / stripe_bytes_;
    const std::int64_t inside = offset % stripe_bytes_;
    const auto position = static_cast<std::size_t>(stripe % stripes());
    const std::size_t path = cycle_[position];
    const std::int64_t in_file = stripe / stripes() * counts_[path] + before_[position];
    return {path, in_file * stripe_bytes_ + inside,
            std::min(runs_[position] * stripe_bytes_ - inside, size - offset)};
  }

  /// Of the first `size` bytes, those on the path.
  std::int64_t bytes_on(std::size_t path, std::int64_t size) const {
    if (counts_.size() == 1) return size;
    const std::int64_t whole = size / stripe_bytes_ / stripes();
    std::int64_t bytes = whole * counts_[path] * stripe_bytes_;
    std::int64_t rest = size - whole * stripes() * stripe_bytes_;
    for (std::size_t position = 0; rest > 0; ++position, rest -= stripe_bytes_) {
      if (cycle_[position] == path) bytes += std::min(rest, stripe_bytes_);
    }
    return bytes;
  }

  /// The largest size of which the path has no more than `bytes`.
  std::int64_t size_for(std::size_t path, std::int64_t bytes) const {
    if (counts_.size() == 1) return bytes;
    const std::int64_t stripe = bytes / stripe_bytes_;  // the first that does not fit whole
    std::int64_t position = 0;
    while (cycle_[static_cast<std::size_t>(position)] != path ||
           before_[static_cast<std::size_t>(position)] != stripe % counts_[path]) {
      ++position;
    }
    return (stripe / counts_[path] * stripes() + position) * stripe_bytes_ + bytes % stripe_bytes_;
  }

 private:
  std::int64_t stripes() const { return static_cast<std::int64_t>(cycle_.size()); }
  std::size_t next(std::size_t position, std::int64_t by) const {
    return (position + static_cast<std::size_t>(by)) % cycle_.size();
  }

  std::int64_t stripe_bytes_;
  std::vector<std::size_t> cycle_;    // path of each stripe of the cycle
  std::vector<std::int64_t> counts_;  // of each path, stripes in a cycle
  std::vector<std::int64_t> before_;  // of each stripe, those of its path that come before it in the cycle
  std::vector<std::int64_t> runs_;    // of each stripe, how many from it on lie on the same path
};

void check(std::size_t paths, const VolumeOptions& options) {
  if (paths == 0) throw std::logic_error("Volume: no path");
  if (options.stripe_bytes <= 0 || options.stripe_bytes % direct_io_alignment != 0) {
    throw std::logic_error(fmt::format("Volume: stripes of {} bytes", options.stripe_bytes));
  }
  if (paths > maximum_cycle) {
    throw Error(ErrorKind::configuration,
                fmt::format("{} paths for swapping, and at most {} can be used", paths, maximum_cycle),
                {.operation = "stripe", .hint = "name fewer, or join drives into one by RAID 0"});
  }
}

std::int64_t largest(const std::vector<File>& files, std::int64_t (File::*value)() const) {
  std::int64_t most = 1;
  for (const File& file : files) most = std::max(most, (file.*value)());
  return most;
}

}  // namespace

struct Volume::State {
  State(std::vector<File> its_files, Layout its_layout, std::int64_t its_size, bool with_checksums)
      : files(std::move(its_files)),
        layout(std::move(its_layout)),
        size(its_size),
        alignment(largest(files, &File::alignment)),
        memory_alignment(largest(files, &File::memory_alignment)),
        checksums(with_checksums ? std::make_unique<Checksums>() : nullptr) {}

  const std::vector<File> files;
  const Layout layout;
  const std::int64_t size;
  const std::int64_t alignment, memory_alignment;
  const std::unique_ptr<Checksums> checksums;
  std::int64_t taken = 0;
};

Volume::Volume(std::shared_ptr<State> state) : state_(std::move(state)) {}

Volume Volume::create(const std::vector<VolumePath>& paths, std::int64_t bytes, const VolumeOptions& options) {
  check(paths.size(), options);
  if (bytes <= 0) throw std::logic_error(fmt::format("Volume::create: {} bytes", bytes));
  const std::vector<double> shares = shares_of(paths);
  // The alignment is known only when the files are there: the few that are larger than the usual one are met
  // by a second attempt.
  std::int64_t alignment = options.file.direct ? direct_io_alignment : 1;
  for (;;) {
    Layout layout(shares, round_up(options.stripe_bytes, alignment));
    // So close to the largest number only a file of its own can say that there is too little space.
    const std::int64_t size =
        bytes > std::numeric_limits<std::int64_t>::max() - alignment ? bytes : round_up(bytes, alignment);
    std::vector<File> files;
    for (std::size_t path = 0; path < paths.size(); ++path) {
      const std::int64_t share = std::max<std::int64_t>(layout.bytes_on(path, size), 1);
      files.push_back(File::create(paths[path].directory, share, options.file));
    }
    const std::int64_t found = largest(files, &File::alignment);
    if (found <= alignment) {
      return Volume(std::make_shared<State>(std::move(files), std::move(layout), size, options.checksums));
    }
    alignment = found;
  }
}

Volume Volume::over(std::vector<File> files, const VolumeOptions& options) {
  check(files.size(), options);
  const std::int64_t alignment = largest(files, &File::alignment);
  Layout layout(std::vector<double>(files.size(), 1 / static_cast<double>(files.size())),
                round_up(options.stripe_bytes, alignment));
  std::int64_t size = std::numeric_limits<std::int64_t>::max();
  for (std::size_t path = 0; path < files.size(); ++path) {
    size = std::min(size, layout.size_for(path, files[path].size()));
  }
  size -= size % alignment;
  if (size == 0) {
    throw Error(ErrorKind::configuration,
                fmt::format("the files are too small for a volume with an alignment of {} bytes", alignment),
                {.operation = "stripe", .path = files.front().directory(), .hint = "name larger ones"});
  }
  return Volume(std::make_shared<State>(std::move(files), std::move(layout), size, options.checksums));
}

std::int64_t Volume::size() const {
  return state_->size;
}

std::int64_t Volume::alignment() const {
  return state_->alignment;
}

std::int64_t Volume::memory_alignment() const {
  return state_->memory_alignment;
}

std::size_t Volume::path_count() const {
  return state_->files.size();
}

const File& Volume::file(std::size_t path) const {
  return state_->files.at(path);
}

std::int64_t Volume::bytes_on(std::size_t path) const {
  if (path >= state_->files.size()) throw std::logic_error(fmt::format("Volume::bytes_on: path {}", path));
  return state_->layout.bytes_on(path, state_->size);
}

Checksums* Volume::checksums() const {
  return state_->checksums.get();
}

std::vector<std::string> Volume::notes() const {
  std::vector<std::string> lines;
  for (const File& file : state_->files) {
    for (const std::string& line : file.notes()) {
      if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
    }
  }
  return lines;
}

std::int64_t Volume::allocate(std::int64_t bytes) {
  if (bytes < 0) throw std::logic_error(fmt::format("Volume::allocate: {} bytes", bytes));
  const std::int64_t left = state_->size - state_->taken;
  // Rounded up, what is not more than what is left is not more either: both are multiples of the alignment.
  if (bytes > left) {
    throw Error(ErrorKind::resources,
                fmt::format("not enough room in the volume: {} bytes are needed and {} of its {} are left",
                            bytes, left, state_->size),
                {.operation = "allocate",
                 .path = state_->files.front().directory(),
                 .length = bytes,
                 .hint = "make the volume larger"});
  }
  const std::int64_t offset = state_->taken;
  state_->taken += round_up(bytes, state_->alignment);
  return offset;
}

Volume::Place Volume::locate(std::int64_t offset) const {
  if (offset < 0 || offset >= state_->size) {
    throw std::logic_error(fmt::format("Volume::locate: byte {} of {}", offset, state_->size));
  }
  return state_->layout.locate(offset, state_->size);
}

}  // namespace spillway::aio
