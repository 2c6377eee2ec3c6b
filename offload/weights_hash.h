#pragma once
#include <cstdint>
#include <string>

namespace spillway {
class Engine;

/// XXH3 (64 bits, 16 hexadecimal digits) over every parameter in declared order as little-endian fp32 master
/// weights, streamed; the same for every placement, layout and world that holds the same weights.
std::string weights_xxh3(Engine& engine);

}  // namespace spillway
