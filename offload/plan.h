#pragma once
// How state lies in the tiers, and what a run occupies. The engine reserves exactly what make_plan says.
#include "../core/config.h"
#include "../core/dtype.h"
#include "../core/plan.h"
#include "../cpu_adam/record.h"
#include "layout.h"

#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

/// Bytes and types of the state of one element.
struct StateSizes {
  explicit StateSizes(const Config& config);
  DType weight;  ///< of the high plane, which the device computes with, and of a gradient that moves
  std::int64_t weight_bytes;  ///< 2, or 4 with precision fp32
  cpu_adam::RecordFormat record;
};

/// A unit's records and high plane are cut into chunks of chunk_elements; a record chunk lies at a multiple of
/// 4 KiB and holds its slice of every plane as cpu_adam/record.h says.
struct Chunks {
  Chunks(const Layout& layout, const StateSizes& sizes);

  std::int64_t elements;  ///< of each chunk but a unit's last: at most kChunkElements, a multiple of 2048, so
                          ///< that every slice of a high plane begins at a multiple of 4 KiB
  std::int64_t record_bytes;  ///< of a full chunk, a multiple of 4 KiB
  std::int64_t weight_bytes;  ///< of a full chunk's high plane

  std::int64_t count(const Layout::Unit& unit) const { return (unit.elements + elements - 1) / elements; }
  /// Chunks of a unit that have optimizer state: its first ones.
  std::int64_t records(const Layout::Unit& unit) const { return (unit.trainable + elements - 1) / elements; }
  /// Bytes of the record of chunk `index` of them, a multiple of 4 KiB.
  std::int64_t record_bytes_of(const Layout::Unit& unit, std::int64_t index, const StateSizes& sizes) const;
  /// Bytes of all record chunks of a unit.
  std::int64_t unit_record_bytes(const Layout::Unit& unit, const StateSizes& sizes) const;
};

/// The gradients of one unit where the optimizer finds them: one plane for each use.
struct GradientPlanes {
  GradientPlanes(const Layout::Unit& unit, const Config& config);
  DType type;  ///< of its elements: as it moves, or fp32 where several are added up
  int planes;
  bool is_sum;         ///< several gradients are added up in it
  std::int64_t bytes;  ///< of all planes
};

/// Gradients that lie on NVMe: what they take there, and the pieces of a chunk in which they pass through host
/// memory. All multiples of 4 KiB.
struct GradientPieces {
  GradientPieces(const Layout& layout, const Config& config, const Chunks& chunks);
  std::int64_t nvme = 0;    ///< of all planes
  std::int64_t staged = 0;  ///< of the largest piece as it comes from the device
  std::int64_t sum = 0;     ///< of the largest one that is added up in host memory; 0: none is
  std::int64_t read = 0;    ///< of the largest one as the update reads it
};

/// What the layout's activations take.
struct ActivationBytes {
  explicit ActivationBytes(const Layout& layout);
  std::int64_t host = 0;        ///< of all slots in host memory
  std::int64_t nvme = 0;        ///< of all slots on NVMe, each a multiple of 4 KiB
  std::int64_t nvme_slots = 0;  ///< their number
  std::int64_t staging = 0;     ///< of the largest of them, in host memory on its way
};

/// Micro-batches of a unit come in a row, so that their gradients are added up on the device and moved once.
bool sums_before_moving(const Config& config);
/// Copies of the gradients: two where one waits to be applied while the next one lands.
int gradient_generations(const Config& config);

/// Well away from powers of two: where the planes of a record are such a distance apart, their lines meet in
/// the same banks of memory, and the update runs at two thirds of its speed.
constexpr std::int64_t kChunkElements = 112 * 2048;
constexpr std::int64_t kBlockBytes = 4096;           ///< what direct transfers are multiples of
constexpr int kLeastUpdateSlots = 3;                 ///< a chunk read, one updated, one written at a time
constexpr int kLeastGradientSlots = 3;               ///< the same for gradients on their way to NVMe
constexpr int kStagingSlots = 2;                     ///< one filled while the other is emptied
constexpr int kActivationSlots = 2 * kStagingSlots;  ///< the same for two directions at once
constexpr std::int64_t kChecksumBytes = 80;          ///< of a hash, its extent, and the tree that holds it
constexpr std::int64_t kConversionElements = 16384;  ///< of a piece in Engine::load and read

/// Where activations on NVMe lie: beside the parameters, or, where no directory is given for those, beside the
/// optimizer's records. May be empty.
const std::vector<std::string>& activation_directories(const Config& config);

/// How much there is of what a run can have more or less of: what makes it fast, as far as the budgets leave
/// room for it. A pure function, as the plan, which counts it.
struct Room {
  Room(const Layout& layout, const Config& config);
  /// Without which there is no run: with gradients on NVMe where that is possible, takes less host memory, and
  /// is needed for config.host_memory. (Negative: whatever takes the least.)
  static Room least(const Layout& layout, const Config& config);

  int update_slots = kLeastUpdateSlots;  ///< chunks under way in the update
  /// Of a unit's size, on the device: the layout's live_units, and one that is filled while those are in use.
  int parameter_slots = 0;
  /// Of a unit's size, in host memory between NVMe and the device: kStagingSlots, and more that keep units.
  int parameter_cache_slots = 0;
  /// Of activations on their way between the device and NVMe: one, and more that let them be read and written
  /// at once.
  int activation_slots = 0;
  /// Gradients lie on NVMe, beside the optimizer's records: host memory cannot hold them.
  bool spills_gradients = false;
  int gradient_slots = 0;  ///< then: pieces of them under way to NVMe
  /// Records of NVMe that stay in host memory: these many of all chunks, evenly spread.
  std::int64_t resident_chunks = 0;

 private:
  Room() = default;
  static Room least_in_memory(const Layout& layout, const Config& config);
};

/// Whether chunk `index` of `all` is one of the `resident` ones, which are spread evenly.
bool is_resident(std::int64_t index, std::int64_t all, std::int64_t resident);

/// Bytes by name and tier of the whole run: a pure function of its arguments.
Plan make_plan(const Layout& layout, const Config& config);
/// The same with the least room: what budgets must hold at least. Where config.host_memory is not negative,
/// gradients are on NVMe only if it cannot hold them.
Plan least_plan(const Layout& layout, const Config& config);

/// Bytes that a run may use; negative: no limit.
struct Limits {
  std::int64_t device = -1;
  std::int64_t host = -1;
  std::int64_t parameter_drive = -1;  ///< of what lies in the directory for parameters: they, and activations
  std::int64_t optimizer_drive = -1;  ///< and in that for optimizer records, and gradients
  bool is_one_drive = true;           ///< both lie on one: `parameter_drive` is the limit of their sum
  std::int64_t memory = -1;  ///< of device and host together, where the device's memory is the host's own
};

bool fits(const Plan& plan, const Limits& limits);

/// Throws Error (resources) with the numbers, the largest unit, and what would fit, where the plan exceeds a
/// limit.
void check_plan(const Layout& layout, const Config& config, const Limits& limits);

}  // namespace spillway
