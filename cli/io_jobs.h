#pragma once
// The processes that `spillway bench io` measures with: each has a volume of its own, as the ranks of a run
// have, and all start at the same moment. The program itself only waits for them, so that what a process spent
// is what its transfers took.
#include "../aio/measure.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace spillway::cli {

/// What each of them does.
struct IoTask {
  std::vector<std::string> paths;      ///< directories for anonymous files, or files that exist
  bool existing = false;               ///< they are files, whose contents are lost
  std::vector<double> bandwidth = {};  ///< of each directory, as a volume takes it; empty: equal shares
  std::int64_t bytes = 0;              ///< of the volume in directories
  std::int64_t transfer_bytes = 0;
  aio::FileOptions file;
  aio::MeasureSetting setting;
  aio::Traffic first = aio::Traffic::read;  ///< what is measured first
  bool only_first = false;                  ///< and nothing else
};

/// What came of the preparation.
struct IoReady {
  std::int64_t bytes = 0;  ///< of the volume
  aio::RingReport report;
  std::vector<std::string> notes;  ///< of the volume, each once
};

class IoJobs {
 public:
  using Progress = std::function<void(double done)>;

  /// Starts the processes, which end with this one, however it ends. No thread may be running.
  IoJobs(const IoTask& task, int jobs);
  /// Ends them.
  ~IoJobs();
  IoJobs(const IoJobs&) = delete;
  IoJobs& operator=(const IoJobs&) = delete;

  // All of these throw the first Error of a process, and Error (resources) for one that was ended.

  /// Waits until the volumes have been written and the rings are there.
  IoReady prepare(const Progress& progress);
  /// A slice in all of them at once: by job.
  std::vector<aio::Sample> measure(aio::Traffic traffic, double seconds, const Progress& progress);
  /// With another setting than the task's.
  std::vector<aio::Sample> measure(const aio::MeasureSetting& setting, aio::Traffic traffic, double seconds,
                                   const Progress& progress);
  /// Each verifies what it moved.
  void verify();
  /// By all of them, preparation included, as far as it is known from the slices that have ended.
  std::int64_t written_bytes() const;

 private:
  struct Job {
    pid_t process = -1;
    int socket = -1;
    std::string received;  ///< and not read yet
    std::string answer;    ///< to what was asked last
    bool has_answer = false;
    double progress = 0;
    std::int64_t written_bytes = 0;
  };

  void start(const IoTask& task);
  void end() noexcept;
  void ask(std::string_view question);
  void await(const std::function<void()>& meanwhile);
  void receive(std::size_t job);
  void take(std::size_t job, char kind, std::string message);

  aio::MeasureSetting setting_;  ///< the task's
  std::vector<Job> jobs_;
};

/// What several jobs moved at the same time, as one: sums, over the time of the one that took longest.
aio::Sample in_all(const std::vector<aio::Sample>& samples);

/// (75th percentile - 25th percentile) / median of the speeds in pieces of a quarter of a second, or shorter
/// ones where there are fewer than eight of those. Negative where the slice was too short to tell.
double spread_of(const aio::Sample& sample, double seconds);

}  // namespace spillway::cli
