#include "slices.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <stdexcept>

namespace spillway::cli {
namespace {

double seconds_of(const Slice& slice, std::int64_t piece) {
  const auto begin = std::chrono::steady_clock::now();
  slice(piece);
  // A clock that has not advanced would make a ratio infinite.
  return std::max(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 1e-9);
}

/// Two that are measured in pairs.
class Pairs {
 public:
  Pairs(const Slice& first, const Slice& second, std::int64_t pieces, std::int64_t first_piece)
      : first_(first), second_(second), pieces_(pieces), next_(first_piece) {}

  /// Times a pair in the order given; `reversed`: the second one runs first.
  void run(bool reversed) {
    const std::int64_t here = next_ % pieces_, far = (next_ + pieces_ / 2) % pieces_;
    ++next_;
    const double early = reversed ? seconds_of(second_, far) : seconds_of(first_, here);
    const double late = reversed ? seconds_of(first_, here) : seconds_of(second_, far);
    first_seconds.push_back(reversed ? late : early);
    second_seconds.push_back(reversed ? early : late);
    ratios.push_back(second_seconds.back() / first_seconds.back());
  }

  std::vector<double> first_seconds, second_seconds, ratios;

 private:
  const Slice& first_;
  const Slice& second_;
  std::int64_t pieces_, next_;
};

}  // namespace

double quantile(std::vector<double> values, double share) {
  if (values.empty()) throw std::logic_error("quantile: no values");
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

Ratio ratio_of(const std::vector<double>& values) {
  const double median = quantile(values, 0.5);
  return {.median = median, .spread = (quantile(values, 0.75) - quantile(values, 0.25)) / median};
}

Comparison compare(const Slice& subject, const Slice& reference, std::int64_t pieces, const SliceLimits& limits,
                   const std::function<void(double)>& progress, const Slice& rival) {
  if (pieces < 1) throw std::logic_error("compare: nothing to work on");
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    subject(piece);
    reference(piece);
    if (rival) rival(piece);
  }
  // The control keeps a quarter of the pieces ahead: whatever piece is next was last used a round trip ago.
  Pairs measured(subject, reference, pieces, 0), control(reference, reference, pieces, pieces / 4);
  Pairs rivals(subject, rival, pieces, pieces / 8);
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    for (const bool reversed : {false, true}) {
      measured.run(reversed);
      control.run(reversed);
    }
    for (const bool reversed : {false, true}) {
      if (rival) rivals.run(reversed);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const auto slices = static_cast<std::int64_t>(measured.ratios.size());
    if (progress) {
      progress(std::min(
          {1.0, seconds / limits.seconds, static_cast<double>(slices) / static_cast<double>(limits.slices)}));
    }
    if (seconds < limits.seconds || slices < limits.slices) continue;
    return {.subject_seconds = quantile(measured.first_seconds, 0.5),
            .reference_seconds = quantile(measured.second_seconds, 0.5),
            .ratio = ratio_of(measured.ratios),
            .against_rival = rival ? ratio_of(rivals.ratios) : Ratio{},
            .control = ratio_of(control.ratios),
            .slices = slices};
  }
}

}  // namespace spillway::cli
