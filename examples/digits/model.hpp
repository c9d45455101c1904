// A network of one hidden layer: 64 pixels, 32 rectified units, 10 classes by softmax.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "data.hpp"

class Model {
 public:
  // All weights in one buffer, so that one collective call handles them or their gradient.
  std::vector<float> weights = std::vector<float>(kWeights, 0.0f);

  void initialize(unsigned seed) {
    std::mt19937 random(seed);
    const auto fill = [&](size_t begin, size_t end, size_t inputs) {
      std::normal_distribution<float> normal(0.0f, std::sqrt(2.0f / static_cast<float>(inputs)));
      for (size_t i = begin; i < end; ++i) weights[i] = normal(random);
    };
    fill(kHiddenWeights, kHiddenBias, kPixels);
    fill(kClassWeights, kClassBias, kHidden);
  }

  struct Outcome {
    double loss;
    bool correct;
  };

  // Evaluates the model on `digit`: cross-entropy in nats, and whether the most likely class is right.
  Outcome evaluate(const Digit &digit) const { return outcome(forward(digit), digit); }

  // Adds the gradient of the loss on `digit` to `gradient`, laid out as `weights`.
  void add_gradient(const Digit &digit, std::vector<float> &gradient) const {
    const Activations at = forward(digit);
    std::array<float, kHidden> hidden_error{};
    for (size_t c = 0; c < kClasses; ++c) {
      const float error = at.probability[c] - (c == digit.label ? 1.0f : 0.0f);
      gradient[kClassBias + c] += error;
      for (size_t h = 0; h < kHidden; ++h) {
        gradient[kClassWeights + c * kHidden + h] += error * at.hidden[h];
        hidden_error[h] += error * weights[kClassWeights + c * kHidden + h];
      }
    }
    for (size_t h = 0; h < kHidden; ++h) {
      if (at.hidden[h] <= 0) continue;
      gradient[kHiddenBias + h] += hidden_error[h];
      for (size_t p = 0; p < kPixels; ++p) {
        gradient[kHiddenWeights + h * kPixels + p] += hidden_error[h] * digit.pixels[p];
      }
    }
  }

 private:
  static constexpr size_t kHidden = 32;
  // Where each part of `weights` begins.
  static constexpr size_t kHiddenWeights = 0;
  static constexpr size_t kHiddenBias = kHiddenWeights + kHidden * kPixels;
  static constexpr size_t kClassWeights = kHiddenBias + kHidden;
  static constexpr size_t kClassBias = kClassWeights + kClasses * kHidden;
  static constexpr size_t kWeights = kClassBias + kClasses;

  struct Activations {
    std::array<float, kHidden> hidden;
    std::array<float, kClasses> probability;
  };

  Activations forward(const Digit &digit) const {
    Activations at;
    for (size_t h = 0; h < kHidden; ++h) {
      float sum = weights[kHiddenBias + h];
      for (size_t p = 0; p < kPixels; ++p) sum += weights[kHiddenWeights + h * kPixels + p] * digit.pixels[p];
      at.hidden[h] = std::max(sum, 0.0f);
    }
    for (size_t c = 0; c < kClasses; ++c) {
      float sum = weights[kClassBias + c];
      for (size_t h = 0; h < kHidden; ++h) sum += weights[kClassWeights + c * kHidden + h] * at.hidden[h];
      at.probability[c] = sum;
    }
    // Softmax. The largest value is subtracted first: the exponential of a large number overflows.
    const float largest = *std::max_element(at.probability.begin(), at.probability.end());
    float total = 0;
    for (float &p : at.probability) total += p = std::exp(p - largest);
    for (float &p : at.probability) p /= total;
    return at;
  }

  static Outcome outcome(const Activations &at, const Digit &digit) {
    const auto likeliest = std::max_element(at.probability.begin(), at.probability.end());
    return {-std::log(std::max(static_cast<double>(at.probability[digit.label]), 1e-30)),
            static_cast<size_t>(likeliest - at.probability.begin()) == digit.label};
  }
};
