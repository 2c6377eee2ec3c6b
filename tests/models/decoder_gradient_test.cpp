// Gradients against central differences of the loss, in fp32.
#include "decoder_rig.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

namespace spillway::models {
namespace {

// The elements with the largest gradients, where an error shows best, and some others.
std::vector<std::size_t> chosen_elements(const std::vector<float>& gradient, int parameter) {
  std::vector<std::size_t> order(gradient.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto largest = order.begin() + 4;
  std::partial_sort(order.begin(), largest, order.end(), [&](std::size_t a, std::size_t b) {
    return std::abs(gradient[a]) > std::abs(gradient[b]);
  });
  std::vector<std::size_t> chosen(order.begin(), largest);
  for (std::uint32_t i = 0; i < 3; ++i) {
    chosen.push_back(hash32(5000 + static_cast<std::uint32_t>(parameter), i) % gradient.size());
  }
  return chosen;
}

void expect_gradients_of_the_loss(const RigOptions& options) {
  Rig rig(options);
  rig.load_reference_weights();
  const auto tokens = rig.tokens(kTokenStream), targets = rig.tokens(kTokenStream + 1);

  std::vector<std::vector<float>> gradients;
  rig.engine().begin_step({.groups = Rig::groups(0, 0), .micro_batches = 1});  // rate 0: the weights stay
  const double trained_loss = rig.decoder().train(tokens, targets);
  for (int p = 0; p < rig.parameters(); ++p) gradients.push_back(rig.gradient(p));
  rig.engine().step().wait();
  ASSERT_EQ(rig.decoder().loss(tokens, targets), trained_loss);

  // Rounding gives the mean loss an error of about 2e-7, so a difference over 2h one of 2e-5; the third
  // derivative adds about h^2. Every wrong sign or missing term is far beyond 2% of the largest gradients of a
  // parameter.
  constexpr double kStep = 1e-2;
  for (int p = 0; p < rig.parameters(); ++p) {
    const auto& gradient = gradients[static_cast<std::size_t>(p)];
    std::vector<float> weights = rig.weights(p);
    std::vector<std::size_t> elements = chosen_elements(gradient, p);
    if (rig.parameter(p).name == "wte.weight") {  // of the two uses, the lookup touches the rows of tokens only
      const auto hidden = static_cast<std::size_t>(options.decoder.hidden);
      for (std::size_t i = 0; i < 4; ++i) elements.push_back(static_cast<std::size_t>(tokens[i]) * hidden + i);
    }
    for (const std::size_t element : elements) {
      const float weight = weights[element];
      const auto loss_at = [&](float value) {
        weights[element] = value;
        rig.load(p, weights);
        return rig.decoder().loss(tokens, targets);
      };
      const float above = weight + static_cast<float>(kStep), below = weight - static_cast<float>(kStep);
      const double up = loss_at(above), down = loss_at(below);
      const double slope = (up - down) / (static_cast<double>(above) - static_cast<double>(below));
      const auto computed = static_cast<double>(gradient[element]);
      EXPECT_NEAR(computed, slope, 2e-4 + 0.02 * std::abs(slope)) << rig.parameter(p).name << " " << element;
      weights[element] = weight;
    }
    rig.load(p, weights);
    const float largest =
        std::abs(*std::ranges::max_element(gradient, {}, [](float x) { return std::abs(x); }));
    EXPECT_GT(largest, 4e-3f) << rig.parameter(p).name << ": too small to tell";
  }
}

TEST(DecoderGradient, IsTheSlopeOfTheLoss) {
  expect_gradients_of_the_loss({});
}

// An inner size below the hidden size takes the other side of every place in the workspace; a vocabulary larger
// than the workspace makes the head work in several chunks, the last one shorter.
TEST(DecoderGradient, IsTheSlopeOfTheLossInOtherShapes) {
  expect_gradients_of_the_loss(
      {.decoder = {.layers = 1, .heads = 3, .hidden = 24, .positions = 7, .vocabulary = 700, .inner = 16},
       .batch = {.sequences = 1, .length = 7},
       .threads = 2});
}

}  // namespace
}  // namespace spillway::models
