#include "tuner.h"

#include "tuner_trials.h"
#include "tuner_writes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

namespace spillway::aio {
namespace {

// How the time is shared out: where each stage ends.
constexpr double kSustainedEnd = 0.10, kEnginesEnd = 0.18, kGridEnd = 0.38, kHalvingEnd = 0.54,
                 kFinalistsEnd = 0.90, kOverlapEnd = 0.97;
constexpr double kLongestSustained = 6;  ///< seconds: it wears the drive

constexpr double kShortestSlice = 0.02, kLongestSlice = 0.2;
constexpr double kSlicesInAll = 300;  ///< about, over the whole time

constexpr std::size_t kFewest = 4, kMost = 16;  ///< settings that are looked at again
constexpr std::size_t kSideBySide = 2;          ///< finalists in work at a time

constexpr int kEnoughTrials = 10;
constexpr double kManyLooks = 1.3;  ///< a race looks at the same interval again and again

bool costs_less(const TuneSetting& a, const TuneSetting& b) {
  if (a.memory_bytes() != b.memory_bytes()) return a.memory_bytes() < b.memory_bytes();
  if (a.engine != b.engine) return a.engine == IoEngine::io_uring;
  return a.block_bytes > b.block_bytes;
}

class Search {
 public:
  Search(const TuneDrive& drive, const TuneOptions& options)
      : options_(options),
        trials_(drive, options, result_),
        slice_(std::clamp(options.seconds / kSlicesInAll, kShortestSlice, kLongestSlice)),
        writes_(trials_, slice_ / 2, result_),
        least_(std::log1p(-options.tolerance)) {
    if (options.block_sizes.empty() || options.depths.empty() || options.engines.empty() ||
        !(options.seconds > 0) || !(options.tolerance > 0 && options.tolerance < 1)) {
      throw std::logic_error("tune: nothing to try");
    }
    for (const IoEngine engine : options.engines) {
      if (engine == IoEngine::automatic) throw std::logic_error("tune: an engine must be one");
    }
    for (const std::int64_t block : options.block_sizes) {
      for (const unsigned depth : options.depths) {
        const TuneSetting setting{.block_bytes = block, .depth = depth, .engine = options.engines.front()};
        if (block > 0 && depth > 0 && setting.memory_bytes() <= options.most_memory_bytes)
          cells_.push_back(setting);
      }
    }
    if (cells_.empty()) throw std::logic_error("tune: every setting has too much under way");
    first_ = *std::min_element(cells_.begin(), cells_.end(),
                               [](const auto& a, const auto& b) { return from_default(a) < from_default(b); });
    trials_.begin_with(first_);
    writes_.begin_with(first_);
  }

  TuneResult run() {
    try {
      trials_.begin_stage("sustained writes");
      writes_.look_first(std::min(trials_.end_of(kSustainedEnd), kLongestSustained));
      engine_and_overlap();
      all_settings();
      best_of_them();
      side_by_side();
      overlap_at_the_end();
      trials_.begin_stage("writes once more");
      writes_.look_again(trials_.end_of(1));
      result_.complete = true;
    } catch (const Trials::Stopped&) {
    }
    finish();
    return std::move(result_);
  }

 private:
  static double from_default(const TuneSetting& setting) {
    return std::abs(std::log2(static_cast<double>(setting.block_bytes) / (1 << 20))) +
           std::abs(std::log2(setting.depth / 32.0));
  }

  Estimate coarse(const Arm& arm) const { return trimmed_mean(arm.coarse, trials_.noise()); }
  Estimate paired(const Arm& arm, double spread = 1) const {
    return trimmed_mean(arm.paired, trials_.noise(), spread);
  }

  Arm& arm_of(const TuneSetting& setting) {
    for (auto& arm : arms_) {
      if (arm->setting == setting) return *arm;
    }
    arms_.push_back(std::make_unique<Arm>(Arm{.setting = setting}));
    return *arms_.back();
  }

  // The stages ----------------------------------------------------------------------------------------------

  /// The search goes on with what the drive clearly likes best; both are looked at again later.
  void engine_and_overlap() {
    trials_.begin_stage("engine and overlap");
    const double end = trials_.end_of(kEnginesEnd);
    Arm by_turns{.setting = trials_.reference()};
    by_turns.setting.overlap = false;
    std::vector<Arm*> arms{&by_turns};
    Arm other{.setting = trials_.reference()};
    if (options_.engines.size() > 1) {
      other.setting.engine = options_.engines.back();
      arms.push_back(&other);
    }
    trials_.begin_with(trials_.reference());
    do {
      trials_.visit(arms, slice_, &Arm::coarse);
    } while (trials_.time_for(static_cast<int>(arms.size()) + 1, slice_, end));
    TuneSetting first = trials_.reference();
    first.overlap = !(by_turns.coarse.size() >= 3 && coarse(by_turns).low > -least_);
    if (other.coarse.size() >= 3 && coarse(other).low > -least_) first.engine = other.setting.engine;
    found_overlap(by_turns);
    trials_.begin_with(first);
    trials_.forget_rates();  // the unit of the table: the reference of what follows
  }

  void all_settings() {
    trials_.begin_stage("all settings");
    const double end = trials_.end_of(kGridEnd);
    std::vector<TuneSetting> cells = cells_;
    // Every other one where there is too little time for all.
    if (static_cast<double>(cells.size()) * 1.5 * kShortestSlice * trials_.longer() > end - trials_.elapsed()) {
      std::erase_if(cells, [&](const TuneSetting& cell) { return !on_coarse_grid(cell); });
    }
    const double fits =
        (end - trials_.elapsed()) / (static_cast<double>(cells.size()) * 1.5 * trials_.longer());
    const double seconds = std::clamp(fits, kShortestSlice / 2, slice_ / 2);
    std::vector<Arm*> arms;
    for (TuneSetting cell : cells) {
      cell.engine = trials_.reference().engine;
      cell.overlap = trials_.reference().overlap;
      arms.push_back(&arm_of(cell));
    }
    // Those that were put aside come again.
    int looks = 0;
    for (bool time = true; time;) {
      std::vector<Arm*> missing;
      std::copy_if(arms.begin(), arms.end(), std::back_inserter(missing),
                   [](const Arm* arm) { return arm->coarse.empty(); });
      if (missing.empty()) break;
      const bool none = missing.size() == arms.size();
      if (none && looks < 5 && !trials_.time_for(3, seconds, end)) {  // not much is more than nothing
        const bool last = ++looks == 5;
        trials_.visit({missing.data(), std::min<std::size_t>(2, missing.size())}, seconds, &Arm::coarse, last);
        continue;
      }
      time = trials_.visit_all(missing, seconds, end, &Arm::coarse);
      // The time may end when all that was visited has been put aside.
      const auto is_known = [](const Arm* arm) { return !arm->coarse.empty(); };
      if (!time && looks < 5) time = std::none_of(arms.begin(), arms.end(), is_known);
    }
    trials_.begin_with(trials_.reference());  // the next ones are longer
  }

  bool on_coarse_grid(const TuneSetting& cell) const {
    const auto place = [](const auto& all, auto value) {
      return std::find(all.begin(), all.end(), value) - all.begin();
    };
    return (place(options_.block_sizes, cell.block_bytes) - place(options_.block_sizes, first_.block_bytes)) %
                   2 ==
               0 &&
           (place(options_.depths, cell.depth) - place(options_.depths, first_.depth)) % 2 == 0;
  }

  /// The fastest by now, of those with at least so many trials.
  std::vector<Arm*> fastest(std::size_t count, std::size_t trials,
                            std::optional<IoEngine> engine = std::nullopt) const {
    std::vector<std::pair<double, Arm*>> ranked;
    for (const auto& arm : arms_) {
      if (engine && arm->setting.engine != *engine) continue;
      if (arm->coarse.size() >= trials) ranked.emplace_back(coarse(*arm).value, arm.get());
    }
    std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<Arm*> arms;
    for (std::size_t i = 0; i < std::min(count, ranked.size()); ++i) arms.push_back(ranked[i].second);
    return arms;
  }

  void best_of_them() {
    trials_.begin_stage("the fastest again");
    const double end = trials_.end_of(kHalvingEnd);
    // On a slow or busy drive fewer of them, so that each is looked at often enough.
    const double visits = (end - trials_.elapsed()) / (1.5 * slice_ * trials_.longer());
    const std::size_t second_round =
        std::clamp(static_cast<std::size_t>(std::max(visits, 0.0) / 5), kFewest, kMost);
    std::vector<Arm*> arms = fastest(second_round, 1);
    if (options_.engines.size() > 1) {
      for (const Arm* arm : fastest(second_round / 2, 1)) {
        TuneSetting setting = arm->setting;
        setting.engine =
            setting.engine == options_.engines.front() ? options_.engines.back() : options_.engines.front();
        arms.push_back(&arm_of(setting));
      }
    }
    if (arms.empty()) return;
    for (int i = 0; i < 2; ++i) trials_.visit_all(arms, slice_, end, &Arm::coarse);
    arms = fastest(second_round / 2, 1);
    while (trials_.visit_all(arms, slice_, end, &Arm::coarse)) {
    }
  }

  enum class Standing : std::uint8_t { open, as_good, worse };
  Standing standing(const Arm& arm) const {
    if (&arm == base_) return Standing::as_good;
    const Estimate estimate = paired(arm, kManyLooks);
    const bool far_off = estimate.count >= 2 && estimate.high < level_ - 0.1;
    if (far_off) return Standing::worse;
    if (estimate.count < 4) return Standing::open;
    if (estimate.high < level_ + least_) return Standing::worse;
    return estimate.low > level_ + least_ ? Standing::as_good : Standing::open;
  }

  /// 0, the best of the coarse ones, unless another is surely faster.
  void update_level() {
    level_ = 0;
    best_ = base_;
    for (const auto& arm : arms_) {
      if (arm->paired.size() < 8) continue;
      const Estimate estimate = paired(*arm, kManyLooks);
      if (estimate.low > 0 && estimate.value > level_) {
        level_ = estimate.value;
        best_ = arm.get();
      }
    }
  }

  /// In the order of cost: those that may be as good as the best and cost less than the cheapest that surely
  /// is.
  std::vector<Arm*> cheaper_and_open() const {
    std::vector<Arm*> arms;
    for (Arm* const arm : finalists_) {
      if (arm->setting.engine != base_->setting.engine) continue;
      const Standing now = standing(*arm);
      if (now == Standing::as_good) break;
      if (now == Standing::open) arms.push_back(arm);
    }
    return arms;
  }

  /// May well be chosen, by what is known: others can wait, where noise leaves many open.
  bool promising(const Arm& arm) const {
    if (arm.paired.size() >= 12) return paired(arm).value >= level_ + 1.5 * least_;
    if (arm.paired.size() >= 4) return paired(arm).value >= level_ + 3 * least_;
    return coarse(arm).value >= coarse(*base_).value + level_ + 5 * least_;
  }

  /// Who may yet be faster than the best: the one of which that is most likely to be seen.
  Arm* challenger() const {
    Arm* found = nullptr;
    double most = level_;
    for (Arm* const arm : finalists_) {
      if (arm == base_ || arm == best_) continue;
      const Estimate estimate = arm->paired.size() >= 3 ? paired(*arm) : coarse(*arm);
      const double high = arm->paired.size() >= 3 ? estimate.high : estimate.high - coarse(*base_).value;
      if (high > most) {
        most = high;
        found = arm;
      }
    }
    return found;
  }

  bool seems_faster(const Arm& arm) const {
    return arm.paired.size() >= 3 && paired(arm).value > level_ - least_;
  }

  void side_by_side() {
    trials_.begin_stage("the best side by side");
    const double end = trials_.end_of(kFinalistsEnd);
    // One or two lucky trials are no proof. The other engine has to be surely faster, as a challenger.
    const IoEngine engine = trials_.reference().engine;
    std::vector<Arm*> fast = fastest(1, 3, engine);
    if (fast.empty()) fast = fastest(1, 1, engine);
    if (fast.empty()) return;
    base_ = best_ = fast.front();
    const double least = coarse(*base_).low + least_;
    for (const auto& arm : arms_) {
      const bool may_be_as_good = !arm->coarse.empty() && coarse(*arm).high >= least;
      if (arm.get() == base_ || may_be_as_good) finalists_.push_back(arm.get());
    }
    std::sort(finalists_.begin(), finalists_.end(),
              [](const Arm* a, const Arm* b) { return costs_less(a->setting, b->setting); });
    base_rates_ = trials_.reference_rates();
    trials_.begin_with(base_->setting);
    for (int round = 0; trials_.time_for(3, slice_, end); ++round) {
      update_level();
      std::vector<Arm*> arms = cheaper_and_open();
      std::stable_partition(arms.begin(), arms.end(), [&](const Arm* arm) { return promising(*arm); });
      if (arms.size() > kSideBySide) arms.resize(kSideBySide);
      Arm* const rival = challenger();
      const bool is_new = rival != nullptr && std::find(arms.begin(), arms.end(), rival) == arms.end();
      // One that seems faster is looked at until that is clear, others now and then.
      if (is_new && (arms.size() < kSideBySide || seems_faster(*rival) || round % 3 == 2)) {
        if (arms.size() == kSideBySide) arms.pop_back();
        arms.push_back(rival);
      }
      if (Arm* const now = pick(); arms.size() < kSideBySide && now != base_ && now != rival)
        arms.push_back(now);
      if (arms.empty()) arms.push_back(finalists_[static_cast<std::size_t>(round) % finalists_.size()]);
      trials_.shuffle(arms);
      trials_.visit(arms, slice_, &Arm::paired);
    }
    update_level();
  }

  /// Not surely, but by what is known: within the tolerance by the estimate, after enough trials that a few
  /// lucky ones do not make it so, or with an interval that is not much wider than the tolerance.
  bool seems_as_good(const Arm& arm) const {
    if (arm.setting.engine != base_->setting.engine) return false;
    const Estimate estimate = paired(arm);
    if (estimate.count < 3 || estimate.value < level_ + least_) return false;
    return estimate.count >= kEnoughTrials || estimate.low >= level_ + 3 * least_;
  }

  /// The cheapest that is as good as the best.
  Arm* pick() const {
    if (base_ == nullptr) return nullptr;
    std::vector<TuneEstimate> good;
    for (const auto& arm : arms_) {
      const bool base = arm.get() == base_ && level_ <= -least_;
      if (base || arm.get() == best_ || seems_as_good(*arm)) good.push_back(described(*arm));
    }
    const TuneSetting chosen = cheapest(good).setting;
    for (const auto& arm : arms_) {
      if (arm->setting == chosen) return arm.get();
    }
    return nullptr;
  }

  void found_overlap(const Arm& by_turns) {
    if (by_turns.coarse.size() < 3) return;
    const Estimate turns = coarse(by_turns);
    result_.duplex.ratio = exponential({-turns.value, -turns.high, -turns.low, turns.count});
    const Estimate& ratio = result_.duplex.ratio;
    const double notable = 1 + options_.tolerance;
    result_.duplex.verdict = ratio.low > 1 && ratio.value > notable        ? OverlapVerdict::helps
                             : ratio.high < 1 && ratio.value < 1 / notable ? OverlapVerdict::hurts
                                                                           : OverlapVerdict::no_difference;
  }

  void overlap_at_the_end() {
    trials_.begin_stage("overlap once more");
    Arm* const chosen = pick();
    if (chosen == nullptr) return;
    TuneSetting together = chosen->setting;
    together.overlap = true;
    trials_.begin_with(together);
    Arm by_turns{.setting = together};
    by_turns.setting.overlap = false;
    std::vector<Arm*> arms{&by_turns};
    const double end = trials_.end_of(kOverlapEnd);
    while (trials_.time_for(2, slice_, end)) trials_.visit(arms, slice_, &Arm::coarse);
    found_overlap(by_turns);
  }

  // What came out -------------------------------------------------------------------------------------------

  TuneEstimate described(const Arm& arm) const {
    const std::vector<double>& unit_rates = base_ != nullptr ? base_rates_ : trials_.reference_rates();
    const double unit = std::exp(quantile_of(unit_rates, 0.5));
    const bool finalist = arm.paired.size() >= 3;
    Estimate estimate = coarse(arm);
    if (finalist) {
      estimate = paired(arm);
      const double base = coarse(*base_).value;
      for (double* value : {&estimate.value, &estimate.low, &estimate.high}) *value += base;
    }
    return {.setting = arm.setting,
            .bytes_per_s = unit * std::exp(estimate.value),
            .low = unit * std::exp(estimate.low),
            .high = unit * std::exp(estimate.high),
            .cpu_s_per_gb = arm.bytes > 0 ? arm.cpu_seconds / (static_cast<double>(arm.bytes) * 1e-9) : 0,
            .trials = arm.trials,
            .finalist = finalist || &arm == base_};
  }

  void finish() {
    if (base_ == nullptr) {  // stopped early: the best so far
      if (const auto fast = fastest(1, 1); !fast.empty()) base_ = best_ = fast.front();
      base_rates_ = trials_.reference_rates();
    }
    if (base_ != nullptr) {
      update_level();
      result_.chosen = pick()->setting;
      result_.best = best_->setting;
      const double most = described(*best_).bytes_per_s;
      for (const auto& arm : arms_) {
        if (arm->coarse.empty() && arm->paired.empty()) continue;
        result_.estimates.push_back(described(*arm));
        result_.estimates.back().of_best = result_.estimates.back().bytes_per_s / most;
      }
      for (const Arm* arm : cheaper_and_open()) {
        if (costs_less(arm->setting, result_.chosen)) ++result_.undecided;
      }
    }
    std::vector<double> ratios;
    for (const double step : trials_.reference_steps()) ratios.push_back(std::exp(step));
    if (!ratios.empty()) {
      result_.noise = (quantile_of(ratios, 0.75) - quantile_of(ratios, 0.25)) / quantile_of(ratios, 0.5);
    }
    result_.seconds = trials_.elapsed();
  }

  const TuneOptions& options_;
  TuneResult result_;
  Trials trials_;
  double slice_;
  SustainedWrites writes_;
  double least_;  ///< logarithm of what is within the tolerance, negative
  std::vector<TuneSetting> cells_;

  TuneSetting first_;               ///< the reference of the first stages
  std::vector<double> base_rates_;  ///< logarithms of the speed of what `coarse` is against

  std::vector<std::unique_ptr<Arm>> arms_;
  std::vector<Arm*> finalists_;  ///< in the order of cost
  Arm* base_ = nullptr;          ///< what finalists are measured against
  Arm* best_ = nullptr;
  double level_ = 0;  ///< of the best, against the base
};

}  // namespace

std::string_view name_of(OverlapVerdict verdict) {
  switch (verdict) {
    case OverlapVerdict::helps:
      return "helps";
    case OverlapVerdict::no_difference:
      return "no difference";
    case OverlapVerdict::hurts:
      return "hurts";
    case OverlapVerdict::unknown:
      break;
  }
  return "unknown";
}

const TuneEstimate* TuneResult::find(const TuneSetting& setting) const {
  for (const TuneEstimate& estimate : estimates) {
    if (estimate.setting == setting) return &estimate;
  }
  return nullptr;
}

TuneResult tune(const TuneDrive& drive, const TuneOptions& options) {
  return Search(drive, options).run();
}

TuneEstimate cheapest(std::vector<TuneEstimate> settings) {
  if (settings.empty()) throw std::logic_error("cheapest: of no settings");
  const auto keep = [&](auto&& cost, double more) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& one : settings) least = std::min(least, cost(one));
    std::erase_if(settings, [&](const TuneEstimate& one) { return cost(one) > least * (1 + more); });
  };
  keep([](const TuneEstimate& one) { return static_cast<double>(one.setting.memory_bytes()); }, 0);
  keep([](const TuneEstimate& one) { return one.cpu_s_per_gb; }, 0.1);
  keep([](const TuneEstimate& one) { return one.setting.engine == IoEngine::io_uring ? 1.0 : 2.0; }, 0);
  keep([](const TuneEstimate& one) { return 1 / static_cast<double>(one.setting.block_bytes); }, 0);
  return settings.front();
}

std::vector<double> compare_paths(std::size_t paths, double seconds,
                                  const std::function<Sample(std::size_t path, double seconds)>& sample,
                                  const std::function<bool()>& stopped) {
  constexpr int kRounds = 8;
  const double slice = seconds / (kRounds * static_cast<double>(std::max<std::size_t>(paths, 1)));
  std::vector<std::vector<double>> rates(paths);
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < paths; ++i) {
      const std::size_t path = round % 2 == 0 ? i : paths - 1 - i;
      if (stopped && stopped()) break;
      rates[path].push_back(sample(path, slice).bytes_per_s());
    }
  }
  std::vector<double> medians;
  for (auto& one : rates) medians.push_back(quantile_of(std::move(one), 0.5));
  return medians;
}

}  // namespace spillway::aio
