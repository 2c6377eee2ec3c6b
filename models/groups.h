#pragma once
// Which parameters the weight decay leaves alone.
#include "../offload/layout.h"

#include <optional>
#include <string>
#include <vector>

namespace spillway::models {

/// Marks every parameter: group 0 decays, group 1 does not. Without patterns, group 1 are the parameters of one
/// dimension: biases and norms. With them, those whose whole name one of the patterns matches, as a shell
/// matches file names ("*.bias"). Throws Error (configuration) for a pattern that matches no parameter.
void assign_decay_groups(std::vector<UnitSpec>& units, const std::optional<std::vector<std::string>>& no_decay);

}  // namespace spillway::models
