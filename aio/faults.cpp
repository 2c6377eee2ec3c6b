#include "faults.h"

namespace spillway::aio {

bool Faults::any() const {
  return short_transfers > 0 || interrupted > 0 || delayed > 0 || reorder || fail_at > 0 || flip_at > 0 ||
         truncate_at > 0;
}

std::unique_ptr<Ring> make_faulty_ring(std::unique_ptr<Ring> inner, const Faults&) { return inner; }

}  // namespace spillway::aio
