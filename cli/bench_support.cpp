#include "bench_support.h"

#include "../core/size.h"
#include "output_file.h"
#include "text.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

constexpr std::int64_t kMostParameters = std::int64_t{1} << 40;
constexpr double kMostSeconds = 3600;

}  // namespace

Error usage(const std::string& message, std::string hint) {
  return Error(ErrorKind::usage, message, {.hint = std::move(hint)});
}

std::int64_t parse_parameters(const std::string& typed) {
  const std::string hint = "a whole number, such as 1000000, 64M (64 x 2^20, as 64Mi) or 1G";
  std::string text = typed;
  if (!text.empty() && (text.back() == 'b' || text.back() == 'B')) {
    throw usage(fmt::format("--params: '{}' would be bytes, and it counts parameters", typed), hint);
  }
  if (!text.empty() && (text.back() == 'i' || text.back() == 'I')) text += 'B';
  std::int64_t parameters = 0;
  try {
    parameters = parse_size(text, "--params");
  } catch (const Error&) {
    throw usage(fmt::format("--params: '{}' is no number of parameters", typed), hint);
  }
  if (parameters < 1) throw usage(fmt::format("--params: {} parameters are nothing to update", typed), hint);
  if (parameters > kMostParameters) {
    throw usage(fmt::format("--params: {} are more than {}", typed, grouped(kMostParameters)), hint);
  }
  return parameters;
}

void check_seconds(double seconds, bool may_be_zero, std::string hint) {
  if ((seconds > 0 || (may_be_zero && seconds == 0)) && seconds <= kMostSeconds) return;
  throw usage(fmt::format("--seconds: {} is not {} 0 and at most {}", seconds,
                          may_be_zero ? "at least" : "above", kMostSeconds),
              std::move(hint));
}

std::string percent(double share) {
  return fmt::format("{:.1f}%", 100.0 * share);
}

void write_rows(const OutputFile& output, const nlohmann::json& rows) {
  if (!output.wanted()) return;
  output.replace_with(rows.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace spillway::cli
