// Names every class, function, overload and macro of Gloo's API that gloo_rs offers. It is compiled and linked twice:
// with GLOO_WHOLE_SURFACE against gloo_rs, and without it against Debian's Gloo, so that this is how Gloo itself is
// used. Debian's is of 2022; what came later is in parts that only GLOO_WHOLE_SURFACE, or a macro of Gloo, switches on.
#include <gloo/algorithm.h>
#include <gloo/allgather.h>
#include <gloo/allgather_ring.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_local.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/barrier_all_to_one.h>
#include <gloo/broadcast.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/common/aligned_allocator.h>
#include <gloo/common/common.h>
#include <gloo/common/error.h>
#include <gloo/common/linux.h>
#include <gloo/common/linux_devices.h>
#include <gloo/common/logging.h>
#include <gloo/common/string.h>
#include <gloo/config.h>
#include <gloo/context.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/pairwise_exchange.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/store.h>
#include <gloo/scatter.h>
#include <gloo/transport/address.h>
#include <gloo/transport/buffer.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#ifdef GLOO_WHOLE_SURFACE
#include <gloo/common/memory.h>
#include <gloo/common/store.h>
#include <gloo/common/utils.h>
#include <gloo/gatherv.h>
#include <gloo/rendezvous/redis_store.h>
#include <gloo/transport/remote_key.h>
#include <gloo/transport/uv/device.h>
#if GLOO_HAVE_TRANSPORT_TCP_TLS
#include <gloo/transport/tcp/tls/device.h>
#endif
#if GLOO_HAVE_TRANSPORT_IBVERBS
#include <gloo/transport/ibverbs/device.h>
#endif
#endif

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#if !GLOO_HAVE_TRANSPORT_TCP
#error "Gloo always has TCP"
#endif
#if GLOO_USE_CUDA || GLOO_USE_NCCL || GLOO_USE_ROCM || GLOO_USE_RCCL
#error "neither library has CUDA or ROCm"
#endif
#if !defined(GLOO_HAVE_TRANSPORT_TCP_TLS) || !defined(GLOO_HAVE_TRANSPORT_UV) || !defined(GLOO_HAVE_TRANSPORT_IBVERBS)
#error "gloo/config.h tells which transports there are"
#endif
#if !defined(GLOO_USE_REDIS) || !defined(GLOO_USE_MPI) || !defined(GLOO_USE_IBVERBS) || !defined(GLOO_USE_LIBUV) || !defined(GLOO_USE_AVX)
#error "gloo/config.h tells what was built"
#endif
static_assert(GLOO_VERSION == GLOO_VERSION_MAJOR * 10000 + GLOO_VERSION_MINOR * 100 + GLOO_VERSION_PATCH, "version");
static_assert(GLOO_VERSION >= 500, "version");

using std::chrono::milliseconds;
using ContextPtr = std::shared_ptr<gloo::Context>;
using DevicePtr = std::shared_ptr<gloo::transport::Device>;
using BufferPtr = std::unique_ptr<gloo::transport::UnboundBuffer>;

// What is named in `use` must exist when the program is linked.
template <typename... T>
void use(T&&...) {}

// Most users bind the function like this.
constexpr auto makeDevice = &gloo::transport::tcp::CreateDevice;
static_assert(
    std::is_same<decltype(makeDevice), DevicePtr (*const)(const struct gloo::transport::tcp::attr&)>::value,
    "CreateDevice is one function");

void errors() {
  static_assert(std::is_base_of<std::runtime_error, gloo::Exception>::value, "");
  static_assert(std::is_base_of<gloo::Exception, gloo::IoException>::value, "");
  static_assert(std::is_base_of<gloo::Exception, gloo::InvalidOperationException>::value, "");
  static_assert(std::is_base_of<std::exception, gloo::EnforceNotMet>::value, "");
  static_assert(!std::is_base_of<gloo::Exception, gloo::EnforceNotMet>::value, "");
  use(gloo::kNoTimeout == milliseconds::zero());
  use(gloo::Exception("text"), gloo::IoException("text"), gloo::InvalidOperationException("text"));
  const std::string message = GLOO_ERROR_MSG("a number: ", 5, ' ', 1.5);
  use(message);
  use(gloo::MakeString("text ", 1, std::string(" text")));
  use(gloo::MakeString(std::vector<int>{1, 2}, std::string(",")), gloo::MakeString("text"), gloo::MakeString(std::string("text")));
  try {
    GLOO_THROW("text ", 1);
  } catch (const gloo::Exception& e) {
    use(e.what());
  }
  try {
    GLOO_THROW_IO_EXCEPTION("text ", 1);
  } catch (const gloo::IoException& e) {
    use(e.what());
  }
  try {
    GLOO_THROW_INVALID_OPERATION_EXCEPTION("text ", 1);
  } catch (const gloo::InvalidOperationException& e) {
    use(e.what());
  }
#ifndef GLOO_WHOLE_SURFACE
  using namespace gloo; // Gloo's own comparisons need it.
#endif
  try {
    GLOO_ENFORCE(true);
    GLOO_ENFORCE(true, "text ", 1);
    GLOO_ENFORCE_EQ(1, 1);
    GLOO_ENFORCE_EQ(1, 1, "text ", 1);
    GLOO_ENFORCE_NE(1, 2, "text");
    GLOO_ENFORCE_LT(1, 2);
    GLOO_ENFORCE_LE(1, 2);
    GLOO_ENFORCE_GT(2, 1);
    GLOO_ENFORCE_GE(2, 1);
  } catch (const gloo::EnforceNotMet& e) {
    const std::vector<std::string>& stack = e.msg_stack();
    use(e.msg(), e.what(), stack);
  }
}

void helpers() {
  const std::set<std::string>& modules = gloo::kernelModules();
  const std::vector<std::string> devices = gloo::pciDevices(gloo::kPCIClassNetwork);
  use(modules, devices, gloo::pciDevices(gloo::kPCIClass3D), gloo::PCIClassMatch{1, 2}.mask);
  const std::string& bus = gloo::interfaceToBusID("lo");
  use(bus, gloo::pciDistance(bus, bus), gloo::getInterfaceSpeedByName("lo"));
  std::vector<float, gloo::aligned_allocator<float, gloo::kBufferAlignment>> aligned(10);
  use(aligned);
  use(gloo::make_unique<int>(5), gloo::make_unique<int[]>(5));
  use(gloo::log2ceil(5), gloo::roundUp(5, 4));
  use(gloo::kOnDeviceThreshold);
}

void slots() {
  const auto slot = gloo::Slot::build(gloo::kAllreduceSlotPrefix, 7);
  const uint64_t number = slot + uint8_t(3);
  use(number);
  constexpr std::array<uint8_t, 8> prefixes = {
      gloo::kGatherSlotPrefix,
      gloo::kAllgatherSlotPrefix,
      gloo::kReduceSlotPrefix,
      gloo::kAllreduceSlotPrefix,
      gloo::kScatterSlotPrefix,
      gloo::kBroadcastSlotPrefix,
      gloo::kBarrierSlotPrefix,
      gloo::kAlltoallSlotPrefix};
  static_assert(prefixes[0] == 1 && prefixes[7] == 8, "prefixes");
}

void float16() {
  gloo::float16 a(1), b(2UL), c(3ULL), d(1.5), e, f(a);
  e = 5;
  f = b;
  e += a;
  e -= a;
  e *= a;
  e /= a;
  use(a + b, a - b, a * b, a / b, a < b, a <= b, a > b, a >= b, a == b, a != b, a == 1, a == 1UL, a == 1.0, c, d, f.x);
  std::stringstream stream;
  stream << a;
  use(gloo::cpu_half2float(gloo::cpu_float2half_rn(1.5f)));
  static_assert(sizeof(gloo::float16) == 2 && alignof(gloo::float16) == 2, "float16");
}

template <typename T>
void reductions() {
  using Foreign = void (*)(void*, const void*, const void*, size_t);
  using InPlace = void (*)(T*, const T*, size_t);
  use(Foreign(&gloo::sum<T>), Foreign(&gloo::product<T>), Foreign(&gloo::min<T>), Foreign(&gloo::max<T>));
  use(InPlace(&gloo::sum<T>), InPlace(&gloo::product<T>), InPlace(&gloo::min<T>), InPlace(&gloo::max<T>));
  const gloo::ReductionFunction<T>* sum = gloo::ReductionFunction<T>::sum;
  use(gloo::ReductionFunction<T>::product, gloo::ReductionFunction<T>::min, gloo::ReductionFunction<T>::max);
  T x[1] = {T(1)}, y[1] = {T(2)};
  sum->call(x, y, 1);
  use(sum->type() == gloo::SUM);
  const gloo::ReductionFunction<T> own(gloo::CUSTOM, +[](T*, const T*, size_t) {});
  use(own, gloo::ReductionType(gloo::PRODUCT), gloo::MAX, gloo::MIN);
}

// A v1 store, as many programs have one.
class OwnStore : public gloo::rendezvous::Store {
 public:
  ~OwnStore() override = default;
  void set(const std::string&, const std::vector<char>&) override {}
  std::vector<char> get(const std::string&) override {
    return {};
  }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const milliseconds&) override {}
};

#ifdef GLOO_WHOLE_SURFACE
#ifndef GLOO_STORE_HAS_STORE_V2
#error "gloo/rendezvous/store.h tells that stores have the second version of their interface"
#endif
#ifndef GLOO_SHARED_STORE
#error "gloo/rendezvous/store.h tells that stores are shared pointers"
#endif
#endif

#ifdef GLOO_STORE_HAS_STORE_V2
class OwnStoreV2 : public OwnStore {
 public:
  bool has_v2_support() override {
    return true;
  }
  std::vector<std::vector<char>> multi_get(const std::vector<std::string>&) override {
    return {};
  }
  void multi_set(const std::vector<std::string>&, const std::vector<std::vector<char>>&) override {}
  void append(const std::string&, const std::vector<char>&) override {}
  int64_t add(const std::string&, int64_t value) override {
    return value;
  }
};
#endif

void stores(gloo::rendezvous::Store& store) {
  constexpr milliseconds standard = gloo::rendezvous::Store::kDefaultTimeout;
  static_assert(standard == std::chrono::seconds(30), "the timeout of stores");
  store.set("key", {'a'});
  const std::vector<char> value = store.get("key");
  store.wait({"key"});
  store.wait({"key"}, milliseconds(1));
  use(value);
  gloo::rendezvous::HashStore hash;
  gloo::rendezvous::FileStore file("/tmp");
  gloo::rendezvous::PrefixStore prefix("prefix", store);
  gloo::rendezvous::PrefixStore nested("prefix", prefix);
  use(hash, file, nested, file.getAllKeyFilePaths());
  const gloo::rendezvous::PrefixStore copied(prefix);
  use(copied, std::make_shared<gloo::rendezvous::PrefixStore>(prefix));
  OwnStore own;
  use(own);
#ifdef GLOO_STORE_HAS_STORE_V2
  OwnStoreV2 second;
  use(second.has_v2_support(), second.multi_get({"key"}), second.add("key", 1));
  second.multi_set({"key"}, {{'a'}});
  second.append("key", {'a'});
  use(store.wait_get("key", milliseconds(1)));
  static_assert(std::is_base_of<gloo::IStore, gloo::rendezvous::Store>::value, "");
  gloo::IStore& base = store;
  use(base.wait_get("key", milliseconds(1)));
#endif
#ifdef GLOO_SHARED_STORE
  const std::shared_ptr<gloo::rendezvous::Store> shared = std::make_shared<gloo::rendezvous::HashStore>();
  use(gloo::rendezvous::PrefixStore("prefix", shared));
#endif
#ifdef GLOO_WHOLE_SURFACE
#if GLOO_USE_REDIS
  gloo::rendezvous::RedisStore redis("127.0.0.1"), onPort("127.0.0.1", 6379);
  use(redis.check({"key"}), onPort);
#endif
#endif
}

// Programs that find their ranks by themselves derive from either context.
class OwnContext : public gloo::Context {
 public:
  OwnContext(int rank, int size, DevicePtr device) : gloo::Context(rank, size) {
    auto own = device->createContext(rank, size);
    own->setTimeout(getTimeout());
    std::unique_ptr<gloo::transport::Pair>& pair = own->createPair(1);
    const std::vector<char> bytes = pair->address().bytes();
    const std::string text = pair->address().str();
    static_assert(gloo::transport::Address::kMaxByteSize > 0, "");
    std::unique_ptr<gloo::transport::Pair>& again = own->getPair(1);
    again->connect(bytes);
    use(own->rank, own->size, own->getTimeout(), own->createUnboundBuffer(nullptr, 0), text);
    device_ = std::move(device);
    transportContext_ = std::move(own);
    slot_ = 0;
    timeout_ = milliseconds(1);
  }
};

class OwnRendezvous : public gloo::rendezvous::Context {
 public:
  OwnRendezvous() : gloo::rendezvous::Context(0, 2, 2) {
    std::vector<char> addresses(gloo::transport::Address::kMaxByteSize);
    const std::vector<char> address = extractAddress(addresses, 1);
    use(address);
  }
};

void contexts(gloo::rendezvous::Store& store, DevicePtr& device) {
  auto context = std::make_shared<gloo::rendezvous::Context>(0, 1);
  use(gloo::rendezvous::Context(0, 1, 2), gloo::Context(0, 1), gloo::Context(0, 1, 2), OwnContext(0, 2, device), OwnRendezvous());
  static_assert(std::is_same<decltype(context->rank), const int>::value && std::is_same<decltype(context->size), const int>::value, "");
  static_assert(std::is_same<decltype(context->base), int>::value, "");
  context->setTimeout(milliseconds(1));
  context->connectFullMesh(store, device);
  const milliseconds timeout = context->getTimeout();
  DevicePtr& given = context->getDevice();
  std::unique_ptr<gloo::transport::Pair>& pair = context->getPair(0);
  BufferPtr buffer = context->createUnboundBuffer(nullptr, 0);
  const int slot = context->nextSlot() + context->nextSlot(2);
  use(timeout, given, pair, buffer, slot);
  context->closeConnections();
  gloo::rendezvous::ContextFactory factory(context);
  ContextPtr made = factory.makeContext(device);
  use(made);
#ifdef GLOO_SHARED_STORE
  context->connectFullMesh(std::make_shared<gloo::rendezvous::HashStore>(), device);
#endif
#ifdef GLOO_WHOLE_SURFACE
  std::unique_ptr<gloo::transport::RemoteKey> key = context->deserializeRemoteKey("text");
  use(key->rank, key->size, key->serialize());
#endif
}

void devices() {
  struct gloo::transport::tcp::attr attr;
  attr.hostname = "127.0.0.1";
  attr.iface = "";
  attr.ai_family = AF_UNSPEC;
  attr.ai_socktype = 0;
  attr.ai_protocol = 0;
  std::memset(&attr.ai_addr, 0, sizeof(attr.ai_addr));
  attr.ai_addrlen = 0;
  const gloo::transport::tcp::attr byName("127.0.0.1");
  use(byName);
  const DevicePtr device = makeDevice(attr);
  const std::string& bus = device->getPCIBusID();
  use(device->str(), bus, device->getInterfaceSpeed(), device->hasGPUDirect(), device->createContext(0, 1));
#ifdef GLOO_WHOLE_SURFACE
  attr.ai_fd = -1;
  use(gloo::transport::tcp::CreateLazyDevice(attr));
#if GLOO_HAVE_TRANSPORT_TCP_TLS
  use(gloo::transport::tcp::tls::CreateDevice(attr, "key", "certificate", "authority", ""));
#endif
#if GLOO_HAVE_TRANSPORT_UV
  struct gloo::transport::uv::attr uv;
  uv.hostname = "127.0.0.1";
  uv.iface = "";
  uv.ai_family = AF_UNSPEC;
  use(gloo::transport::uv::CreateDevice(uv));
#endif
#if GLOO_HAVE_TRANSPORT_IBVERBS
  struct gloo::transport::ibverbs::attr verbs;
  verbs.name = "mlx5_0";
  verbs.port = 1;
  verbs.index = 0;
  use(gloo::transport::ibverbs::CreateDevice(verbs), gloo::transport::ibverbs::getDeviceNames());
#endif
#endif
}

void pairs(gloo::transport::Pair& pair, gloo::transport::UnboundBuffer* unbound) {
  const gloo::transport::Address& address = pair.address();
  pair.connect(address.bytes());
  pair.setSync(true, true);
  std::unique_ptr<gloo::transport::Buffer> send = pair.createSendBuffer(1, nullptr, 0);
  std::unique_ptr<gloo::transport::Buffer> recv = pair.createRecvBuffer(1, nullptr, 0);
  send->setDebug(true);
  send->send();
  send->send(0, 1);
  send->send(0, 1, 2);
  send->waitSend();
  recv->waitRecv();
  pair.send(unbound, 1);
  pair.send(unbound, 1, 0, 4);
  pair.recv(unbound, 1);
  pair.recv(unbound, 1, 0, 4);
  pair.setLocalRank(0);
  use(pair.getLocalRank());
#ifdef GLOO_WHOLE_SURFACE
  use(pair.isConnected());
#endif
  pair.close();
}

void unboundBuffers(gloo::transport::UnboundBuffer& buffer) {
  void* const memory = buffer.ptr;
  const size_t size = buffer.size;
  use(memory, size, gloo::transport::kUnsetTimeout, gloo::transport::UnboundBuffer::kUnspecifiedByteCount + 0);
  buffer.send(1, 2);
  buffer.send(1, 2, 3);
  buffer.send(1, 2, 3, 4);
  buffer.recv(1, 2);
  buffer.recv(1, 2, 3);
  buffer.recv(1, 2, 3, 4);
  buffer.recv({1, 2}, 2);
  buffer.recv(std::vector<int>{1, 2}, 2, 3);
  buffer.recv(std::vector<int>{1, 2}, 2, 3, 4);
  int rank = -1;
  const auto deadline = std::chrono::steady_clock::now() + milliseconds(1);
  bool done = buffer.waitRecv() && buffer.waitRecv(&rank) && buffer.waitRecv(milliseconds(1)) && buffer.waitRecv(&rank, milliseconds(1));
  done = done && buffer.waitSend() && buffer.waitSend(&rank) && buffer.waitSend(milliseconds(1)) && buffer.waitSend(&rank, milliseconds(1));
  done = done && buffer.waitRecv(deadline) && buffer.waitSend(deadline);
#ifdef GLOO_WHOLE_SURFACE
  std::unique_ptr<gloo::transport::RemoteKey> key = buffer.getRemoteKey();
  buffer.put(*key, 1, 2, 3, 4);
  buffer.get(*key, 1, 2, 3, 4);
#endif
  use(done);
  buffer.abortWaitRecv();
  buffer.abortWaitSend();
}

template <typename Options>
void common(Options& options) {
  options.setTag(5);
  options.setTimeout(milliseconds(1));
}

void optionsStyle(const ContextPtr& context) {
  float number = 0;
  float* one = &number;
  const auto buffer = [&] { return context->createUnboundBuffer(one, sizeof(number)); };
  const auto buffers = [&] {
    std::vector<BufferPtr> list;
    list.push_back(buffer());
    return list;
  };
  using Function = std::function<void(void*, const void*, const void*, size_t)>;
  const Function function = static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>);

  gloo::AllreduceOptions allreduce(context);
  allreduce.setAlgorithm(gloo::AllreduceOptions::Algorithm::UNSPECIFIED);
  allreduce.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  allreduce.setAlgorithm(gloo::AllreduceOptions::Algorithm::BCUBE);
  allreduce.setAlgorithm(gloo::detail::AllreduceOptionsImpl::Algorithm::RING);
  allreduce.setInput(one, 1);
  allreduce.setInput<float>(one, 1);
  allreduce.setInput<float>(buffer());
  allreduce.setInputs(std::vector<float*>{one}, 1);
  allreduce.setInputs<float>({one}, 1);
  allreduce.setInputs(&one, 1, 1);
  allreduce.setInputs<float>(buffers());
  allreduce.setOutput(one, 1);
  allreduce.setOutput<float>(one, 1);
  allreduce.setOutput<float>(buffer());
  allreduce.setOutputs(std::vector<float*>{one}, 1);
  allreduce.setOutputs(&one, 1, 1);
  allreduce.setOutputs<float>(buffers());
  allreduce.setReduceFunction(function);
  allreduce.setReduceFunction([](void*, const void*, const void*, size_t) {});
  allreduce.setMaxSegmentSize(1024);
  static_assert(std::is_same<gloo::AllreduceOptions::Func, Function>::value, "");
  common(allreduce);
  const gloo::AllreduceOptions& asConstant = allreduce;
  gloo::allreduce(asConstant);

  gloo::ReduceOptions reduce(context);
  reduce.setInput(one, 1);
  reduce.setInput<float>(buffer());
  reduce.setOutput<float>(one, 1);
  reduce.setOutput<float>(buffer());
  reduce.setRoot(0);
  reduce.setReduceFunction(function);
  reduce.setMaxSegmentSize(1024);
  static_assert(std::is_same<gloo::ReduceOptions::Func, Function>::value, "");
  common(reduce);
  gloo::reduce(reduce);

  gloo::BroadcastOptions broadcast(context);
  broadcast.setInput<float>(one, 1);
  broadcast.setInput<float>(buffer());
  broadcast.setOutput(one, 1);
  broadcast.setOutput<float>(buffer());
  broadcast.setRoot(0);
  common(broadcast);
  gloo::broadcast(broadcast);

  gloo::GatherOptions gather(context);
  gather.setInput<float>(one, 1);
  gather.setInput<float>(buffer());
  gather.setOutput(one, 1);
  gather.setOutput<float>(buffer());
  gather.setRoot(0);
  common(gather);
  gloo::gather(gather);

  gloo::ScatterOptions scatter(context);
  scatter.setInputs<float>({one}, 1);
  scatter.setInputs(std::vector<float*>{one}, 1);
  scatter.setInputs(&one, 1, 1);
  scatter.setInputs<float>(buffers());
  scatter.setOutput<float>(one, 1);
  scatter.setOutput<float>(buffer());
  scatter.setRoot(0);
  common(scatter);
  gloo::scatter(scatter);

  gloo::AllgatherOptions allgather(context);
  allgather.setInput(one, 1);
  allgather.setInput<float>(buffer());
  allgather.setOutput<float>(one, 1);
  allgather.setOutput<float>(buffer());
  common(allgather);
  gloo::allgather(allgather);

  gloo::AllgathervOptions allgatherv(context);
  allgatherv.setInput(one, 1);
  allgatherv.setInput<float>(buffer());
  allgatherv.setOutput<float>(one, std::vector<size_t>{1});
  allgatherv.setOutput<float>(buffer(), std::vector<size_t>{1});
  common(allgatherv);
  gloo::allgatherv(allgatherv);

  gloo::AlltoallOptions alltoall(context);
  alltoall.setInput<float>(one, 1);
  alltoall.setInput<float>(buffer());
  alltoall.setOutput(one, 1);
  alltoall.setOutput<float>(buffer());
  common(alltoall);
  gloo::alltoall(alltoall);

  gloo::AlltoallvOptions alltoallv(context);
  alltoallv.setInput<float>(one, std::vector<int64_t>{1});
  alltoallv.setInput<float>(buffer(), std::vector<int64_t>{1});
  alltoallv.setOutput(one, std::vector<int64_t>{1});
  alltoallv.setOutput<float>(buffer(), std::vector<int64_t>{1});
  common(alltoallv);
  gloo::alltoallv(alltoallv);

  gloo::BarrierOptions barrier(context);
  common(barrier);
  gloo::barrier(barrier);

#ifdef GLOO_WHOLE_SURFACE
  gloo::GathervOptions gatherv(context);
  gatherv.setInput(one, 1);
  gatherv.setInput<float>(buffer());
  gatherv.setOutput(one, std::vector<size_t>{1});
  gatherv.setOutput<float>(buffer(), std::vector<size_t>{1});
  gatherv.setRoot(0);
  common(gatherv);
  gloo::gatherv(gatherv);

  alltoallv.setInput(one, std::vector<size_t>{1});
  alltoallv.setOutput(one, std::vector<size_t>{1});
  alltoallv.setInput<float>(buffer(), std::vector<size_t>{1});
  alltoallv.setOutput<float>(buffer(), std::vector<size_t>{1});
#endif
}

void classStyle(const ContextPtr& context) {
  float number = 0;
  const std::vector<float*> pointers = {&number};
  const auto* max = gloo::ReductionFunction<float>::max;
  std::vector<std::unique_ptr<gloo::Algorithm>> all;
  const auto add = [&](gloo::Algorithm* algorithm) { all.emplace_back(algorithm); };
  add(new gloo::AllreduceRing<float>(context, pointers, 1));
  add(new gloo::AllreduceRing<float>(context, pointers, 1, max));
  add(new gloo::AllreduceRingChunked<float>(context, pointers, 1));
  add(new gloo::AllreduceRingChunked<float>(context, pointers, 1, max));
  add(new gloo::AllreduceHalvingDoubling<float>(context, pointers, 1));
  add(new gloo::AllreduceHalvingDoubling<float>(context, pointers, 1, max));
  add(new gloo::AllreduceBcube<float>(context, pointers, 1));
  add(new gloo::AllreduceBcube<float>(context, pointers, 1, max));
  add(new gloo::AllreduceLocal<float>(context, pointers, 1));
  add(new gloo::AllreduceLocal<float>(context, pointers, 1, max));
  add(new gloo::AllgatherRing<float>(context, std::vector<const float*>{&number}, &number, 1));
  add(new gloo::BroadcastOneToAll<float>(context, pointers, 1));
  add(new gloo::BroadcastOneToAll<float>(context, pointers, 1, 0));
  add(new gloo::BroadcastOneToAll<float>(context, pointers, 1, 0, 0));
  add(new gloo::ReduceScatterHalvingDoubling<float>(context, pointers, 1, std::vector<int>{1}));
  add(new gloo::ReduceScatterHalvingDoubling<float>(context, pointers, 1, std::vector<int>{1}, max));
  add(new gloo::BarrierAllToAll(context));
  add(new gloo::BarrierAllToOne(context));
  add(new gloo::BarrierAllToOne(context, 0));
  add(new gloo::PairwiseExchange(context, 8, 1));
  static_assert(std::is_base_of<gloo::Barrier, gloo::BarrierAllToAll>::value, "");
  for (auto& algorithm : all) {
    algorithm->run();
  }
}

class OwnAlgorithm : public gloo::Algorithm {
 public:
  explicit OwnAlgorithm(const ContextPtr& context) : gloo::Algorithm(context) {}
  void run() override {
    use(context_, contextRank_, contextSize_, getPair(0), getLeftPair(), getRightPair());
  }
};

int main(int argc, char**) {
  reductions<float>();
  reductions<double>();
  reductions<gloo::float16>();
  reductions<int8_t>();
  reductions<uint8_t>();
  reductions<int32_t>();
  reductions<int64_t>();
  reductions<uint64_t>();
  errors();
  slots();
  float16();
  // Named, not called: it is enough that all of this can be linked.
  if (argc > 1000) {
    gloo::rendezvous::HashStore store;
    DevicePtr device;
    ContextPtr context;
    helpers();
    stores(store);
    contexts(store, device);
    devices();
    pairs(*context->getPair(0), nullptr);
    unboundBuffers(*context->createUnboundBuffer(nullptr, 0));
    optionsStyle(context);
    classStyle(context);
    OwnAlgorithm(context).run();
  }
}
