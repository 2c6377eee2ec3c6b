// spillway bench adam: its fields agree with one another, it verifies before it measures, and what cannot be
// measured is refused. Speeds are not tested.
#include "../../cli/adam_measurement.h"
#include "../../cli/slices.h"
#include "../../core/parallel.h"
#include "../../core/state_format.h"
#include "../../cpu_adam/isa.h"
#include "../../cpu_adam/record.h"
#include "program.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

using cpu_adam::Isa;
using nlohmann::json;

constexpr std::int64_t kParams = 200'000;

/// Small and short where `more` does not say otherwise.
std::vector<std::string> bench_with(const std::vector<std::string>& more) {
  std::vector<std::string> all{"bench", "adam"};
  const std::vector<std::pair<std::string, std::string>> usual{
      {"--params", std::to_string(kParams)}, {"--threads", "2"}, {"--seconds", "0.02"}};
  for (const auto& [flag, value] : usual) {
    if (std::find(more.begin(), more.end(), flag) == more.end()) all.insert(all.end(), {flag, value});
  }
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class BenchAdam : public testing::Test {
 protected:
  /// Runs it, expects success and gives the rows of --json.
  json rows(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = bench_with(more);
    arguments.insert(arguments.end(), {"--json", scratch_.path("rows.json")});
    outcome_ = run_program(arguments);
    EXPECT_EQ(outcome_.exit_code, 0) << outcome_.err;
    EXPECT_EQ(outcome_.err, "");
    return json::parse(read_file(scratch_.path("rows.json")));
  }
  void refused(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& parts) {
    const Outcome outcome = run_program(arguments);
    std::string command;
    for (const auto& argument : arguments) command += argument + " ";
    SCOPED_TRACE(command + "\n" + outcome.err);
    EXPECT_EQ(outcome.exit_code, code);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u);
    EXPECT_NE(outcome.err.find("\nhint: "), std::string::npos);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 2);
    for (const auto& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << "missing: " << part;
  }

  Scratch scratch_;
  Outcome outcome_;
};

std::vector<std::string> formats_of(const json& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.push_back(row.at("state_format"));
  return names;
}

TEST_F(BenchAdam, GivesAFlatRowForEveryFormatWhoseFieldsAgree) {
  const json all = rows({});
  ASSERT_EQ(formats_of(all), (std::vector<std::string>{"fp32", "bf16", "compact8"}));
  const std::map<std::string, double> bytes{{"fp32", 26.0}, {"bf16", 18.0}, {"compact8", 12.25}};
  double first_speed = 0.0;
  for (const json& row : all) {
    SCOPED_TRACE(row.dump(1));
    for (const auto& [name, value] : row.items())
      EXPECT_TRUE(value.is_primitive() || name == "machine") << name;
    EXPECT_EQ(row.at("version"), SPILLWAY_VERSION);
    EXPECT_EQ(row.at("format_version"), 1);
    EXPECT_EQ(row.at("command"), "bench adam");
    EXPECT_GT(row.at("machine").at("memory_bytes"), 0);
    EXPECT_GT(row.at("machine").at("processors"), 0);
    EXPECT_EQ(row.at("optimizer"), "adamw");
    EXPECT_EQ(row.at("gradient"), "bf16");
    EXPECT_EQ(row.at("threads"), 2);
    EXPECT_TRUE(row.at("pinned").is_boolean());
    EXPECT_EQ(row.at("verified"), true);
    EXPECT_EQ(row.at("params"), kParams);
    EXPECT_EQ(row.at("sections"), 4);
    EXPECT_EQ(row.at("section_params"), 49'152);  // a multiple of the update's blocks
    EXPECT_EQ(row.at("seconds"), 0.02);
    EXPECT_GE(row.at("slices"), 24);
    EXPECT_EQ(row.at("slices").get<int>() % 2, 0);  // as many pairs begin with the update as with its floor
    EXPECT_EQ(row.at("bytes_per_param"), bytes.at(row.at("state_format")));
    const double speed = row.at("gparam_per_s"), moved = row.at("gb_per_s"), floor = row.at("floor_gb_per_s");
    EXPECT_GT(speed, 0.0);
    EXPECT_GT(floor, 0.0);
    EXPECT_NEAR(moved, speed * row.at("bytes_per_param").get<double>(), 1e-9 * moved);
    // The median of ratios and the ratio of medians: near one another, and each the right way round.
    const double ratio = row.at("of_floor");
    EXPECT_GT(ratio, moved / floor / 10);
    EXPECT_LT(ratio, moved / floor * 10);
    EXPECT_GT(row.at("control"), 0.1);
    EXPECT_LT(row.at("control"), 10.0);
    if (row.at("state_format") == "fp32") {
      EXPECT_EQ(row.at("of_fp32"), 1.0);
    } else {
      const double expected = speed / first_speed, of_fp32 = row.at("of_fp32");
      EXPECT_GT(of_fp32, expected / 10);
      EXPECT_LT(of_fp32, expected * 10);
    }
    if (first_speed == 0.0) first_speed = speed;
    EXPECT_GE(row.at("spread"), 0.0);
    EXPECT_GE(row.at("control_spread"), 0.0);
  }
}

TEST_F(BenchAdam, SaysWhatItDoesInOrder) {
  rows({});
  std::size_t place = 0;
  for (const std::string part : {"spillway " SPILLWAY_VERSION, "adamw, bf16 gradient", "2 threads", "200,000",
                                 "MiB at a time", "verified", "100,003", "of floor", "fp32", "bf16", "compact8",
                                 "of floor: the update's speed as a share"}) {
    place = outcome_.out.find(part, place);
    ASSERT_NE(place, std::string::npos) << part << " is missing, or not after the one before it:\n"
                                        << outcome_.out;
  }
  EXPECT_EQ(outcome_.out.find("left out"), std::string::npos);
  EXPECT_EQ(outcome_.out.find('\r'), std::string::npos);  // no line of progress where there is no terminal
}

TEST_F(BenchAdam, EveryOptimizerAndGradient) {
  const std::vector<std::pair<std::string, std::string>> pairs{{"adamw", "fp32"}, {"adam", "fp16"},
                                                               {"lion", "fp32"},  {"lion", "bf16"},
                                                               {"sgd", "fp16"},   {"sgd", "bf16"}};
  for (const auto& [optimizer, gradient] : pairs) {
    SCOPED_TRACE(optimizer + " " + gradient);
    const bool has_v = optimizer.starts_with("adam");
    const json all = rows({"--optimizer", optimizer, "--gradient", gradient, "--seconds", "0.005"});
    EXPECT_EQ(formats_of(all), has_v ? (std::vector<std::string>{"fp32", "bf16", "compact8"})
                                     : (std::vector<std::string>{"fp32", "bf16"}));
    EXPECT_EQ(outcome_.out.find("left out    compact8: compact8 is made for") != std::string::npos, !has_v);
    const double more = gradient == "fp32" ? 2 : 0;
    EXPECT_EQ(all.at(0).at("bytes_per_param"), (has_v ? 26 : 18) + more);
    EXPECT_EQ(all.at(1).at("bytes_per_param"), (has_v ? 18 : 14) + more);
    for (const json& row : all) {
      EXPECT_EQ(row.at("optimizer"), optimizer);
      EXPECT_EQ(row.at("gradient"), gradient);
    }
  }
}

TEST_F(BenchAdam, FormatsByName) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(formats_of(rows({"--state-format", "bf16"})), Names{"bf16"});
  EXPECT_EQ(formats_of(rows({"--state-format", "compact8,fp32"})), (Names{"compact8", "fp32"}));
  EXPECT_EQ(formats_of(rows({"--state-format", "bf16", "--state-format", "fp32,bf16"})),
            (Names{"bf16", "fp32"}));
  refused(bench_with({"--state-format", "fp8"}), 2, {"--state-format", "fp8", "fp32, bf16, compact8"});
  refused(bench_with({"--state-format", ""}), 2, {"--state-format"});
  for (const std::string optimizer : {"lion", "sgd"}) {
    refused(bench_with({"--optimizer", optimizer, "--state-format", "fp32,compact8"}), 2,
            {"compact8", optimizer, "made for the moments of Adam"});
  }
}

TEST_F(BenchAdam, NumbersOfParameters) {
  const std::map<std::string, std::int64_t> good{{"1", 1},         {"37", 37},        {"20000", 20'000},
                                                 {"64K", 65'536},  {"64ki", 65'536},  {"1M", 1 << 20},
                                                 {"1Mi", 1 << 20}, {"0.5M", 1 << 19}, {"70001", 70'001}};
  for (const auto& [typed, count] : good) {
    EXPECT_EQ(rows({"--params", typed, "--state-format", "compact8"}).at(0).at("params"), count) << typed;
  }
  for (const std::string bad : {"0", "0.2", "-1", "ten", "", "64X", "64MB", "1e6", "9999999T"}) {
    refused({"bench", "adam", "--params=" + bad}, 2, {"--params", bad});
  }
  refused({"bench", "adam", "--params", "2T"}, 2, {"--params", "2T", "1,099,511,627,776"});
  refused({"bench", "adam", "--params", "1T"}, 3, {"1,099,511,627,776", "24.0 TiB", "--params", "M fits"});
}

TEST_F(BenchAdam, ThreadsAndSeconds) {
  for (const std::string bad : {"0", "-1", "1025", "two", "1.5"}) {
    refused({"bench", "adam", "--threads", bad}, 2, {"--threads", bad});
  }
  for (const std::string bad : {"0", "-1", "nan", "inf", "4000", "soon"}) {
    refused({"bench", "adam", "--seconds", bad}, 2, {"--seconds"});
  }
  EXPECT_EQ(rows({"--threads", "3", "--state-format", "fp32"}).at(0).at("threads"), 3);
}

TEST_F(BenchAdam, InstructionSets) {
  const std::string best(name_of(cpu_adam::supported_isas().back()));
  EXPECT_EQ(rows({"--state-format", "fp32"}).at(0).at("isa"), best);
  EXPECT_NE(outcome_.out.find(best), std::string::npos);
  for (const Isa isa : cpu_adam::supported_isas()) {
    const std::string name(name_of(isa));
    for (const json& row : rows({"--isa", name, "--params", "20000"})) EXPECT_EQ(row.at("isa"), name);
  }
  refused(bench_with({"--isa", "mmx"}), 2, {"--isa", "mmx", "scalar", best});
  refused(bench_with({"--isa", ""}), 2, {"--isa"});

  const auto by_environment = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> command{"env", "SPILLWAY_ISA=" + name, SPILLWAY_PROGRAM};
    for (const auto& argument : bench_with(more)) command.push_back(argument);
    return run_command(command);
  };
  const Outcome scalar = by_environment("scalar", {"--state-format", "fp32"});
  EXPECT_NE(scalar.out.find("bf16 gradient, scalar, 2 threads"), std::string::npos) << scalar.out << scalar.err;
  const Outcome overridden = by_environment("mmx", {"--state-format", "fp32", "--isa", best});
  EXPECT_EQ(overridden.exit_code, 0) << overridden.err;
  const Outcome unknown = by_environment("mmx", {});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("SPILLWAY_ISA"), std::string::npos) << unknown.err;
}

TEST_F(BenchAdam, OtherRefusals) {
  refused(bench_with({"--optimizer", "rmsprop"}), 2, {"--optimizer", "rmsprop", "adamw, adam, lion, sgd"});
  refused(bench_with({"--gradient", "fp64"}), 2, {"--gradient", "fp64", "bf16, fp16, fp32"});
  refused(bench_with({"--json", scratch_.path("gone/x.json")}), 4, {"--json", "gone/x.json"});
  refused(bench_with({"--json", ""}), 2, {"--json", "a name is missing"});
  refused(bench_with({"--paramz", "1"}), 2, {"--paramz", "spillway bench adam --help"});
  refused({"bench", "eve"}, 2, {"eve", "spillway bench --help"});
  EXPECT_TRUE(scratch_.names().empty());
}

TEST_F(BenchAdam, HelpExplainsGroupFlagsAndColumns) {
  const Outcome group = run_program({"bench"});
  EXPECT_EQ(group.exit_code, 0);
  EXPECT_EQ(group.out, run_program({"bench", "--help"}).out);
  EXPECT_NE(group.out.find("adam"), std::string::npos);
  const Outcome help = run_program({"bench", "adam", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const std::string part :
       {"--params", "--state-format", "--optimizer", "--gradient", "--threads", "--isa", "--seconds", "--json",
        "bytes/param", "Gparam/s", "floor GB/s", "of floor", "spread", "control", "Examples"}) {
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
  }
  EXPECT_NE(run_program({"--help"}).out.find("bench"), std::string::npos);
}

TEST(Verification, SeesOneBitOfAnyPlane) {
  constexpr std::int64_t n = 71;
  for (const StateFormat format : {StateFormat::fp32, StateFormat::bf16, StateFormat::compact8}) {
    const cpu_adam::RecordFormat layout(format, Optimizer::adamw, DType::bf16);
    std::vector<std::byte> record(static_cast<std::size_t>(layout.bytes(n))), weights(2 * n);
    std::vector<std::byte> other_record = record, other_weights = weights;
    const auto difference = [&] {
      return first_difference(layout.planes(weights.data(), record.data(), n),
                              layout.planes(other_weights.data(), other_record.data(), n), n);
    };
    EXPECT_EQ(difference(), "");
    std::set<std::string> planes;
    for (auto* bytes : {&record, &weights}) {
      for (auto& byte : *bytes) {
        byte ^= std::byte{0x10};
        const std::string seen = difference();
        EXPECT_NE(seen, "") << name_of(format) << " byte " << &byte - bytes->data();
        planes.insert(seen.substr(0, seen.find(',')));
        byte ^= std::byte{0x10};
      }
    }
    EXPECT_EQ(planes.size(), format == StateFormat::compact8 ? 6u : 4u);
    record[static_cast<std::size_t>(layout.bytes(n)) - 1] ^= std::byte{1};
    EXPECT_EQ(difference(), "plane low, element 70");
  }
}

TEST(Verification, HoldsForEveryCaseOfThisMachine) {
  Workers workers(3);
  for (const Isa isa : cpu_adam::supported_isas()) {
    for (const StateFormat format : {StateFormat::fp32, StateFormat::bf16, StateFormat::compact8}) {
      EXPECT_NO_THROW(verify_adam({.format = format, .gradient = DType::fp16, .isa = isa}, workers));
    }
  }
}

TEST(Sections, AreLargeAndOfOneSizeAndInTheArray) {
  constexpr std::int64_t Mi = std::int64_t{1} << 20;
  EXPECT_EQ(sections_of(64 * Mi).count, 16);
  EXPECT_EQ(sections_of(64 * Mi).parameters, 4 * Mi);
  EXPECT_EQ(sections_of(1 * Mi).count, 4);
  EXPECT_EQ(sections_of(37).count, 1);
  EXPECT_EQ(sections_of(37).parameters, 37);
  for (const std::int64_t parameters :
       {16'383l, 16'384l, 32'768l, 70'001l, 20 * Mi - 1, 20 * Mi, 100'000'007l}) {
    const Sections sections = sections_of(parameters);
    EXPECT_LE(sections.count * sections.parameters, parameters);
    EXPECT_GT(sections.count * sections.parameters, parameters - sections.count * 16'384 - 1);
    if (parameters >= 16 * Mi) {
      EXPECT_GT(sections.parameters, 4 * Mi - 16'384);
    }
    if (sections.count > 1) {
      EXPECT_EQ(sections.parameters % 16'384, 0);
    }
  }
}

TEST(Slices, AlternateOnPiecesThatAreFarApart) {
  constexpr std::int64_t kPieces = 16;
  std::vector<std::pair<char, std::int64_t>> calls;
  const Comparison result = compare([&](std::int64_t piece) { calls.emplace_back('A', piece); },
                                    [&](std::int64_t piece) { calls.emplace_back('B', piece); }, kPieces,
                                    {.seconds = 1e-9, .slices = 40});
  EXPECT_EQ(result.slices, 40);
  ASSERT_EQ(calls.size(), 2u * kPieces + 4 * 40);
  std::set<std::pair<char, std::int64_t>> warmed(calls.begin(), calls.begin() + 2 * kPieces);
  EXPECT_EQ(warmed.size(), 2u * kPieces);  // each on each piece, before the timing
  calls.erase(calls.begin(), calls.begin() + 2 * kPieces);

  std::map<std::int64_t, std::size_t> last;
  std::set<std::int64_t> updated;
  for (std::size_t i = 0; i < calls.size(); i += 4) {
    std::string order;
    for (std::size_t k = i; k < i + 4; ++k) order += calls[k].first;
    EXPECT_EQ(order, i % 8 == 0 ? "ABBB" : "BABB");  // a pair, then the control's
    for (std::size_t k = i; k < i + 4; k += 2) {
      EXPECT_EQ(std::abs(calls[k].second - calls[k + 1].second), kPieces / 2);
    }
    for (std::size_t k = i; k < i + 4; ++k) {
      const auto [piece, is_new] = std::pair(calls[k].second, last.count(calls[k].second) == 0);
      if (!is_new) {
        EXPECT_GE(k - last[piece], static_cast<std::size_t>(kPieces - 4)) << "too soon again";
      }
      last[piece] = k;
      if (calls[k].first == 'A') updated.insert(piece);
    }
  }
  EXPECT_EQ(updated.size(), static_cast<std::size_t>(kPieces));
  EXPECT_EQ(last.size(), static_cast<std::size_t>(kPieces));
}

TEST(Slices, RatioIsTheSubjectsSpeedAsAShare) {
  // Work that is counted in time: the subject takes much longer than the reference, whatever else runs here.
  const auto wait = [](double seconds) {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds) {
    }
  };
  const Comparison result = compare([&](std::int64_t) { wait(2e-3); }, [&](std::int64_t) { wait(2e-4); }, 1,
                                    {.seconds = 0.01, .slices = 24});
  EXPECT_LT(result.ratio.median, 0.5);
  EXPECT_GE(result.subject_seconds, 2e-3);
  EXPECT_GE(result.reference_seconds, 2e-4);
  EXPECT_GT(result.control.median, 0.5);
  EXPECT_EQ(result.against_rival.median, 0.0);
  EXPECT_THROW(compare([](std::int64_t) {}, [](std::int64_t) {}, 0, {}), std::logic_error);
}

TEST(Slices, TheRivalIsTimedInPairsWithTheSubjectInEitherOrder) {
  std::string calls;
  const auto note = [&](char who) { return [&calls, who](std::int64_t) { calls += who; }; };
  const Comparison result = compare(note('A'), note('B'), 2, {.seconds = 1e-9, .slices = 4}, {}, note('R'));
  EXPECT_EQ(calls, "ABRABR" + std::string("ABBBBABBARRA") + std::string("ABBBBABBARRA"));
  EXPECT_GT(result.against_rival.median, 0.0);
}

TEST(Slices, Quantiles) {
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2.0);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_EQ(quantile({5}, 0.75), 5.0);
  EXPECT_EQ(quantile({0, 10, 20, 30, 40}, 0.25), 10.0);
  EXPECT_EQ(quantile({1, 2}, 1.0), 2.0);
  EXPECT_THROW(quantile({}, 0.5), std::logic_error);
  const Ratio ratio = ratio_of({1, 2, 3, 4, 5});
  EXPECT_EQ(ratio.median, 3.0);
  EXPECT_DOUBLE_EQ(ratio.spread, 2.0 / 3.0);
}

}  // namespace
}  // namespace spillway::cli
