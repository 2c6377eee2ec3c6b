#include "layout.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway {
namespace {

/// So that no sum of bytes overflows.
constexpr std::int64_t kMostElements = std::int64_t{1} << 50;

std::int64_t elements_of(const ParameterSpec& spec) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : spec.shape) {
    if (extent < 1 || elements > kMostElements / extent) {
      throw std::logic_error(fmt::format("parameter {}: an extent of {} is not possible", spec.name, extent));
    }
    elements *= extent;
  }
  return elements;
}

}  // namespace

Layout::Layout(const std::vector<UnitSpec>& units, LayoutOptions options) : options_(std::move(options)) {
  if (units.empty()) throw std::logic_error("a layout needs at least one unit");
  if (options_.world < 1 || options_.live_units < 1 || options_.live_gradients < 1) {
    throw std::logic_error("a layout needs a world, a live unit and a live gradient of at least 1");
  }
  std::int64_t total = 0;
  for (const UnitSpec& spec : units) {
    if (spec.parameters.empty() || spec.uses < 1) {
      throw std::logic_error(fmt::format("unit {}: it needs a parameter and a use", spec.name));
    }
    Unit unit{.name = spec.name, .uses = spec.uses};
    const int unit_index = static_cast<int>(units_.size());
    const int first = static_cast<int>(parameters_.size());
    for (const ParameterSpec& p : spec.parameters) {
      if (!parameter_indices_.emplace(p.name, static_cast<int>(parameters_.size())).second)
        throw std::logic_error(fmt::format("parameter {} is declared twice", p.name));
      if (p.group < 0) throw std::logic_error(fmt::format("parameter {}: group {}", p.name, p.group));
      parameters_.push_back({p.name, p.shape, p.group, p.trainable, unit_index, elements_of(p), 0});
    }
    const std::int64_t border = kElementAlignment * options_.world;
    for (const bool trainable : {true, false}) {
      for (int i = first; i < static_cast<int>(parameters_.size()); ++i) {
        Parameter& p = parameters_[static_cast<std::size_t>(i)];
        if (p.trainable != trainable) continue;
        p.offset = unit.elements;
        unit.elements = round_up(unit.elements + p.elements, kElementAlignment);
        unit.parameters.push_back(i);
      }
      unit.elements = round_up(unit.elements, border);
      if (unit.elements > kMostElements) throw std::logic_error(fmt::format("unit {} is too large", spec.name));
      if (trainable) unit.trainable = unit.elements;
    }
    total += unit.elements;
    if (total > kMostElements) throw std::logic_error("the model is too large");
    unit_indices_.emplace(unit.name, unit_index);
    units_.push_back(std::move(unit));
  }
}

int Layout::parameter(const std::string& name) const {
  const auto found = parameter_indices_.find(name);
  if (found == parameter_indices_.end()) throw std::logic_error(fmt::format("no parameter is named {}", name));
  return found->second;
}

int Layout::unit(const std::string& name) const {
  const auto found = unit_indices_.find(name);
  if (found == unit_indices_.end()) throw std::logic_error(fmt::format("no unit is named {}", name));
  return found->second;
}

std::int64_t Layout::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& p : parameters_) count += p.elements;
  return count;
}

std::int64_t Layout::largest_unit() const {
  std::int64_t largest = 0;
  for (const Unit& u : units_) largest = std::max(largest, u.elements);
  return largest;
}

std::int64_t Layout::largest_trainable() const {
  std::int64_t largest = 0;
  for (const Unit& u : units_) largest = std::max(largest, u.trainable);
  return largest;
}

int Layout::groups() const {
  int groups = 1;
  for (const Parameter& p : parameters_) groups = std::max(groups, p.group + 1);
  return groups;
}

}  // namespace spillway
