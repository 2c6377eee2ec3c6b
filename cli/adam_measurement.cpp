#include "adam_measurement.h"

#include "../core/error.h"
#include "../core/parallel.h"
#include "../core/random.h"
#include "../core/size.h"
#include "../cpu_adam/record.h"
#include "../cpu_adam/streams.h"
#include "../cpu_adam/update.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>

namespace spillway::cli {
namespace {

using cpu_adam::Gradient;
using cpu_adam::Isa;
using cpu_adam::kUpdateBlock;
using cpu_adam::Planes;
using cpu_adam::RecordFormat;
using cpu_adam::UpdateSegment;

constexpr std::int64_t kSectionParameters = std::int64_t{4} << 20;
constexpr std::uint64_t kSeed = 20'141'222;
constexpr double kWeightDeviation = 0.02, kGradientDeviation = 1e-3;

std::string name_of_case(const AdamCase& what) {
  return fmt::format("{} in {} with a {} gradient on {}", name_of(what.optimizer), name_of(what.format),
                     name_of(what.gradient), name_of(what.isa));
}

constexpr double kWeightDecay = 0.01, kGradientFactor = 0.5;

void set_gradients(std::byte* to, DType type, std::span<const float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type == DType::fp32) {
      reinterpret_cast<float*>(to)[i] = values[i];
    } else if (type == DType::fp16) {
      reinterpret_cast<Float16*>(to)[i] = to_fp16(values[i]);
    } else {
      reinterpret_cast<BFloat16*>(to)[i] = to_bf16(values[i]);
    }
  }
}

/// Memory on pages of 2 MiB where the system has them: an update runs through half a dozen streams at once, and
/// with pages of 4 KiB it is the translation of addresses that would be measured. Present when it is touched
/// first.
class HugePages {
 public:
  explicit HugePages(std::int64_t bytes) : mapped_(static_cast<std::size_t>(bytes) + kPage) {
    mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) {
      throw Error(
          ErrorKind::resources, "no memory for the benchmark's planes",
          {.operation = "mmap", .length = bytes, .error_number = errno, .hint = "give a smaller --params"});
    }
    const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
    data_ = reinterpret_cast<std::byte*>((address + kPage - 1) / kPage * kPage);
    madvise(data_, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // where refused, small pages have to do
  }
  ~HugePages() { munmap(mapping_, mapped_); }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  std::byte* data() const { return data_; }

 private:
  static constexpr std::size_t kPage = std::size_t{2} << 20;
  std::size_t mapped_;
  void* mapping_ = nullptr;
  std::byte* data_ = nullptr;
};

/// The elements that the planes are laid out for. Planes one behind another lie a power of two apart where
/// their elements are one in number (64 Mi, say), and then all streams of an update meet in the same banks of
/// the memory: everything, the floor too, runs at two thirds of its speed and less. 8 KiB more do not help;
/// 129 times 2048 elements more keep every distance some 100 KiB away from large powers of two, and planes
/// aligned.
std::int64_t spaced(std::int64_t parameters) {
  constexpr std::int64_t kStep = 2048;
  return ((parameters + kStep - 1) / kStep + 129) * kStep;
}

std::int64_t state_bytes(const AdamCase& what, std::int64_t parameters) {
  const std::int64_t n = spaced(parameters);
  const RecordFormat format(what.format, what.optimizer, DType::bf16);
  return format.bytes(n) + n * (size_of(DType::bf16) + size_of(what.gradient));
}

AdamCase in_fp32(AdamCase what) {
  what.format = StateFormat::fp32;
  return what;
}

/// Record, weights and gradient of one case, one behind another.
class State {
 public:
  State(const AdamCase& what, std::int64_t parameters)
      : memory_(state_bytes(what, parameters)), gradient_type_(what.gradient) {
    const RecordFormat format(what.format, what.optimizer, DType::bf16);
    const std::int64_t n = spaced(parameters);
    std::byte* const weights = memory_.data() + format.bytes(n);
    planes_ = format.planes(weights, memory_.data(), n);
    gradient_ = weights + n * size_of(DType::bf16);
  }

  Planes planes(std::int64_t first) const { return cpu_adam::advance(planes_, first); }
  Gradient gradient(std::int64_t first) const {
    return {gradient_ + first * size_of(gradient_type_), gradient_type_};
  }

  /// Drawn weights and gradients, moments of zero. A page lies where the worker that updates it has touched it
  /// first, so this goes section by section, in the update's blocks.
  void fill(Workers& workers, const Sections& sections) {
    std::vector<float> weights(kUpdateBlock), gradients(kUpdateBlock);  // the same in every block
    RandomStream{.seed = kSeed, .stream = 0}.fill_normal(0, weights, kWeightDeviation);
    RandomStream{.seed = kSeed, .stream = 1}.fill_normal(0, gradients, kGradientDeviation);
    for (std::int64_t section = 0; section < sections.count; ++section) {
      const std::int64_t first = section * sections.parameters;
      const Planes there = planes(first);
      cpu_adam::first_touch(workers, there, sections.parameters);
      workers.for_blocks((sections.parameters + kUpdateBlock - 1) / kUpdateBlock, [&](std::int64_t block, int) {
        const std::int64_t begin = block * kUpdateBlock;
        const auto count = static_cast<std::size_t>(std::min(kUpdateBlock, sections.parameters - begin));
        cpu_adam::store_weights(there, begin, std::span(weights).first(count));
        set_gradients(gradient_ + (first + begin) * size_of(gradient_type_), gradient_type_,
                      std::span(gradients).first(count));
      });
    }
  }

 private:
  HugePages memory_;
  DType gradient_type_;
  Planes planes_;
  std::byte* gradient_ = nullptr;
};

/// State in buffers of its own, for the verification: each begins one element off.
class SmallState {
 public:
  SmallState(const AdamCase& what, std::int64_t n)
      : format_(what.format, what.optimizer, DType::bf16),
        record_(static_cast<std::size_t>(format_.bytes(n)) + kShift),
        weights_(static_cast<std::size_t>(n * size_of(DType::bf16)) + kShift) {}
  Planes planes(std::int64_t n) {
    return format_.planes(weights_.data() + size_of(DType::bf16), record_.data() + kShift, n);
  }

 private:
  static constexpr std::size_t kShift = 4;  ///< the alignment that a record needs, and no more
  RecordFormat format_;
  std::vector<std::byte> record_, weights_;
};

struct Plane {
  std::string_view name;
  const std::byte* data = nullptr;
  std::int64_t count = 0, width = 0;
};
template <class T>
Plane plane(std::string_view name, const T* data, std::int64_t count) {
  return {name, reinterpret_cast<const std::byte*>(data), data == nullptr ? 0 : count, sizeof(T)};
}
template <class M>
std::vector<Plane> planes_by_name(const cpu_adam::SplitPlanes<M>& p, std::int64_t n) {
  return {plane("high", p.high, n), plane("low", p.low, n), plane("m", p.m, n), plane("v", p.v, n)};
}
std::vector<Plane> planes_by_name(const cpu_adam::FullPlanes& p, std::int64_t n) {
  return {plane("master", p.master, n), plane("m", p.m, n), plane("v", p.v, n)};
}
std::vector<Plane> planes_by_name(const cpu_adam::Compact8Planes& p, std::int64_t n) {
  const std::int64_t groups = compact_groups(n);
  return {plane("high", p.high, n),
          plane("low", p.low, n),
          plane("m", p.m, n),
          plane("v", p.v, n),
          plane("m's scales", p.m_scales, groups),
          plane("v's scales", p.v_scales, groups)};
}

}  // namespace

std::string first_difference(const cpu_adam::Planes& actual, const cpu_adam::Planes& expected, std::int64_t n) {
  const auto by_name = [n](const Planes& planes) {
    return std::visit([n](const auto& p) { return planes_by_name(p, n); }, planes);
  };
  const std::vector<Plane> ours = by_name(actual), theirs = by_name(expected);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const std::byte* end = ours[i].data + ours[i].count * ours[i].width;
    const auto [place, other] = std::mismatch(ours[i].data, end, theirs[i].data);
    if (place != end) {
      return fmt::format("plane {}, element {}", ours[i].name, (place - ours[i].data) / ours[i].width);
    }
  }
  return {};
}

std::int64_t occupied_bytes(const AdamCase& what, std::int64_t parameters) {
  return state_bytes(what, parameters) +
         (what.format == StateFormat::fp32 ? 0 : state_bytes(in_fp32(what), parameters));
}

Sections sections_of(std::int64_t parameters) {
  const std::int64_t count =
      std::max(parameters / kSectionParameters, std::min<std::int64_t>(4, parameters / kUpdateBlock));
  if (count <= 1) return {.count = 1, .parameters = parameters};
  return {.count = count, .parameters = parameters / count / kUpdateBlock * kUpdateBlock};
}

void verify_adam(const AdamCase& what, Workers& workers) {
  constexpr std::int64_t n = kVerifiedElements;
  SmallState state(what, n), reference_state(what, n);
  const Planes planes = state.planes(n), reference = reference_state.planes(n);
  std::vector<float> drawn(static_cast<std::size_t>(n));
  RandomStream{.seed = kSeed, .stream = 2}.fill_normal(0, drawn, kWeightDeviation);
  cpu_adam::store_weights(planes, 0, drawn);
  cpu_adam::store_weights(reference, 0, drawn);

  // Between the two segments, both of which end inside a block, are elements that nobody may touch.
  std::array<UpdateSegment, 2> segments{UpdateSegment{.offset = 0, .count = 40'001},
                                        UpdateSegment{.offset = 40'064, .count = n - 40'064}};
  std::vector<std::byte> gradient(static_cast<std::size_t>((n + 1) * size_of(what.gradient)));
  std::byte* const first_gradient = gradient.data() + size_of(what.gradient);
  Workers alone(1);
  for (int step = 1; step <= kVerifiedSteps; ++step) {
    const auto counted = static_cast<std::uint32_t>(step);
    RandomStream{.seed = kSeed, .step = counted, .stream = 3}.fill_normal(0, drawn, kGradientDeviation);
    set_gradients(first_gradient, what.gradient, drawn);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      // One with decay, one with neither that nor SGD's usual momentum.
      segments[i].coefficients = update_coefficients(
          {.optimizer = what.optimizer, .weight_decay = i == 0 ? kWeightDecay : 0.0, .nesterov = i == 1}, step,
          kGradientFactor);
      segments[i].place = {.seed = kSeed, .step = counted, .parameter = static_cast<std::uint32_t>(i)};
    }
    const Gradient given{first_gradient, what.gradient};
    const bool flag = cpu_adam::update(what.isa, workers, planes, given, segments);
    const bool expected_flag = cpu_adam::update(Isa::scalar, alone, reference, given, segments);
    std::string difference = first_difference(planes, reference, n);
    if (difference.empty() && (flag || expected_flag)) difference = "a weight became non-finite";
    if (difference.empty()) continue;
    throw Error(ErrorKind::numerics,
                fmt::format("the update of {}, {} threads, is not that of the scalar reference: {}, step {}",
                            name_of_case(what), workers.threads(), difference, step),
                {.hint = "please report this with the processor's name; --isa scalar avoids it"});
  }
}

AdamFigures measure_adam(const AdamCase& what, Workers& workers, std::int64_t parameters,
                         const SliceLimits& limits, const std::function<void(double)>& progress) {
  const Sections sections = sections_of(parameters);
  State state(what, parameters);
  state.fill(workers, sections);
  std::optional<State> fp32;
  if (what.format != StateFormat::fp32) {
    fp32.emplace(in_fp32(what), parameters);
    fp32->fill(workers, sections);
  }

  bool is_non_finite = false;
  volatile std::uint32_t read_gradients = 0;  // what the floor reads must have a use
  const auto update_of = [&](const State& its_state) {
    return [&](std::int64_t section) {
      const std::int64_t first = section * sections.parameters;
      const UpdateSegment segment{
          .offset = 0,
          .count = sections.parameters,
          .coefficients = update_coefficients({.optimizer = what.optimizer, .weight_decay = kWeightDecay}, 1000,
                                              kGradientFactor),
          .place = {.seed = kSeed, .step = 1000, .parameter = 0, .element = first}};
      if (cpu_adam::update(what.isa, workers, its_state.planes(first), its_state.gradient(first),
                           {&segment, 1})) {
        is_non_finite = true;
      }
    };
  };
  const cpu_adam::Isa fastest = cpu_adam::select_isa("");
  const auto floor = [&](std::int64_t section) {
    const std::int64_t first = section * sections.parameters;
    read_gradients = cpu_adam::move_streams(fastest, workers, state.planes(first), state.gradient(first),
                                            sections.parameters);
  };
  AdamFigures figures{.sections = sections};
  figures.comparison = compare(update_of(state), floor, sections.count, limits, progress,
                               fp32 ? Slice(update_of(*fp32)) : Slice{});
  if (is_non_finite) {
    throw Error(ErrorKind::numerics, fmt::format("{}: a weight became non-finite", name_of_case(what)),
                {.hint = "no figure of this run counts; please report it with the command"});
  }
  const auto count = static_cast<double>(sections.parameters);
  const auto bytes =
      static_cast<double>(cpu_adam::streamed_bytes(state.planes(0), state.gradient(0), sections.parameters));
  figures.bytes_per_parameter = bytes / count;
  figures.parameters_per_s = count / figures.comparison.subject_seconds;
  figures.bytes_per_s = figures.parameters_per_s * figures.bytes_per_parameter;
  figures.floor_bytes_per_s = bytes / figures.comparison.reference_seconds;
  return figures;
}

}  // namespace spillway::cli
