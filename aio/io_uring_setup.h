#pragma once
// Sets io_urings up with the best flags that the kernel has. Not installed: for io_uring*.cpp and their tests.
#include "../core/error.h"
#include "ring.h"

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <liburing.h>

namespace spillway::aio {

/// Sets of flags of one ring without SQPOLL, the best first: each is what a further generation of kernels has
/// (6.1, 6.0, 5.19, 5.6).
inline constexpr std::array<unsigned, 4> flag_sets = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
        IORING_SETUP_SUBMIT_ALL,
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
        IORING_SETUP_SUBMIT_ALL,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,
    0,
};

struct RingSetUp {
  unsigned entries = 0;
  bool sqpoll = false;
  bool iopoll = false;
  std::size_t first_set = 0;  ///< of flag_sets: those before it are not tried
};

/// Sets `ring` up; what is wanted and not to be had is left out, and one line for each appended to `notes`.
/// ring.flags says what it became. Returns 0 or the errno of the last attempt; then there is no ring.
int set_up_ring(io_uring& ring, const RingSetUp& wanted, std::vector<std::string>& notes);

/// The error for an errno of set_up_ring().
Error cannot_set_up(int error_number, unsigned depth);

/// make_io_uring() as on a kernel that has no better flags than flag_sets[first_set].
std::unique_ptr<Ring> make_io_uring_with(const RingOptions& options, std::size_t first_set);

}  // namespace spillway::aio
