#pragma once
// Models that can be named instead of described.
#include "../core/config.h"

#include <span>

namespace spillway::models {

/// decoder-tiny and decoder-25m of the examples, and GPT-2's four published sizes (Radford et al., "Language
/// models are unsupervised multitask learners", 2019; Hugging Face's config.json of each).
std::span<const NamedModel> named_models();

}  // namespace spillway::models
