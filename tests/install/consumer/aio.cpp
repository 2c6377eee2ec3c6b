// Both the consumer's core/error.h and aio/queue.h, and Spillway's of the same names.
#include "aio/queue.h"

#include <cstdio>
#include <type_traits>

#include <spillway/aio/queue.h>
#include <spillway/aio/volume.h>
#include <spillway/core/budget.h>
#include <spillway/core/error.h>

#if !defined(CONSUMER_ERROR_H) || !defined(CONSUMER_QUEUE_H)
#error "the consumer's own headers were not found"
#endif
#if __has_include("offload/engine.h") || __has_include(<offload/engine.h>)
#error "Spillway's source tree is on the consumer's path"
#endif
static_assert(!std::is_same_v<aio::Queue, spillway::aio::Queue> && !std::is_same_v<Error, spillway::Error>);

int main() {
  const aio::Queue own;
  spillway::Budget budget(spillway::Tier::host);
  spillway::Memory written(budget, "written", 4096), read(budget, "read", 4096);
  written.as<int>()[1023] = own.last.code;
  const auto volume = spillway::aio::Volume::create({{"."}}, 8192);
  spillway::aio::Queue queue;
  queue.wait(queue.write(volume, 4096, written.data(), 4096));
  queue.wait(queue.read(volume, 4096, read.data(), 4096));
  if (read.as<int>()[1023] != own.last.code) return 1;

  try {
    spillway::aio::Volume::create({{"./missing"}}, 4096);
  } catch (const spillway::Error& error) {
    std::puts(error.what());
    return error.kind() == spillway::ErrorKind::io ? 0 : 1;
  }
  return 1;
}
