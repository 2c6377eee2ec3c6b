#include "isa.h"

#include "../core/error.h"

#include <array>
#include <cstdlib>
#include <string>

namespace spillway::cpu_adam {
namespace {
constexpr std::array kSlowestFirst = {Isa::scalar, Isa::neon, Isa::avx2, Isa::avx512};
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::neon:
      return "neon";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  throw std::logic_error("name_of: not an Isa");
}

bool is_supported(Isa isa) {
  if (isa == Isa::scalar) return true;
#if defined(__x86_64__)
  // These ask the operating system too (XGETBV), as the registers must be saved when threads change.
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (isa == Isa::avx512) {
    return is_supported(Isa::avx2) && __builtin_cpu_supports("avx512f") != 0 &&
           __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
           __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  }
#elif defined(__aarch64__)
  if (isa == Isa::neon) return true;
#endif
  return false;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : kSlowestFirst) {
    if (is_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa select_isa(std::string_view requested) {
  const std::vector<Isa> here = supported_isas();
  if (requested.empty()) return here.back();
  std::string choices;
  for (const Isa isa : here) {
    if (name_of(isa) == requested) return isa;
    choices += (choices.empty() ? "" : ", ") + std::string(name_of(isa));
  }
  for (const Isa isa : kSlowestFirst) {
    if (name_of(isa) == requested) {
      throw Error(ErrorKind::configuration,
                  "this processor lacks the instructions of " + std::string(requested),
                  {.path = "SPILLWAY_ISA", .hint = "use one of " + choices + ", or leave it unset"});
    }
  }
  throw Error(ErrorKind::configuration, "unknown instruction set \"" + std::string(requested) + "\"",
              {.path = "SPILLWAY_ISA", .hint = "use one of " + choices + ", or leave it unset"});
}

Isa chosen_isa() {
  const char* requested = std::getenv("SPILLWAY_ISA");
  return select_isa(requested == nullptr ? "" : requested);
}

}  // namespace spillway::cpu_adam
