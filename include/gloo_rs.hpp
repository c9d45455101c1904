// gloo_rs for C++17: owning handles, exceptions, and collectives by element type, over the functions of gloo_rs.h,
// which documents what each call does. There is nothing to link but the C library.
//
//   auto [store, rank, size] = gloo_rs::launch_from_env();
//   auto device = gloo_rs::Device::create();
//   auto context = gloo_rs::Context::create(device, rank, size);
//   context.connect(store);
//   context.allreduce(values.data(), values.size());
//
// What has no function here is called by its C function, with the handle that get() returns; make() is for those that
// create a handle:
//
//   gloo_rs::check(gloo_rs_context_set_timeout(context.get(), 5000));
//   auto redis = gloo_rs::make<gloo_rs::Store>(gloo_rs_store_create_redis, "redis-host", port, nullptr, timeout_ms);
//   gloo_rs::CollectiveOptions options(values.data(), values.size());
//   options.algorithm = "ring";
//   gloo_rs::check(gloo_rs_collective(context.get(), GLOO_RS_ALLREDUCE, &options));
//
// - A function throws Error where the C function returns a status that is not GLOO_RS_OK.
// - Handles can be moved, not copied. A handle that was moved from, or that no function has made, is empty: get()
//   returns a null pointer, and calls throw Error with GLOO_RS_ERROR_INVALID_ARGUMENT.
// - Destructors do not throw. What fails in them is not reported, but becomes the thread's last error. Only that of a
//   Request waits.
// - Handles may be destroyed in any order, but Memory before its context. Threads may use one handle at the same time,
//   as in the C API.
// - Timeouts are in milliseconds, counts in elements, sizes and offsets of messages in bytes.
#ifndef GLOO_RS_HPP
#define GLOO_RS_HPP

#include <gloo_rs.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace gloo_rs {

// A struct of the C API as its init function initialises it: defaults(gloo_rs_device_options_init).
template <class Struct>
[[nodiscard]] Struct defaults(void (*init)(Struct *, size_t)) noexcept {
  Struct made;
  init(&made, sizeof made);
  return made;
}

// A call that failed. what() is the message of gloo_rs_last_error_message.
class Error : public std::runtime_error {
 public:
  explicit Error(const gloo_rs_error_t &error)
      : std::runtime_error(error.message),
        status_(error.status),
        rank_(error.rank),
        operation_(std::make_shared<const std::string>(error.operation)) {}

  // What the C function returned.
  [[nodiscard]] gloo_rs_status_t status() const noexcept { return status_; }
  // The rank with which the failure began, -1 if that is unknown or no rank's failure.
  [[nodiscard]] int32_t rank() const noexcept { return rank_; }
  // What failed: `allreduce`, `connect`, `store get`.
  [[nodiscard]] const std::string &operation() const noexcept { return *operation_; }

 private:
  gloo_rs_status_t status_;
  int32_t rank_;
  std::shared_ptr<const std::string> operation_;  // shared, so that copies do not throw
};

// Throws Error unless `status`, which the last call of this thread has returned, is GLOO_RS_OK.
inline void check(gloo_rs_status_t status) {
  if (status == GLOO_RS_OK) return;
  auto error = defaults(gloo_rs_error_init);
  if (gloo_rs_last_error(&error) != GLOO_RS_OK || error.status != status) {
    // The status does not come from this library's last call; a callback may have returned it.
    error = defaults(gloo_rs_error_init);
    error.status = status;
    error.message = gloo_rs_status_name(status);
  }
  throw Error(error);
}

namespace detail {

inline void ignore(gloo_rs_status_t) noexcept {}

template <class T>
constexpr gloo_rs_data_type_t data_type_of() noexcept {
  if constexpr (std::is_same_v<T, float>) return GLOO_RS_FLOAT32;
  else if constexpr (std::is_same_v<T, double>) return GLOO_RS_FLOAT64;
  else if constexpr (std::is_same_v<T, bool>) return GLOO_RS_BOOL;
  else {
    // Whether `char` is signed depends on the machine.
    static_assert(std::is_integral_v<T> && !std::is_same_v<T, char> && sizeof(T) <= 8, "T has no data type: pass one as the last argument");
    constexpr bool is_signed = std::is_signed_v<T>;
    return sizeof(T) == 1   ? (is_signed ? GLOO_RS_INT8 : GLOO_RS_UINT8)
           : sizeof(T) == 2 ? (is_signed ? GLOO_RS_INT16 : GLOO_RS_UINT16)
           : sizeof(T) == 4 ? (is_signed ? GLOO_RS_INT32 : GLOO_RS_UINT32)
                            : (is_signed ? GLOO_RS_INT64 : GLOO_RS_UINT64);
  }
}

// What `call`, a C function, writes to its last parameter.
template <class Value, class Call, class... Arguments>
Value result(Call call, Arguments... arguments) {
  Value value{};
  check(call(arguments..., &value));
  return value;
}

template <auto destroy>
struct Destroy {
  template <class T> void operator()(T *handle) const noexcept { destroy(handle); }
};

template <class T, class Deleter>
class Handle {
 public:
  using c_type = T;

  Handle() noexcept = default;
  // Owns `handle` from now on.
  explicit Handle(T *handle) noexcept : handle_(handle) {}

  [[nodiscard]] T *get() const noexcept { return handle_.get(); }
  [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }
  // Destroys the handle now.
  void reset() noexcept { handle_.reset(); }
  // Leaves it to the caller to destroy the handle.
  [[nodiscard]] T *release() noexcept { return handle_.release(); }

 private:
  std::unique_ptr<T, Deleter> handle_;
};

}  // namespace detail

// The data type of float, double, bool and the integers of 8 to 64 bits.
template <class T>
inline constexpr gloo_rs_data_type_t data_type = detail::data_type_of<std::remove_cv_t<T>>();

// What `create`, a C function whose last parameter is a handle, makes of `arguments`.
template <class Owner, class Create, class... Arguments>
[[nodiscard]] Owner make(Create create, Arguments... arguments) {
  return Owner(detail::result<typename Owner::c_type *>(create, arguments...));
}

class Store : public detail::Handle<gloo_rs_store_t, detail::Destroy<gloo_rs_store_destroy>> {
 public:
  using Handle::Handle;
  [[nodiscard]] static Store create_url(const std::string &url, int32_t rank, int64_t timeout_ms = GLOO_RS_TIMEOUT_DEFAULT) {
    return make<Store>(gloo_rs_store_create_url, url.c_str(), rank, timeout_ms);
  }
  [[nodiscard]] static Store create_tcp(const std::string &host, uint16_t port, bool serve, int64_t timeout_ms = GLOO_RS_TIMEOUT_DEFAULT,
                                        const gloo_rs_tcp_store_options_t *options = nullptr) {
    return make<Store>(gloo_rs_store_create_tcp_with, host.c_str(), port, serve, timeout_ms, options);
  }
  [[nodiscard]] static Store create_file(const std::string &path) { return make<Store>(gloo_rs_store_create_file, path.c_str()); }
  [[nodiscard]] static Store create_in_process(const std::string &name) {
    return make<Store>(gloo_rs_store_create_in_process, name.c_str());
  }
  [[nodiscard]] static Store create_prefix(const std::string &prefix, const Store &base) {
    return make<Store>(gloo_rs_store_create_prefix, prefix.c_str(), base.get());
  }

  [[nodiscard]] uint16_t port() const { return detail::result<uint16_t>(gloo_rs_store_port, get()); }
  void set(const std::string &key, std::string_view value) { check(gloo_rs_store_set(get(), key.c_str(), value.data(), value.size())); }
  void append(const std::string &key, std::string_view value) {
    check(gloo_rs_store_append(get(), key.c_str(), value.data(), value.size()));
  }
  // The value of `key`, for which it waits.
  [[nodiscard]] std::string value(const std::string &key, int64_t timeout_ms = GLOO_RS_TIMEOUT_DEFAULT) {
    void *memory = nullptr;
    size_t bytes = 0;
    check(gloo_rs_store_get(get(), key.c_str(), timeout_ms, &memory, &bytes));
    const std::unique_ptr<void, detail::Destroy<gloo_rs_free>> owned(memory);
    return std::string(static_cast<const char *>(memory), bytes);
  }
  // Returns the sum.
  int64_t add(const std::string &key, int64_t amount) {
    return detail::result<int64_t>(gloo_rs_store_add, get(), key.c_str(), amount);
  }
};

// What gloo_rs_launch_from_env returns.
struct Launch {
  Store store;
  int32_t rank = 0;
  int32_t size = 1;
};
[[nodiscard]] inline Launch launch_from_env(int64_t timeout_ms = GLOO_RS_TIMEOUT_DEFAULT) {
  gloo_rs_store_t *store = nullptr;
  int32_t rank = 0, size = 1;
  check(gloo_rs_launch_from_env(timeout_ms, &store, &rank, &size));
  return {Store(store), rank, size};
}

class Device : public detail::Handle<gloo_rs_device_t, detail::Destroy<gloo_rs_device_destroy>> {
 public:
  using Handle::Handle;
  [[nodiscard]] static Device create(const gloo_rs_device_options_t *options = nullptr) {
    return make<Device>(gloo_rs_device_create, options);
  }
};

// Memory of gloo_rs_alloc. It must be destroyed before the handle of its context.
struct Deallocate {
  gloo_rs_context_t *context = nullptr;
  void operator()(void *memory) const noexcept { detail::ignore(gloo_rs_dealloc(context, memory)); }
};
template <class T>
using Memory = std::unique_ptr<T[], Deallocate>;

class Context : public detail::Handle<gloo_rs_context_t, detail::Destroy<gloo_rs_context_destroy>> {
 public:
  using Handle::Handle;
  using Op = gloo_rs_op_t;
  using Type = gloo_rs_data_type_t;
  // T, which is not deduced from this parameter: it may be nullptr.
  template <class T> using Same = std::common_type_t<T>;

  // Its rank and size are -1 until it is reconfigured.
  [[nodiscard]] static Context create_without_members(const Device &device, const gloo_rs_context_options_t *options = nullptr) {
    return create(device, -1, -1, options);
  }
  [[nodiscard]] static Context create(const Device &device, int32_t rank, int32_t size,
                                      const gloo_rs_context_options_t *options = nullptr) {
    return make<Context>(gloo_rs_context_create, device.get(), rank, size, options);
  }
  void connect(const Store &store) { check(gloo_rs_context_connect(get(), store.get())); }
  void connect_oob(gloo_rs_allgather_fn_t function, void *user) { check(gloo_rs_context_connect_oob(get(), function, user)); }
  void connect_from(const Context &parent, uint64_t tag) { check(gloo_rs_context_connect_from(get(), parent.get(), tag)); }
  // Empty if `color` is GLOO_RS_COLOR_UNDEFINED.
  [[nodiscard]] Context split(int32_t color, int32_t key) { return make<Context>(gloo_rs_context_split, get(), color, key); }
  void close() { check(gloo_rs_context_close(get())); }
  // Lends this thread to the context for so long.
  void progress(int64_t timeout_ms) { check(gloo_rs_progress(get(), timeout_ms)); }

  // Ends what all ranks do on the context.
  void abort(const char *reason = nullptr) { check(gloo_rs_context_abort(get(), reason)); }
  [[nodiscard]] bool is_aborted() const { return detail::result<bool>(gloo_rs_context_is_aborted, get()); }
  // Sets `flags` to the bits that the ranks that are left have in common. False if more ranks are lost than the last time.
  [[nodiscard]] bool agree(uint64_t &flags, int64_t timeout_ms = GLOO_RS_TIMEOUT_DEFAULT) {
    const gloo_rs_status_t status = gloo_rs_context_agree(get(), &flags, timeout_ms);
    if (status == GLOO_RS_ERROR_CONNECTION_LOST) return false;
    check(status);
    return true;
  }
  // The ranks that were lost when the ranks agreed last.
  [[nodiscard]] std::vector<int32_t> lost_ranks() const {
    size_t n = 0;
    check(gloo_rs_context_lost_ranks(get(), nullptr, 0, &n));
    std::vector<int32_t> ranks(n);
    check(gloo_rs_context_lost_ranks(get(), ranks.data(), ranks.size(), &n));
    return ranks;
  }
  // The ranks that are left.
  [[nodiscard]] Context shrink(int64_t timeout_ms = GLOO_RS_TIMEOUT_DEFAULT) {
    return make<Context>(gloo_rs_context_shrink, get(), timeout_ms);
  }

  // Names this process and its present membership, for reconfigure in other processes.
  [[nodiscard]] std::string handle() const {
    size_t needed = 0;
    check(gloo_rs_context_handle(get(), nullptr, 0, &needed));
    std::string text(needed, '\0');
    check(gloo_rs_context_handle(get(), text.data(), text.size(), nullptr));
    text.resize(needed - 1);
    return text;
  }
  // The processes with these handles become the members: in the order of their ranks, or else in one that the library makes.
  void reconfigure(const Store &store, int64_t id, const std::vector<std::string> &handles, bool ordered = true,
                   int64_t timeout_ms = GLOO_RS_TIMEOUT_DEFAULT) {
    std::vector<const char *> texts;
    texts.reserve(handles.size());
    for (const auto &handle : handles) texts.push_back(handle.c_str());
    check(gloo_rs_context_reconfigure(get(), store.get(), id, texts.data(), texts.size(), ordered, timeout_ms));
  }

  [[nodiscard]] int32_t rank() const { return detail::result<int32_t>(gloo_rs_context_rank, get()); }
  [[nodiscard]] int32_t size() const { return detail::result<int32_t>(gloo_rs_context_size, get()); }
  // The reason for which the context can run no collectives any more; nothing if it can.
  [[nodiscard]] std::optional<Error> broken() const {
    bool broken = false;
    auto error = defaults(gloo_rs_error_init);
    check(gloo_rs_context_broken(get(), &broken, &error));
    if (!broken) return std::nullopt;
    return Error(error);
  }
  // The first of `n` slots for messages.
  [[nodiscard]] uint64_t next_slot(uint32_t n) { return detail::result<uint64_t>(gloo_rs_context_next_slot, get(), n); }
  // `count` elements, all zero.
  template <class T>
  [[nodiscard]] Memory<T> alloc(size_t count) {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
    void *memory = nullptr;
    // More than there is, if that overflows.
    check(gloo_rs_alloc(get(), count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T), &memory));
    return Memory<T>(static_cast<T *>(memory), Deallocate{get()});
  }

  // The collectives, with the parameters of the C functions, but the data type last. It is that of T, unless one is
  // passed, as for float16; counts are in elements of it.
  template <class T> void allreduce(T *values, size_t count, Op op = GLOO_RS_SUM, Type type = data_type<T>) {
    check(gloo_rs_allreduce(get(), values, values, count, type, op));
  }
  template <class T> void allreduce(const Same<T> *input, T *output, size_t count, Op op = GLOO_RS_SUM, Type type = data_type<T>) {
    check(gloo_rs_allreduce(get(), input, output, count, type, op));
  }
  template <class T> void reduce(const T *input, Same<T> *output, size_t count, Op op, int32_t root, Type type = data_type<T>) {
    check(gloo_rs_reduce(get(), input, output, count, type, op, root));
  }
  template <class T> void reduce_scatter(const Same<T> *input, T *output, size_t count, Op op = GLOO_RS_SUM, Type type = data_type<T>) {
    check(gloo_rs_reduce_scatter(get(), input, output, count, type, op));
  }
  template <class T> void scan(const Same<T> *input, T *output, size_t count, Op op = GLOO_RS_SUM, Type type = data_type<T>) {
    check(gloo_rs_scan(get(), input, output, count, type, op));
  }
  template <class T> void exscan(const Same<T> *input, T *output, size_t count, Op op = GLOO_RS_SUM, Type type = data_type<T>) {
    check(gloo_rs_exscan(get(), input, output, count, type, op));
  }
  template <class T> void broadcast(T *buffer, size_t count, int32_t root, Type type = data_type<T>) {
    check(gloo_rs_broadcast(get(), buffer, count, type, root));
  }
  template <class T> void gather(const T *input, Same<T> *output, size_t count, int32_t root, Type type = data_type<T>) {
    check(gloo_rs_gather(get(), input, output, count, type, root));
  }
  template <class T> void gatherv(const T *input, size_t count, Same<T> *output, const size_t *counts, int32_t root,
                                  Type type = data_type<T>) {
    check(gloo_rs_gatherv(get(), input, count, output, counts, type, root));
  }
  template <class T> void scatter(const Same<T> *input, T *output, size_t count, int32_t root, Type type = data_type<T>) {
    check(gloo_rs_scatter(get(), input, output, count, type, root));
  }
  template <class T> void scatterv(const Same<T> *input, const size_t *counts, T *output, size_t count, int32_t root,
                                   Type type = data_type<T>) {
    check(gloo_rs_scatterv(get(), input, counts, output, count, type, root));
  }
  template <class T> void allgather(const Same<T> *input, T *output, size_t count, Type type = data_type<T>) {
    check(gloo_rs_allgather(get(), input, output, count, type));
  }
  template <class T> void allgatherv(const Same<T> *input, T *output, const size_t *counts, Type type = data_type<T>) {
    check(gloo_rs_allgatherv(get(), input, output, counts, type));
  }
  template <class T> void alltoall(const Same<T> *input, T *output, size_t count, Type type = data_type<T>) {
    check(gloo_rs_alltoall(get(), input, output, count, type));
  }
  template <class T> void alltoallv(const Same<T> *input, const size_t *send_counts, T *output, const size_t *recv_counts,
                                    Type type = data_type<T>) {
    check(gloo_rs_alltoallv(get(), input, send_counts, output, recv_counts, type));
  }
  void barrier() { check(gloo_rs_barrier(get())); }
};

// Options for gloo_rs_collective and gloo_rs_collective_prepare, with at most one input and one output, which may be
// nullptr. Their other fields have the defaults, and may be set.
struct CollectiveOptions : gloo_rs_collective_options_t {
  CollectiveOptions() noexcept : gloo_rs_collective_options_t(defaults(gloo_rs_collective_options_init)) {}
  template <class T>
  CollectiveOptions(const std::common_type_t<T> *from, T *to, size_t elements, gloo_rs_data_type_t type = gloo_rs::data_type<T>) noexcept
      : CollectiveOptions() {
    input_ = from;
    output_ = to;
    inputs = &input_;
    outputs = &output_;
    num_inputs = from != nullptr;
    num_outputs = to != nullptr;
    count = elements;
    data_type = type;
  }
  // In place.
  template <class T>
  CollectiveOptions(T *values, size_t elements, gloo_rs_data_type_t type = gloo_rs::data_type<T>) noexcept
      : CollectiveOptions(nullptr, values, elements, type) {}
  // The lists lie in the object.
  CollectiveOptions(const CollectiveOptions &) = delete;
  CollectiveOptions &operator=(const CollectiveOptions &) = delete;

 private:
  const void *input_ = nullptr;
  void *output_ = nullptr;
};

namespace detail {

// An active request is refused. Its buffers are the library's until it has been waited for.
struct FreeRequest {
  void operator()(gloo_rs_request_t *request) const noexcept {
    if (gloo_rs_request_free(request) == GLOO_RS_OK) return;
    ignore(gloo_rs_wait(request));
    ignore(gloo_rs_request_free(request));
  }
};

// Has `callback` called, which the library owns from then on.
template <class H, class F>
void set_callback(gloo_rs_status_t (*set)(H *, gloo_rs_callback_fn_t, void *, void (*)(void *)), H *handle, F callback) {
  auto own = std::make_unique<F>(std::move(callback));
  check(set(
      handle, [](const gloo_rs_queue_entry_t *entry, void *user) noexcept { (*static_cast<F *>(user))(*entry); }, own.get(),
      [](void *user) noexcept { delete static_cast<F *>(user); }));
  // It may have been called and deleted by then.
  static_cast<void>(own.release());
}

}  // namespace detail

// A persistent request. If it is active, the destructor waits for the end of the call, at most until its timeout; to
// end it at once, close the context. The buffers must live longer than the request: declare them first.
class Request : public detail::Handle<gloo_rs_request_t, detail::FreeRequest> {
 public:
  using Handle::Handle;
  // Request::create(context, GLOO_RS_ALLREDUCE, options)
  [[nodiscard]] static Request create(const Context &context, gloo_rs_collective_t kind,
                                      const gloo_rs_collective_options_t &options) {
    return make<Request>(gloo_rs_collective_prepare, context.get(), kind, &options);
  }
  void start() { check(gloo_rs_start(get())); }
  void wait() { check(gloo_rs_wait(get())); }
  // Whether the call is complete, and the request inactive.
  [[nodiscard]] bool test() { return detail::result<bool>(gloo_rs_test, get()); }
  // Prepares a call and starts it, beside others of its collective and tag that were started so.
  [[nodiscard]] static Request started(const Context &context, gloo_rs_collective_t kind,
                                       const gloo_rs_collective_options_t &options) {
    return make<Request>(gloo_rs_collective_start, context.get(), kind, &options);
  }
  // Fails with GLOO_RS_ERROR_TIMEOUT if the call has not ended after this time; it goes on.
  void wait_for(int64_t timeout_ms) { check(gloo_rs_wait_for(get(), timeout_ms)); }
  // Has callback(const gloo_rs_queue_entry_t &) called at the end of each call, in place of waits, on a thread of the
  // device: gloo_rs::check(entry.status) throws there what the wait would have. An exception that leaves it ends the
  // process. The destructor of an active request does not wait then: its buffers must live until the callback is called.
  template <class F>
  void set_callback(F callback) {
    detail::set_callback(gloo_rs_request_set_callback, get(), std::move(callback));
  }
  [[nodiscard]] gloo_rs_request_info_t query() const {
    gloo_rs_request_info_t info{};
    gloo_rs_request_info_init(&info, sizeof info);
    check(gloo_rs_request_query(get(), &info));
    return info;
  }
};

// A message that has arrived.
struct Received {
  int32_t rank;
  size_t bytes;
};

// Messages from and into the memory at `data`, which must live longer.
class UnboundBuffer : public detail::Handle<gloo_rs_unbound_buffer_t, detail::Destroy<gloo_rs_unbound_buffer_destroy>> {
 public:
  using Handle::Handle;
  [[nodiscard]] static UnboundBuffer create(const Context &context, void *data, size_t bytes) {
    return make<UnboundBuffer>(gloo_rs_unbound_buffer_create, context.get(), data, bytes);
  }
  void send(int32_t to, uint64_t slot, size_t offset, size_t bytes) { check(gloo_rs_unbound_buffer_send(get(), to, slot, offset, bytes)); }
  void recv(int32_t from, uint64_t slot, size_t offset, size_t bytes) {
    check(gloo_rs_unbound_buffer_recv(get(), from, slot, offset, bytes));
  }
  // Waits for one more send, put or get, and returns its peer.
  int32_t wait_send(int64_t timeout_ms = GLOO_RS_TIMEOUT_DEFAULT) {
    return detail::result<int32_t>(gloo_rs_unbound_buffer_wait_send, get(), timeout_ms);
  }
  Received wait_recv(int64_t timeout_ms = GLOO_RS_TIMEOUT_DEFAULT) {
    Received received{};
    check(gloo_rs_unbound_buffer_wait_recv(get(), timeout_ms, &received.rank, &received.bytes));
    return received;
  }
  // Calls `callback` at the end of each send, put, get and receive, as Request::set_callback does for a request.
  template <class F>
  void set_callback(F callback) {
    detail::set_callback(gloo_rs_unbound_buffer_set_callback, get(), std::move(callback));
  }
};

namespace detail {

// A queue with active requests is refused. Their buffers are the library's until their entries have been taken.
struct DestroyQueue {
  void operator()(gloo_rs_queue_t *queue) const noexcept {
    uint64_t user;
    gloo_rs_status_t status;
    while (gloo_rs_queue_destroy(queue) != GLOO_RS_OK)
      if (gloo_rs_queue_wait(queue, GLOO_RS_TIMEOUT_INFINITE, &user, &status) != GLOO_RS_OK) return;
  }
};

}  // namespace detail

// What a queue reports: gloo_rs::check(entry.status) throws what the wait for the call would have, on the thread that
// took the entry, before its next call.
struct Entry {
  uint64_t user;
  gloo_rs_status_t status;
};

// A completion queue. Its destructor waits for the calls of requests that are attached. A request that is destroyed while
// it is active and attached goes on: its buffers must live until its entry was taken.
class Queue : public detail::Handle<gloo_rs_queue_t, detail::DestroyQueue> {
 public:
  using Handle::Handle;
  [[nodiscard]] static Queue create() { return make<Queue>(gloo_rs_queue_create); }
  void attach(const Request &request, uint64_t user) { check(gloo_rs_queue_attach(get(), request.get(), user)); }
  void attach(const UnboundBuffer &buffer, uint64_t user) { check(gloo_rs_queue_attach_buffer(get(), buffer.get(), user)); }
  [[nodiscard]] Entry wait(int64_t timeout_ms = GLOO_RS_TIMEOUT_INFINITE) {
    Entry entry{};
    check(gloo_rs_queue_wait(get(), timeout_ms, &entry.user, &entry.status));
    return entry;
  }
  // With the peer and the bytes of a message of a buffer.
  [[nodiscard]] gloo_rs_queue_entry_t wait_entry(int64_t timeout_ms = GLOO_RS_TIMEOUT_INFINITE) {
    gloo_rs_queue_entry_t entry{};
    gloo_rs_queue_entry_init(&entry, sizeof entry);
    check(gloo_rs_queue_wait_entry(get(), timeout_ms, &entry));
    return entry;
  }
  [[nodiscard]] int fd() { return detail::result<int>(gloo_rs_queue_fd, get()); }
  void close() { check(gloo_rs_queue_close(get())); }
};

// Starts that begin together, when end() is called, or not at all: then it throws, and the requests are inactive. Destroyed
// before, it begins nothing. A request or a buffer that is destroyed before the end fails it.
class Group : public detail::Handle<gloo_rs_group_t, detail::Destroy<gloo_rs_group_cancel>> {
 public:
  using Handle::Handle;
  [[nodiscard]] static Group begin(const Context &context) { return make<Group>(gloo_rs_group_begin, context.get()); }
  [[nodiscard]] Request start(gloo_rs_collective_t kind, const gloo_rs_collective_options_t &options) {
    return make<Request>(gloo_rs_group_collective_start, get(), kind, &options);
  }
  void fuse(std::size_t max_bytes) { check(gloo_rs_group_fuse(get(), max_bytes)); }
  // Adds a request of start() or Request::started() that has ended.
  void start(const Request &request) { check(gloo_rs_group_start(get(), request.get())); }
  void send(const UnboundBuffer &buffer, int32_t to, uint64_t slot, size_t offset, size_t bytes) {
    check(gloo_rs_group_send(get(), buffer.get(), to, slot, offset, bytes));
  }
  void recv(const UnboundBuffer &buffer, int32_t from, uint64_t slot, size_t offset, size_t bytes) {
    check(gloo_rs_group_recv(get(), buffer.get(), from, slot, offset, bytes));
  }
  // The group is empty afterwards, whatever comes of it.
  void end() { check(gloo_rs_group_end(release())); }
};

// The connection to one peer, and a buffer of it: make<Pair>(gloo_rs_context_pair, context.get(), rank).
using Pair = detail::Handle<gloo_rs_pair_t, detail::Destroy<gloo_rs_pair_destroy>>;
using Buffer = detail::Handle<gloo_rs_buffer_t, detail::Destroy<gloo_rs_buffer_destroy>>;

}  // namespace gloo_rs

#endif  // GLOO_RS_HPP
