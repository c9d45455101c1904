// A controller as Horovod has one over Gloo: a store with the first version of the interface, given by reference; ranks
// that agree by bit vectors which tensors are ready; the operations on tensors; and, as in elastic training, ranks that
// go on without one that was lost. Ranks are processes.
#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "processes.h"

namespace {

using std::chrono::milliseconds;

// Stands for a client of a rendezvous server: it asks again and again, and has an error of Gloo's if there is no answer
// in time.
class PollingStore : public gloo::rendezvous::Store {
 public:
  PollingStore(std::string folder, std::string scope) : folder_(std::move(folder)), scope_(std::move(scope)) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const std::string path = pathOf(key), unfinished = path + ".new";
    {
      std::ofstream file(unfinished, std::ios::binary);
      file.write(data.data(), static_cast<std::streamsize>(data.size()));
    }
    std::filesystem::rename(unfinished, path);
  }

  std::vector<char> get(const std::string& key) override {
    std::ifstream file(pathOf(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  void wait(const std::vector<std::string>& keys) override {
    wait(keys, Store::kDefaultTimeout);
  }

  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    const auto begin = std::chrono::steady_clock::now();
    while (!std::all_of(keys.begin(), keys.end(), [this](const std::string& key) { return std::filesystem::exists(pathOf(key)); })) {
      const auto waited = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
      if (timeout != gloo::kNoTimeout && waited > timeout) {
        GLOO_THROW_IO_EXCEPTION(GLOO_ERROR_MSG("Wait timeout after ", timeout.count(), " ms for keys: ", ::gloo::MakeString(keys, std::string(","))));
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
  }

 private:
  std::string pathOf(const std::string& key) const {
    std::string name = scope_ + "-" + key;
    std::replace(name.begin(), name.end(), '/', '_');
    return folder_ + "/" + name;
  }
  const std::string folder_;
  const std::string scope_;
};

std::shared_ptr<gloo::Context> rendezvous(const std::string& folder, const std::string& scope, int rank, int size, milliseconds timeout) {
  gloo::transport::tcp::attr attr;
  attr.iface = "lo";
  attr.ai_family = AF_UNSPEC;
  auto device = gloo::transport::tcp::CreateDevice(attr);
  std::unique_ptr<gloo::rendezvous::Store> store(new PollingStore(folder, scope));
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->setTimeout(timeout);
  context->connectFullMesh(*store, device);
  return context;
}

using Function = void (*)(void*, const void*, const void*, size_t);

void bitAnd(void* c, const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; i++) {
    static_cast<long long*>(c)[i] = static_cast<const long long*>(a)[i] & static_cast<const long long*>(b)[i];
  }
}

class Controller {
 public:
  explicit Controller(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}

  void crossRankBitwiseAnd(std::vector<long long>& bits) {
    gloo::AllreduceOptions options(context_);
    options.setOutput(bits.data(), bits.size());
    Function function = &bitAnd;
    options.setReduceFunction(gloo::AllreduceOptions::Func(function));
    gloo::allreduce(options);
  }

  // The texts of all ranks, on rank 0.
  std::string recvReadyTensors(const std::string& own) {
    std::vector<int> lengths(static_cast<size_t>(context_->size));
    int length = static_cast<int>(own.size());
    gloo::AllgatherOptions counts(context_);
    counts.setInput(&length, 1);
    counts.setOutput(lengths.data(), lengths.size());
    gloo::allgather(counts);
    const std::vector<size_t> perRank(lengths.begin(), lengths.end());
    std::string all(std::accumulate(perRank.begin(), perRank.end(), size_t{0}), ' ');
    std::string copy = own;
    gloo::AllgathervOptions texts(context_);
    texts.setInput(reinterpret_cast<uint8_t*>(&copy[0]), copy.size());
    texts.setOutput(reinterpret_cast<uint8_t*>(&all[0]), perRank);
    gloo::allgatherv(texts);
    return all;
  }

  template <typename T>
  void broadcast(T* data, size_t count, int root) {
    gloo::BroadcastOptions options(context_);
    options.setRoot(root);
    if (context_->rank == root) {
      options.setInput(data, count);
    }
    options.setOutput(data, count);
    gloo::broadcast(options);
  }

  void barrier() {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

  template <typename T>
  void allreduce(T* data, int count) {
    gloo::AllreduceOptions options(context_);
    options.setOutput<T>(data, static_cast<size_t>(count));
    Function function = &::gloo::sum<T>;
    options.setReduceFunction(gloo::AllreduceOptions::Func(function));
    gloo::allreduce(options);
  }

  template <typename T>
  void reduceScatter(T* data, int count, const std::vector<int>& counts) {
    gloo::ReduceScatterHalvingDoubling<T> algorithm(context_, std::vector<T*>{data}, count, counts, gloo::ReductionFunction<T>::sum);
    algorithm.run();
  }

  std::shared_ptr<gloo::Context> context_;
};

// T(1) from rank 0, T(2) from rank 1, and so on.
template <typename T>
void sumsOf(Controller& controller, const char* name) {
  const int size = controller.context_->size, rank = controller.context_->rank;
  for (const int count : {1, 100, 70000}) {
    std::vector<T> data(static_cast<size_t>(count), T(rank + 1));
    controller.allreduce(data.data(), count);
    if (!(data.front() == T(size * (size + 1) / 2) && data.back() == data.front())) {
      throw std::runtime_error(std::string("the sum of ") + name + " is wrong");
    }
  }
}

void everything(const std::string& folder, int rank, int size) {
  Controller controller(rendezvous(folder, "global", rank, size, std::chrono::seconds(30)));
  std::vector<long long> bits(300, ~(1LL << rank));
  controller.crossRankBitwiseAnd(bits);
  CHECK_HERE(bits[0] == ~((1LL << size) - 1) && bits[299] == bits[0]);

  const std::string all = controller.recvReadyTensors(std::string(static_cast<size_t>(rank + 1), static_cast<char>('a' + rank)));
  CHECK_HERE(all == std::string("abbcccdddd").substr(0, static_cast<size_t>(size * (size + 1) / 2)));

  std::vector<uint8_t> answer(1000, rank == 0 ? 42 : 0);
  controller.broadcast(answer.data(), answer.size(), 0);
  CHECK_HERE(answer == std::vector<uint8_t>(1000, 42));
  std::unique_ptr<bool[]> flags(new bool[10]);
  std::fill(flags.get(), flags.get() + 10, rank == 1);
  controller.broadcast(flags.get(), 10, 1);
  CHECK_HERE(flags[9]);
  controller.barrier();

  sumsOf<uint8_t>(controller, "uint8");
  sumsOf<int8_t>(controller, "int8");
  sumsOf<uint16_t>(controller, "uint16");
  sumsOf<int16_t>(controller, "int16");
  sumsOf<int32_t>(controller, "int32");
  sumsOf<int64_t>(controller, "int64");
  sumsOf<long long>(controller, "long long");
  sumsOf<gloo::float16>(controller, "float16");
  sumsOf<float>(controller, "float32");
  sumsOf<double>(controller, "float64");
  // A sum of flags is their disjunction.
  std::fill(flags.get(), flags.get() + 10, rank == size - 1);
  controller.allreduce(flags.get(), 10);
  CHECK_HERE(flags[0] && flags[9]);

  // Each rank keeps its part of the sum, which begins the buffer; parts differ in length.
  std::vector<int> counts;
  for (int i = 0; i < size; i++) {
    counts.push_back(3 * i + 5);
  }
  const int total = std::accumulate(counts.begin(), counts.end(), 0);
  std::vector<float> data(static_cast<size_t>(total));
  std::iota(data.begin(), data.end(), 0.0f);
  controller.reduceScatter(data.data(), total, counts);
  const int before = std::accumulate(counts.begin(), counts.begin() + rank, 0);
  for (int i = 0; i < counts[static_cast<size_t>(rank)]; i++) {
    CHECK_HERE(data[static_cast<size_t>(i)] == static_cast<float>(size * (before + i)));
  }

  // Bytes of different lengths to all ranks.
  const size_t each = static_cast<size_t>(rank + 1) * 4;
  std::vector<int64_t> sendCounts, recvCounts;
  for (int i = 0; i < size; i++) {
    sendCounts.push_back((i + 1) * 4);
    recvCounts.push_back(static_cast<int64_t>(each));
  }
  std::vector<uint8_t> input(static_cast<size_t>(std::accumulate(sendCounts.begin(), sendCounts.end(), int64_t{0})), static_cast<uint8_t>(rank));
  std::vector<uint8_t> output(each * static_cast<size_t>(size));
  gloo::AlltoallvOptions options(controller.context_);
  options.setInput(input.data(), sendCounts);
  options.setOutput(output.data(), recvCounts);
  gloo::alltoallv(options);
  for (size_t i = 0; i < output.size(); i++) {
    CHECK_HERE(output[i] == i / each);
  }

  // Neighbours exchange, as in a reduction of their own.
  std::vector<float> mine(1000, static_cast<float>(rank)), theirs(1000, -1);
  auto sends = controller.context_->createUnboundBuffer(mine.data(), mine.size() * sizeof(float));
  auto receives = controller.context_->createUnboundBuffer(theirs.data(), theirs.size() * sizeof(float));
  const int peer = rank ^ 1;
  if (peer < size) {
    sends->send(peer, 77);
    receives->recv(peer, 77);
    CHECK_HERE(sends->waitSend() && receives->waitRecv());
    CHECK_HERE(theirs[999] == static_cast<float>(peer));
  }
  controller.barrier();
}

TEST(Horovod, EverythingWithTwoRanks) {
  TemporaryFolder folder;
  runProcesses(2, [&](int rank) { everything(folder.path, rank, 2); });
}

TEST(Horovod, EverythingWithFourRanks) {
  TemporaryFolder folder;
  runProcesses(4, [&](int rank) { everything(folder.path, rank, 4); });
}

// A rank is lost between two steps. Each other one sees an IoException, and they go on with a context of their own.
TEST(Horovod, RanksGoOnWithoutALostOne) {
  TemporaryFolder folder;
  constexpr int size = 4, lost = 1;
  runProcesses(
      size,
      [&](int rank) {
        int step = 0, new_rank = rank, new_size = size;
        bool failed = false;
        auto controller = std::make_unique<Controller>(rendezvous(folder.path, "round-0", rank, size, std::chrono::seconds(10)));
        while (step < 20) {
          std::vector<float> gradient(10000, 1);
          try {
            if (rank == lost && step == 7) {
              raise(SIGKILL);
            }
            controller->allreduce(gradient.data(), static_cast<int>(gradient.size()));
          } catch (const gloo::IoException&) {
            CHECK_HERE(!failed && step >= 6);
            failed = true;
            controller.reset();
            new_rank = rank < lost ? rank : rank - 1;
            new_size = size - 1;
            controller = std::make_unique<Controller>(rendezvous(folder.path, "round-1", new_rank, new_size, std::chrono::seconds(10)));
            // All go on from the same step.
            int latest = step;
            gloo::AllreduceOptions options(controller->context_);
            options.setOutput(&latest, 1);
            Function function = &::gloo::max<int>;
            options.setReduceFunction(gloo::AllreduceOptions::Func(function));
            gloo::allreduce(options);
            step = latest;
            continue;
          }
          CHECK_HERE(gradient[0] == static_cast<float>(new_size) && gradient[9999] == gradient[0]);
          step++;
        }
        CHECK_HERE(failed);
      },
      {lost});
}

// The error of the store reaches the caller as the store threw it.
TEST(Horovod, ARankThatDoesNotComeIsTheStoresError) {
  TemporaryFolder folder;
  try {
    rendezvous(folder.path, "alone", 0, 2, milliseconds(300));
    FAIL() << "connected alone";
  } catch (const gloo::IoException& failure) {
    EXPECT_NE(std::string(failure.what()).find("Wait timeout after"), std::string::npos) << failure.what();
  }
}

} // namespace
