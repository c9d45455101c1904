// A communicator as XLA has one on CPUs over Gloo: reductions by type and kind, exchanges written with unbound buffers
// on slots of their own, waits with a deadline. Ranks are threads; the store is a client of a key-value service.
#include <gloo/algorithm.h>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>
#include <gtest/gtest.h>

#include <chrono>
#include <complex>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

class Service {
 public:
  void set(const std::string& key, const std::string& value) {
    std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::optional<std::string> get(const std::string& key, std::chrono::milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.count(key) != 0; })) {
      return std::nullopt;
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

class ServiceStore : public gloo::rendezvous::Store {
 public:
  explicit ServiceStore(std::shared_ptr<Service> service) : service_(std::move(service)) {}
  ~ServiceStore() override = default;

  void set(const std::string& key, const std::vector<char>& data) override {
    service_->set(key, std::string(data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = service_->get(key, kDefaultTimeout);
    if (!value) {
      throw std::runtime_error("no value of " + key);
    }
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, kDefaultTimeout);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (const auto& key : keys) {
      if (!service_->get(key, std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()))) {
        throw std::runtime_error("no value of " + key + " in time");
      }
    }
  }
#ifdef GLOO_STORE_HAS_STORE_V2
  bool has_v2_support() override {
    return false;
  }
  std::vector<std::vector<char>> multi_get(const std::vector<std::string>&) override {
    throw std::runtime_error("multi_get is not implemented");
  }
  void multi_set(const std::vector<std::string>&, const std::vector<std::vector<char>>&) override {
    throw std::runtime_error("multi_set is not implemented");
  }
  void append(const std::string&, const std::vector<char>&) override {
    throw std::runtime_error("append is not implemented");
  }
  int64_t add(const std::string&, int64_t) override {
    throw std::runtime_error("add is not implemented");
  }
#endif

 private:
  std::shared_ptr<Service> service_;
};

enum class Kind { kSum, kProduct, kMin, kMax };

template <typename T>
struct IsComplex : std::false_type {};
template <typename T>
struct IsComplex<std::complex<T>> : std::true_type {};

using Function = void (*)(void*, const void*, const void*, size_t);

template <typename T>
Function functionOf(Kind kind) {
  switch (kind) {
    case Kind::kSum:
      return static_cast<Function>(&gloo::sum<T>);
    case Kind::kProduct:
      return static_cast<Function>(&gloo::product<T>);
    case Kind::kMin:
      if constexpr (!IsComplex<T>::value) {
        return static_cast<Function>(&gloo::min<T>);
      }
      break;
    case Kind::kMax:
      if constexpr (!IsComplex<T>::value) {
        return static_cast<Function>(&gloo::max<T>);
      }
      break;
  }
  throw std::invalid_argument("complex numbers have no order");
}

class Communicator {
 public:
  Communicator(std::shared_ptr<Service> service, const std::string& clique, int rank, int size, std::chrono::milliseconds timeout)
      : timeout_(timeout) {
    gloo::transport::tcp::attr attr;
    attr.hostname = "127.0.0.1";
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attr);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->setTimeout(timeout);
#ifdef GLOO_SHARED_STORE
    auto prefixed = std::make_shared<gloo::rendezvous::PrefixStore>(clique, std::make_shared<ServiceStore>(std::move(service)));
    context->connectFullMesh(prefixed, device);
#else
    ServiceStore store(std::move(service));
    gloo::rendezvous::PrefixStore prefixed(clique, store);
    context->connectFullMesh(prefixed, device);
#endif
    context_ = std::move(context);
  }

  template <typename T>
  void allReduce(const T* input, T* output, size_t count, Kind kind) {
    gloo::AllreduceOptions options(context_);
    options.setInput(const_cast<T*>(input), count);
    options.setOutput(output, count);
    options.setReduceFunction(functionOf<T>(kind));
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setTimeout(timeout_);
    gloo::allreduce(options);
  }

  // What the rank sends to several, and what it gets from at most one; nothing from nobody is zeros.
  void permute(void* input, void* output, size_t bytes, std::optional<int> source, const std::vector<int>& targets) {
    constexpr uint32_t tag = 0;
    const auto slot = gloo::Slot::build(kPermuteSlotPrefix, tag);
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    std::unique_ptr<gloo::transport::UnboundBuffer> in, out;
    bool toMyself = false;
    if (!targets.empty()) {
      in = context_->createUnboundBuffer(input, bytes);
      for (const int target : targets) {
        if (target != context_->rank) {
          in->send(target, slot);
        } else {
          toMyself = true;
        }
      }
    }
    if (source && *source != context_->rank) {
      out = context_->createUnboundBuffer(output, bytes);
      out->recv(*source, slot);
    } else if (source && toMyself) {
      std::memcpy(output, input, bytes);
    } else {
      std::memset(output, 0, bytes);
    }
    if (in) {
      for (const int target : targets) {
        if (target != context_->rank) {
          waitOr(in->waitSend(deadline));
        }
      }
    }
    if (out) {
      waitOr(out->waitRecv(deadline));
    }
  }

  // Each rank has a buffer for each other one.
  void allToAll(const std::vector<void*>& inputs, const std::vector<void*>& outputs, size_t bytes) {
    const int rank = context_->rank, size = context_->size;
    const auto slot = gloo::Slot::build(kAllToAllSlotPrefix, 3);
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> in(inputs.size()), out(outputs.size());
    for (int i = 1; i < size; i++) {
      const int to = (rank + i) % size, from = (rank + size - i) % size;
      in[static_cast<size_t>(to)] = context_->createUnboundBuffer(inputs[static_cast<size_t>(to)], bytes);
      in[static_cast<size_t>(to)]->send(to, slot);
      out[static_cast<size_t>(from)] = context_->createUnboundBuffer(outputs[static_cast<size_t>(from)], bytes);
      out[static_cast<size_t>(from)]->recv(from, slot);
    }
    std::memcpy(outputs[static_cast<size_t>(rank)], inputs[static_cast<size_t>(rank)], bytes);
    for (int i = 0; i < size; i++) {
      if (i != rank) {
        waitOr(in[static_cast<size_t>(i)]->waitSend(deadline));
        waitOr(out[static_cast<size_t>(i)]->waitRecv(deadline));
      }
    }
  }

  // In a ring, each step on a slot of its own.
  void allGather(char* buffer, size_t bytes) {
    const int rank = context_->rank, size = context_->size;
    const auto slot = gloo::Slot::build(kAllGatherSlotPrefix, 5);
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    auto all = context_->createUnboundBuffer(buffer, bytes * static_cast<size_t>(size));
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int step = 0; step < size - 1; step++) {
      const auto part = [&](int of) { return static_cast<size_t>((of + 2 * size - step) % size) * bytes; };
      all->send(right, slot + static_cast<uint8_t>(step), part(rank), bytes);
      all->recv(left, slot + static_cast<uint8_t>(step), part(rank - 1), bytes);
      waitOr(all->waitRecv(deadline));
      waitOr(all->waitSend(deadline));
    }
  }

  template <typename T>
  void reduceScatter(const T* input, T* output, int each, const gloo::ReductionFunction<T>* function) {
    const size_t count = static_cast<size_t>(each) * static_cast<size_t>(context_->size);
    std::vector<T> scratch(input, input + count);
    const std::vector<int> counts(static_cast<size_t>(context_->size), each);
    gloo::ReduceScatterHalvingDoubling<T> algorithm(context_, std::vector<T*>{scratch.data()}, static_cast<int>(count), counts, function);
    algorithm.run();
    std::memcpy(static_cast<void*>(output), scratch.data(), static_cast<size_t>(each) * sizeof(T));
  }

  std::shared_ptr<gloo::Context> context_;

 private:
  static constexpr uint8_t kPermuteSlotPrefix = 0x40;
  static constexpr uint8_t kAllToAllSlotPrefix = gloo::kAlltoallSlotPrefix;
  static constexpr uint8_t kAllGatherSlotPrefix = 0x42;

  static void waitOr(bool done) {
    if (!done) {
      throw std::runtime_error("the wait was aborted");
    }
  }

  const std::chrono::milliseconds timeout_;
};

void withRanks(
    int size,
    const std::function<void(int, Communicator&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  auto service = std::make_shared<Service>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; rank++) {
    ranks.emplace_back([&, rank] {
      try {
        Communicator communicator(service, "clique", rank, size, timeout);
        body(rank, communicator);
        service->set("done" + std::to_string(rank), "");
        for (int other = 0; other < size; other++) {
          service->get("done" + std::to_string(other), std::chrono::seconds(30));
        }
      } catch (const std::exception& failure) {
        ADD_FAILURE() << "rank " << rank << ": " << failure.what();
      }
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
}

template <typename T>
void reductionsOf(Communicator& communicator, int rank) {
  for (const size_t count : {size_t{1}, size_t{100}, size_t{100000}}) {
    const std::vector<T> input(count, T(rank + 1));
    std::vector<T> output(count);
    const std::vector<T> before = input;
    communicator.allReduce(input.data(), output.data(), count, Kind::kSum);
    ASSERT_EQ(output, std::vector<T>(count, T(6)));
    communicator.allReduce(input.data(), output.data(), count, Kind::kProduct);
    ASSERT_EQ(output, std::vector<T>(count, T(6)));
    ASSERT_EQ(input, before);
    if constexpr (!IsComplex<T>::value) {
      communicator.allReduce(input.data(), output.data(), count, Kind::kMin);
      ASSERT_EQ(output, std::vector<T>(count, T(1)));
      communicator.allReduce(input.data(), output.data(), count, Kind::kMax);
      ASSERT_EQ(output, std::vector<T>(count, T(3)));
    }
  }
}

TEST(Xla, AllReduceOfItsTypes) {
  withRanks(3, [](int rank, Communicator& communicator) {
    reductionsOf<int8_t>(communicator, rank);
    reductionsOf<uint8_t>(communicator, rank);
    reductionsOf<int16_t>(communicator, rank);
    reductionsOf<uint16_t>(communicator, rank);
    reductionsOf<int32_t>(communicator, rank);
    reductionsOf<uint32_t>(communicator, rank);
    reductionsOf<int64_t>(communicator, rank);
    reductionsOf<uint64_t>(communicator, rank);
    reductionsOf<gloo::float16>(communicator, rank);
    reductionsOf<float>(communicator, rank);
    reductionsOf<double>(communicator, rank);
    reductionsOf<std::complex<float>>(communicator, rank);
    reductionsOf<std::complex<double>>(communicator, rank);
    // The product of imaginary numbers.
    const std::complex<float> i(0, 1);
    std::complex<float> product;
    communicator.allReduce(&i, &product, 1, Kind::kProduct);
    EXPECT_EQ(product, (std::complex<float>(0, -1)));
  });
}

TEST(Xla, CollectivePermute) {
  withRanks(3, [](int rank, Communicator& communicator) {
    for (const size_t bytes : {size_t{4}, size_t{300000}}) {
      std::vector<char> input(bytes, static_cast<char>(rank + 1)), output(bytes, -1);
      // A ring.
      communicator.permute(input.data(), output.data(), bytes, (rank + 2) % 3, {(rank + 1) % 3});
      ASSERT_EQ(output, std::vector<char>(bytes, static_cast<char>((rank + 2) % 3 + 1)));
      // 0 to all, itself included.
      communicator.permute(input.data(), output.data(), bytes, 0, rank == 0 ? std::vector<int>{0, 1, 2} : std::vector<int>{});
      ASSERT_EQ(output, std::vector<char>(bytes, 1));
      // 1 to 2 alone.
      communicator.permute(
          input.data(), output.data(), bytes, rank == 2 ? std::optional<int>(1) : std::nullopt, rank == 1 ? std::vector<int>{2} : std::vector<int>{});
      ASSERT_EQ(output, std::vector<char>(bytes, rank == 2 ? 2 : 0));
    }
  });
}

TEST(Xla, AllToAllAndAllGather) {
  constexpr int size = 4;
  withRanks(size, [](int rank, Communicator& communicator) {
    for (const size_t bytes : {size_t{1}, size_t{200000}}) {
      std::vector<std::vector<char>> input, output;
      std::vector<void*> inputs, outputs;
      for (int i = 0; i < size; i++) {
        input.emplace_back(bytes, static_cast<char>(10 * rank + i));
        output.emplace_back(bytes);
      }
      for (int i = 0; i < size; i++) {
        inputs.push_back(input[static_cast<size_t>(i)].data());
        outputs.push_back(output[static_cast<size_t>(i)].data());
      }
      communicator.allToAll(inputs, outputs, bytes);
      for (int i = 0; i < size; i++) {
        ASSERT_EQ(output[static_cast<size_t>(i)], std::vector<char>(bytes, static_cast<char>(10 * i + rank)));
      }
      std::vector<char> all(bytes * size);
      std::fill(all.begin() + static_cast<long>(bytes) * rank, all.begin() + static_cast<long>(bytes) * (rank + 1), static_cast<char>(rank + 1));
      communicator.allGather(all.data(), bytes);
      for (size_t i = 0; i < all.size(); i++) {
        ASSERT_EQ(all[i], static_cast<char>(i / bytes + 1));
      }
    }
  });
}

TEST(Xla, ReduceScatter) {
  constexpr int size = 4;
  withRanks(size, [](int rank, Communicator& communicator) {
    for (const int each : {1, 7, 20000}) {
      std::vector<double> input(static_cast<size_t>(each * size)), output(static_cast<size_t>(each));
      for (size_t i = 0; i < input.size(); i++) {
        input[i] = static_cast<double>(i) + rank;
      }
      communicator.reduceScatter(input.data(), output.data(), each, gloo::ReductionFunction<double>::sum);
      for (int i = 0; i < each; i++) {
        ASSERT_EQ(output[static_cast<size_t>(i)], 4.0 * (rank * each + i) + 6);
      }
      communicator.reduceScatter(input.data(), output.data(), each, gloo::ReductionFunction<double>::max);
      ASSERT_EQ(output[0], rank * each + 3.0);
    }
  });
}

TEST(Xla, ADeadlineThatPassesIsAnException) {
  withRanks(
      2,
      [](int rank, Communicator& communicator) {
        if (rank == 1) {
          return;
        }
        int number = 0;
        auto buffer = communicator.context_->createUnboundBuffer(&number, sizeof(number));
        buffer->recv(1, gloo::Slot::build(0x50, 1));
        const auto began = std::chrono::steady_clock::now();
        EXPECT_THROW(buffer->waitRecv(began + std::chrono::milliseconds(200)), gloo::IoException);
        EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(190));
        EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
      });
}

} // namespace
