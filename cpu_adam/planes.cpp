#include "planes.h"

#include <stdexcept>

namespace spillway::cpu_adam {
namespace {

template <class T>
T* moved(T* plane, std::int64_t offset) {
  return plane == nullptr ? nullptr : plane + offset;
}

template <class M>
SplitPlanes<M> from(const SplitPlanes<M>& p, std::int64_t offset) {
  return {moved(p.high, offset), moved(p.low, offset), moved(p.m, offset), moved(p.v, offset)};
}
FullPlanes from(const FullPlanes& p, std::int64_t offset) {
  return {moved(p.master, offset), moved(p.m, offset), moved(p.v, offset)};
}
Compact8Planes from(const Compact8Planes& p, std::int64_t offset) {
  if (offset % kCompactGroup != 0) throw std::logic_error("cpu_adam::advance: inside a group of compact8");
  const std::int64_t groups = offset / kCompactGroup;
  return {moved(p.high, offset), moved(p.low, offset),      moved(p.m, offset),
          moved(p.v, offset),    moved(p.m_scales, groups), moved(p.v_scales, groups)};
}

}  // namespace

Planes advance(const Planes& planes, std::int64_t offset) {
  return std::visit([&](const auto& p) -> Planes { return from(p, offset); }, planes);
}

}  // namespace spillway::cpu_adam
