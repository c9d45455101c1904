/*
 * A store in a directory.
 */
#pragma once

#include <dirent.h>

#include <memory>
#include <string>
#include <vector>

#include "gloo/detail/c_store.h"

namespace gloo {
namespace rendezvous {

/// A store in a directory that all ranks see.
class FileStore : public ::gloo::detail::CStore {
 public:
  /// Creates the directory if it does not exist. Throws IoException if it cannot be used.
  explicit FileStore(const std::string& path) : CStore(create(path)), basePath_(path) {}

  /// The paths of the files of all keys in the directory.
  std::vector<std::string> getAllKeyFilePaths() {
    std::vector<std::string> paths;
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(opendir(basePath_.c_str()), closedir);
    while (const dirent* entry = stream ? readdir(stream.get()) : nullptr) {
      const std::string name = entry->d_name;
      // As FileStore of the library names them.
      if (name.rfind("gloo_rs.key.", 0) == 0 || name.rfind("gloo_rs.hash.", 0) == 0) {
        paths.push_back(basePath_ + "/" + name);
      }
    }
    return paths;
  }

  gloo_rs_store_t* gloo_rs_handle() override {
    return ::gloo::detail::is_exactly(*this) ? c_store() : nullptr;
  }

 protected:
  std::string basePath_;

 private:
  static gloo_rs_store_t* create(const std::string& path) {
    gloo_rs_store_t* store = nullptr;
    ::gloo::detail::check(gloo_rs_store_create_file(path.c_str(), &store));
    return store;
  }
};

}  // namespace rendezvous
}  // namespace gloo
