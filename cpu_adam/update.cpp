#include "update.h"

#include "../core/parallel.h"
#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <vector>

namespace spillway::cpu_adam {
namespace {

template <class M>
bool has_planes(const SplitPlanes<M>& p) {
  return p.high != nullptr && p.low != nullptr && p.m != nullptr;
}
bool has_planes(const Compact8Planes& p) {
  return p.high != nullptr && p.low != nullptr && p.m != nullptr && p.m_scales != nullptr &&
         p.v_scales != nullptr;
}
bool has_planes(const FullPlanes& p) {
  return p.master != nullptr && p.m != nullptr;
}

template <class P>
void check_planes(const P& p, Optimizer optimizer) {
  const bool has_v = has_second_moment(optimizer);
  if (!has_planes(p) || (has_v && p.v == nullptr)) throw std::logic_error("cpu_adam::update: null plane");
  if (std::is_same_v<P, Compact8Planes> && !has_v) {
    throw std::logic_error("cpu_adam::update: compact8 is for Adam and AdamW");
  }
}

bool run(const Kernels& kernels, const Planes& planes, Gradient g, std::int64_t n, const UpdateCoefficients& c,
         const RandomPlace& place) {
  const Rounding rounding{RoundingKey(place), static_cast<std::uint32_t>(place.element)};
  if (const auto* p = std::get_if<Fp32Planes>(&planes)) return kernels.update_fp32(*p, g, n, c, rounding);
  if (const auto* p = std::get_if<Bf16Planes>(&planes)) return kernels.update_bf16(*p, g, n, c, rounding);
  if (const auto* p = std::get_if<Compact8Planes>(&planes))
    return kernels.update_compact8(*p, g, n, c, rounding);
  return kernels.update_full(std::get<FullPlanes>(planes), g, n, c, rounding);
}

RandomPlace advance(RandomPlace place, std::int64_t elements) {
  place.element += elements;
  return place;
}

}  // namespace

bool update(Isa isa, const Planes& planes, Gradient gradient, std::int64_t n,
            const UpdateCoefficients& coefficients, const RandomPlace& place) {
  const Kernels& kernels = kernels_of(isa);
  check_arguments("cpu_adam::update", gradient, n);
  if (n == 0) return false;
  std::visit([&](const auto& p) { check_planes(p, coefficients.optimizer); }, planes);
  FloatEnvironment exact;
  const bool is_compact8 = std::holds_alternative<Compact8Planes>(planes);
  if (is_compact8 && place.element % kCompactGroup != 0) {
    throw std::logic_error("cpu_adam::update: the place is inside a group of compact8");
  }
  if (!is_compact8 && !std::holds_alternative<Bf16Planes>(planes)) {
    return run(kernels, planes, gradient, n, coefficients, place);
  }
  // A rounding key serves 2^32 elements of a parameter, and the vectorised kernels begin with an even one.
  constexpr std::int64_t per_key = std::int64_t{1} << 32;
  bool non_finite = false;
  for (std::int64_t done = 0, count = 0; done < n; done += count) {
    const RandomPlace here = advance(place, done);
    const bool is_odd = here.element % 2 != 0;
    count = is_odd ? 1 : std::min(n - done, per_key - here.element % per_key);
    if (run(is_odd ? kScalarKernels : kernels, advance(planes, done), advance(gradient, done), count,
            coefficients, here)) {
      non_finite = true;
    }
  }
  return non_finite;
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
    const UpdateSegment& segment = segments[s];
    const std::int64_t begin = (block - first_block[s]) * kUpdateBlock;
    const std::int64_t offset = segment.offset + begin;
    const std::int64_t count = std::min(kUpdateBlock, segment.count - begin);
    if (update(isa, advance(planes, offset), advance(gradient, offset), count, segment.coefficients,
               advance(segment.place, begin))) {
      non_finite.store(true, std::memory_order_relaxed);
    }
  });
  return non_finite.load(std::memory_order_relaxed);
}

}  // namespace spillway::cpu_adam
