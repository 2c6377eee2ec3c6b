#include "tuner_writes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace spillway::aio {
namespace {

constexpr double kDeviation = 0.05;  ///< of a trial, until some are known

/// The second's level as a share of the first's, of logarithms.
Estimate step_between(const std::vector<double>& first, const std::vector<double>& second) {
  const NoisePrior prior{kDeviation * kDeviation, 2};
  const Estimate a = trimmed_mean(first, prior), b = trimmed_mean(second, prior);
  const double half = std::hypot(a.high - a.value, b.high - b.value);
  const double change = b.value - a.value;
  return exponential({change, change - half, change + half, b.count});
}
bool fell(const Estimate& change) {
  return change.value < 0.75 && change.high < 0.85;
}

}  // namespace

void SustainedWrites::look_first(double end) {
  std::vector<double> writes, written_so_far;
  std::vector<std::size_t> read_after;  // writes that came before each read
  std::vector<double> reads;
  const auto read = [&] {
    if (const Trial one = trials_.take(setting_, Traffic::read, seconds_ / 2); one.usable) {
      reads.push_back(one.log_rate);
      read_after.push_back(writes.size());
    }
  };
  const std::int64_t before = result_.written_bytes;
  read();
  do {
    for (int i = 0; i < 4; ++i) {
      if (const Trial one = trials_.take(setting_, Traffic::write, seconds_); one.usable) {
        writes.push_back(one.log_rate);
        written_so_far.push_back(static_cast<double>(result_.written_bytes - before));
      }
      update_thirds(writes);
      found_.written_bytes = result_.written_bytes - before;
    }
    read();
  } while (trials_.elapsed() + 5 * seconds_ * trials_.longer() < end);
  if (reads.empty() || writes.empty()) return;
  std::vector<double> against_reads;
  for (std::size_t i = 0, next = 0; i < writes.size(); ++i) {
    while (next + 1 < reads.size() && read_after[next] <= i) ++next;
    against_reads.push_back(writes[i] - (reads[next] + reads[next == 0 ? 0 : next - 1]) / 2);
  }
  const std::size_t at = change_point(against_reads, std::max<std::size_t>(5, writes.size() / 5));
  const auto middle = against_reads.begin() + static_cast<std::ptrdiff_t>(at);
  at_first_ = {against_reads.begin(), at == 0 ? against_reads.end() : middle};
  if (at == 0) return;
  const auto raw = writes.begin() + static_cast<std::ptrdiff_t>(at);
  const bool slower = quantile_of({raw, writes.end()}, 0.5) - quantile_of({writes.begin(), raw}, 0.5) < -0.15;
  const Estimate change = step_between(at_first_, {middle, against_reads.end()});
  if (slower && fell(change)) {  // and not the reads faster
    found_.fell = true;
    found_.bytes_before_fall = static_cast<std::int64_t>(written_so_far[at - 1]);
    found_.fell_to = change.value;
  } else {
    at_first_ = against_reads;
  }
}

void SustainedWrites::update_thirds(const std::vector<double>& log_rates) {
  const auto third = std::max<std::size_t>(1, log_rates.size() / 3);
  const auto part = static_cast<std::ptrdiff_t>(third);
  if (log_rates.empty()) return;
  found_.first_bytes_per_s = std::exp(quantile_of({log_rates.begin(), log_rates.begin() + part}, 0.5));
  found_.last_bytes_per_s = std::exp(quantile_of({log_rates.end() - part, log_rates.end()}, 0.5));
}

void SustainedWrites::look_again(double end) {
  std::vector<double> against_reads;
  while (trials_.time_for(2, seconds_, end)) {
    const Trial write = trials_.take(setting_, Traffic::write, seconds_),
                read = trials_.take(setting_, Traffic::read, seconds_);
    if (write.usable && read.usable) against_reads.push_back(write.log_rate - read.log_rate);
  }
  if (found_.fell || against_reads.size() < 3 || at_first_.size() < 3) return;
  const Estimate change = step_between(at_first_, against_reads);
  if (!fell(change)) return;
  found_.fell = found_.later = true;
  found_.bytes_before_fall = found_.written_bytes;
  found_.fell_to = change.value;
}

}  // namespace spillway::aio
