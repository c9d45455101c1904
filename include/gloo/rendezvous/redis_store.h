/*
 * A store in a Redis server.
 */
#pragma once

#include <cstdint>
#include <string>

#include "gloo/config.h"
#include "gloo/detail/c_store.h"

#if !GLOO_USE_REDIS
#error "this build of the library has no Redis store"
#endif

namespace gloo {
inline namespace gloo_rs_api {
namespace rendezvous {

/// A store in a Redis server. Keys expire a day after they were set.
class RedisStore : public ::gloo::detail::CStore {
 public:
  /// Throws IoException if there is no such server.
  explicit RedisStore(const std::string& host, int port = 6379) : CStore(create(host, port)) {}

  /// Whether all keys have values.
  bool check(const std::vector<std::string>& keys) {
    return has(keys);
  }

  gloo_rs_store_t* gloo_rs_handle() override {
    return ::gloo::detail::is_exactly(*this) ? c_store() : nullptr;
  }

 private:
  static gloo_rs_store_t* create(const std::string& host, int port) {
    GLOO_ENFORCE(port > 0 && port <= UINT16_MAX, "there is no port ", port);
    gloo_rs_redis_options_t options;
    gloo_rs_redis_options_init(&options, sizeof options);
    // Gloo's keys have none.
    options.prefix = "";
    gloo_rs_store_t* store = nullptr;
    ::gloo::detail::check(gloo_rs_store_create_redis(
        host.c_str(), static_cast<uint16_t>(port), &options, GLOO_RS_TIMEOUT_DEFAULT, &store));
    return store;
  }
};

}  // namespace rendezvous
}  // namespace gloo_rs_api
}  // namespace gloo
