#include "io_uring_setup.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace spillway::aio {
namespace {

/// How long, in milliseconds, the kernel's thread looks for submissions before it sleeps.
constexpr unsigned sqpoll_idle_ms = 50;

/// 0 or an errno.
int attempt(io_uring& ring, unsigned entries, unsigned flags) {
  io_uring_params parameters{};
  parameters.flags = flags;
  parameters.sq_thread_idle = sqpoll_idle_ms;
  const int result = ::io_uring_queue_init_params(entries, &ring, &parameters);
  if (result < 0) return -result;
  // Before 5.11 the kernel's thread knows registered files only.
  if ((flags & IORING_SETUP_SQPOLL) != 0 && (parameters.features & IORING_FEAT_SQPOLL_NONFIXED) == 0) {
    ::io_uring_queue_exit(&ring);
    return EINVAL;
  }
  // A filter may allow the ring and forbid its use.
  if (const int used =
          ::io_uring_enter(static_cast<unsigned>(ring.ring_fd), 0, 0, IORING_ENTER_GETEVENTS, nullptr);
      used < 0) {
    ::io_uring_queue_exit(&ring);
    return -used;
  }
  return 0;
}

/// The sets of flags one after another, as long as the kernel does not know them.
int attempt_sets(io_uring& ring, const RingSetUp& wanted, bool sqpoll, bool iopoll) {
  const unsigned poll = iopoll ? IORING_SETUP_IOPOLL : 0u;
  int error = EINVAL;
  for (std::size_t set = wanted.first_set; set < flag_sets.size() && error == EINVAL; ++set) {
    unsigned flags = flag_sets[set];
    if (sqpoll) {  // it runs the completions itself, and refuses the flags that say how
      flags = (flags & (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_SUBMIT_ALL)) | IORING_SETUP_SQPOLL;
    }
    error = attempt(ring, wanted.entries, flags | poll);
  }
  return error;
}

}  // namespace

int set_up_ring(io_uring& ring, const RingSetUp& wanted, std::vector<std::string>& notes) {
  const std::array<std::pair<bool, bool>, 4> choices{
      {{true, true}, {true, false}, {false, true}, {false, false}}};
  int first_error = 0;
  int error = EINVAL;
  for (const auto& [sqpoll, iopoll] : choices) {
    if ((sqpoll && !wanted.sqpoll) || (iopoll && !wanted.iopoll)) continue;
    error = attempt_sets(ring, wanted, sqpoll, iopoll);
    if (error != 0) {
      if (first_error == 0) first_error = error;
      continue;
    }
    const char* const reason = std::strerror(first_error);
    if (wanted.sqpoll && !sqpoll) {
      notes.push_back(
          fmt::format("submission by a thread of the kernel (sqpoll) is not to be had: {}", reason));
    }
    if (wanted.iopoll && !iopoll) {
      notes.push_back(fmt::format("polling for completions (iopoll) is not to be had: {}", reason));
    }
    return 0;
  }
  return error;
}

Error cannot_set_up(int error_number, unsigned depth) {
  std::string hint;
  switch (error_number) {
    case ENOSYS:
    case EPERM:
    case EACCES:
      hint =
          "allow io_uring: sysctl kernel.io_uring_disabled=0, and a container's seccomp profile that permits "
          "io_uring_setup, io_uring_enter and io_uring_register";
      break;
    case ENOMEM:
      hint = "raise the limit on locked memory (ulimit -l), or use a smaller queue depth";
      break;
    case EMFILE:
    case ENFILE:
      hint = "raise the limit on open files (ulimit -n)";
      break;
    default:
      hint = "a Linux kernel of version 5.6 or later is needed";
  }
  return Error(ErrorKind::io, fmt::format("cannot set up an io_uring of depth {}", depth),
               {.operation = "io_uring_setup", .error_number = error_number, .hint = std::move(hint)});
}

}  // namespace spillway::aio
