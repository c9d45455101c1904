/*
 * A store in a directory.
 */
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "gloo/detail/c_store.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace rendezvous {

/// A store in a directory that all ranks see.
class FileStore : public ::gloo::detail::CStore {
 public:
  /// Creates the directory if it does not exist. Throws IoException if it cannot be used.
  explicit FileStore(const std::string& path) : CStore(create(path)), basePath_(path) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    CStore::set(key, data);
    remember(key);
  }

  void append(const std::string& key, const std::vector<char>& data) override {
    CStore::append(key, data);
    remember(key);
  }

  int64_t add(const std::string& key, int64_t value) override {
    const int64_t sum = CStore::add(key, value);
    remember(key);
    return sum;
  }

  /// The paths of the files of the keys that were set through this object, by the rendezvous of a context, too: what
  /// this rank may delete when all ranks are connected. Files of keys of more than 60 bytes may be missing.
  std::vector<std::string> getAllKeyFilePaths() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {paths_.begin(), paths_.end()};
  }

 protected:
  std::string basePath_;

 private:
  static gloo_rs_store_t* create(const std::string& path) {
    gloo_rs_store_t* store = nullptr;
    ::gloo::detail::check(gloo_rs_store_create_file(path.c_str(), &store));
    return store;
  }

  void remember(const std::string& key) {
    // The library names the files of keys that are not long like this; a test compares them.
    std::string path = basePath_ + "/gloo_rs.key.";
    const std::string plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const char* const digits = "0123456789ABCDEF";
    for (const char letter : key) {
      if (plain.find(letter) != std::string::npos) {
        path += letter;
      } else {
        const auto byte = static_cast<unsigned char>(letter);
        path += {'%', digits[byte >> 4], digits[byte & 15]};
      }
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (key.size() <= 60) {
      paths_.insert(path);
    }
  }

  std::mutex mutex_;
  std::set<std::string> paths_;
};

}  // namespace rendezvous
}  // namespace gloo_rs_api
}  // namespace gloo
