// Tensor and data parallelism on a grid of ranks: two ranks share each copy of the weights, and the copies see
// different samples. Two contexts split from that of the job are the rows and columns of the grid.
//
//   gloo-rs run -n 4 -- split
//
//              tensor 0   tensor 1
//     data 0   rank 0     rank 1       `tensor` is a row: its ranks have half of the weights each, and equal samples
//     data 1   rank 2     rank 3       `data` is a column: its ranks have the same half of the weights
//
// Any even number of ranks will do. The program compares weights and outputs with those that it computes alone.
#include <gloo_rs.hpp>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <vector>

namespace {

constexpr size_t kInputs = 8, kHalf = kInputs / 2;
constexpr int kSteps = 3;
constexpr double kLearningRate = 0.25;

// Element `i` of the sample that copy `copy` sees in a step. All numbers here are such that doubles hold the results
// exactly.
double sample(size_t copy, int step, size_t i) { return static_cast<double>((copy * 5 + static_cast<size_t>(step) * 3 + i) % 4); }

// The linear model y = w x, with the target 1: the gradient of (y - 1)^2 / 2 is (y - 1) x.
std::vector<double> alone(size_t copies) {
  std::vector<double> weights(kInputs, 0.5);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> gradient(kInputs);
    for (size_t copy = 0; copy < copies; ++copy) {
      double output = 0;
      for (size_t i = 0; i < kInputs; ++i) output += weights[i] * sample(copy, step, i);
      for (size_t i = 0; i < kInputs; ++i) gradient[i] += (output - 1) * sample(copy, step, i);
    }
    for (size_t i = 0; i < kInputs; ++i) weights[i] -= kLearningRate * gradient[i];
  }
  return weights;
}

int run() {
  auto [store, rank, size] = gloo_rs::launch_from_env();
  if (size % 2 != 0) throw std::runtime_error("the grid needs an even number of ranks");
  auto device = gloo_rs::Device::create();
  auto world = gloo_rs::Context::create(device, rank, size);
  world.connect(store);

  // Ranks with the same color form a context, in the order of their key.
  const int32_t row = rank / 2, column = rank % 2;
  gloo_rs::Context tensor = world.split(row, column);
  gloo_rs::Context data = world.split(column, row);
  if (tensor.size() != 2 || tensor.rank() != column || data.size() != size / 2 || data.rank() != row) return 1;

  const auto copy = static_cast<size_t>(row);
  const size_t first = static_cast<size_t>(column) * kHalf;  // of this rank's weights
  std::vector<double> weights(kHalf, 0.5), gradient(kHalf);
  for (int step = 0; step < kSteps; ++step) {
    double output = 0;
    for (size_t i = 0; i < kHalf; ++i) output += weights[i] * sample(copy, step, first + i);
    tensor.allreduce(&output, 1);  // the halves of the sum
    for (size_t i = 0; i < kHalf; ++i) gradient[i] = (output - 1) * sample(copy, step, first + i);
    data.allreduce(gradient.data(), kHalf);  // the copies' gradients
    for (size_t i = 0; i < kHalf; ++i) weights[i] -= kLearningRate * gradient[i];
  }

  std::vector<double> whole(kInputs);
  tensor.allgather(weights.data(), whole.data(), kHalf);
  const std::vector<double> expected = alone(static_cast<size_t>(size) / 2);
  for (size_t i = 0; i < kInputs; ++i) {
    if (whole[i] != expected[i]) {
      std::fprintf(stderr, "rank %d: weight %zu is %g, not %g\n", rank, i, whole[i], expected[i]);
      return 1;
    }
  }
  std::printf("rank %d of %d: rank %d of its row, %d of its column\n", rank, size, tensor.rank(), data.rank());
  return 0;
}

}  // namespace

int main() try {
  return run();
} catch (const std::exception &error) {
  std::fprintf(stderr, "split: %s\n", error.what());
  return 1;
}
