#pragma once
// Where each parameter lies. A unit's parameters are one flat row of elements: each starts at a multiple of
// 128, trainable ones first, and the row is padded to a multiple of 128 * world. Padding stays zero.
#include "../core/plan.h"
#include "../core/tier.h"

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace spillway {

struct ParameterSpec {
  std::string name;                 ///< unique in the model
  std::vector<std::int64_t> shape;  ///< row-major; every extent at least 1
  int group = 0;                    ///< index into StepOptions::groups
  bool trainable = true;  ///< false: no gradient and no optimizer state, the weight is kept as it computes
};

/// Parameters that are gathered and released together.
struct UnitSpec {
  std::string name;
  std::vector<ParameterSpec> parameters;
  int uses =
      1;  ///< gradients reduced each micro-batch: more than 1 for tied weights, each use with its own sum
};

/// What a model moves out of the device's memory between its forward and its backward pass, such as the input
/// of a layer.
struct ActivationSlot {
  Tier tier = Tier::host;  ///< host or nvme
  std::int64_t bytes = 0;
  /// How often it is saved and loaded in a pass of the micro-batches that are computed together.
  int saves = 1, loads = 1;
};

struct LayoutOptions {
  int world = 1;
  int live_units = 2;                   ///< views that the model holds at once
  int live_gradients = 1;               ///< gradients that the model holds at once, from gradient() to reduce()
  std::vector<PlanEntry> model_memory;  ///< what the model allocates on the device itself, by name
  std::vector<ActivationSlot> activations;  ///< which Engine::save_activation and load_activation move
};

constexpr std::int64_t kElementAlignment = 128;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class Layout {
 public:
  struct Parameter {
    std::string name;
    std::vector<std::int64_t> shape;
    int group = 0;
    bool trainable = true;
    int unit = 0;
    std::int64_t elements = 0;
    std::int64_t offset = 0;  ///< elements from the begin of the unit
  };
  struct Unit {
    std::string name;
    std::vector<int> parameters;  ///< indices, in flat order
    std::int64_t elements = 0;    ///< with padding, a multiple of 128 * world
    std::int64_t trainable = 0;   ///< the leading elements with gradient and state, a multiple of 128 * world
    int uses = 1;
  };

  /// Throws std::logic_error for an empty model, a name given twice, an extent below 1, more than 2^50
  /// elements.
  explicit Layout(const std::vector<UnitSpec>& units, LayoutOptions options = {});

  const std::vector<Parameter>& parameters() const { return parameters_; }  ///< in declared order
  const std::vector<Unit>& units() const { return units_; }
  const LayoutOptions& options() const { return options_; }

  int parameter(const std::string& name) const;  ///< its index; std::logic_error where there is none
  int unit(const std::string& name) const;       ///< the same; the first of that name
  std::int64_t parameter_count() const;          ///< elements of all parameters, without padding
  std::int64_t largest_unit() const;             ///< elements, with padding
  std::int64_t largest_trainable() const;
  int groups() const;  ///< 1 + the largest group index

 private:
  LayoutOptions options_;
  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  std::unordered_map<std::string, int> parameter_indices_, unit_indices_;  ///< by name
};

}  // namespace spillway
