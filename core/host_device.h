#pragma once
// A device made of the host's own memory and cores (D11).
#include "device.h"
#include "parallel.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace spillway {

struct HostDeviceOptions {
  std::int64_t memory = -1;          ///< bytes it may allocate, negative for no limit
  int threads = 1;                   ///< workers of its tile pool
  std::vector<int> processors = {};  ///< for each of them, or none: see Workers
  double copy_bandwidth = 0;         ///< bytes/s of each copy stream, as a bus would have; 0: as fast as memory
};

class HostDevice;

/// A stream of the host device: one thread that runs its queue in order. Tiles run on the device's pool, which
/// its streams share.
class HostStream : public Stream {
 public:
  /// Runs body(tile, worker) once for every tile in [0, tiles); worker is in [0, device threads). The tiles
  /// must follow from the shape of the operation alone, so that results don't depend on the number of threads.
  virtual void launch(std::string_view name, std::int64_t tiles,
                      std::function<void(std::int64_t tile, int worker)> body, int unit = -1) = 0;
};

class HostDevice final : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options, Trace* trace = nullptr);
  ~HostDevice() override;  ///< waits for work in progress, drops what has not begun, never throws

  std::string_view name() const override { return "host"; }
  Budget& budget() override;
  Memory allocate(std::string_view name, std::int64_t bytes) override;
  bool host_addressable() const override { return true; }
  HostStream& stream(Lane lane) override;
  HostStream& side_stream(Lane lane) override;
  void check() override;
  void synchronize() override;

  int threads() const;
  Workers& workers();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway
