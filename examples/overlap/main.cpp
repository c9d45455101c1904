// Sums gradients while the next ones are computed, as data-parallel training does. The gradients lie in buckets, each
// with a persistent request of its own: it is made once, and started as soon as the bucket is full. Before the weights
// change, the step waits for all.
//
//   gloo-rs run -n 4 -- overlap
//
// The requests have tags of their own, since several calls of one collective run at the same time. The device's thread
// moves the data meanwhile. The program checks the weights at the end.
#include <gloo_rs.hpp>

#include <cstdio>
#include <exception>
#include <vector>

namespace {

constexpr size_t kBuckets = 8;
constexpr size_t kBucket = 1 << 14;  // floats
constexpr int kSteps = 20;
constexpr float kLearningRate = 0.5f;

// What stands for the backward pass: the gradients of a bucket for this rank's share of the batch.
void backward(std::vector<float> &gradients, int32_t rank, size_t bucket, int step) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    gradients[i] = static_cast<float>(rank) + static_cast<float>(bucket) + static_cast<float>(step) + static_cast<float>(i % 16);
  }
}

int run() {
  auto [store, rank, size] = gloo_rs::launch_from_env();
  auto device = gloo_rs::Device::create();
  auto context = gloo_rs::Context::create(device, rank, size);
  context.connect(store);

  // The buffers are declared before the requests, which are destroyed first.
  std::vector<std::vector<float>> gradients(kBuckets, std::vector<float>(kBucket)), weights = gradients;
  std::vector<gloo_rs::Request> requests;
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    gloo_rs::CollectiveOptions options(gradients[bucket].data(), kBucket);
    options.op = GLOO_RS_AVERAGE;
    options.tag = bucket;
    requests.push_back(gloo_rs::Request::create(context, GLOO_RS_ALLREDUCE, options));
  }

  for (int step = 0; step < kSteps; ++step) {
    // The last layer's gradients are there first.
    for (size_t bucket = kBuckets; bucket-- > 0;) {
      backward(gradients[bucket], rank, bucket, step);
      requests[bucket].start();
    }
    for (size_t bucket = kBuckets; bucket-- > 0;) {
      requests[bucket].wait();
      for (size_t i = 0; i < kBucket; ++i) weights[bucket][i] -= kLearningRate * gradients[bucket][i];
    }
  }

  // All values are multiples of a quarter and below 2^12, so that floats hold them exactly.
  const float mean_rank = static_cast<float>(size - 1) / 2;
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    for (size_t i = 0; i < kBucket; ++i) {
      const float each = mean_rank + static_cast<float>(bucket) + static_cast<float>(i % 16);
      const float expected = -kLearningRate * (kSteps * each + kSteps * (kSteps - 1) / 2);
      if (weights[bucket][i] != expected) {
        std::fprintf(stderr, "rank %d: weight %zu of bucket %zu is %g, not %g\n", rank, i, bucket, weights[bucket][i], expected);
        return 1;
      }
    }
  }
  std::printf("rank %d of %d: %d steps with %zu buckets\n", rank, size, kSteps, kBuckets);
  return 0;
}

}  // namespace

int main() try {
  return run();
} catch (const std::exception &error) {
  std::fprintf(stderr, "overlap: %s\n", error.what());
  return 1;
}
