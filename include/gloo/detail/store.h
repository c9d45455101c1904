/*
 * Stores of the program for the C functions.
 */
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gloo/common/enforce.h"
#include "gloo/common/store.h"
#include "gloo/detail/c_api.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace detail {

/// A store during the connecting of one context, which gives up after `timeout`.
class ConnectStore {
 public:
  ConnectStore(IStore& store, std::chrono::milliseconds timeout)
      : store_(store), forever_(timeout == kNoTimeout), deadline_(Clock::now() + (forever_ ? timeout : at_most(timeout))) {
    handle_ = store.gloo_rs_handle();
    if (handle_ != nullptr) {
      return;
    }
    gloo_rs_store_callbacks_t callbacks;
    gloo_rs_store_callbacks_init(&callbacks, sizeof callbacks);
    callbacks.waits_block = true;
    callbacks.user = this;
    callbacks.set = set;
    callbacks.get = get;
    callbacks.wait = wait;
    if (store.has_v2_support()) {
      callbacks.multi_get = multi_get;
      callbacks.multi_set = multi_set;
      callbacks.add = add;
      callbacks.append = append;
    }
    check(gloo_rs_store_create_callbacks(&callbacks, &handle_));
    owned_.reset(handle_);
  }

  ConnectStore(const ConnectStore&) = delete;
  ConnectStore& operator=(const ConnectStore&) = delete;

  gloo_rs_store_t* handle() const {
    return handle_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static std::chrono::milliseconds at_most(std::chrono::milliseconds timeout) {
    return std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
  }

  /// How long the store may wait. The library waits in short turns, each of which ends with the status of a timeout. A
  /// store of the program throws then, like for any other failure, and may not be usable afterwards. So it gets all the
  /// time in one wait, as it does in Gloo. Nobody else has the context yet who could close it meanwhile.
  std::chrono::milliseconds left() const {
    if (forever_) {
      return kNoTimeout;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }

  /// The store's key for one of the library. Some stores put keys into a URL and split it at slashes.
  static std::string key_of(const char* key) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '/', '_');
    return name;
  }

  static std::vector<std::string> keys_of(const char* const* keys, size_t n) {
    std::vector<std::string> names;
    names.reserve(n);
    std::transform(keys, keys + n, std::back_inserter(names), key_of);
    return names;
  }

  static std::vector<char> value_of(const void* value, size_t bytes) {
    const char* first = static_cast<const char*>(value);
    return bytes == 0 ? std::vector<char>() : std::vector<char>(first, first + bytes);
  }

  static gloo_rs_status_t give(void* sink, const std::vector<char>& value) {
    return gloo_rs_store_return_value(sink, value.data(), value.size());
  }

  static ConnectStore& self(void* user) {
    return *static_cast<ConnectStore*>(user);
  }

  static gloo_rs_status_t set(const char* key, const void* value, size_t bytes, void* user) {
    return keep_exceptions([&] {
      self(user).store_.set(key_of(key), value_of(value, bytes));
      return GLOO_RS_OK;
    });
  }

  static gloo_rs_status_t get(const char* key, int64_t, void* sink, void* user) {
    return keep_exceptions([&] { return give(sink, self(user).store_.wait_get(key_of(key), self(user).left())); });
  }

  static gloo_rs_status_t wait(const char* const* keys, size_t n, int64_t, void* user) {
    return keep_exceptions([&] {
      self(user).store_.wait(keys_of(keys, n), self(user).left());
      return GLOO_RS_OK;
    });
  }

  static gloo_rs_status_t multi_get(const char* const* keys, size_t n, int64_t, void* sink, void* user) {
    return keep_exceptions([&] {
      const std::vector<std::string> names = keys_of(keys, n);
      self(user).store_.wait(names, self(user).left());
      for (const auto& value : self(user).store_.multi_get(names)) {
        if (const auto status = give(sink, value)) {
          return status;
        }
      }
      return GLOO_RS_OK;
    });
  }

  static gloo_rs_status_t multi_set(
      const char* const* keys, const void* const* values, const size_t* bytes, size_t n, void* user) {
    return keep_exceptions([&] {
      std::vector<std::vector<char>> list;
      list.reserve(n);
      for (size_t i = 0; i < n; i++) {
        list.push_back(value_of(values[i], bytes[i]));
      }
      self(user).store_.multi_set(keys_of(keys, n), list);
      return GLOO_RS_OK;
    });
  }

  static gloo_rs_status_t add(const char* key, int64_t amount, int64_t* sum, void* user) {
    return keep_exceptions([&] {
      *sum = self(user).store_.add(key_of(key), amount);
      return GLOO_RS_OK;
    });
  }

  static gloo_rs_status_t append(const char* key, const void* value, size_t bytes, void* user) {
    return keep_exceptions([&] {
      self(user).store_.append(key_of(key), value_of(value, bytes));
      return GLOO_RS_OK;
    });
  }

  IStore& store_;
  const bool forever_;
  const Clock::time_point deadline_;
  gloo_rs_store_t* handle_ = nullptr;
  Owned<gloo_rs_store_t> owned_;
};

}  // namespace detail
}  // namespace gloo_rs_api
}  // namespace gloo
