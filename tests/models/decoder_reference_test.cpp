// The decoder against the same network in PyTorch (make_decoder_reference.py).
#include "decoder_rig.h"

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

namespace spillway::models {
namespace {

constexpr int kSteps = 20;

// Each line of the file: a key of one or two words, then numbers.
std::map<std::string, std::vector<double>> read_reference() {
  std::ifstream file(SPILLWAY_DECODER_REFERENCE);
  std::map<std::string, std::vector<double>> reference;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string key, name;
    words >> key;
    if (key == "gradient" || key == "weights") {
      words >> name;
      key += " " + name;
    }
    for (double value; words >> value;) reference[key].push_back(value);
  }
  return reference;
}

// Both sides compute in fp32 and differ in the order of sums only: 1e-5 of the largest gradient of the
// parameter (and 5e-7 for those that are zero but for rounding, such as the bias of the keys).
void expect_near_in_largest(const std::vector<float>& values, const std::vector<double>& expected,
                            const std::string& name) {
  ASSERT_EQ(values.size(), expected.size()) << name;
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    difference = std::max(difference, std::abs(static_cast<double>(values[i]) - expected[i]));
  }
  EXPECT_LE(difference, 1e-5 * largest + 5e-7) << name << ", largest " << largest;
}

void expect_agreement(const RigOptions& options) {
  const auto reference = read_reference();
  ASSERT_TRUE(reference.contains("losses")) << SPILLWAY_DECODER_REFERENCE;
  Rig rig(options);
  rig.load_reference_weights();
  std::vector<double> losses, norms;
  for (int step = 0; step < kSteps; ++step) {
    const StepResult result = rig.step(step, losses, [&] {
      if (step != 0) return;
      for (int p = 0; p < rig.parameters(); ++p) {
        const std::string& name = rig.parameter(p).name;
        ASSERT_TRUE(reference.contains("gradient " + name)) << name;
        expect_near_in_largest(rig.gradient(p), reference.at("gradient " + name), name);
      }
    });
    EXPECT_FALSE(result.skipped);
    norms.push_back(result.gradient_norm);
  }
  ASSERT_EQ(losses.size(), reference.at("losses").size());
  // A mean loss near 4 has steps of 2.4e-7 in fp32; the weights of both sides differ by about 1e-6 at the end.
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], reference.at("losses")[i], 2e-6) << "micro-batch " << i;
  }
  ASSERT_EQ(norms.size(), reference.at("norms").size());
  for (std::size_t i = 0; i < norms.size(); ++i) {
    EXPECT_NEAR(norms[i], reference.at("norms")[i], 1e-5 * norms[i]) << "step " << i;
  }
  // Weights move by up to 0.08 in 20 steps; a decay of the wrong group would shift those of norms by 0.8%.
  for (int p = 0; p < rig.parameters(); ++p) {
    const auto& expected = reference.at("weights " + rig.parameter(p).name);
    const std::vector<float> weights = rig.weights(p);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(weights[i]), expected[i], 1e-5) << rig.parameter(p).name << " " << i;
    }
  }
}

TEST(DecoderReference, GradientsAndTwentyStepsAgreeWithPyTorch) {
  for (const auto activations : {ActivationPolicy::recompute, ActivationPolicy::keep, ActivationPolicy::host}) {
    for (const auto order : {AccumulationOrder::micro_batch, AccumulationOrder::layer})
      expect_agreement({.activations = activations, .order = order});
  }
}

// bf16 weights and activations: 8 bits of mantissa. Per-row losses near 4 come from logits near 1 with errors
// of about 0.01; the mean of 24 rows stays within 0.03 of fp32 over the 20 steps, while training moves it by
// 0.3.
TEST(DecoderReference, BFloat16StaysNearFp32) {
  const auto reference = read_reference();
  Rig rig({.precision = DType::bf16});
  rig.load_reference_weights();
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) rig.step(step, losses);
  const auto& expected = reference.at("losses");
  ASSERT_EQ(losses.size(), expected.size());
  double sum = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 0.01) << "micro-batch " << i;
    sum += losses[i] - expected[i];
  }
  EXPECT_NEAR(sum / static_cast<double>(losses.size()), 0.0, 0.001);  // no bias
}

}  // namespace
}  // namespace spillway::models
