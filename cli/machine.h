#pragma once
#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace spillway::cli {

/// What figures were measured on. Empty or 0 where the system does not say.
struct Machine {
  std::string processor;  ///< its model
  int processors = 0;     ///< that this process may run on
  std::int64_t memory_bytes = 0;
  std::string system;  ///< kernel's name, release and architecture
};

Machine this_machine();
/// The same, as every row of JSON holds it under "machine".
nlohmann::json machine_json();

}  // namespace spillway::cli
