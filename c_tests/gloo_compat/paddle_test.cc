// Contexts that find their ranks by themselves, as Paddle's and others' do: they derive from a context of Gloo,
// exchange the bytes of the pairs' addresses by a way of their own, connect from several threads, and put device and
// transport context in place. Ranks are processes.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "processes.h"

namespace {

using gloo::rendezvous::Store;

std::shared_ptr<gloo::transport::Device> makeDevice() {
  gloo::transport::tcp::attr attr;
  attr.hostname = "127.0.0.1";
  return gloo::transport::tcp::CreateDevice(attr);
}

// Derives from the rendezvous' context, with a rendezvous of its own that has the addresses of a rank under one key.
class ParallelConnectContext : public gloo::rendezvous::Context {
 public:
  ParallelConnectContext(int rank, int size) : gloo::rendezvous::Context(rank, size) {}

  void connectFullMesh(Store& store, std::shared_ptr<gloo::transport::Device>& device) {
    auto transportContext = device->createContext(rank, size);
    transportContext->setTimeout(getTimeout());
    std::vector<char> all;
    for (int i = 0; i < size; i++) {
      if (i == rank) {
        continue;
      }
      auto& pair = transportContext->createPair(i);
      pair->setLocalRank(rank);
      const auto bytes = pair->address().bytes();
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    store.set(std::to_string(rank), all);

    constexpr int kThreads = 3;
    std::atomic<int> next{0};
    std::vector<std::exception_ptr> failures(kThreads);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; thread++) {
      threads.emplace_back([&, thread] {
        try {
          for (int i = next++; i < size; i = next++) {
            if (i == rank) {
              continue;
            }
            const std::string key = std::to_string(i);
            store.wait({key}, getTimeout());
            auto addresses = store.get(key);
            transportContext->getPair(i)->connect(extractAddress(addresses, i));
          }
        } catch (...) {
          failures[static_cast<size_t>(thread)] = std::current_exception();
        }
      });
    }
    for (auto& thread : threads) {
      thread.join();
    }
    for (const auto& failure : failures) {
      if (failure) {
        std::rethrow_exception(failure);
      }
    }
    device_ = device;
    transportContext_ = std::move(transportContext);
  }
};

// Derives from the plain context; addresses are exchanged by files, one for each pair.
class FileContext : public gloo::Context {
 public:
  FileContext(int rank, int size) : gloo::Context(rank, size) {}

  void connect(Store& store, std::shared_ptr<gloo::transport::Device> device) {
    auto transportContext = device->createContext(rank, size);
    transportContext->setTimeout(timeout_);
    for (int i = 0; i < size; i++) {
      if (i != rank) {
        const auto bytes = transportContext->createPair(i)->address().bytes();
        if (bytes.size() > gloo::transport::Address::kMaxByteSize) {
          throw std::runtime_error("an address is longer than kMaxByteSize");
        }
        store.set(std::to_string(rank) + "-" + std::to_string(i), bytes);
      }
    }
    for (int i = 0; i < size; i++) {
      if (i != rank) {
        const std::string key = std::to_string(i) + "-" + std::to_string(rank);
        store.wait({key});
        transportContext->getPair(i)->connect(store.get(key));
      }
    }
    device_ = std::move(device);
    transportContext_ = std::move(transportContext);
  }
};

void useIt(const std::shared_ptr<gloo::Context>& context) {
  const int size = context->size, rank = context->rank;
  for (const size_t count : {size_t{1}, size_t{5000}, size_t{1000000}}) {
    std::vector<int64_t> data(count, rank + 1);
    gloo::AllreduceOptions options(context);
    options.setOutput(data.data(), data.size());
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<int64_t>));
    gloo::allreduce(options);
    CHECK_HERE(data == std::vector<int64_t>(count, size * (size + 1) / 2));
  }
  std::vector<int> all(static_cast<size_t>(size));
  int own = rank * rank;
  gloo::AllgatherOptions gather(context);
  gather.setInput(&own, 1);
  gather.setOutput(all.data(), all.size());
  gloo::allgather(gather);
  for (int i = 0; i < size; i++) {
    CHECK_HERE(all[static_cast<size_t>(i)] == i * i);
  }
  // The pairs themselves: a write into the buffer of the next rank.
  if (size > 1) {
    const int slot = context->nextSlot();
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    int sent = rank + 100, received = -1;
    auto send = context->getPair(right)->createSendBuffer(slot, &sent, sizeof(sent));
    auto receive = context->getPair(left)->createRecvBuffer(slot, &received, sizeof(received));
    send->send();
    receive->waitRecv();
    send->waitSend();
    CHECK_HERE(received == left + 100);
  }
  gloo::BarrierOptions barrier(context);
  gloo::barrier(barrier);
}

class Sizes : public testing::TestWithParam<int> {};

TEST_P(Sizes, AContextOfTheRendezvousThatConnectsInParallel) {
  TemporaryFolder folder;
  runProcesses(GetParam(), [&](int rank) {
    gloo::rendezvous::FileStore files(folder.path);
    gloo::rendezvous::PrefixStore store("job", files);
    auto device = makeDevice();
    auto context = std::make_shared<ParallelConnectContext>(rank, GetParam());
    context->setTimeout(std::chrono::seconds(30));
    context->connectFullMesh(store, device);
    useIt(context);
  });
}

TEST_P(Sizes, APlainContextThatConnectsByAddresses) {
  TemporaryFolder folder;
  runProcesses(GetParam(), [&](int rank) {
    gloo::rendezvous::FileStore store(folder.path);
    auto context = std::make_shared<FileContext>(rank, GetParam());
    context->connect(store, makeDevice());
    useIt(context);
  });
}

INSTANTIATE_TEST_SUITE_P(Paddle, Sizes, testing::Values(2, 3, 4));

// Waits for one that never comes end by the timeout of the store.
TEST(Paddle, ARankThatDoesNotComeEndsTheWait) {
  TemporaryFolder folder;
  runProcesses(1, [&](int) {
    gloo::rendezvous::FileStore store(folder.path);
    auto device = makeDevice();
    auto context = std::make_shared<ParallelConnectContext>(0, 2);
    context->setTimeout(std::chrono::milliseconds(300));
    bool threw = false;
    try {
      context->connectFullMesh(store, device);
    } catch (const gloo::Exception&) {
      threw = true;
    }
    CHECK_HERE(threw);
  });
}

} // namespace
