#pragma once
// Views of the planes of a shard or chunk, one struct for each way of storing state. They own nothing; pointers
// need the alignment of their element only, and planes never overlap one another. `v` is null for optimizers
// without a second moment.
#include "../core/dtype.h"
#include "../core/state_format.h"

#include <cstdint>
#include <variant>

namespace spillway::cpu_adam {

/// The master weight in two halves (split_master of core/update.h), with moments of type M.
template <class M>
struct SplitPlanes {
  BFloat16* high = nullptr;
  std::int16_t* low = nullptr;
  M* m = nullptr;
  M* v = nullptr;
};
using Fp32Planes = SplitPlanes<float>;     ///< state format fp32
using Bf16Planes = SplitPlanes<BFloat16>;  ///< state format bf16

/// State format compact8. Element i is of group i / 32 (kCompactGroup); a plane of scales holds one for each
/// group, the last of which may be shorter.
struct Compact8Planes {
  BFloat16* high = nullptr;
  std::int8_t* low = nullptr;
  std::int8_t* m = nullptr;
  std::uint8_t* v = nullptr;
  std::uint16_t* m_scales = nullptr;
  std::uint16_t* v_scales = nullptr;
};

/// State format fp32 with precision fp32: one plane of master weights, with which the device computes too.
struct FullPlanes {
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
};

/// What an update works on.
using Planes = std::variant<Fp32Planes, Bf16Planes, Compact8Planes, FullPlanes>;

/// The planes from element `offset` on; of compact8 a multiple of 32 (std::logic_error).
Planes advance(const Planes& planes, std::int64_t offset);

/// A read-only gradient of a shard or chunk.
struct Gradient {
  const void* data = nullptr;
  DType type = DType::bf16;
};

/// The gradient from element `offset` on.
inline Gradient advance(const Gradient& gradient, std::int64_t offset) {
  return {static_cast<const char*>(gradient.data) + offset * size_of(gradient.type), gradient.type};
}

}  // namespace spillway::cpu_adam
