// Trains a small model of one's own through the engine: a network of two layers learns a function of two
// numbers. Its parameters and the optimizer's state lie on the drive and come to the device only while a layer
// needs them.
//   train_small_model [DIRECTORY]    where the swap files (which have no name) are made; without one, in host
//   memory
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <spillway/core/communicator.h>
#include <spillway/core/config.h>
#include <spillway/core/error.h>
#include <spillway/core/host_device.h>
#include <spillway/core/random.h>
#include <spillway/offload/engine.h>

namespace {

using spillway::BFloat16;
using spillway::to_float;

constexpr std::int64_t kPoints = 512, kHidden = 64;

// Units are gathered and released together. Parameters are numbered through all units, in this order.
enum Unit { kHiddenUnit, kOutputUnit };
enum Parameter { kHiddenWeight, kHiddenBias, kOutputWeight, kOutputBias };

/// What the model keeps on the device besides parameters and gradients.
struct Points {
  float x[kPoints][2], target[kPoints], hidden[kPoints][kHidden], error[kPoints];
};

spillway::Layout layout() {
  spillway::LayoutOptions options;
  options.model_memory = {{"points", sizeof(Points)}};  // so that it is part of the plan
  return spillway::Layout({{"hidden", {{"hidden.weight", {kHidden, 2}}, {"hidden.bias", {kHidden}}}},
                           {"output", {{"output.weight", {kHidden}}, {"output.bias", {1}}}}},
                          options);
}

class SmallModel {
 public:
  SmallModel(spillway::HostDevice& device, spillway::Engine& engine)
      : compute_(device.stream(spillway::Lane::compute)),
        engine_(engine),
        memory_(device.allocate("points", sizeof(Points))),
        points_(memory_.as<Points>()) {
    // The engine holds fp32 master weights; load() fills them piece by piece, wherever they live.
    for (const Parameter p : {kHiddenWeight, kHiddenBias, kOutputWeight, kOutputBias}) {
      engine_.load(p, [p](std::int64_t first, std::span<float> values) {
        const spillway::RandomStream random{.seed = 1, .stream = static_cast<std::uint32_t>(p)};
        random.fill_normal(static_cast<std::uint64_t>(first), values, p <= kHiddenBias ? 1.0 : 0.1);
      });
    }
    const spillway::RandomStream random{.seed = 2};
    for (std::uint64_t n = 0; n < kPoints; ++n) {
      const double a = 2 * random.uniform(2 * n) - 1, b = 2 * random.uniform(2 * n + 1) - 1;
      host_.x[n][0] = static_cast<float>(a);
      host_.x[n][1] = static_cast<float>(b);
      host_.target[n] = static_cast<float>(std::sin(3 * a) * b);
    }
    // Device memory is written by the device's streams; `host_` must live until the copy has been done.
    compute_.copy(points_, &host_, sizeof(Points), "upload");
  }

  ~SmallModel() {
    try {
      compute_.record()
          .wait();   // where an error ends the training, work that names this memory may still be waiting
    } catch (...) {  // nothing can be waited for, and the error is on its way already
    }
  }
  SmallModel(const SmallModel&) = delete;
  SmallModel& operator=(const SmallModel&) = delete;

  /// Forward and backward; returns the loss. Work is given to the compute stream, which runs it in order: tiles
  /// of one launch are spread over the device's threads, and follow from the shape alone, so that the result
  /// does not depend on how many there are.
  double train() {
    Points* p = points_;
    {
      const spillway::UnitView unit = engine_.gather(kHiddenUnit);  // on the device until `unit` dies
      const auto* weight = static_cast<const BFloat16*>(unit.parameter(kHiddenWeight));
      const auto* bias = static_cast<const BFloat16*>(unit.parameter(kHiddenBias));
      compute_.launch("hidden", kPoints, [=](std::int64_t n, int) {
        for (std::int64_t j = 0; j < kHidden; ++j)
          p->hidden[n][j] = std::tanh(to_float(weight[2 * j]) * p->x[n][0] +
                                      to_float(weight[2 * j + 1]) * p->x[n][1] + to_float(bias[j]));
      });
    }
    {
      const spillway::UnitView unit = engine_.gather(kOutputUnit);
      const spillway::UnitGradient gradient = engine_.gradient(kOutputUnit);  // fp32 and zero: add into it
      const auto* weight = static_cast<const BFloat16*>(unit.parameter(kOutputWeight));
      const auto* bias = static_cast<const BFloat16*>(unit.parameter(kOutputBias));
      compute_.launch("output", kPoints, [=](std::int64_t n, int) {
        float y = to_float(bias[0]);
        for (std::int64_t j = 0; j < kHidden; ++j) y += to_float(weight[j]) * p->hidden[n][j];
        p->error[n] = y - p->target[n];
      });
      compute_.copy(host_.error, p->error, sizeof(host_.error), "errors");
      float* weight_gradient = gradient.parameter(kOutputWeight);
      float* bias_gradient = gradient.parameter(kOutputBias);
      compute_.launch("output backward", kHidden, [=](std::int64_t j, int) {
        for (std::int64_t n = 0; n < kPoints; ++n) {
          const float slope = 2 * p->error[n] / kPoints;  // of the mean square
          weight_gradient[j] += slope * p->hidden[n][j];
          if (j == 0) bias_gradient[0] += slope;
        }
      });
      // From here on `hidden` holds the gradient before tanh.
      compute_.launch("tanh backward", kPoints, [=](std::int64_t n, int) {
        for (std::int64_t j = 0; j < kHidden; ++j) {
          float& h = p->hidden[n][j];
          h = 2 * p->error[n] / kPoints * to_float(weight[j]) * (1 - h * h);
        }
      });
      engine_.reduce(kOutputUnit);  // complete: the engine takes it to where the optimizer finds it
    }
    const spillway::UnitGradient gradient = engine_.gradient(kHiddenUnit);
    float* weight_gradient = gradient.parameter(kHiddenWeight);
    float* bias_gradient = gradient.parameter(kHiddenBias);
    compute_.launch("hidden backward", kHidden, [=](std::int64_t j, int) {
      for (std::int64_t n = 0; n < kPoints; ++n) {
        for (int k = 0; k < 2; ++k) weight_gradient[2 * j + k] += p->hidden[n][j] * p->x[n][k];
        bias_gradient[j] += p->hidden[n][j];
      }
    });
    engine_.reduce(kHiddenUnit);

    compute_.synchronize();
    double loss = 0;
    for (const float error : host_.error) loss += static_cast<double>(error) * error / kPoints;
    return loss;
  }

 private:
  spillway::HostStream& compute_;
  spillway::Engine& engine_;
  spillway::Memory memory_;
  Points* points_;  ///< on the device
  Points host_ = {};
};

int run(const std::string& directory) {
  spillway::Config config;
  config.parameter_tier = config.optimizer_tier =
      directory.empty() ? spillway::Tier::host : spillway::Tier::nvme;
  config.parameter_nvme_paths = config.optimizer_nvme_paths = {directory};

  // These outlive the engine. The device has a limit, as a GPU has.
  spillway::HostDevice device({.memory = 8 << 20, .threads = 2});
  spillway::SingleRankCommunicator communicator;
  spillway::Engine engine(config, layout(), device, communicator);  // refuses here what will not fit
  SmallModel model(device, engine);

  double first = 0, loss = 0;
  for (int step = 0; step <= 300; ++step) {
    engine.begin_step({.groups = {{.learning_rate = 0.01}}});
    loss = model.train();
    const spillway::StepResult result = engine.step().wait();  // norm, clipping, Adam
    if (step == 0) first = loss;
    if (step % 50 == 0)
      std::printf("step %3d  loss %.5f  gradient norm %.4f\n", step, loss, result.gradient_norm);
  }
  std::printf("device memory at most %lld KiB, read from the drive %lld KiB, written %lld KiB\n",
              static_cast<long long>(device.budget().peak() >> 10),
              static_cast<long long>(engine.counters().nvme_read_bytes >> 10),
              static_cast<long long>(engine.counters().nvme_written_bytes >> 10));
  if (!(loss < 0.1 * first)) {
    std::fprintf(stderr, "error: the loss fell from %g to %g only\n", first, loss);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "");
  } catch (
      const spillway::Error& error) {  // the user's or the machine's doing; a std::logic_error is a bug of ours
    std::fprintf(stderr, "error: %s\n", error.what());
    if (!error.detail().hint.empty()) std::fprintf(stderr, "hint: %s\n", error.detail().hint.c_str());
    return spillway::exit_code(error.kind());
  }
}
