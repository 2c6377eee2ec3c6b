#include "interrupt.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>

#include <linux/limits.h>
#include <unistd.h>

namespace spillway::cli {
namespace {

std::atomic<bool> line_is_open{false}, file_is_unfinished{false};
std::atomic<bool> may_end_well{false};
std::atomic<int> stop_signal{0};
std::atomic<std::int64_t> stopped_at{0};  // milliseconds
constexpr std::int64_t kSameWish = 500;   // milliseconds
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free);
char unfinished_path[PATH_MAX];  // read by the handler while file_is_unfinished is set

/// May be called in a handler.
std::int64_t milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

extern "C" void clean_up_and_die(int signal_number) {
  if (may_end_well) {
    const std::int64_t now = milliseconds();
    if (stop_signal == 0) {
      stopped_at = now;
      stop_signal = signal_number;
    }
    if (now - stopped_at < kSameWish) return;
  }
  if (file_is_unfinished) unlink(unfinished_path);
  if (line_is_open) {
    [[maybe_unused]] const auto ignored = write(STDOUT_FILENO, "\n", 1);
  }
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

}  // namespace

void clean_up_when_interrupted() {
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is an error of the write that does it
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(signal_number, &clean_up_and_die) == SIG_IGN) std::signal(signal_number, SIG_IGN);
  }
}

void set_line_open(bool open) {
  line_is_open = open;
}

UnfinishedFile::UnfinishedFile(const std::string& path) {
  if (path.size() >= sizeof unfinished_path) return;  // it could not be opened either
  std::memcpy(unfinished_path, path.c_str(), path.size() + 1);
  file_is_unfinished = true;
}
UnfinishedFile::~UnfinishedFile() {
  file_is_unfinished = false;
}

StopRequest::StopRequest() {
  stop_signal = 0;
  may_end_well = true;
}
StopRequest::~StopRequest() {
  may_end_well = false;
}
int StopRequest::signal_number() const {
  return stop_signal;
}

}  // namespace spillway::cli
