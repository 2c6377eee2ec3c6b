#pragma once
// The one exception type of the library. Misuse of the interface is std::logic_error instead.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace spillway {

enum class ErrorKind { usage, configuration, resources, io, communication, numerics };

/// What an error is about, where that is known. Negative offset or length: not applicable.
struct ErrorDetail {
  std::string operation = {};  ///< "read", "write", "allocate", ...
  std::string path = {};       ///< file, directory or configuration key
  std::int64_t offset = -1;    ///< bytes
  std::int64_t length = -1;    ///< bytes
  int error_number = 0;        ///< errno, 0 where none
  std::string hint = {};       ///< what the user can do; one sentence, no full stop
};

/// what() is one line: the message, then operation, path, offset, length and the errno's text where they apply;
/// control characters in them are written as \x0a.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, ErrorDetail detail = {});

  ErrorKind kind() const noexcept { return kind_; }
  const ErrorDetail& detail() const noexcept { return detail_; }

 private:
  ErrorKind kind_;
  ErrorDetail detail_;
};

/// Control characters, which names of files and keys can have, as \x0a: what is left is one line.
std::string on_one_line(std::string_view text);

/// The program's exit status for a kind: 2 usage and configuration, 3 resources, 4 I/O, 5 communication, 6
/// numerics.
int exit_code(ErrorKind kind) noexcept;

}  // namespace spillway
