#include "io_uring_support.h"

#include "io_uring_registrations.h"
#include "io_uring_setup.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

namespace spillway::aio {
namespace {

constexpr unsigned probe_entries = 4;

/// The number in a file of /proc; -1 where there is none.
int number_in(const char* path) {
  std::ifstream file(path);
  int number = -1;
  return file >> number ? number : -1;
}

/// Whether system calls of this thread pass through a filter.
bool is_filtered() {
  std::ifstream status("/proc/thread-self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Seccomp:")) return line.find('2') != std::string::npos;
  }
  return false;
}

/// 0 and the flags that such a ring got, or an errno.
int flags_of(const RingSetUp& wanted, unsigned& flags) {
  io_uring ring{};
  std::vector<std::string> notes;
  const int error = set_up_ring(ring, wanted, notes);
  if (error != 0) return error;
  flags = ring.flags;
  ::io_uring_queue_exit(&ring);
  return 0;
}

}  // namespace

std::int64_t locked_memory_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<std::int64_t>::max()));
}

std::string why_not_io_uring(int error_number) {
  const int sysctl = number_in("/proc/sys/kernel/io_uring_disabled");
  switch (error_number) {
    case EPERM:
    case EACCES:
      if (sysctl == 2) return "sysctl kernel.io_uring_disabled = 2";
      if (sysctl == 1 && ::geteuid() != 0) {
        return fmt::format(
            "sysctl kernel.io_uring_disabled = 1, and this user is not in the group of kernel.io_uring_group, "
            "{}",
            number_in("/proc/sys/kernel/io_uring_group"));
      }
      return is_filtered() ? "a seccomp profile forbids it, as those of containers often do"
                           : "a security module forbids it";
    case ENOSYS:
      return is_filtered() ? "a seccomp profile hides it, or the kernel has none" : "the kernel has none";
    case ENOMEM: {
      const std::int64_t limit = locked_memory_limit();
      return limit < 0
                 ? "the kernel has no memory for it"
                 : fmt::format("it does not fit in the {} bytes that this user may lock, ulimit -l", limit);
    }
    case EMFILE:
    case ENFILE:
      return "too many files are open";
    case EINVAL:
      return "the kernel is older than 5.6";
    default:
      return std::strerror(error_number);
  }
}

IoUringSupport probe_io_uring() {
  IoUringSupport support;
  support.disabled_sysctl = number_in("/proc/sys/kernel/io_uring_disabled");
  support.locked_memory_limit = locked_memory_limit();

  io_uring ring{};
  std::vector<std::string> notes;
  support.error_number = set_up_ring(ring, {.entries = probe_entries}, notes);
  if (support.error_number != 0) {
    support.reason = why_not_io_uring(support.error_number);
    support.hint = cannot_set_up(support.error_number, probe_entries).detail().hint;
    return support;
  }
  support.available = true;
  support.single_issuer = (ring.flags & IORING_SETUP_SINGLE_ISSUER) != 0;
  support.deferred_task_run = (ring.flags & IORING_SETUP_DEFER_TASKRUN) != 0;
  {
    Registrations registrations;
    std::vector<std::byte> page(4096);
    const int file = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    support.registered_files = file >= 0 && registrations.set_file(ring, 0, file) == 0;
    if (file >= 0) ::close(file);
    support.registered_memory = registrations.set_memory(ring, 0, page) == 0;
  }
  ::io_uring_queue_exit(&ring);

  unsigned flags = 0;
  support.sqpoll =
      flags_of({.entries = probe_entries, .sqpoll = true}, flags) == 0 && (flags & IORING_SETUP_SQPOLL) != 0;
  support.iopoll =
      flags_of({.entries = probe_entries, .iopoll = true}, flags) == 0 && (flags & IORING_SETUP_IOPOLL) != 0;
  return support;
}

}  // namespace spillway::aio
