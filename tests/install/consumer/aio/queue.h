#pragma once
// The consumer's own.
#include "core/error.h"

#define CONSUMER_QUEUE_H

namespace aio {
struct Queue {
  Error last = {42};
};
}  // namespace aio
