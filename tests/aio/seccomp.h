#pragma once
// Lets a system call fail as a kernel, a container or a full drive would, on one thread only.
#include <cerrno>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

namespace spillway::aio {

struct DeniedCall {
  int number = 0;              ///< SYS_...
  int error_number = 0;        ///< what it fails with
  int argument = 0;            ///< denied only where this argument ...
  std::uint32_t bits = 0;      ///< ... under this mask (of its low 32 bits) ...
  std::uint32_t equal_to = 0;  ///< ... is this
};

/// Fails from now on on this thread. Returns false where filters are not allowed here.
inline bool deny(const std::vector<DeniedCall>& calls) {
  std::vector<sock_filter> program;
  for (const DeniedCall& call : calls) {
    const auto argument =
        static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * static_cast<std::size_t>(call.argument));
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call.number), 0, 4));
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument));
    program.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, call.bits));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.equal_to, 0, 1));
    program.push_back(
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(call.error_number)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// Runs `body` on a thread of its own on which the calls are denied; false where that is not allowed here.
/// What it throws is thrown here.
inline bool with_denied(const std::vector<DeniedCall>& calls, const std::function<void()>& body) {
  bool allowed = false;
  std::exception_ptr thrown;
  std::thread([&] {
    allowed = deny(calls);
    if (!allowed) return;
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
  return allowed;
}

}  // namespace spillway::aio
