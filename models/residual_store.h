#pragma once
// The tensors of a decoder's residual stream between its layers: in a few buffers on the device, and where the
// choice says so outside of it, moved while the device computes.
#include "../core/device.h"
#include "activation_choice.h"

#include <cstdint>
#include <deque>
#include <vector>

namespace spillway {
class Engine;
}

namespace spillway::models {

/// Places 0 .. layers - 1 are the inputs of the layers, `layers` is the output of the last one, and
/// `layers` + 1 the gradient that passes back through them, each for every micro-batch. A buffer is taken when
/// something is written or comes back, and given back behind its last use; all in the order of the compute
/// stream, so that nothing here waits for the device. (What is read from NVMe is waited for.)
class ResidualStore {
 public:
  /// `memory` holds activation_buffers() of input_bytes; the engine's slots are as slots() says.
  ResidualStore(Engine& engine, Device& device, const ActivationChain& chain, const ActivationChoice& choice,
                std::byte* memory);

  /// Of the whole: what was there is gone. Without a backward pass to come nothing is kept or moved.
  void begin(bool for_backward);

  /// A buffer into which the compute stream will write.
  void* write(std::int64_t place, int micro_batch);
  /// The work that writes it has been given: it leaves the device, where it is to be moved.
  void written(std::int64_t place, int micro_batch);
  /// Where the compute stream's later work finds it; brings it back where it must.
  void* read(std::int64_t place, int micro_batch);
  /// The work that reads it has been given; it is needed again later.
  void leave(std::int64_t place, int micro_batch);
  /// The same, and it is not needed any more.
  void drop(std::int64_t place, int micro_batch);

  /// It is read soon: it comes from NVMe into host memory.
  void announce(std::int64_t place, int micro_batch);
  /// It is read next: it comes to the device, if there is a buffer for it.
  void fetch(std::int64_t place, int micro_batch);

  /// A buffer for as long as one layer needs it.
  void* take_scratch();
  void drop_scratch(void* scratch);

  std::int64_t gradient() const { return chain_.layers + 1; }

 private:
  struct Buffer {
    std::byte* data = nullptr;
    Event used;   ///< by the compute stream
    Event moved;  ///< out of it
  };
  struct Value {
    int buffer = -1;
    bool is_coming = false;  ///< `there` is still to be waited for
    bool is_saved = false;
    Event there;
  };
  bool moves(std::int64_t place) const {
    return for_backward_ && (place < choice_.moved || (choice_.moves_between && place >= chain_.layers));
  }
  int slot(std::int64_t place, int micro_batch) const;
  Value& value(std::int64_t place, int micro_batch);
  int take();
  void give(int buffer);
  bool bring(std::int64_t place, int micro_batch);

  Engine& engine_;
  Stream& compute_;
  Stream& up_;
  ActivationChain chain_;
  ActivationChoice choice_;
  bool for_backward_ = false;
  std::vector<Buffer> buffers_;
  std::deque<int> free_;  ///< the one given back first in front
  std::vector<Value> values_;
};

}  // namespace spillway::models
