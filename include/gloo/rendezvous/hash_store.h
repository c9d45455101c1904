/*
 * A store in this process.
 */
#pragma once

#include <atomic>
#include <string>

#include "gloo/detail/c_store.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace rendezvous {

/// A store in the memory of this process, for ranks that are threads and share the object.
class HashStore : public ::gloo::detail::CStore {
 public:
  HashStore() : CStore(create()) {}

  gloo_rs_store_t* gloo_rs_handle() override {
    return ::gloo::detail::is_exactly(*this) ? c_store() : nullptr;
  }

 private:
  static gloo_rs_store_t* create() {
    // The name has to be unique in the process, which may hold several copies of this function, each with a number of
    // its own.
    static std::atomic<uint64_t> number{0};
    const std::string name = ::gloo::MakeString("gloo::HashStore ", static_cast<const void*>(&number), " ", ++number);
    gloo_rs_store_t* store = nullptr;
    ::gloo::detail::check(gloo_rs_store_create_in_process(name.c_str(), &store));
    return store;
  }
};

}  // namespace rendezvous
}  // namespace gloo_rs_api
}  // namespace gloo
