#pragma once
// The floor that an update's speed is held against: its memory traffic with next to no arithmetic.
#include "isa.h"
#include "planes.h"

#include <cstdint>

namespace spillway {
class Workers;
}

namespace spillway::cpu_adam {

/// Reads the gradient of n elements, and reads, changes and writes every plane of them, in the blocks and on
/// the workers of update(): the same streams of the same widths. One bit of every 32 is flipped, so that a
/// second call restores what was there. Returns a value that depends on all of the gradient, for nothing to be
/// left out.
std::uint32_t move_streams(Isa isa, Workers& workers, const Planes& planes, Gradient gradient, std::int64_t n);

/// Bytes that an update moves for n elements: each plane read and written, the gradient read.
std::int64_t streamed_bytes(const Planes& planes, Gradient gradient, std::int64_t n);

/// Writes zeros over every plane of n elements, each block on the worker that update() will begin it on, so
/// that on a machine with several memories each page lies near its worker: what was not touched before gets its
/// place then.
void first_touch(Workers& workers, const Planes& planes, std::int64_t n);

}  // namespace spillway::cpu_adam
