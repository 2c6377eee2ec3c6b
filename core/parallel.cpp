// What both builds of parallel.h share.
#include "parallel.h"

#include "error.h"

#include <fmt/format.h>
#include <sched.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace spillway {

void throw_threads_refused(std::string_view whose, int error_number) {
  throw Error(ErrorKind::resources, fmt::format("the system refuses the threads for {}", whose),
              {.operation = "pthread_create",
               .error_number = error_number,
               .hint = "ask for fewer threads, or raise the limits of this process (ulimit -u, ulimit -v)"});
}

int available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count > 0 ? count : 1;
}

#if defined(__x86_64__)
namespace {
constexpr unsigned kFlushToZero = 0x8000u, kDenormalsAreZero = 0x0040u, kRoundingMask = 0x6000u;
}
FloatEnvironment::FloatEnvironment() noexcept : saved_(_mm_getcsr()) {
  _mm_setcsr(static_cast<unsigned>(saved_) & ~(kFlushToZero | kDenormalsAreZero | kRoundingMask));
}
FloatEnvironment::~FloatEnvironment() {
  _mm_setcsr(static_cast<unsigned>(saved_));
}
#elif defined(__aarch64__)
namespace {
constexpr std::uint64_t kFlushToZero = 1u << 24, kFlushHalf = 1u << 19, kRoundingMask = 3u << 22;
}
FloatEnvironment::FloatEnvironment() noexcept {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" ::"r"(saved_ & ~(kFlushToZero | kFlushHalf | kRoundingMask)));
}
FloatEnvironment::~FloatEnvironment() {
  asm volatile("msr fpcr, %0" ::"r"(saved_));
}
#else
#error "how does this processor flush subnormals?"
#endif

}  // namespace spillway
