#include "faults.h"

#include "../core/error.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::aio {
namespace {

constexpr double longest_delay_us = 1e7;
constexpr int largest_errno = 4095;

/// Reads one list.
class Parser {
 public:
  Parser(std::string_view text, std::string_view what) : rest_(text), what_(what) {}

  Faults parse() {
    if (rest_.empty()) return faults_;
    for (bool more = true; more;) {
      const std::size_t comma = rest_.find(',');
      more = comma != std::string_view::npos;
      part_ = rest_.substr(0, comma);
      rest_ = more ? rest_.substr(comma + 1) : std::string_view{};
      parse_part();
    }
    return faults_;
  }

 private:
  [[noreturn]] void wrong(std::string_view why) const {
    throw Error(ErrorKind::configuration, fmt::format("{}: \"{}\" {}", what_, part_, why),
                {.hint = "a list such as short=0.2,interrupt=0.1,delay=0.1,delay_us=500,reorder,fail=100:EIO"});
  }

  template <class Number>
  Number number(std::string_view text, Number least, Number most, std::string_view why) const {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    // Written so that what is not a number is refused.
    if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most))
      wrong(why);
    return value;
  }

  double share(std::string_view text) const { return number(text, 0.0, 1.0, "needs a probability, 0 to 1"); }
  std::int64_t count(std::string_view text) const {
    return number<std::int64_t>(text, 1, INT64_MAX, "needs the number of an operation, from 1");
  }

  int error_number(std::string_view text) const {
    for (int candidate = 1; candidate <= largest_errno && !text.empty(); ++candidate) {
      const char* const name = ::strerrorname_np(candidate);
      if (name != nullptr && text == name) return candidate;
    }
    return number(text, 1, largest_errno, "needs an error by name or number, such as fail=100:EIO");
  }

  void parse_failure(std::string_view value, bool always) {
    const std::size_t colon = value.find(':');
    faults_.fail_at = count(value.substr(0, colon));
    faults_.fail_always = always;
    if (colon != std::string_view::npos) faults_.error_number = error_number(value.substr(colon + 1));
  }

  void parse_part() {
    const std::size_t equals = part_.find('=');
    const std::string_view name = part_.substr(0, equals);
    const bool valued = equals != std::string_view::npos;
    const std::string_view value = valued ? part_.substr(equals + 1) : std::string_view{};
    // One failure, whether it stays or not.
    if (!seen_.insert(name == "fail_from" ? "fail" : name).second) wrong("is there a second time");
    if (name == "reorder") {
      if (valued) wrong("takes no value");
      faults_.reorder = true;
    } else if (name == "short") {
      faults_.short_transfers = share(value);
    } else if (name == "interrupt") {
      faults_.interrupted = share(value);
    } else if (name == "delay") {
      faults_.delayed = share(value);
    } else if (name == "delay_us") {
      faults_.delay_us = number(value, 0.0, longest_delay_us, "needs microseconds, 0 to 10000000");
    } else if (name == "fail" || name == "fail_from") {
      parse_failure(value, name == "fail_from");
    } else if (name == "flip") {
      faults_.flip_at = count(value);
    } else if (name == "eof") {
      faults_.truncate_at = count(value);
    } else if (name == "seed") {
      faults_.seed = number<std::uint64_t>(value, 0, UINT64_MAX, "needs a number, 0 to 18446744073709551615");
    } else {
      wrong(
          "is none of short=P, interrupt=P, delay=P, delay_us=N, reorder, fail=N:ERROR, fail_from=N:ERROR, "
          "flip=N, eof=N and seed=N");
    }
  }

  std::string_view rest_;
  std::string_view what_;
  std::string_view part_{};
  std::set<std::string_view> seen_{};
  Faults faults_{};
};

}  // namespace

bool Faults::any() const {
  return short_transfers > 0 || interrupted > 0 || delayed > 0 || reorder || fail_at > 0 || flip_at > 0 ||
         truncate_at > 0;
}

Faults parse_faults(std::string_view text, std::string_view what) {
  return Parser(text, what).parse();
}

std::string to_string(const Faults& faults) {
  const Faults none;
  std::vector<std::string> parts;
  const auto add = [&](bool differs, std::string part) {
    if (differs) parts.push_back(std::move(part));
  };
  add(faults.short_transfers != none.short_transfers, fmt::format("short={}", faults.short_transfers));
  add(faults.interrupted != none.interrupted, fmt::format("interrupt={}", faults.interrupted));
  add(faults.delayed != none.delayed, fmt::format("delay={}", faults.delayed));
  add(faults.delay_us != none.delay_us, fmt::format("delay_us={}", faults.delay_us));
  add(faults.reorder, "reorder");
  const char* const name = ::strerrorname_np(faults.error_number);
  add(faults.fail_at != none.fail_at,
      fmt::format("{}={}:{}", faults.fail_always ? "fail_from" : "fail", faults.fail_at,
                  name != nullptr ? std::string(name) : std::to_string(faults.error_number)));
  add(faults.flip_at != none.flip_at, fmt::format("flip={}", faults.flip_at));
  add(faults.truncate_at != none.truncate_at, fmt::format("eof={}", faults.truncate_at));
  add(faults.seed != none.seed, fmt::format("seed={}", faults.seed));
  return fmt::format("{}", fmt::join(parts, ","));
}

}  // namespace spillway::aio
