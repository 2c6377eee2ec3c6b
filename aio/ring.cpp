#include "ring.h"

#include "../core/error.h"
#include "io_uring_support.h"

#include <cerrno>
#include <utility>

#include <fmt/format.h>

namespace spillway::aio {
namespace {

/// Whether threads can do what io_uring was not let do.
bool threads_serve(int error_number) {
  return error_number == ENOSYS || error_number == EPERM || error_number == EACCES || error_number == ENOMEM;
}

std::unique_ptr<Ring> make_threads(const RingOptions& options, std::vector<std::string> notes) {
  if (options.sqpoll || options.iopoll)
    notes.push_back("sqpoll and iopoll need io_uring: threads have neither");
  return make_posix_ring(options.depth, std::move(notes));
}

}  // namespace

std::string_view name_of(IoEngine engine) {
  switch (engine) {
    case IoEngine::automatic:
      return "auto";
    case IoEngine::io_uring:
      return "io_uring";
    case IoEngine::posix:
      return "posix";
  }
  return "";
}

std::unique_ptr<Ring> make_ring(const RingOptions& options) {
  if (options.engine == IoEngine::posix) return make_threads(options, {});
  if (options.engine == IoEngine::io_uring) return make_io_uring(options);
  try {
    return make_io_uring(options);
  } catch (const Error& error) {
    if (!threads_serve(error.detail().error_number)) throw;
    return make_threads(options, {fmt::format("io_uring is not allowed here ({}): a pool of threads reads and "
                                              "writes instead",
                                              why_not_io_uring(error.detail().error_number))});
  }
}

}  // namespace spillway::aio
