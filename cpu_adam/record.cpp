#include "record.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace spillway::cpu_adam {
namespace {

/// Hands out the pieces of a buffer.
class Pieces {
 public:
  explicit Pieces(std::byte* begin) : next_(begin) {}
  template <class T>
  T* take(std::int64_t count) {
    auto* piece = reinterpret_cast<T*>(next_);
    next_ += count * static_cast<std::int64_t>(sizeof(T));
    return piece;
  }

 private:
  std::byte* next_;
};

template <class M>
void clear(const SplitPlanes<M>& p, std::int64_t first, std::int64_t n) {
  std::fill_n(p.m + first, n, M{});
  if (p.v != nullptr) std::fill_n(p.v + first, n, M{});
}
void clear(const FullPlanes& p, std::int64_t first, std::int64_t n) {
  std::fill_n(p.m + first, n, 0.0f);
  if (p.v != nullptr) std::fill_n(p.v + first, n, 0.0f);
}
void clear(const Compact8Planes& p, std::int64_t first, std::int64_t n) {
  std::fill_n(p.m + first, n, std::int8_t{0});
  std::fill_n(p.v + first, n, std::uint8_t{0});
  std::fill_n(p.m_scales + first / kCompactGroup, compact_groups(n), std::uint16_t{0});
  std::fill_n(p.v_scales + first / kCompactGroup, compact_groups(n), std::uint16_t{0});
}

template <class M>
void store(const SplitPlanes<M>& p, std::int64_t i, float weight) {
  const SplitMaster halves = split_master(weight);
  p.high[i] = halves.high;
  p.low[i] = halves.low;
}
void store(const Compact8Planes& p, std::int64_t i, float weight) {
  const SplitMaster halves = split_master(weight);
  p.high[i] = halves.high;
  p.low[i] = encode_low(halves.low, kToNearest);
}
void store(const FullPlanes& p, std::int64_t i, float weight) {
  p.master[i] = weight;
}

template <class M>
float load(const SplitPlanes<M>& p, std::int64_t i) {
  return join_master(p.high[i], p.low[i]);
}
float load(const Compact8Planes& p, std::int64_t i) {
  return join_master(p.high[i], decode_low(p.low[i]));
}
float load(const FullPlanes& p, std::int64_t i) {
  return p.master[i];
}

}  // namespace

std::string_view RecordFormat::refusal(StateFormat format, Optimizer optimizer, DType weight) {
  if (weight != DType::bf16 && weight != DType::fp32) return "weights are bf16 or fp32";
  if (weight == DType::fp32 && format != StateFormat::fp32) return "precision fp32 keeps its state in fp32";
  if (format == StateFormat::compact8 && !has_second_moment(optimizer)) {
    return "compact8 is made for the moments of Adam and AdamW";
  }
  return {};
}

RecordFormat::RecordFormat(StateFormat format, Optimizer optimizer, DType weight)
    : format_(format), weight_(weight), has_v_(has_second_moment(optimizer)) {
  if (const auto why = refusal(format, optimizer, weight); !why.empty()) {
    throw std::logic_error("RecordFormat: " + std::string(why));
  }
}

std::int64_t RecordFormat::bytes(std::int64_t n) const {
  if (format_ == StateFormat::compact8) return 3 * n + 2 * 2 * compact_groups(n);
  const std::int64_t moment = format_ == StateFormat::fp32 ? 4 : 2;
  return n * (moment * (has_v_ ? 2 : 1) + (weight_ == DType::fp32 ? 0 : 2));
}

Planes RecordFormat::planes(std::byte* weights, std::byte* record, std::int64_t n) const {
  Pieces pieces(record);
  if (weight_ == DType::fp32) {
    FullPlanes p{.master = reinterpret_cast<float*>(weights), .m = pieces.take<float>(n)};
    if (has_v_) p.v = pieces.take<float>(n);
    return p;
  }
  auto* high = reinterpret_cast<BFloat16*>(weights);
  if (format_ == StateFormat::compact8) {
    Compact8Planes p{.high = high};
    p.m_scales = pieces.take<std::uint16_t>(compact_groups(n));
    p.v_scales = pieces.take<std::uint16_t>(compact_groups(n));
    p.m = pieces.take<std::int8_t>(n);
    p.v = pieces.take<std::uint8_t>(n);
    p.low = pieces.take<std::int8_t>(n);
    return p;
  }
  const auto split = [&]<class M>(SplitPlanes<M> p) -> Planes {
    p.high = high;
    p.m = pieces.take<M>(n);
    if (has_v_) p.v = pieces.take<M>(n);
    p.low = pieces.take<std::int16_t>(n);
    return p;
  };
  return format_ == StateFormat::bf16 ? split(Bf16Planes{}) : split(Fp32Planes{});
}

void store_weights(const Planes& planes, std::int64_t first, std::span<const float> weights) {
  const auto n = static_cast<std::int64_t>(weights.size());
  if (std::holds_alternative<Compact8Planes>(planes) && first % kCompactGroup != 0) {
    throw std::logic_error("cpu_adam::store_weights: inside a group");
  }
  std::visit(
      [&](const auto& p) {
        for (std::int64_t i = 0; i < n; ++i) store(p, first + i, weights[static_cast<std::size_t>(i)]);
        clear(p, first, n);
      },
      planes);
}

void load_weights(const Planes& planes, std::int64_t first, std::span<float> weights) {
  std::visit(
      [&](const auto& p) {
        for (std::size_t i = 0; i < weights.size(); ++i) {
          weights[i] = load(p, first + static_cast<std::int64_t>(i));
        }
      },
      planes);
}

}  // namespace spillway::cpu_adam
