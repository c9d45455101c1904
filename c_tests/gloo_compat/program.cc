// A program for Gloo, as its users write one: two threads, as ranks, add their numbers up.
#include <gloo/allreduce.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

#include <iostream>
#include <memory>
#include <thread>
#include <vector>

#ifdef EXPECTED_GLOO_VERSION
static_assert(GLOO_VERSION == EXPECTED_GLOO_VERSION, "find_package(Gloo) and gloo/config.h state different versions");
#endif

namespace {

constexpr int kSize = 2;

std::vector<float> sumOnRank(int rank, std::shared_ptr<gloo::rendezvous::Store> store) {
  gloo::transport::tcp::attr attr;
  attr.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attr);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, kSize);
  context->connectFullMesh(*store, device);

  std::vector<float> data(1000, static_cast<float>(rank + 1));
  gloo::AllreduceOptions options(context);
  options.setOutput(data.data(), data.size());
  options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
  gloo::allreduce(options);
  return data;
}

} // namespace

int main() {
  auto store = std::make_shared<gloo::rendezvous::HashStore>();
  std::vector<std::vector<float>> results(kSize);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; rank++) {
    ranks.emplace_back([&, rank] { results[rank] = sumOnRank(rank, store); });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  for (int rank = 0; rank < kSize; rank++) {
    for (float value : results[rank]) {
      if (value != 3) {
        std::cerr << "rank " << rank << " has " << value << " instead of 3" << std::endl;
        return 1;
      }
    }
  }
  std::cout << "all ranks have the sum" << std::endl;
  return 0;
}
