// The update of the fp32 state format beside its floor: the same streams (bf16 gradient read; high, low, m and
// v read and written, 26 bytes a parameter) moved with one trivial operation each.
//   build/release/benchmarks/update_benchmark --benchmark_repetitions=20
//   --benchmark_enable_random_interleaving=true
// Random interleaving matters: on a shared machine memory bandwidth changes from second to second, and only a
// ratio within one run means anything.
#include "../core/parallel.h"
#include "../core/update.h"
#include "../cpu_adam/isa.h"
#include "../cpu_adam/update.h"

#include <cstdint>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

namespace spillway::cpu_adam {
namespace {

constexpr std::int64_t kParameters = 1 << 24;
constexpr std::int64_t kBytes = 26;

struct State {
  std::vector<BFloat16> high, gradient;
  std::vector<std::int16_t> low;
  std::vector<float> m, v;

  State() : high(kParameters), gradient(kParameters), low(kParameters), m(kParameters), v(kParameters) {
    for (std::size_t i = 0; i < high.size(); ++i) {
      high[i] = to_bf16(0.01f * static_cast<float>(i % 101) - 0.5f);
      gradient[i] = to_bf16(0.001f * static_cast<float>(i % 37) - 0.018f);
    }
  }
  SplitPlanes planes() { return {high.data(), low.data(), m.data(), v.data()}; }
};

State& state() {
  static State shared;
  return shared;
}

void report(benchmark::State& run) {
  const auto parameters = static_cast<double>(run.iterations() * kParameters);
  run.counters["parameters/s"] = benchmark::Counter(parameters, benchmark::Counter::kIsRate);
  run.counters["bytes/s"] =
      benchmark::Counter(parameters * kBytes, benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

void update_planes(benchmark::State& run, Isa isa) {
  Workers workers(static_cast<int>(run.range(0)));
  const UpdateSegment all{0, kParameters, adam_coefficients({.learning_rate = 1e-4}, 10, 1.0)};
  for (auto _ : run) {
    if (update(isa, workers, state().planes(), {state().gradient.data(), DType::bf16}, {&all, 1})) {
      run.SkipWithError("a weight is not finite");
    }
  }
  report(run);
}

void move_streams(benchmark::State& run) {
  Workers workers(static_cast<int>(run.range(0)));
  State& s = state();
  for (auto _ : run) {
    workers.for_blocks(kParameters / kUpdateBlock, [&](std::int64_t block, int) {
      for (std::int64_t k = 0; k < kUpdateBlock; k += 1024) {  // all streams advance together, as in the update
        const auto begin = static_cast<std::size_t>(block * kUpdateBlock + k);
        for (std::size_t i = begin; i < begin + 1024; ++i) s.m[i] += 1.0f;
        for (std::size_t i = begin; i < begin + 1024; ++i) s.v[i] += 1.0f;
        for (std::size_t i = begin; i < begin + 1024; ++i) {
          s.high[i].bits = static_cast<std::uint16_t>(s.high[i].bits ^ (s.gradient[i].bits & 1u));
        }
        for (std::size_t i = begin; i < begin + 1024; ++i) s.low[i] = static_cast<std::int16_t>(s.low[i] ^ 1);
      }
    });
    benchmark::ClobberMemory();
  }
  report(run);
}

const bool registered = [] {
  for (const Isa isa : supported_isas()) {
    if (isa == Isa::scalar) continue;  // the reference is for reading, not for speed
    benchmark::RegisterBenchmark(("update/" + std::string(name_of(isa))).c_str(), update_planes, isa)
        ->Arg(1)
        ->Arg(2)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark("floor", move_streams)
      ->Arg(1)
      ->Arg(2)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace spillway::cpu_adam
