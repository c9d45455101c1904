/*
 * The interface of key-value stores, as transports see it. Programs derive from rendezvous::Store.
 */
#pragma once

#include <gloo_rs.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace gloo {
inline namespace gloo_rs_api {

/// A key-value store through which ranks find each other. The functions are described at rendezvous::Store.
class IStore {
 public:
  virtual ~IStore() = default;

  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
  virtual bool has_v2_support() = 0;
  virtual std::vector<std::vector<char>> multi_get(const std::vector<std::string>& keys) = 0;
  virtual void multi_set(const std::vector<std::string>& keys, const std::vector<std::vector<char>>& values) = 0;
  virtual void append(const std::string& key, const std::vector<char>& data) = 0;
  virtual int64_t add(const std::string& key, int64_t value) = 0;

  /// Waits until `key` has a value, and returns it.
  std::vector<char> wait_get(const std::string& key, const std::chrono::milliseconds& timeout) {
    wait({key}, timeout);
    return get(key);
  }

  /// The C store that this object is, without any change; NULL for stores that programs implement.
  virtual gloo_rs_store_t* gloo_rs_handle() {
    return nullptr;
  }
};

}  // namespace gloo_rs_api
}  // namespace gloo
