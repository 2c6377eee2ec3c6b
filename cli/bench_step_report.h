#pragma once
// What `spillway bench step` says, as text and as JSON.
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace spillway {
class Engine;
}

namespace spillway::cli {

struct StepTask;
struct StepFigures;

/// What is going to be measured, and on what.
std::string step_heading(const StepTask& task, const Engine& engine);
/// The figures, what bounds them, and what would change them.
std::string step_text(const StepTask& task, const StepFigures& figures);
nlohmann::json step_row(const StepTask& task, const StepFigures& figures);

}  // namespace spillway::cli
