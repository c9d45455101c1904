// An allreduce by these headers and one by torch's own backend, in one executable: beside_torch FOLDER torch headers,
// or the other order. gloo-rs run starts it.
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

extern "C" bool allreduce_by_headers(int rank, int size, const char* folder);

namespace {

bool allreduceByTorch(int rank, int size, const std::string& folder) {
  auto store = c10::make_intrusive<c10d::FileStore>(folder + "/torch", size);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  options->timeout = std::chrono::seconds(30);
  auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  std::vector<at::Tensor> tensors{at::full({1000}, rank + 1.0)};
  group->allreduce(tensors)->wait();
  return tensors[0].eq(size * (size + 1) / 2).all().item<bool>();
}

} // namespace

int main(int count, char** arguments) {
  const int rank = std::atoi(std::getenv("RANK"));
  const int size = std::atoi(std::getenv("WORLD_SIZE"));
  const std::string folder = arguments[1];
  try {
    for (int i = 2; i < count; i++) {
      const std::string which = arguments[i];
      const bool right = which == "torch" ? allreduceByTorch(rank, size, folder) : allreduce_by_headers(rank, size, folder.c_str());
      if (!right) {
        std::fprintf(stderr, "wrong sum: %s\n", which.c_str());
        return 1;
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return count > 2 ? 0 : 2;
}
