#include "error.h"

#include <system_error>

#include <fmt/format.h>

namespace spillway {

std::string on_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) {
      line += fmt::format("\\x{:02x}", code);
    } else {
      line += c;
    }
  }
  return line;
}

namespace {

std::string message_of(const std::string& message, const ErrorDetail& detail) {
  std::string line = message;
  if (!detail.operation.empty()) line += fmt::format(" (operation: {}", detail.operation);
  std::string separator = detail.operation.empty() ? " (" : ", ";
  auto add = [&](const std::string& text) {
    line += separator + text;
    separator = ", ";
  };
  if (!detail.path.empty()) add("path: " + detail.path);
  if (detail.offset >= 0) add(fmt::format("offset: {}", detail.offset));
  if (detail.length >= 0) add(fmt::format("length: {}", detail.length));
  if (detail.error_number != 0) {
    add(fmt::format("errno {}: {}", detail.error_number,
                    std::error_code(detail.error_number, std::generic_category()).message()));
  }
  if (line.size() > message.size()) line += ")";
  return on_one_line(line);
}

}  // namespace

Error::Error(ErrorKind kind, const std::string& message, ErrorDetail detail)
    : std::runtime_error(message_of(message, detail)), kind_(kind), detail_(std::move(detail)) {
  detail_.hint = on_one_line(detail_.hint);
}

int exit_code(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::usage:
    case ErrorKind::configuration:
      return 2;
    case ErrorKind::resources:
      return 3;
    case ErrorKind::io:
      return 4;
    case ErrorKind::communication:
      return 5;
    case ErrorKind::numerics:
      return 6;
  }
  return 70;
}

}  // namespace spillway
