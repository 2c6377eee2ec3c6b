#include "interrupt.h"

#include <atomic>
#include <csignal>
#include <cstring>

#include <linux/limits.h>
#include <unistd.h>

namespace spillway::cli {
namespace {

std::atomic<bool> line_is_open{false}, file_is_unfinished{false};
static_assert(std::atomic<bool>::is_always_lock_free);
char unfinished_path[PATH_MAX];  // read by the handler while file_is_unfinished is set

extern "C" void clean_up_and_die(int signal_number) {
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

}  // namespace spillway::cli
