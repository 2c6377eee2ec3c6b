#include "streams.h"

#include "../core/parallel.h"
#include "kernels.h"
#include "update.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <span>

namespace spillway::cpu_adam {
namespace {

struct Stream {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

template <class T>
Stream stream(T* plane, std::int64_t n) {
  return {reinterpret_cast<std::byte*>(plane), plane == nullptr ? 0 : n * static_cast<std::int64_t>(sizeof(T))};
}

/// The planes of the first n elements; unused ones are empty.
using Streams = std::array<Stream, 6>;
template <class M>
Streams streams_of(const SplitPlanes<M>& p, std::int64_t n) {
  return {stream(p.high, n), stream(p.low, n), stream(p.m, n), stream(p.v, n)};
}
Streams streams_of(const FullPlanes& p, std::int64_t n) {
  return {stream(p.master, n), stream(p.m, n), stream(p.v, n)};
}
Streams streams_of(const Compact8Planes& p, std::int64_t n) {
  const std::int64_t groups = compact_groups(n);
  return {stream(p.high, n), stream(p.low, n),           stream(p.m, n),
          stream(p.v, n),    stream(p.m_scales, groups), stream(p.v_scales, groups)};
}
Streams streams_of(const Planes& planes, std::int64_t n) {
  return std::visit([&](const auto& p) { return streams_of(p, n); }, planes);
}

/// All streams advance together, as in the update, by what was found to be fastest; a multiple of compact8's
/// groups.
constexpr std::int64_t kPiece = 256;

/// body(first, count) for the pieces of a block of the update.
template <class Body>
void for_pieces(std::int64_t block, std::int64_t n, const Body& body) {
  const std::int64_t end = std::min(n, (block + 1) * kUpdateBlock);
  for (std::int64_t first = block * kUpdateBlock; first < end; first += kPiece) {
    body(first, std::min(kPiece, end - first));
  }
}
std::int64_t blocks_of(std::int64_t n) {
  return (n + kUpdateBlock - 1) / kUpdateBlock;
}

}  // namespace

std::uint32_t move_streams(Isa isa, Workers& workers, const Planes& planes, Gradient gradient, std::int64_t n) {
  const Kernels& kernels = kernels_of(isa);
  check_arguments("cpu_adam::move_streams", gradient, n);
  std::atomic<std::uint32_t> folded{0};
  workers.for_blocks(blocks_of(n), [&](std::int64_t block, int) {
    std::uint32_t of_block = 0;
    for_pieces(block, n, [&](std::int64_t first, std::int64_t count) {
      for (const Stream& s : streams_of(advance(planes, first), count)) kernels.change(s.data, s.bytes);
      const Gradient piece = advance(gradient, first);
      of_block ^= kernels.fold(static_cast<const std::byte*>(piece.data), count * size_of(piece.type));
    });
    folded.fetch_xor(of_block, std::memory_order_relaxed);
  });
  return folded.load();
}

std::int64_t streamed_bytes(const Planes& planes, Gradient gradient, std::int64_t n) {
  std::int64_t bytes = n * size_of(gradient.type);
  for (const Stream& s : streams_of(planes, n)) bytes += 2 * s.bytes;
  return bytes;
}

void first_touch(Workers& workers, const Planes& planes, std::int64_t n) {
  workers.for_blocks(blocks_of(n), [&](std::int64_t block, int) {
    for_pieces(block, n, [&](std::int64_t first, std::int64_t count) {
      for (const Stream& s : streams_of(advance(planes, first), count)) {
        if (s.bytes > 0) std::memset(s.data, 0, static_cast<std::size_t>(s.bytes));
      }
    });
  });
}

}  // namespace spillway::cpu_adam
