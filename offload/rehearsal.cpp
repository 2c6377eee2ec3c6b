// Parts of a step's work, done alone: what a step is held against.
#include "../cpu_adam/record.h"
#include "context.h"
#include "gradient_stream.h"
#include "optimizer_stream.h"

#include <algorithm>
#include <chrono>

namespace spillway {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

double OptimizerStream::rehearse_transfers() {
  const Pause pause(*this);
  const std::vector<ChunkMover::Extent> extents = mover_.extents(gradients_.spill());
  if (extents.empty()) return 0;

  // More slots than an update has, so that it is the drive that is measured.
  const std::size_t slots = std::max<std::size_t>(2 * mover_.slots().size(), 16), ahead = slots / 2;
  std::int64_t largest = 0;
  for (const auto& extent : extents) largest = std::max(largest, extent.bytes);
  Budget unlimited(Tier::host);
  const Memory memory(unlimited, "rehearsal", static_cast<std::int64_t>(slots) * largest);
  const SwapMemory registered(*swap_, memory);
  std::vector<aio::Ticket> reads(slots), writes(slots);
  aio::Queue& queue = swap_->queue();
  const auto place = [&](std::size_t i) {
    return memory.data() + static_cast<std::int64_t>(i % slots) * largest;
  };
  const auto wait = [&](aio::Ticket ticket) {
    if (ticket.number != 0) queue.wait(ticket);
  };
  if (gradients_.spill() != nullptr) {
    // With delayed_update the last step's may still be landing.
    context_.device.synchronize();
    queue.drain();
  }
  try {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < extents.size() + ahead; ++i) {
      if (i < extents.size()) {
        wait(writes[i % slots]);
        reads[i % slots] = extents[i].store->read(extents[i].offset, place(i), extents[i].bytes);
      }
      if (i < ahead) continue;
      const std::size_t j = i - ahead;
      wait(reads[j % slots]);
      writes[j % slots] = extents[j].store->write(extents[j].offset, place(j), extents[j].bytes);
    }
    for (const aio::Ticket ticket : writes) wait(ticket);
    return seconds_since(begin);
  } catch (...) {
    for (const auto& tickets : {reads, writes}) {
      for (const aio::Ticket ticket : tickets) {
        try {
          wait(ticket);
        } catch (const std::exception&) {
          // The first error is on its way out already.
        }
      }
    }
    throw;
  }
}

double OptimizerStream::rehearse_updates() {
  const Pause pause(*this);
  const Chunks& sizes = context_.chunks;
  // Of records in host memory, as many as no cache holds; of those on NVMe, as many as there are slots.
  constexpr std::int64_t kBeyondCaches = std::int64_t{256} << 20;
  const bool spilled = gradients_.spill() != nullptr;
  const std::int64_t gradient_bytes =
      spilled ? GradientPieces(context_.layout, context_.config, sizes).read : 0;
  const std::int64_t chunk_bytes = sizes.record_bytes + sizes.weight_bytes + gradient_bytes;
  const std::int64_t count =
      std::max<std::int64_t>(context_.config.optimizer_tier == Tier::nvme ? 0 : kBeyondCaches / chunk_bytes,
                             context_.room.update_slots);
  Budget unlimited(Tier::host);
  const Memory memory(unlimited, "rehearsal", count * chunk_bytes);
  std::vector<UpdateCoefficients> coefficients(static_cast<std::size_t>(context_.layout.groups()),
                                               update_coefficients(context_.config.optimizer, 1, 1.0));

  const auto begin = std::chrono::steady_clock::now();
  std::int64_t index = 0;
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    for (Chunk chunk : mover_.chunks(unit, 0, context_.unit(unit).trainable)) {
      chunk.record = memory.data() + index++ % count * chunk_bytes;
      chunk.high = chunk.record + sizes.record_bytes;
      cpu_adam::Gradient gradient = gradients_.gradient(unit, 0);
      gradient = spilled ? cpu_adam::Gradient{chunk.high + sizes.weight_bytes, gradient.type}
                         : cpu_adam::advance(gradient, chunk.first);
      update_with(chunk, gradient, coefficients, 1);
    }
  }
  return seconds_since(begin);
}

}  // namespace spillway
