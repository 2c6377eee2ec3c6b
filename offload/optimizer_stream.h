#pragma once
// Optimizer state on its way through the update: read chunk -> Adam -> write chunk, over a ring of slots, on a
// thread of its own (D3). Reads of the next chunks, Adam on this one and writes of the last ones go on at once.
#include "../core/device.h"
#include "../core/update.h"
#include "../cpu_adam/update.h"
#include "chunk_mover.h"
#include "step.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

namespace spillway {

class GradientStream;

/// Works through the updates that it is given, the unit that is needed next first. An update starts when
/// nothing can cancel it: with a global condition (clipping, or the check for finite gradients) when all the
/// step's gradients have landed, without one when the unit's own has. (With delayed_update that of the step
/// before is applied when this one's has landed: the parameters are no longer used then.) Reads do not wait for
/// that, since they change nothing.
///
/// Used by the engine's calling thread. The first error of the update ends its work; check() and whatever
/// blocks throw it.
class OptimizerStream {
 public:
  using Chunk = ChunkMover::Chunk;

  /// Reserves what ChunkMover does and starts the thread. Throws Error (resources).
  OptimizerStream(const Context& context, ParameterStream& parameters, const GradientStream& gradients,
                  Swap* swap, Swap::Region region);
  ~OptimizerStream() { stop(); }
  OptimizerStream(const OptimizerStream&) = delete;
  OptimizerStream& operator=(const OptimizerStream&) = delete;

  /// Units are submitted one by one while the step goes on, and not together at its end.
  bool is_unit_by_unit() const { return unit_by_unit_; }

  /// Units in the order in which the coming passes gather them.
  void set_order(const std::vector<int>& units);
  /// A step has begun. With `expecting`, units are going to be submitted before it ends: the first reads begin,
  /// in the order in which they are expected.
  void begin_step(const std::shared_ptr<Step>& step, bool expecting);
  /// Hands a unit's update over, of which none is pending: with the gradient of `step` in planes of
  /// `generation`; it may start when `ready` has passed, which `step.landed` has by then if there is a global
  /// condition.
  void submit(int unit, const std::shared_ptr<Step>& step, int generation, const Event& ready);
  /// No more will be submitted than has been, until the next step.
  void end_step();

  /// Whether the unit's parameters are those of its last update, and at home: nothing is on its way.
  bool is_current(int unit) const;
  /// Blocks until what was submitted for the unit is done; the compute and copy_up streams' later work sees
  /// the new parameters.
  void wait(int unit);
  /// Blocks until all updates are done and everything is at home.
  void drain();
  /// Blocks until the gradients of a step that has ended have landed, and decides what becomes of it.
  void settle_when_landed(Step& step);
  std::int64_t steps() const;    ///< settled and not skipped; what bias correction counts
  std::int64_t skipped() const;  ///< steps that were not applied
  void check() const;            ///< throws the first error
  /// Ends the work after the chunk that it is at, and waits for what is under way.
  void stop() noexcept;

  using Visit = std::function<void(const Chunk&)>;
  /// When all updates are done: brings the chunks that hold elements [first, last) of a unit to the host, calls
  /// visit for each in ascending order on the calling thread, and takes them home where they were changed.
  void visit(int unit, std::int64_t first, std::int64_t last, bool changes, const Visit& visit);

  /// See Engine::rehearse; in seconds.
  double rehearse_transfers();
  double rehearse_updates();

 private:
  using Site = ChunkMover::Site;
  using Slot = ChunkMover::Slot;
  using Lock = std::unique_lock<std::mutex>;
  struct Job {
    std::shared_ptr<Step> step;
    int generation = 0;
    Event ready;
    std::uint64_t number = 0;  ///< in the order of submit()
  };
  struct UnitState {
    std::int64_t rank = 0;                 ///< place in the order of next uses
    std::optional<Job> job;                ///< pending
    bool committed = false;                ///< its chunks are in the ring, or the next to come there
    Event home;                            ///< copies of its parameters
    std::vector<aio::Ticket> high_writes;  ///< of its parameters, of the last update
  };
  /// While it lives, which begins when all updates are done, the slots are the calling thread's, and all free.
  class Pause {
   public:
    explicit Pause(OptimizerStream& stream);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    OptimizerStream& stream_;
  };

  // On the update's thread:
  void run();
  bool commit(Lock& lock);
  int next_unit() const;
  Slot* free_slot();
  bool has_work() const;
  void update_front(Lock& lock);
  void read_gradients(Lock& lock);
  void read_gradient(Slot& slot, const Job& job);
  bool settle(Step& step);
  void settle_one(Step& step);
  void cancel(const Step& step);
  void update_chunk(Slot& slot, const Job& job);
  void finish_unit(int unit);
  void drop_ring(Lock& lock);
  void empty_ring();

  bool update_with(const Chunk& chunk, cpu_adam::Gradient gradient,
                   std::span<const UpdateCoefficients> coefficients, std::int64_t step) const;
  void fail(std::exception_ptr error) noexcept;

  const Context& context_;
  const GradientStream& gradients_;
  Swap* swap_;
  Site site_;         ///< where the work is done
  bool conditional_;  ///< a step has a global condition
  bool unit_by_unit_;
  ChunkMover mover_;

  // Of the update's thread, or of who has paused it:
  std::vector<Slot*> free_;
  std::deque<Slot*> ring_;      ///< brought, in the order of their updates
  std::deque<Slot*> leaving_;   ///< on their way home
  std::deque<Chunk> to_start_;  ///< what is left of the unit that was committed last

  mutable std::mutex mutex_;
  std::condition_variable given_;         ///< something to the update's thread
  mutable std::condition_variable done_;  ///< something by it
  std::vector<UnitState> units_;
  std::deque<std::shared_ptr<Step>> unsettled_;  ///< steps in their order
  std::vector<int> arrivals_;      ///< units in the order in which the last step's gradients were complete
  std::vector<int> new_arrivals_;  ///< the same of this step
  bool expecting_ = false;         ///< a step has begun: what is going to be submitted may be read
  std::uint64_t submitted_ = 0;    ///< jobs
  std::int64_t pending_ = 0;       ///< units with a job
  int waiting_ = 0;                ///< somebody waits for one of them
  std::int64_t steps_ = 0, skipped_ = 0;
  bool stop_ = false, pause_ = false, is_paused_ = false;
  std::exception_ptr error_;
  std::thread thread_;  ///< last: it uses all the others
};

}  // namespace spillway
