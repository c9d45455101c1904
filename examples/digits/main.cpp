// Trains a small network to classify handwritten digits, data-parallel on all processes of the job:
// each rank computes the gradient for its share of every batch, the shares are summed over all ranks,
// and all ranks take the same step. The result does not depend on the number of ranks, except for rounding.
//
//   RANK=0 WORLD_SIZE=1 digits digits.csv     one process
//   gloo-rs run -n 4 -- digits digits.csv     four processes on this host
//
// On several hosts start it by a launcher, or once for each rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
// set. An optional argument names the network interface on which to listen: digits digits.csv eth0

#include <algorithm>
#include <cstdio>
#include <exception>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "data.hpp"
#include "group.hpp"
#include "model.hpp"

namespace {

constexpr int kEpochs = 40;
constexpr size_t kBatch = 64;  // digits in one step, summed over all ranks
constexpr float kLearningRate = 1.0f;
constexpr double kWantedAccuracy = 0.95;

// The share of this rank in `count` items: [first, second).
std::pair<size_t, size_t> share_of(const Group &group, size_t count) {
  const size_t rank = static_cast<size_t>(group.rank()), size = static_cast<size_t>(group.size());
  return {count * rank / size, count * (rank + 1) / size};
}

struct Score {
  double loss;      // mean
  double accuracy;  // 0 to 1
};

// Evaluates the model on `digits`. Each rank evaluates its share; all get the same result.
Score evaluate(Group &group, const Model &model, const std::vector<Digit> &digits) {
  std::vector<double> totals{0.0, 0.0};
  const auto [begin, end] = share_of(group, digits.size());
  for (size_t i = begin; i < end; ++i) {
    const Model::Outcome outcome = model.evaluate(digits[i]);
    totals[0] += outcome.loss;
    totals[1] += outcome.correct;
  }
  group.sum(totals);
  const double count = static_cast<double>(digits.size());
  return {totals[0] / count, totals[1] / count};
}

// Trains one epoch: all digits once, in the given order.
void train(Group &group, Model &model, const std::vector<Digit> &digits, const std::vector<size_t> &order) {
  std::vector<float> gradient(model.weights.size());
  for (size_t start = 0; start < order.size(); start += kBatch) {
    const size_t batch = std::min(kBatch, order.size() - start);

    std::fill(gradient.begin(), gradient.end(), 0.0f);
    const auto [begin, end] = share_of(group, batch);
    for (size_t i = begin; i < end; ++i) model.add_gradient(digits[order[start + i]], gradient);

    group.sum(gradient);

    const float step = kLearningRate / static_cast<float>(batch);
    for (size_t i = 0; i < gradient.size(); ++i) model.weights[i] -= step * gradient[i];
  }
}

int run(const std::string &path, const char *interface) {
  const Digits digits = read_digits(path);
  Group group(interface);
  const bool is_rank_0 = group.rank() == 0;

  Model model;
  if (is_rank_0) model.initialize(1);
  group.broadcast(model.weights, 0);

  if (is_rank_0) {
    std::printf("%d rank(s), %zu weights, %zu digits to learn from, %zu held out, %zu in a batch\n", group.size(),
                model.weights.size(), digits.train.size(), digits.held_out.size(), kBatch);
  }

  // All ranks shuffle in the same way, so that their shares are disjoint.
  std::vector<size_t> order(digits.train.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(2);

  Score learned{}, held_out{};
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
    train(group, model, digits.train, order);
    learned = evaluate(group, model, digits.train);
    held_out = evaluate(group, model, digits.held_out);
    if (is_rank_0) {
      std::printf("epoch %2d  loss %.6f  held-out accuracy %.1f %%\n", epoch, learned.loss, 100 * held_out.accuracy);
      std::fflush(stdout);
    }
  }

  if (is_rank_0) std::printf("final loss %.9f\n", learned.loss);
  if (held_out.accuracy <= kWantedAccuracy) {
    std::fprintf(stderr, "rank %d: held-out accuracy %.1f %% is not above %.0f %%\n", group.rank(),
                 100 * held_out.accuracy, 100 * kWantedAccuracy);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: digits FILE.csv [INTERFACE]\n");
    return 2;
  }
  try {
    return run(argv[1], argc == 3 ? argv[2] : nullptr);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "digits: %s\n", error.what());
    return 1;
  }
}
