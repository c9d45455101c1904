/*
 * Key-value stores through which ranks find each other.
 */
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "gloo/common/error.h"
#include "gloo/common/logging.h"
#include "gloo/common/store.h"

/// Stores have has_v2_support and the functions that follow from it.
#define GLOO_STORE_HAS_STORE_V2 1

/// Functions take stores as shared pointers; as references, too.
#define GLOO_SHARED_STORE 1

namespace gloo {
inline namespace gloo_rs_api {
namespace rendezvous {

/// Programs can derive a class with a store of their own. Exceptions of its functions come out of connectFullMesh
/// unchanged.
class Store : public IStore {
 public:
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(30);

  virtual ~Store() = default;

  /// Sets the value of a key, which has none yet.
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;

  /// The value of a key. Is called after the wait for it.
  virtual std::vector<char> get(const std::string& key) = 0;

  /// Waits until all keys have values.
  virtual void wait(const std::vector<std::string>& keys) = 0;

  /// Waits until the timeout expires; zero for none. A class that does not override it waits as long as the other one
  /// does.
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
    (void)timeout;
    wait(keys);
  }

  /// Whether the class has the functions that follow.
  virtual bool has_v2_support() {
    return false;
  }

  /// The values of keys, in their order. Is called after the wait for them.
  virtual std::vector<std::vector<char>> multi_get(const std::vector<std::string>& keys) {
    (void)keys;
    GLOO_THROW_INVALID_OPERATION_EXCEPTION("this store doesn't support multi_get");
  }

  /// Sets the value of each key.
  virtual void multi_set(const std::vector<std::string>& keys, const std::vector<std::vector<char>>& values) {
    (void)keys;
    (void)values;
    GLOO_THROW_INVALID_OPERATION_EXCEPTION("this store doesn't support multi_set");
  }

  /// Appends to the value of a key, which counts as empty if it has none. Atomic.
  virtual void append(const std::string& key, const std::vector<char>& data) {
    (void)key;
    (void)data;
    GLOO_THROW_INVALID_OPERATION_EXCEPTION("this store doesn't support append");
  }

  /// Adds to the decimal integer at a key, which counts as 0 if it has none, and returns the sum. Atomic.
  virtual int64_t add(const std::string& key, int64_t value) {
    (void)key;
    (void)value;
    GLOO_THROW_INVALID_OPERATION_EXCEPTION("this store doesn't support add");
  }
};

}  // namespace rendezvous
}  // namespace gloo_rs_api
}  // namespace gloo
