#include "config_value.h"

#include "size.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

namespace spillway::config_detail {

using nlohmann::json;

Error Value::not_a(std::string_view what, std::string hint) const {
  std::string shown = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
  return refuse(fmt::format("{}: {} is not {}", where, shown, what), std::move(hint));
}

std::int64_t Value::integer(std::int64_t least, std::int64_t most) const {
  const auto wrong = [&] {
    return not_a(most == kMaximum ? fmt::format("a whole number from {}", least)
                                  : fmt::format("a whole number from {} to {}", least, most));
  };
  std::int64_t number = 0;
  if (value.is_number_unsigned()) {
    if (value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaximum)) throw wrong();
    number = value.get<std::int64_t>();
  } else if (value.is_number_integer()) {
    number = value.get<std::int64_t>();
  } else if (value.is_number_float()) {  // 5e8: exact below 2^53
    const double x = value.get<double>();
    if (x != std::floor(x) || std::fabs(x) > 0x1p53) throw wrong();
    number = static_cast<std::int64_t>(x);
  } else {
    throw wrong();
  }
  if (number < least || number > most) throw wrong();
  return number;
}

double Value::number(double most) const {
  const double x = value.is_number() ? value.get<double>() : -1.0;
  if (!(x >= 0.0 && x <= most)) throw not_a(fmt::format("a number from 0 to {}", most));
  return x;
}

double Value::number_below(double most) const {
  const double x = value.is_number() ? value.get<double>() : -1.0;
  // What fp32 would round up to it is not below it.
  if (!(x >= 0.0 && static_cast<float>(x) < static_cast<float>(most)))
    throw not_a(fmt::format("a number from 0 to below {}", most));
  return x;
}

bool Value::boolean() const {
  if (!value.is_boolean()) throw not_a("true or false");
  return value.get<bool>();
}

const std::string& Value::string(std::string_view what) const {
  if (typed && !typed->empty()) return *typed;
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) throw not_a(what);
  return value.get_ref<const std::string&>();
}

const std::string& Value::word(std::initializer_list<std::string_view> words) const {
  const std::string all = fmt::format("{}", fmt::join(words, " or "));
  const std::string& given = string(all);
  if (std::find(words.begin(), words.end(), given) == words.end()) throw not_a(all);
  return given;
}

std::vector<std::string> Value::strings(std::string_view what) const {
  if (!value.is_array()) return {string(what)};
  if (value.empty()) throw not_a(what);
  std::vector<std::string> all;
  for (const json& one : value) all.push_back(Value{one, where}.string(what));
  return all;
}

std::int64_t Value::size() const {
  if (typed || value.is_string())
    return parse_size(typed ? *typed : value.get_ref<const std::string&>(), where);
  if (!value.is_number())
    throw not_a("a size", "a size is a number with a unit, such as \"40M\" or \"1.5GiB\"");
  return integer(0, std::int64_t{1} << 62);
}

std::vector<double> Value::positive_numbers() const {
  const std::vector<json> given = value.is_array() ? value.get<std::vector<json>>() : std::vector<json>{value};
  std::vector<double> numbers;
  for (const json& one : given) {
    constexpr double most = 1e6;
    const double x = one.is_number() ? one.get<double>() : 0.0;
    if (!(x > 0.0 && x <= most))
      throw Value{one, where}.not_a(fmt::format("a number above 0, at most {}", most));
    numbers.push_back(x);
  }
  if (numbers.empty()) throw not_a("a number, or a list of them");
  return numbers;
}

std::vector<std::string> Value::directories() const {
  constexpr std::size_t most = 32, longest = 4096;  // PATH_MAX
  std::vector<std::string> paths = strings("the path of a directory");
  if (paths.size() > most) throw not_a(fmt::format("a list of at most {} directories", most));
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  // One rank, the first.
  const std::pair<std::string_view, std::string> placeholders[] = {
      {"{rank}", "0"}, {"{local_rank}", "0"}, {"{host}", host.data()}};
  std::set<std::filesystem::path> seen;
  for (std::string& path : paths) {
    if (path.size() >= longest) throw not_a("a path that a system takes: it is too long");
    for (const auto& [placeholder, text] : placeholders) {
      for (auto at = path.find(placeholder); at != std::string::npos;
           at = path.find(placeholder, at + text.size())) {
        path.replace(at, placeholder.size(), text);
      }
    }
    // "/a", "/a/" and "/b/../a" are one directory; a link to it is known only when it is opened.
    if (!seen.insert((std::filesystem::path(path) / "").lexically_normal()).second) {
      throw refuse(fmt::format("{}: the directory {} is given twice", where, path),
                   "name each drive once: striping over one and the same gains nothing");
    }
  }
  return paths;
}

Value from_flag(const ConfigOverride& given) {
  json value = json::parse(given.value, nullptr, /*allow_exceptions=*/false);
  if (!value.is_number() && !value.is_boolean()) value = given.value;
  return {std::move(value), given.flag, given.value};
}

}  // namespace spillway::config_detail
