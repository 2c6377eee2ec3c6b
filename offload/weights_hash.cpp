#include "weights_hash.h"

#include "engine.h"

#include <bit>
#include <memory>
#include <span>

#include <fmt/format.h>
#include <xxhash.h>

namespace spillway {

static_assert(std::endian::native == std::endian::little, "the hash is defined over little-endian fp32");

std::string weights_xxh3(Engine& engine) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  for (int i = 0; i < static_cast<int>(engine.layout().parameters().size()); ++i) {
    engine.read(i, [&](std::int64_t, std::span<const float> values) {
      XXH3_64bits_update(state.get(), values.data(), values.size_bytes());
    });
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

}  // namespace spillway
