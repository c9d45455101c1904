/*
 * Devices over TCP through libuv.
 */
#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>

#include "gloo/config.h"
#include "gloo/detail/device.h"
#include "gloo/transport/device.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {
namespace uv {

/// Selects the address of a device, as tcp::attr does.
struct attr {
  attr() = default;
  attr(const char* name) : hostname(name) {}

  std::string hostname;
  std::string iface;
  int ai_family = AF_UNSPEC;
  int ai_socktype = 0;
  int ai_protocol = 0;
  struct sockaddr_storage ai_addr = {};
  int ai_addrlen = 0;
};

class Device : public ::gloo::detail::Device {
 public:
  explicit Device(const struct attr& attr)
      : ::gloo::detail::Device("uv", "uv", ::gloo::detail::place_of(attr, -1), nullptr, GLOO_RS_CONNECT_FULL) {}
};

/// Throws as tcp::CreateDevice does.
inline std::shared_ptr<::gloo::transport::Device> CreateDevice(struct attr attr) {
  return std::make_shared<Device>(attr);
}

}  // namespace uv
}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
