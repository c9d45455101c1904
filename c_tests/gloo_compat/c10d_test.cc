// A process group as PyTorch's c10d has one over Gloo: works are queued, two threads of each rank execute them on one
// context, each work with a tag of its own. Ranks are threads; their store is a server's client with the second version
// of the interface.
#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/common/logging.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// What a store's server holds.
class Server {
 public:
  void set(const std::string& key, std::vector<char> value) {
    std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = std::move(value);
    changed_.notify_all();
  }
  std::vector<char> get(const std::string& key, milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.count(key) != 0; })) {
      throw std::runtime_error("the server has no key " + key + " after " + std::to_string(timeout.count()) + " ms");
    }
    return values_[key];
  }
  void append(const std::string& key, const std::vector<char>& more) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& value = values_[key];
    value.insert(value.end(), more.begin(), more.end());
    changed_.notify_all();
  }
  int64_t add(const std::string& key, int64_t amount) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& value = values_[key];
    const int64_t sum = (value.empty() ? 0 : std::stoll(std::string(value.begin(), value.end()))) + amount;
    const std::string text = std::to_string(sum);
    value.assign(text.begin(), text.end());
    changed_.notify_all();
    return sum;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::vector<char>> values_;
};

class ServerStore : public ::gloo::rendezvous::Store {
 public:
  explicit ServerStore(std::shared_ptr<Server> server) : server_(std::move(server)) {}
  void set(const std::string& key, const std::vector<char>& value) override {
    server_->set(key, value);
  }
  std::vector<char> get(const std::string& key) override {
    return server_->get(key, kDefaultTimeout);
  }
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, kDefaultTimeout);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    for (const auto& key : keys) {
      server_->get(key, timeout);
    }
  }
#ifdef GLOO_STORE_HAS_STORE_V2
  bool has_v2_support() override {
    return true;
  }
  std::vector<std::vector<char>> multi_get(const std::vector<std::string>& keys) override {
    std::vector<std::vector<char>> values;
    for (const auto& key : keys) {
      values.push_back(get(key));
    }
    return values;
  }
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::vector<char>>& values) override {
    for (size_t i = 0; i < keys.size(); i++) {
      set(keys[i], values[i]);
    }
  }
  void append(const std::string& key, const std::vector<char>& value) override {
    server_->append(key, value);
  }
  int64_t add(const std::string& key, int64_t value) override {
    return server_->add(key, value);
  }
#endif

 private:
  std::shared_ptr<Server> server_;
};

// The 16-bit float that Gloo does not know.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  BFloat16(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof(wide));
    bits = static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  }
  operator float() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
};
BFloat16 operator+(BFloat16 a, BFloat16 b) {
  return BFloat16(static_cast<float>(a) + static_cast<float>(b));
}
BFloat16 operator*(BFloat16 a, BFloat16 b) {
  return BFloat16(static_cast<float>(a) * static_cast<float>(b));
}

enum class ScalarType { kFloat, kDouble, kHalf, kBFloat16, kChar, kByte, kInt, kLong };
enum class ReduceOp { kSum, kProduct, kMin, kMax, kBand, kBor, kBxor };

#define GENERATE_ALL_TYPES(type, function, ...)  \
  switch (type) {                                \
    case ScalarType::kFloat:                     \
      function<float>(__VA_ARGS__);              \
      break;                                     \
    case ScalarType::kDouble:                    \
      function<double>(__VA_ARGS__);             \
      break;                                     \
    case ScalarType::kHalf:                      \
      function<gloo::float16>(__VA_ARGS__);      \
      break;                                     \
    case ScalarType::kBFloat16:                  \
      function<BFloat16>(__VA_ARGS__);           \
      break;                                     \
    case ScalarType::kChar:                      \
      function<int8_t>(__VA_ARGS__);             \
      break;                                     \
    case ScalarType::kByte:                      \
      function<uint8_t>(__VA_ARGS__);            \
      break;                                     \
    case ScalarType::kInt:                       \
      function<int32_t>(__VA_ARGS__);            \
      break;                                     \
    case ScalarType::kLong:                      \
      function<int64_t>(__VA_ARGS__);            \
      break;                                     \
  }

// Numbers without a type, as the group gets them.
struct Tensor {
  ScalarType type = ScalarType::kFloat;
  size_t count = 0;
  std::vector<char> storage;

  template <typename T>
  T* data() {
    return reinterpret_cast<T*>(storage.data());
  }
};

template <typename T>
void sizeOf(size_t& size) {
  size = sizeof(T);
}
template <typename T>
void fillWith(Tensor& tensor, double start, double step) {
  for (size_t i = 0; i < tensor.count; i++) {
    tensor.data<T>()[i] = T(start + step * static_cast<double>(i));
  }
}
template <typename T>
double asDouble(const T& value) {
  return static_cast<double>(value);
}
template <>
double asDouble(const gloo::float16& value) {
  return gloo::cpu_half2float(value);
}
template <typename T>
void readAt(Tensor& tensor, size_t index, double& value) {
  value = asDouble(tensor.data<T>()[index]);
}

Tensor makeTensor(ScalarType type, size_t count, double start = 0, double step = 0) {
  Tensor tensor;
  tensor.type = type;
  tensor.count = count;
  size_t size = 0;
  GENERATE_ALL_TYPES(type, sizeOf, size);
  tensor.storage.resize(count * size);
  GENERATE_ALL_TYPES(type, fillWith, tensor, start, step);
  return tensor;
}
double at(Tensor& tensor, size_t index) {
  double value = 0;
  GENERATE_ALL_TYPES(tensor.type, readAt, tensor, index, value);
  return value;
}

template <typename T, typename Options>
void inputOf(Options& options, Tensor& tensor) {
  options.setInput(tensor.data<T>(), tensor.count);
}
template <typename T, typename Options>
void outputOf(Options& options, Tensor& tensor) {
  options.setOutput(tensor.data<T>(), tensor.count);
}
template <typename T, typename Options>
void outputsOf(Options& options, std::vector<Tensor*>& tensors) {
  std::vector<T*> pointers;
  for (Tensor* tensor : tensors) {
    pointers.push_back(tensor->data<T>());
  }
  options.setOutputs(pointers, tensors[0]->count);
}
template <typename T, typename Options>
void inputsOf(Options& options, std::vector<Tensor>& tensors) {
  std::vector<T*> pointers;
  for (Tensor& tensor : tensors) {
    pointers.push_back(tensor.data<T>());
  }
  options.setInputs(pointers, tensors[0].count);
}
template <typename T, typename Options>
void inputCountsOf(Options& options, Tensor& tensor, std::vector<int64_t>& counts) {
  options.setInput(tensor.data<T>(), counts);
}
template <typename T, typename Options>
void outputCountsOf(Options& options, Tensor& tensor, std::vector<int64_t>& counts) {
  options.setOutput(tensor.data<T>(), counts);
}

using ReduceFunction = void (*)(void*, const void*, const void*, size_t);

template <typename T, typename Combine>
void combine(void* c, const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; i++) {
    static_cast<T*>(c)[i] = static_cast<T>(Combine()(static_cast<const T*>(a)[i], static_cast<const T*>(b)[i]));
  }
}

template <typename T>
ReduceFunction toFunction(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ReduceFunction(&::gloo::sum<T>);
    case ReduceOp::kProduct:
      return ReduceFunction(&::gloo::product<T>);
    case ReduceOp::kMin:
      return ReduceFunction(&::gloo::min<T>);
    case ReduceOp::kMax:
      return ReduceFunction(&::gloo::max<T>);
    default:
      break;
  }
  if constexpr (std::is_integral<T>::value) {
    switch (op) {
      case ReduceOp::kBand:
        return &combine<T, std::bit_and<T>>;
      case ReduceOp::kBor:
        return &combine<T, std::bit_or<T>>;
      case ReduceOp::kBxor:
        return &combine<T, std::bit_xor<T>>;
      default:
        break;
    }
  }
  throw std::runtime_error("these elements have no such operation");
}
template <typename T>
void functionOf(std::function<void(void*, const void*, const void*, size_t)>& function, ReduceOp op) {
  function = toFunction<T>(op);
}
std::function<void(void*, const void*, const void*, size_t)> functionFor(ScalarType type, ReduceOp op) {
  std::function<void(void*, const void*, const void*, size_t)> function;
  GENERATE_ALL_TYPES(type, functionOf, function, op);
  return function;
}

constexpr auto makeTcpDevice = ::gloo::transport::tcp::CreateDevice;

using Work = std::shared_future<void>;

class ProcessGroup {
 public:
  ProcessGroup(int rank, int size, const std::shared_ptr<ServerStore>& store, milliseconds timeout) : rank_(rank), size_(size) {
    ::gloo::transport::tcp::attr attr;
    attr.hostname = "127.0.0.1";
    auto device = makeTcpDevice(attr);
    auto context = std::make_shared<::gloo::rendezvous::Context>(rank_, size_);
#ifdef GLOO_SHARED_STORE
    auto underlying = store;
#else
    auto& underlying = *store;
#endif
    auto prefixed = ::gloo::rendezvous::PrefixStore("0", underlying);
#ifdef GLOO_SHARED_STORE
    auto connectStore = std::make_shared<decltype(prefixed)>(prefixed);
#else
    auto& connectStore = prefixed;
#endif
    context->setTimeout(timeout);
    context->connectFullMesh(connectStore, device);
    context_ = std::move(context);
    for (int i = 0; i < 2; i++) {
      threads_.emplace_back([this] { runLoop(); });
    }
  }

  ~ProcessGroup() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    queued_.notify_all();
    for (auto& thread : threads_) {
      thread.join();
    }
  }

  Work allreduce(std::vector<Tensor*> tensors, ReduceOp op) {
    return enqueue([this, tensors, op, tag = nextTag()]() mutable {
      ::gloo::AllreduceOptions options(context_);
      options.setReduceFunction(functionFor(tensors[0]->type, op));
      options.setTag(tag);
      GENERATE_ALL_TYPES(tensors[0]->type, outputsOf, options, tensors);
      ::gloo::allreduce(options);
    });
  }

  Work broadcast(Tensor& tensor, int root) {
    return enqueue([this, &tensor, root, tag = nextTag()] {
      ::gloo::BroadcastOptions options(context_);
      options.setRoot(root);
      options.setTag(tag);
      GENERATE_ALL_TYPES(tensor.type, outputOf, options, tensor);
      ::gloo::broadcast(options);
    });
  }

  Work reduce(Tensor& tensor, int root, ReduceOp op) {
    return enqueue([this, &tensor, root, op, tag = nextTag()] {
      ::gloo::ReduceOptions options(context_);
      options.setRoot(root);
      options.setTag(tag);
      options.setReduceFunction(functionFor(tensor.type, op));
      GENERATE_ALL_TYPES(tensor.type, outputOf, options, tensor);
      ::gloo::reduce(options);
    });
  }

  Work allgather(Tensor& output, Tensor& input) {
    return enqueue([this, &output, &input, tag = nextTag()] {
      ::gloo::AllgatherOptions options(context_);
      options.setTag(tag);
      GENERATE_ALL_TYPES(input.type, inputOf, options, input);
      GENERATE_ALL_TYPES(output.type, outputOf, options, output);
      ::gloo::allgather(options);
    });
  }

  Work gather(Tensor* output, Tensor& input, int root) {
    return enqueue([this, output, &input, root, tag = nextTag()] {
      ::gloo::GatherOptions options(context_);
      options.setRoot(root);
      options.setTag(tag);
      if (output != nullptr) {
        GENERATE_ALL_TYPES(output->type, outputOf, options, *output);
      }
      GENERATE_ALL_TYPES(input.type, inputOf, options, input);
      ::gloo::gather(options);
    });
  }

  Work scatter(Tensor& output, std::vector<Tensor>& inputs, int root) {
    return enqueue([this, &output, &inputs, root, tag = nextTag()] {
      ::gloo::ScatterOptions options(context_);
      options.setRoot(root);
      options.setTag(tag);
      if (rank_ == root) {
        GENERATE_ALL_TYPES(inputs[0].type, inputsOf, options, inputs);
      }
      GENERATE_ALL_TYPES(output.type, outputOf, options, output);
      ::gloo::scatter(options);
    });
  }

  Work alltoall(Tensor& output, Tensor& input) {
    return enqueue([this, &output, &input, tag = nextTag()] {
      ::gloo::AlltoallOptions options(context_);
      options.setTag(tag);
      GENERATE_ALL_TYPES(input.type, inputOf, options, input);
      GENERATE_ALL_TYPES(output.type, outputOf, options, output);
      ::gloo::alltoall(options);
    });
  }

  Work alltoallv(Tensor& output, std::vector<int64_t> outputCounts, Tensor& input, std::vector<int64_t> inputCounts) {
    return enqueue([this, &output, &input, outputCounts, inputCounts, tag = nextTag()]() mutable {
      ::gloo::AlltoallvOptions options(context_);
      options.setTag(tag);
      GENERATE_ALL_TYPES(input.type, inputCountsOf, options, input, inputCounts);
      GENERATE_ALL_TYPES(output.type, outputCountsOf, options, output, outputCounts);
      ::gloo::alltoallv(options);
    });
  }

  Work barrier() {
    return enqueue([this, tag = nextTag()] {
      ::gloo::BarrierOptions options(context_);
      options.setTag(tag);
      ::gloo::barrier(options);
    });
  }

  // The sum of sparse vectors: each rank has (index, value) pairs of its own number.
  Work allreduceSparse(std::vector<int64_t>& indices, std::vector<float>& values) {
    return enqueue([this, &indices, &values, tag = nextTag()] {
      std::vector<int64_t> counts(static_cast<size_t>(size_));
      counts[static_cast<size_t>(rank_)] = static_cast<int64_t>(indices.size());
      ::gloo::AllgatherOptions sizes(context_);
      sizes.setOutput(counts.data(), counts.size());
      sizes.setTag(tag);
      ::gloo::allgather(sizes);

      const std::vector<size_t> perRank(counts.begin(), counts.end());
      const size_t all = std::accumulate(perRank.begin(), perRank.end(), size_t{0});
      std::vector<int64_t> allIndices(all);
      std::vector<float> allValues(all);
      ::gloo::AllgathervOptions gatherIndices(context_);
      gatherIndices.setInput(indices.data(), indices.size());
      gatherIndices.setOutput(allIndices.data(), perRank);
      gatherIndices.setTag(tag);
      ::gloo::allgatherv(gatherIndices);
      ::gloo::AllgathervOptions gatherValues(context_);
      gatherValues.setInput(values.data(), values.size());
      gatherValues.setOutput(allValues.data(), perRank);
      gatherValues.setTag(tag);
      ::gloo::allgatherv(gatherValues);

      std::map<int64_t, float> sums;
      for (size_t i = 0; i < all; i++) {
        sums[allIndices[i]] += allValues[i];
      }
      indices.clear();
      values.clear();
      for (const auto& entry : sums) {
        indices.push_back(entry.first);
        values.push_back(entry.second);
      }
    });
  }

  std::unique_ptr<::gloo::transport::UnboundBuffer> send(Tensor& tensor, int destination, int tag) {
    auto buffer = context_->createUnboundBuffer(tensor.storage.data(), tensor.storage.size());
    buffer->send(destination, static_cast<uint64_t>(tag));
    return buffer;
  }
  std::unique_ptr<::gloo::transport::UnboundBuffer> recv(Tensor& tensor, int source, int tag) {
    auto buffer = context_->createUnboundBuffer(tensor.storage.data(), tensor.storage.size());
    buffer->recv(source, static_cast<uint64_t>(tag));
    return buffer;
  }
  // From any rank, its own included.
  std::unique_ptr<::gloo::transport::UnboundBuffer> recvAnysource(Tensor& tensor, int tag) {
    auto buffer = context_->createUnboundBuffer(tensor.storage.data(), tensor.storage.size());
    std::vector<int> sources(static_cast<size_t>(size_));
    std::iota(sources.begin(), sources.end(), 0);
    buffer->recv(sources, static_cast<uint64_t>(tag));
    return buffer;
  }

 private:
  uint32_t nextTag() {
    return tag_++;
  }

  Work enqueue(std::function<void()> run) {
    std::packaged_task<void()> task(std::move(run));
    Work work = task.get_future().share();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(std::move(task));
    }
    queued_.notify_one();
    return work;
  }

  void runLoop() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      queued_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      auto task = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  const int rank_;
  const int size_;
  std::shared_ptr<::gloo::Context> context_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable queued_;
  std::deque<std::packaged_task<void()>> queue_;
  bool stop_ = false;
  uint32_t tag_ = 0;
};

// Runs `body` with the group of each rank; what it throws fails the test.
void withRanks(int size, const std::function<void(int, ProcessGroup&)>& body, milliseconds timeout = std::chrono::seconds(30)) {
  auto server = std::make_shared<Server>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; rank++) {
    ranks.emplace_back([&, rank] {
      try {
        ProcessGroup group(rank, size, std::make_shared<ServerStore>(server), timeout);
        body(rank, group);
        // No rank leaves while others still talk to it.
        server->add("done", 1);
        for (int i = 0; i < 6000 && server->add("done", 0) < size; i++) {
          std::this_thread::sleep_for(milliseconds(5));
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

const std::vector<ScalarType> kAllTypes = {
    ScalarType::kFloat, ScalarType::kDouble, ScalarType::kHalf, ScalarType::kBFloat16,
    ScalarType::kChar,  ScalarType::kByte,   ScalarType::kInt,  ScalarType::kLong};

TEST(C10d, AllreduceOfAllTypesAndOperations) {
  constexpr int size = 3;
  constexpr size_t count = 37;
  withRanks(size, [&](int rank, ProcessGroup& group) {
    for (const ScalarType type : kAllTypes) {
      for (const auto& expected :
           std::vector<std::pair<ReduceOp, double>>{{ReduceOp::kSum, 6}, {ReduceOp::kProduct, 6}, {ReduceOp::kMin, 1}, {ReduceOp::kMax, 3}}) {
        Tensor tensor = makeTensor(type, count, rank + 1);
        group.allreduce({&tensor}, expected.first).get();
        for (size_t i = 0; i < count; i++) {
          ASSERT_EQ(at(tensor, i), expected.second) << "type " << static_cast<int>(type) << " element " << i;
        }
      }
    }
    for (const ScalarType type : {ScalarType::kChar, ScalarType::kByte, ScalarType::kInt, ScalarType::kLong}) {
      for (const auto& expected :
           std::vector<std::pair<ReduceOp, double>>{{ReduceOp::kBand, 1 & 2 & 4}, {ReduceOp::kBor, 1 | 2 | 4}, {ReduceOp::kBxor, 1 ^ 2 ^ 4}}) {
        Tensor tensor = makeTensor(type, count, 1 << rank);
        group.allreduce({&tensor}, expected.first).get();
        ASSERT_EQ(at(tensor, count - 1), expected.second) << "type " << static_cast<int>(type);
      }
    }
    // Several tensors of a rank are one call.
    Tensor first = makeTensor(ScalarType::kFloat, count, rank), second = makeTensor(ScalarType::kFloat, count, 10);
    group.allreduce({&first, &second}, ReduceOp::kSum).get();
    ASSERT_EQ(at(first, 5), 33);
    ASSERT_EQ(at(second, 5), 33);
  });
}

TEST(C10d, EveryCollective) {
  constexpr int size = 3;
  withRanks(size, [&](int rank, ProcessGroup& group) {
    Tensor tensor = makeTensor(ScalarType::kHalf, 10, rank == 1 ? 5 : 0);
    group.broadcast(tensor, 1).get();
    ASSERT_EQ(at(tensor, 9), 5);

    tensor = makeTensor(ScalarType::kBFloat16, 10, rank + 1);
    group.reduce(tensor, 2, ReduceOp::kSum).get();
    if (rank == 2) {
      ASSERT_EQ(at(tensor, 9), 6);
    }

    Tensor own = makeTensor(ScalarType::kInt, 4, rank * 10, 1);
    Tensor all = makeTensor(ScalarType::kInt, 4 * size);
    group.allgather(all, own).get();
    for (size_t i = 0; i < all.count; i++) {
      ASSERT_EQ(at(all, i), static_cast<double>(i / 4 * 10 + i % 4));
    }

    all = makeTensor(ScalarType::kInt, 4 * size);
    group.gather(rank == 1 ? &all : nullptr, own, 1).get();
    if (rank == 1) {
      ASSERT_EQ(at(all, 9), 21);
    }

    std::vector<Tensor> parts;
    for (int i = 0; i < size && rank == 0; i++) {
      parts.push_back(makeTensor(ScalarType::kDouble, 7, i + 1));
    }
    Tensor part = makeTensor(ScalarType::kDouble, 7);
    group.scatter(part, parts, 0).get();
    ASSERT_EQ(at(part, 6), rank + 1);

    Tensor input = makeTensor(ScalarType::kLong, 2 * size, rank * 100, 1);
    Tensor output = makeTensor(ScalarType::kLong, 2 * size);
    group.alltoall(output, input).get();
    for (size_t i = 0; i < output.count; i++) {
      ASSERT_EQ(at(output, i), static_cast<double>(i / 2 * 100 + static_cast<size_t>(rank) * 2 + i % 2));
    }

    // Rank r sends i + 1 elements to rank i.
    const std::vector<int64_t> inputCounts = {1, 2, 3};
    const std::vector<int64_t> outputCounts(size, rank + 1);
    input = makeTensor(ScalarType::kLong, 6, rank * 100, 1);
    output = makeTensor(ScalarType::kLong, static_cast<size_t>(size * (rank + 1)));
    group.alltoallv(output, outputCounts, input, inputCounts).get();
    const double offset = rank == 0 ? 0 : rank == 1 ? 1 : 3;
    for (int from = 0; from < size; from++) {
      ASSERT_EQ(at(output, static_cast<size_t>(from * (rank + 1))), from * 100 + offset);
    }
    group.barrier().get();
  });
}

TEST(C10d, SparseAllreduce) {
  withRanks(3, [](int rank, ProcessGroup& group) {
    // Rank r has the indices 0 to r, each with the value r + 1.
    std::vector<int64_t> indices;
    for (int64_t i = 0; i <= rank; i++) {
      indices.push_back(i);
    }
    std::vector<float> values(indices.size(), static_cast<float>(rank + 1));
    group.allreduceSparse(indices, values).get();
    ASSERT_EQ(indices, (std::vector<int64_t>{0, 1, 2}));
    ASSERT_EQ(values, (std::vector<float>{6, 5, 3}));
  });
}

TEST(C10d, ManyWorksAtOnce) {
  constexpr int size = 3, works = 60;
  withRanks(size, [](int rank, ProcessGroup& group) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < works; i++) {
      tensors.push_back(makeTensor(ScalarType::kFloat, static_cast<size_t>(1 + i * 997), rank + i));
    }
    std::vector<Work> queued;
    for (int i = 0; i < works; i++) {
      Tensor& tensor = tensors[static_cast<size_t>(i)];
      queued.push_back(i % 3 == 2 ? group.broadcast(tensor, i % size) : group.allreduce({&tensor}, ReduceOp::kSum));
    }
    for (int i = works - 1; i >= 0; i--) {
      queued[static_cast<size_t>(i)].get();
      Tensor& tensor = tensors[static_cast<size_t>(i)];
      const double expected = i % 3 == 2 ? i % size + i : 3 * i + 3;
      ASSERT_EQ(at(tensor, 0), expected) << "work " << i;
      ASSERT_EQ(at(tensor, tensor.count - 1), expected) << "work " << i;
    }
  });
}

// One worker's function waits for the other's: works do not run one after the other.
TEST(C10d, OwnFunctionsOfTwoThreadsRunAtTheSameTime) {
  constexpr int size = 2;
  auto server = std::make_shared<Server>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; rank++) {
    ranks.emplace_back([&, rank] {
      ::gloo::transport::tcp::attr attr("127.0.0.1");
      auto device = makeTcpDevice(attr);
      auto context = std::make_shared<::gloo::rendezvous::Context>(rank, size);
      ServerStore store(server);
      context->connectFullMesh(store, device);
      std::atomic<int> inside{0};
      const auto call = [&](uint32_t tag) {
        std::vector<int> data(10, rank + 1);
        ::gloo::AllreduceOptions options(std::static_pointer_cast<::gloo::Context>(context));
        options.setTag(tag);
        options.setOutput(data.data(), data.size());
        std::atomic<bool> counted{false};
        options.setReduceFunction([&](void* c, const void* a, const void* b, size_t n) {
          if (!counted.exchange(true)) {
            inside++;
          }
          const auto end = Clock::now() + std::chrono::seconds(20);
          while (inside < 2 && Clock::now() < end) {
            std::this_thread::yield();
          }
          ::gloo::sum<int>(c, a, b, n);
        });
        ::gloo::allreduce(options);
        EXPECT_EQ(inside, 2) << "the other call did not run meanwhile";
        EXPECT_EQ(data, std::vector<int>(10, 3));
      };
      std::thread other(call, 1);
      call(2);
      other.join();
      server->add("done", 1);
      for (int i = 0; i < 6000 && server->add("done", 0) < size; i++) {
        std::this_thread::sleep_for(milliseconds(5));
      }
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
}

TEST(C10d, SendAndReceiveFromAny) {
  constexpr int size = 3;
  withRanks(size, [](int rank, ProcessGroup& group) {
    if (rank != 0) {
      Tensor tensor = makeTensor(ScalarType::kFloat, 100, rank);
      int to = -1;
      auto sent = group.send(tensor, 0, 7);
      ASSERT_TRUE(sent->waitSend(&to, std::chrono::seconds(30)));
      ASSERT_EQ(to, 0);
      Tensor answer = makeTensor(ScalarType::kFloat, 100);
      int from = -1;
      auto received = group.recv(answer, 0, 8);
      ASSERT_TRUE(received->waitRecv(&from));
      ASSERT_EQ(from, 0);
      ASSERT_EQ(at(answer, 99), 10 * rank);
    } else {
      std::vector<int> sources;
      for (int i = 1; i < size; i++) {
        Tensor tensor = makeTensor(ScalarType::kFloat, 100);
        int from = -1;
        auto received = group.recvAnysource(tensor, 7);
        ASSERT_TRUE(received->waitRecv(&from, std::chrono::seconds(30)));
        ASSERT_EQ(at(tensor, 99), from);
        sources.push_back(from);
        Tensor answer = makeTensor(ScalarType::kFloat, 100, 10 * from);
        ASSERT_TRUE(group.send(answer, from, 8)->waitSend());
      }
      std::sort(sources.begin(), sources.end());
      ASSERT_EQ(sources, (std::vector<int>{1, 2}));
    }
  });
}

TEST(C10d, AbortEndsAWait) {
  withRanks(2, [](int rank, ProcessGroup& group) {
    if (rank == 0) {
      Tensor tensor = makeTensor(ScalarType::kFloat, 4);
      auto received = group.recvAnysource(tensor, 3);
      std::thread aborter([&] {
        std::this_thread::sleep_for(milliseconds(100));
        received->abortWaitRecv();
      });
      EXPECT_FALSE(received->waitRecv());
      aborter.join();
    }
    // The context goes on.
    Tensor tensor = makeTensor(ScalarType::kFloat, 4, 1);
    group.allreduce({&tensor}, ReduceOp::kSum).get();
    EXPECT_EQ(at(tensor, 0), 2);
  });
}

TEST(C10d, ARankThatDoesNotComeIsAnIoExceptionInTime) {
  withRanks(
      2,
      [](int rank, ProcessGroup& group) {
        if (rank == 1) {
          return;
        }
        Tensor tensor = makeTensor(ScalarType::kFloat, 4, 1);
        const auto began = Clock::now();
        EXPECT_THROW(group.allreduce({&tensor}, ReduceOp::kSum).get(), ::gloo::IoException);
        EXPECT_LT(Clock::now() - began, std::chrono::seconds(20));
      },
      milliseconds(1000));
}

} // namespace
