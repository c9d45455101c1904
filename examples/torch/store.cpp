// torch's store as a store of the library, and contexts that find each other through it.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include <unistd.h>

#include "library.hpp"

namespace gloo_rs_torch {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

// What the store threw in this thread: no exception may reach the library, which makes its calls on the thread that
// connects.
thread_local std::string failure;

template <typename Function>
gloo_rs_status_t guarded(Function function) {
  try {
    return function();
  } catch (const std::exception &thrown) {
    failure = thrown.what();
    return GLOO_RS_ERROR_CALLBACK;
  }
}

Store &store_of(void *user) { return *static_cast<Store *>(user); }

gloo_rs_status_t set(const char *key, const void *value, size_t bytes, void *user) {
  return guarded([&] {
    const auto *begin = static_cast<const uint8_t *>(value);
    store_of(user)->set(key, std::vector<uint8_t>(begin, begin + bytes));
    return GLOO_RS_OK;
  });
}

// Asks again and again: a wait of TCPStore that times out leaves its connection in the middle of an answer, and
// occupies the store for other threads meanwhile.
gloo_rs_status_t wait_for(const Store &store, const std::vector<std::string> &keys, int64_t timeout_ms) {
  const auto began = std::chrono::steady_clock::now();
  auto pause = std::chrono::microseconds(200);
  while (!store->check(keys)) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began);
    if (timeout_ms != GLOO_RS_TIMEOUT_INFINITE && waited.count() >= timeout_ms) return GLOO_RS_ERROR_TIMEOUT;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(20000));
  }
  return GLOO_RS_OK;
}

gloo_rs_status_t wait(const char *const *keys, size_t n, int64_t timeout_ms, void *user) {
  return guarded([&] { return wait_for(store_of(user), std::vector<std::string>(keys, keys + n), timeout_ms); });
}

gloo_rs_status_t get(const char *key, int64_t timeout_ms, void *sink, void *user) {
  return guarded([&] {
    const gloo_rs_status_t status = wait_for(store_of(user), {key}, timeout_ms);
    if (status != GLOO_RS_OK) return status;
    const std::vector<uint8_t> value = store_of(user)->get(key);
    return gloo_rs_store_return_value(sink, value.empty() ? static_cast<const void *>("") : value.data(), value.size());
  });
}

gloo_rs_status_t add(const char *key, int64_t amount, int64_t *sum, void *user) {
  return guarded([&] {
    *sum = store_of(user)->add(key, amount);
    return GLOO_RS_OK;
  });
}

gloo_rs_status_t remove_key(const char *key, bool *existed, void *user) {
  return guarded([&] {
    *existed = store_of(user)->deleteKey(key);
    return GLOO_RS_OK;
  });
}

void destroy(void *user) { delete static_cast<Store *>(user); }

// The device of this process, which all groups share and nobody destroys: contexts may outlive every static object. A
// child by fork gets its own.
gloo_rs_device_t *device() {
  static std::mutex mutex;
  static gloo_rs_device_t *device = nullptr;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (device == nullptr || owner != getpid()) {
    gloo_rs_device_options_t options;
    gloo_rs_device_options_init(&options, sizeof options);
    // The variable of torch's own backend counts where the library's is not set.
    const char *interfaces = std::getenv("GLOO_SOCKET_IFNAME");
    if (std::getenv("GLOO_RS_SOCKET_IFNAME") == nullptr && interfaces != nullptr && *interfaces != '\0') options.interface_name = interfaces;
    check(gloo_rs_device_create(&options, &device), "the device");
    owner = getpid();
  }
  return device;
}

}  // namespace

StoreHandle wrap_store(const Store &store) {
  gloo_rs_store_callbacks_t callbacks;
  gloo_rs_store_callbacks_init(&callbacks, sizeof callbacks);
  auto held = std::make_unique<Store>(store);
  callbacks.user = held.get();
  callbacks.set = set;
  callbacks.get = get;
  callbacks.wait = wait;
  callbacks.add = add;
  callbacks.remove = remove_key;
  callbacks.destroy = destroy;
  gloo_rs_store_t *handle = nullptr;
  check(gloo_rs_store_create_callbacks(&callbacks, &handle), "the store");
  held.release();  // `destroy` deletes it
  return StoreHandle(handle, gloo_rs_store_destroy);
}

Context::Context(const Store &store, int rank, int size, std::chrono::milliseconds timeout) : rank_(rank), size_(size), timeout_(timeout) {
  gloo_rs_context_options_t options;
  gloo_rs_context_options_init(&options, sizeof options);
  options.timeout_ms = timeout_ms(timeout);
  check(gloo_rs_context_create(device(), rank, size, &options, &handle_), describe("the context"));
  failure.clear();
  if (gloo_rs_context_connect(handle_, wrap_store(store).get()) != GLOO_RS_OK) {
    const std::string message = gloo_rs_last_error_message();
    gloo_rs_context_destroy(handle_);
    throw std::runtime_error("gloo_rs: " + describe("connecting") + ": " + message + (failure.empty() ? "" : ": " + failure));
  }
}

}  // namespace gloo_rs_torch
