#pragma once
// What io_uring can do here, and why it is off where it is: for `spillway doctor`, and for the notes of a ring.
#include <cstdint>
#include <string>

namespace spillway::aio {

struct IoUringSupport {
  bool available = false;
  int error_number = 0;      ///< of setting one up, where not
  std::string reason = {};   ///< one line: why it is off; empty where it is available
  std::string hint = {};     ///< what to do then
  int disabled_sysctl = -1;  ///< kernel.io_uring_disabled: 0 on, 1 for a group only, 2 off; -1: not there
  bool single_issuer = false;
  bool deferred_task_run = false;
  bool sqpoll = false;
  bool iopoll = false;  ///< a ring that polls can be set up; whether a drive can be polled is another matter
  bool registered_files = false;
  bool registered_memory = false;         ///< a table of it; the limit below says how much
  std::int64_t locked_memory_limit = -1;  ///< bytes; -1: none
};

/// Tries each on a ring of its own, on this thread. Throws nothing of its own.
IoUringSupport probe_io_uring();

/// Why this thread gets no io_uring, in a few words, after setting one up has failed with this errno.
std::string why_not_io_uring(int error_number);

/// Bytes that this process may lock (ulimit -l); -1: no limit.
std::int64_t locked_memory_limit();

}  // namespace spillway::aio
