#pragma once
#include "../../core/error.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace spillway::fuzz {

/// Ends the process where `holds` is false: libFuzzer then writes the input to a file.
inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

/// Runs `read`. Only spillway::Error may come out, with a message and a hint of one line each; anything else
/// ends the process.
template <class Function>
void only_errors_of_ours(const Function& read) {
  try {
    read();
  } catch (const Error& error) {
    check(std::string(error.what()).find('\n') == std::string::npos, "a message is one line");
    check(error.detail().hint.find('\n') == std::string::npos, "a hint is one line");
  }
}

}  // namespace spillway::fuzz
