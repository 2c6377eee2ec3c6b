#pragma once
// spillway doctor: what this machine offers to a training run, and what is in the way.
#include "doctor_checks.h"

#include <cstddef>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace spillway::cli {

struct DoctorOptions {
  std::vector<std::string> paths;  ///< directories for swap space
  std::string config, json;        ///< paths, empty for none
};

/// Adds the sub-command; `options` is filled when the command line is parsed.
CLI::App* add_doctor(CLI::App& program, DoctorOptions& options);

/// Prints a screen, and writes the findings to options.json where that is given. Then throws Error where
/// training can't run: that of the first problem.
void doctor(const DoctorOptions& options);

/// The findings by topic, in lines of at most `width` characters; doctor_screen.cpp has it.
std::string screen(const std::vector<Finding>& findings, std::size_t width, bool colours);

}  // namespace spillway::cli
