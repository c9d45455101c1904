/*
 * The address of a device over TCP.
 */
#pragma once

#include <sys/socket.h>

#include <string>

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {
namespace tcp {

/// Selects the address of a device. If it selects nothing, the device uses the addresses by which this host reaches the
/// other ranks.
struct attr {
  attr() = default;
  attr(const char* name) : hostname(name) {}

  /// A host name or IP address of this host; empty for none.
  std::string hostname;

  /// A network interface, such as `eth0`, or a list of them, as in gloo_rs_device_options_t; empty for any.
  std::string iface;

  /// AF_INET and AF_INET6 restrict the addresses to one family.
  int ai_family = AF_UNSPEC;

  // Ignored.
  int ai_socktype = 0;
  int ai_protocol = 0;

  /// If `ai_addrlen` is not 0, and there is neither host name nor interface: the address, and the port if that is not
  /// 0.
  struct sockaddr_storage ai_addr = {};
  int ai_addrlen = 0;

  /// If not negative: a socket that is bound to the address and port. The device takes it over.
  int ai_fd = -1;
};

}  // namespace tcp
}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
