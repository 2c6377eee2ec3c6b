#pragma once
// Views of the planes of a shard or chunk. They own nothing; pointers need the alignment of their element only,
// and planes never overlap one another.
#include "../core/dtype.h"

#include <cstdint>
#include <variant>

namespace spillway::cpu_adam {

/// state_format fp32 with precision bf16: the master weight in two halves (core/update.h).
struct SplitPlanes {
  BFloat16* high = nullptr;
  std::int16_t* low = nullptr;
  float* m = nullptr;
  float* v = nullptr;
};

/// precision fp32: one plane of master weights, with which the device computes too.
struct FullPlanes {
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
};

/// What an update works on, for each state format.
using Planes = std::variant<SplitPlanes, FullPlanes>;

/// The planes from element `offset` on.
inline Planes advance(const Planes& planes, std::int64_t offset) {
  if (const auto* p = std::get_if<SplitPlanes>(&planes)) {
    return SplitPlanes{p->high + offset, p->low + offset, p->m + offset, p->v + offset};
  }
  const auto& p = std::get<FullPlanes>(planes);
  return FullPlanes{p.master + offset, p.m + offset, p.v + offset};
}

/// A read-only gradient of a shard or chunk: bf16 or fp32 elements.
struct Gradient {
  const void* data = nullptr;
  DType type = DType::bf16;
};

/// The gradient from element `offset` on.
inline Gradient advance(const Gradient& gradient, std::int64_t offset) {
  return {static_cast<const char*>(gradient.data) + offset * size_of(gradient.type), gradient.type};
}

}  // namespace spillway::cpu_adam
