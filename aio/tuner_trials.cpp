#include "tuner_trials.h"

#include <algorithm>
#include <cmath>

namespace spillway::aio {
namespace {

constexpr double kPriorWeight = 6;        ///< of what all settings' noise has in common, in values
constexpr double kFirstDeviation = 0.05;  ///< of a trial, until some are known

}  // namespace

Trials::Trials(const TuneDrive& drive, const TuneOptions& options, TuneResult& result)
    : drive_(drive), options_(options), result_(result), random_(options.seed), begin_(drive.now()) {}

bool Trials::time_for(int trials, double seconds, double end) const {
  return elapsed() + trials * seconds * longer_ <= end + 0.5 * seconds;
}

Trial Trials::take(const TuneSetting& setting, Traffic traffic, double seconds, Arm* arm) {
  if (drive_.stopped && drive_.stopped()) throw Stopped{};
  const double begin = elapsed();
  const Sample sample = drive_.sample(setting, traffic, seconds);
  const double end = elapsed();
  // A trial takes longer than it was asked for: what is under way has to land.
  longer_ += 0.2 * (std::clamp((end - begin) / seconds, 1.0, 10.0) - longer_);
  ++result_.trials;
  result_.read_bytes += sample.read_bytes;
  result_.written_bytes += sample.written_bytes;
  if (arm != nullptr) {
    arm->cpu_seconds += sample.cpu_seconds;
    arm->bytes += sample.read_bytes + sample.written_bytes;
    ++arm->trials;
  }
  const double rate = sample.bytes_per_s();
  if (drive_.progress) {
    drive_.progress(
        {stage_, std::clamp(end / options_.seconds, 0.0, 1.0), std::max(0.0, options_.seconds - end), rate});
  }
  return {rate > 0 ? std::log(rate) : 0, (begin + end) / 2, rate > 0};
}

void Trials::begin_with(const TuneSetting& reference) {
  reference_ = reference;
  last_reference_.reset();
}

void Trials::take_reference(double seconds) {
  const std::optional<Trial> before = last_reference_;
  last_reference_ = take(reference_, reference_.traffic(), seconds);
  if (!last_reference_->usable) return last_reference_.reset();
  rates_.push_back(last_reference_->log_rate);
  if (before) steps_.push_back(last_reference_->log_rate - before->log_rate);
}

/// How far two reference trials may lie apart before those between them are put aside.
double Trials::widest_step() const {
  if (steps_.size() < 8) return 0.35;
  return std::max(0.06, 3.5 * robust_deviation(steps_));
}

NoisePrior Trials::noise() const {
  // A trial against two of the reference: its own variance, and half of theirs.
  const double one = steps_.size() < 4 ? kFirstDeviation : robust_deviation(steps_) / std::sqrt(2.0);
  return {1.5 * std::max(one * one, 1e-6), kPriorWeight};
}

void Trials::visit(std::span<Arm* const> arms, double seconds, std::vector<double> Arm::*values,
                   bool whatever) {
  if (!last_reference_) take_reference(seconds);
  const std::optional<Trial> before = last_reference_;
  std::vector<Trial> trials;
  for (Arm* const arm : arms) trials.push_back(take(arm->setting, arm->setting.traffic(), seconds, arm));
  take_reference(seconds);
  if (!before || !last_reference_) return;
  const Trial& after = *last_reference_;
  const double step = after.log_rate - before->log_rate;
  if (!whatever && std::abs(step) > widest_step()) {
    result_.put_aside += static_cast<int>(arms.size());
    return;
  }
  for (std::size_t i = 0; i < arms.size(); ++i) {
    if (!trials[i].usable) continue;
    const double between = (trials[i].at - before->at) / std::max(after.at - before->at, 1e-9);
    (arms[i]->*values).push_back(trials[i].log_rate - before->log_rate - step * between);
  }
}

bool Trials::visit_all(std::vector<Arm*> arms, double seconds, double end, std::vector<double> Arm::*values) {
  shuffle(arms);
  for (std::size_t i = 0; i < arms.size(); i += 2) {
    const std::size_t count = std::min<std::size_t>(2, arms.size() - i);
    if (!time_for(static_cast<int>(count) + 1, seconds, end)) return false;
    visit(std::span(arms).subspan(i, count), seconds, values);
  }
  return true;
}

void Trials::shuffle(std::vector<Arm*>& values) {  // std::shuffle differs between libraries
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random_() % i]);
}

}  // namespace spillway::aio
