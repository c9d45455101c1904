/*
 * Devices over TCP.
 */
#pragma once

#include <memory>

#include "gloo/config.h"
#include "gloo/detail/device.h"
#include "gloo/transport/device.h"
#include "gloo/transport/tcp/attr.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {
namespace tcp {

/// A device over TCP. Ranks of one host share memory, too, unless the environment variable GLOO_RS_SHM is 0.
class Device : public ::gloo::detail::Device {
 public:
  /// `lazy`: contexts connect to each rank when they first need it, and not to all at once.
  explicit Device(const struct attr& attr, bool lazy = false)
      : ::gloo::detail::Device(
            "tcp",
            nullptr,
            ::gloo::detail::place_of(attr, attr.ai_fd),
            nullptr,
            lazy ? GLOO_RS_CONNECT_LAZY : GLOO_RS_CONNECT_FULL),
        lazy_(lazy) {}

  bool isLazyInit() const {
    return lazy_;
  }

 protected:
  /// A device of a transport over TCP.
  Device(const char* name, const char* transport, const struct attr& attr, const ::gloo::detail::TlsFiles* tls)
      : ::gloo::detail::Device(
            name, transport, ::gloo::detail::place_of(attr, attr.ai_fd), tls, GLOO_RS_CONNECT_FULL),
        lazy_(false) {}

 private:
  const bool lazy_;
};

/// A device whose contexts connect to all ranks at once. Throws EnforceNotMet if this host has no such address, and
/// IoException if the port is in use.
inline std::shared_ptr<::gloo::transport::Device> CreateDevice(const struct attr& attr) {
  return std::make_shared<Device>(attr);
}

/// A device whose contexts connect to each rank when they first need it.
inline std::shared_ptr<::gloo::transport::Device> CreateLazyDevice(const struct attr& attr) {
  return std::make_shared<Device>(attr, true);
}

}  // namespace tcp
}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
