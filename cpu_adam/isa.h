#pragma once
// The instruction sets that the update exists for. All of them give the same bits (D9); the choice is about
// speed.
#include <string_view>
#include <vector>

namespace spillway::cpu_adam {

enum class Isa { scalar, neon, avx2, avx512 };

/// "scalar", "neon", "avx2", "avx512".
std::string_view name_of(Isa isa);

/// Whether this processor and operating system can run it: NEON on every 64-bit ARM; AVX2 with FMA; AVX-512 F,
/// BW, CD, DQ and VL.
bool is_supported(Isa isa);

/// Those that can run here, slowest first; the scalar reference always can.
std::vector<Isa> supported_isas();

/// The fastest one that can run here where `requested` is empty, else the one of that name.
/// Error(configuration) for a name that is unknown, or whose instructions are missing here.
Isa select_isa(std::string_view requested);

/// select_isa of the environment variable SPILLWAY_ISA as it is now.
Isa chosen_isa();

}  // namespace spillway::cpu_adam
