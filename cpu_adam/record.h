#pragma once
// An optimizer record: how the planes of n elements, `high` or `master` apart, lie one after another in one
// buffer, so that a single transfer moves them.
#include "../core/dtype.h"
#include "../core/state_format.h"
#include "../core/update.h"
#include "planes.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace spillway::cpu_adam {

/// In a record, wider elements stand first: scales, m, v, low. It needs the alignment of its widest element.
class RecordFormat {
 public:
  /// `weight`: bf16, the master split in two halves, or fp32, one plane of masters (with StateFormat::fp32
  /// only). std::logic_error where refusal() says why not.
  RecordFormat(StateFormat format, Optimizer optimizer, DType weight);
  /// Why this combination does not exist; empty where it does.
  static std::string_view refusal(StateFormat format, Optimizer optimizer, DType weight);

  StateFormat format() const { return format_; }
  DType weight() const { return weight_; }
  /// Bytes of a record of n elements.
  std::int64_t bytes(std::int64_t n) const;
  /// Bytes of a parameter at rest, the weight included: a whole number of elements apart, what a long record
  /// takes.
  double bytes_per_parameter() const {
    return static_cast<double>(bytes(1 << 20)) / (1 << 20) + size_of(weight_);
  }
  /// The planes of n elements: `weights` is the high or master plane.
  Planes planes(std::byte* weights, std::byte* record, std::int64_t n) const;

 private:
  StateFormat format_;
  DType weight_;
  bool has_v_;
};

/// Stores master weights from element `first` on, in compact8 rounded to the nearest, and makes their moments
/// zero. With compact8 `first` is a multiple of 32 (std::logic_error), and the last group is stored whole or is
/// the planes' last: its scales become zero.
void store_weights(const Planes& planes, std::int64_t first, std::span<const float> weights);
/// The master weights of as many elements as `weights` holds, from element `first` on.
void load_weights(const Planes& planes, std::int64_t first, std::span<float> weights);

}  // namespace spillway::cpu_adam
