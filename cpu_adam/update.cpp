#include "update.h"

#include "../core/parallel.h"
#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <vector>

namespace spillway::cpu_adam {
namespace {

void check_planes(const SplitPlanes& p) {
  if (p.high == nullptr || p.low == nullptr || p.m == nullptr || p.v == nullptr) {
    throw std::logic_error("cpu_adam::update: null plane");
  }
}
void check_planes(const FullPlanes& p) {
  if (p.master == nullptr || p.m == nullptr || p.v == nullptr) {
    throw std::logic_error("cpu_adam::update: null plane");
  }
}

bool run(const Kernels& kernels, const SplitPlanes& p, Gradient g, std::int64_t n, const AdamCoefficients& c) {
  return kernels.update_split(p, g, n, c);
}
bool run(const Kernels& kernels, const FullPlanes& p, Gradient g, std::int64_t n, const AdamCoefficients& c) {
  return kernels.update_full(p, g, n, c);
}

}  // namespace

bool update(Isa isa, const Planes& planes, Gradient gradient, std::int64_t n,
            const AdamCoefficients& coefficients) {
  const Kernels& kernels = kernels_of(isa);
  check_arguments("cpu_adam::update", gradient, n);
  if (n == 0) return false;
  FloatEnvironment exact;
  return std::visit(
      [&](const auto& p) {
        check_planes(p);
        return run(kernels, p, gradient, n, coefficients);
      },
      planes);
}

bool update(Isa isa, Workers& workers, const Planes& planes, Gradient gradient,
            std::span<const UpdateSegment> segments) {
  // first_block[s]: the blocks of the segments before s.
  std::vector<std::int64_t> first_block(segments.size() + 1, 0);
  std::int64_t end = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const UpdateSegment& segment = segments[s];
    if (segment.offset < end || segment.count < 0) {
      throw std::logic_error("cpu_adam::update: segments must ascend and not overlap");
    }
    end = segment.offset + segment.count;
    first_block[s + 1] = first_block[s] + (segment.count + kUpdateBlock - 1) / kUpdateBlock;
  }
  std::atomic<bool> non_finite{false};
  workers.for_blocks(first_block.back(), [&](std::int64_t block, int) {
    const auto after = std::upper_bound(first_block.begin(), first_block.end(), block);
    const auto s = static_cast<std::size_t>(after - first_block.begin()) - 1;
    const std::int64_t begin = (block - first_block[s]) * kUpdateBlock;
    const std::int64_t offset = segments[s].offset + begin;
    const std::int64_t count = std::min(kUpdateBlock, segments[s].count - begin);
    if (update(isa, advance(planes, offset), advance(gradient, offset), count, segments[s].coefficients)) {
      non_finite.store(true, std::memory_order_relaxed);
    }
  });
  return non_finite.load(std::memory_order_relaxed);
}

}  // namespace spillway::cpu_adam
