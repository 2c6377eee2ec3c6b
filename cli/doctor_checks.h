#pragma once
// What spillway doctor thinks of the facts: a rule for each thing that can be in the way. Pure functions.
#include "doctor_facts.h"

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace spillway::cli {

enum class Status {
  ok,
  note,     ///< worth knowing
  warning,  ///< training runs, but slower or less safely than it could; a hint says what to change
  problem,  ///< training does not run; a hint says what to change
};
/// "ok", "note", "warning", "problem".
std::string_view name_of(Status status);

struct Finding {
  std::string topic;  ///< "machine", "accelerators", "io", "config" or "path"
  std::string name;   ///< of what was looked at: "governor"
  std::string value;  ///< what it is, in words
  Status status = Status::ok;
  std::string hint = {};           ///< what to type or change; empty where nothing is
  std::string subject = {};        ///< the path or the file that it is about, where it is about one
  ErrorKind kind = ErrorKind::io;  ///< of a problem
  nlohmann::json numbers = nlohmann::json::object();  ///< raw values by name, none of them nested
};

/// In the order in which they are shown.
std::vector<Finding> judge(const Facts& facts);
/// The part of it about one path; doctor_path_checks.cpp has it.
std::vector<Finding> judge_path(const PathFacts& facts, const std::vector<int>& nodes);

/// Null where there is none.
const Finding* first_problem(const std::vector<Finding>& findings);

/// "1 drive", "2 drives".
std::string counted(std::int64_t count, std::string_view noun);

}  // namespace spillway::cli
