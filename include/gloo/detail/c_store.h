/*
 * Stores of the library.
 */
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "gloo/common/enforce.h"
#include "gloo/detail/c_api.h"
#include "gloo/rendezvous/store.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace detail {

/// Whether an object is exactly a `Class`, and of no class that derives from it and may have changed its functions.
template <typename Class>
bool is_exactly(const Class& object) {
#if defined(__cpp_rtti) || defined(_CPPRTTI)
  return typeid(object) == typeid(Class);
#else
  (void)object;
  return false;
#endif
}

/// A store over a C handle. Thread-safe.
class CStore : public rendezvous::Store {
 public:
  CStore(const CStore&) = delete;
  CStore& operator=(const CStore&) = delete;

  using rendezvous::Store::wait;

  /// Throws EnforceNotMet if the key has a value: it belongs to another group of ranks, and this one needs a prefix.
  void set(const std::string& key, const std::vector<char>& data) override {
    std::lock_guard<std::mutex> lock(mutex_);
    GLOO_ENFORCE(!has({key}), "Key '", key, "' already set");
    check(gloo_rs_store_set(store_.get(), key.c_str(), data.data(), data.size()));
  }

  /// Waits for the value until the default timeout, GLOO_RS_TIMEOUT or 30 s.
  std::vector<char> get(const std::string& key) override {
    return std::move(multi_get({key}).front());
  }

  void wait(const std::vector<std::string>& keys) override {
    wait_for(keys, GLOO_RS_TIMEOUT_DEFAULT);
  }

  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    wait_for(keys, timeout_ms(timeout));
  }

  bool has_v2_support() override {
    return true;
  }

  std::vector<std::vector<char>> multi_get(const std::vector<std::string>& keys) override {
    const std::vector<const char*> pointers = pointers_of(keys);
    std::vector<void*> values(keys.size());
    std::vector<size_t> bytes(keys.size());
    check(gloo_rs_store_multi_get(
        store_.get(), pointers.data(), pointers.size(), GLOO_RS_TIMEOUT_DEFAULT, values.data(), bytes.data()));
    std::vector<std::vector<char>> copies(keys.size());
    for (size_t i = 0; i < keys.size(); i++) {
      const char* value = static_cast<const char*>(values[i]);
      copies[i].assign(value, value + bytes[i]);
      gloo_rs_free(values[i]);
    }
    return copies;
  }

  void multi_set(const std::vector<std::string>& keys, const std::vector<std::vector<char>>& values) override {
    GLOO_ENFORCE_EQ(keys.size(), values.size(), "multi_set needs a value for each key");
    for (size_t i = 0; i < keys.size(); i++) {
      set(keys[i], values[i]);
    }
  }

  void append(const std::string& key, const std::vector<char>& data) override {
    check(gloo_rs_store_append(store_.get(), key.c_str(), data.data(), data.size()));
  }

  int64_t add(const std::string& key, int64_t value) override {
    int64_t sum = 0;
    check(gloo_rs_store_add(store_.get(), key.c_str(), value, &sum));
    return sum;
  }

 protected:
  /// `store` becomes this object's.
  explicit CStore(gloo_rs_store_t* store) : store_(store) {}

  gloo_rs_store_t* c_store() const {
    return store_.get();
  }

  /// Whether all keys have values.
  bool has(const std::vector<std::string>& keys) const {
    const gloo_rs_status_t status = wait_status(keys, 0);
    if (status != GLOO_RS_ERROR_TIMEOUT) {
      detail::check(status);
    }
    return status == GLOO_RS_OK;
  }

 private:
  void wait_for(const std::vector<std::string>& keys, int64_t timeout_ms) const {
    detail::check(wait_status(keys, timeout_ms));
  }

  gloo_rs_status_t wait_status(const std::vector<std::string>& keys, int64_t timeout_ms) const {
    const std::vector<const char*> pointers = pointers_of(keys);
    return gloo_rs_store_wait(store_.get(), pointers.data(), pointers.size(), timeout_ms);
  }

  static std::vector<const char*> pointers_of(const std::vector<std::string>& keys) {
    std::vector<const char*> pointers;
    pointers.reserve(keys.size());
    for (const std::string& key : keys) {
      pointers.push_back(key.c_str());
    }
    return pointers;
  }

  const Owned<gloo_rs_store_t> store_;
  /// Held while a key is checked and set.
  std::mutex mutex_;
};

}  // namespace detail
}  // namespace gloo_rs_api
}  // namespace gloo
