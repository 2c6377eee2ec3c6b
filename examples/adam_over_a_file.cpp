// Direct I/O and Adam without the engine: the optimizer's state of 4 Mi weights lies on a drive, and each step
// reads it chunk by chunk, updates it and writes it back. A plain loop in memory does the same; every bit must
// agree.
//   adam_over_a_file [DIRECTORY]    on the drive to use; without one, the working directory
#include <bit>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <spillway/aio/file.h>
#include <spillway/aio/queue.h>
#include <spillway/core/budget.h>
#include <spillway/core/error.h>
#include <spillway/core/random.h>
#include <spillway/core/update.h>
#include <spillway/cpu_adam/update.h>

namespace {

using namespace spillway;

constexpr std::int64_t kWeights = 4 << 20, kSteps = 3;

// A chunk is one contiguous transfer: its weights, then m, then v. All of it is a multiple of what direct I/O
// needs.
constexpr std::int64_t kChunk = 256 << 10;
constexpr std::int64_t kChunks = kWeights / kChunk;
constexpr std::int64_t kChunkBytes = 3 * kChunk * 4;
static_assert(kChunkBytes % aio::direct_io_alignment == 0 && kWeights % kChunk == 0);

/// The planes of a chunk as they lie in its slot.
cpu_adam::FullPlanes planes(const Memory& slot) {
  float* begin = slot.as<float>();
  return {begin, begin + kChunk, begin + 2 * kChunk};
}

void fill_gradient(std::int64_t step, std::int64_t chunk, std::span<float> gradient) {
  RandomStream{.seed = 2, .step = static_cast<std::uint32_t>(step)}.fill_normal(
      static_cast<std::uint64_t>(chunk * kChunk), gradient, 0.1);
}

int run(const std::string& directory) {
  // Two slots: one is updated while the next chunk is read into the other. Memory is aligned to pages, so that
  // nothing is copied, and counted by name.
  Budget budget(Tier::host);
  Memory slots[2] = {{budget, "slots", kChunkBytes}, {budget, "slots", kChunkBytes}};
  // Its file has no name and disappears with the process. The queue waits for transfers under way when it is
  // destroyed, so it is declared after the memory that they use.
  const auto volume = aio::Volume::create({{directory}}, kChunks * kChunkBytes);
  aio::Queue queue({.ring = {.depth = 16}});

  std::vector<UpdateElement> reference(kWeights);
  std::vector<float> gradient(kChunk);
  const RandomStream initial{.seed = 1};
  for (std::int64_t c = 0; c < kChunks; ++c) {
    const cpu_adam::FullPlanes state =
        planes(slots[0]);  // m and v are zero: Memory is zeroed, and only weights change
    initial.fill_normal(static_cast<std::uint64_t>(c * kChunk), {state.master, kChunk}, 1.0);
    for (std::int64_t i = 0; i < kChunk; ++i)
      reference[static_cast<std::size_t>(c * kChunk + i)].master = state.master[i];
    queue.wait(queue.write(volume, c * kChunkBytes, slots[0].data(), kChunkBytes));
  }

  const cpu_adam::Isa isa =
      cpu_adam::chosen_isa();  // the fastest that this processor has; the bits are the same
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const UpdateCoefficients coefficients =
        update_coefficients({.weight_decay = 0.01}, step, /*gradient_factor=*/1.0);
    aio::Ticket landed[2] = {queue.read(volume, 0, slots[0].data(), kChunkBytes), {}};
    for (std::int64_t c = 0; c < kChunks; ++c) {
      const Memory &slot = slots[c % 2], &other = slots[(c + 1) % 2];
      if (c + 1 < kChunks) {
        if (c > 0) queue.wait(landed[(c + 1) % 2]);  // what was written from there
        landed[(c + 1) % 2] = queue.read(volume, (c + 1) * kChunkBytes, other.data(), kChunkBytes);
      }
      fill_gradient(step, c, gradient);
      queue.wait(landed[c % 2]);
      if (cpu_adam::update(isa, planes(slot), {gradient.data(), DType::fp32}, kChunk, coefficients))
        throw Error(ErrorKind::numerics, "a weight is not finite");
      landed[c % 2] = queue.write(volume, c * kChunkBytes, slot.data(), kChunkBytes);

      for (std::int64_t i = 0; i < kChunk; ++i) {  // the same, written down plainly
        UpdateElement& element = reference[static_cast<std::size_t>(c * kChunk + i)];
        element = adam_update(element, gradient[static_cast<std::size_t>(i)], coefficients);
      }
    }
    queue.drain();
    std::printf("step %lld: %.0f MiB read, %.0f MiB written so far, with %s\n", static_cast<long long>(step),
                static_cast<double>(queue.counters().read_bytes) / (1 << 20),
                static_cast<double>(queue.counters().written_bytes) / (1 << 20),
                std::string(name_of(isa)).c_str());
  }

  std::int64_t different = 0;
  const auto differ = [](float a, float b) {
    return std::bit_cast<std::uint32_t>(a) != std::bit_cast<std::uint32_t>(b);
  };
  for (std::int64_t c = 0; c < kChunks; ++c) {
    queue.wait(queue.read(volume, c * kChunkBytes, slots[0].data(), kChunkBytes));
    const cpu_adam::FullPlanes state = planes(slots[0]);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      const UpdateElement& element = reference[static_cast<std::size_t>(c * kChunk + i)];
      different += differ(state.master[i], element.master) || differ(state.m[i], element.m) ||
                   differ(state.v[i], element.v);
    }
  }
  if (different != 0) {
    std::fprintf(stderr, "error: %lld of %lld weights differ\n", static_cast<long long>(different),
                 static_cast<long long>(kWeights));
    return 1;
  }
  std::printf("all %lld weights and their state agree bit for bit\n", static_cast<long long>(kWeights));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : ".");
  } catch (const spillway::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    if (!error.detail().hint.empty()) std::fprintf(stderr, "hint: %s\n", error.detail().hint.c_str());
    return spillway::exit_code(error.kind());
  }
}
