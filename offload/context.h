#pragma once
// What the three streams of an engine share.
#include "../core/budget.h"
#include "../core/config.h"
#include "../core/device.h"
#include "../core/parallel.h"
#include "../core/trace.h"
#include "../cpu_adam/isa.h"
#include "device_state.h"
#include "layout.h"
#include "plan.h"

namespace spillway {

struct Context {
  const Config& config;
  const Layout& layout;
  StateSizes sizes;
  Chunks chunks;
  Room room;
  Device& device;
  Budget& host;
  Workers& workers;  ///< of the update, the norm and the sums
  cpu_adam::Isa isa;
  DeviceState device_state;
  Trace* trace;

  const Layout::Unit& unit(int index) const { return layout.units()[static_cast<std::size_t>(index)]; }
  Stream& stream(Lane lane) const { return device.stream(lane); }

  /// Records that a slot changed hands (unit -1: it is free again), or that a buffer is now in another tier.
  void trace_buffer(BufferAction action, std::uint64_t id, int unit, std::string_view kind, Tier tier,
                    std::int64_t bytes, std::string_view cause) const {
    if (trace == nullptr) return;
    trace->add(BufferEvent{.action = action,
                           .id = id,
                           .unit = unit,
                           .kind = std::string(kind),
                           .tier = tier,
                           .bytes = bytes,
                           .cause = std::string(cause)});
  }
  std::uint64_t next_buffer_id() const { return trace == nullptr ? 0 : trace->next_buffer_id(); }
};

}  // namespace spillway
