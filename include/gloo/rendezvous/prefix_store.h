/*
 * A part of a store.
 */
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gloo/common/enforce.h"
#include "gloo/detail/c_api.h"
#include "gloo/detail/c_store.h"
#include "gloo/rendezvous/store.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace rendezvous {

/// Puts a prefix and a slash in front of all keys of another store, so that several groups of ranks can use that.
class PrefixStore : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store) : prefix_(std::move(prefix)), store_(std::move(store)) {
    GLOO_ENFORCE(store_ != nullptr, "there is no store for the prefix ", prefix_);
  }

  /// `store` outlives this object.
  PrefixStore(std::string prefix, Store& store) : PrefixStore(std::move(prefix), std::shared_ptr<Store>(&store, [](Store*) {})) {}

  /// Makes a store with the prefix and the store of `other`.
  PrefixStore(const PrefixStore& other) : Store(other), prefix_(other.prefix_), store_(other.store_) {}

  using Store::wait;

  void set(const std::string& key, const std::vector<char>& data) override {
    store_->set(joinKey(key), data);
  }

  std::vector<char> get(const std::string& key) override {
    return store_->get(joinKey(key));
  }

  void wait(const std::vector<std::string>& keys) override {
    store_->wait(joinKeys(keys));
  }

  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    store_->wait(joinKeys(keys), timeout);
  }

  bool has_v2_support() override {
    return store_->has_v2_support();
  }

  std::vector<std::vector<char>> multi_get(const std::vector<std::string>& keys) override {
    return store_->multi_get(joinKeys(keys));
  }

  void multi_set(const std::vector<std::string>& keys, const std::vector<std::vector<char>>& values) override {
    store_->multi_set(joinKeys(keys), values);
  }

  void append(const std::string& key, const std::vector<char>& data) override {
    store_->append(joinKey(key), data);
  }

  int64_t add(const std::string& key, int64_t value) override {
    return store_->add(joinKey(key), value);
  }

  gloo_rs_store_t* gloo_rs_handle() override {
    gloo_rs_store_t* base = ::gloo::detail::is_exactly(*this) ? store_->gloo_rs_handle() : nullptr;
    if (base == nullptr) {
      return nullptr;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (!handle_) {
      gloo_rs_store_t* store = nullptr;
      ::gloo::detail::check(gloo_rs_store_create_prefix(prefix_.c_str(), base, &store));
      handle_.reset(store);
    }
    return handle_.get();
  }

 protected:
  const std::string prefix_;
  std::shared_ptr<Store> store_;

  std::string joinKey(const std::string& key) {
    return prefix_ + "/" + key;
  }

 private:
  std::vector<std::string> joinKeys(const std::vector<std::string>& keys) {
    std::vector<std::string> joined;
    joined.reserve(keys.size());
    for (const std::string& key : keys) {
      joined.push_back(joinKey(key));
    }
    return joined;
  }

  std::mutex mutex_;
  ::gloo::detail::Owned<gloo_rs_store_t> handle_;
};

}  // namespace rendezvous
}  // namespace gloo_rs_api
}  // namespace gloo
