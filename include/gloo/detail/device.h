/*
 * Devices of all transports, over the C functions.
 */
#pragma once

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gloo/common/enforce.h"
#include "gloo/common/linux.h"
#include "gloo/detail/c_api.h"
#include "gloo/detail/transport.h"
#include "gloo/transport/device.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace detail {

/// The address of a device, in the terms of the C functions. Empty strings select none.
struct Place {
  std::string interface_name;
  std::string hostname;
  uint16_t port = 0;
};

/// The numeric text of a socket address without its port, which is set in `*port`.
inline std::string numeric(const sockaddr* address, socklen_t length, uint16_t* port = nullptr) {
  char host[NI_MAXHOST];
  char service[NI_MAXSERV];
  const int failure =
      getnameinfo(address, length, host, sizeof host, service, sizeof service, NI_NUMERICHOST | NI_NUMERICSERV);
  GLOO_ENFORCE(failure == 0, "not a socket address of an internet family: ", gai_strerror(failure));
  if (port != nullptr) {
    *port = static_cast<uint16_t>(std::stoi(service));
  }
  return host;
}

/// Whether a socket address is that of all interfaces.
inline bool is_any(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

/// The first address of `family` of an interface.
inline std::string address_of_interface(const std::string& interface, int family) {
  ifaddrs* list = nullptr;
  GLOO_ENFORCE_NE(getifaddrs(&list), -1, std::strerror(errno));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == family && interface == entry->ifa_name) {
      return numeric(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    }
  }
  GLOO_ENFORCE(false, "Unable to find address for: ", interface, ", with ai_family ", family);
  return "";
}

/// The first address of `family` of a host name.
inline std::string address_of_host(const std::string& hostname, int family) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failure = getaddrinfo(hostname.c_str(), nullptr, &hints, &list);
  GLOO_ENFORCE(
      failure == 0, "Unable to find address for: ", hostname, ", with ai_family ", family, ": ", gai_strerror(failure));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  return numeric(list->ai_addr, list->ai_addrlen);
}

/// What the attributes of a transport select: a descriptor that the caller has bound, an interface, a host name, or a
/// socket address, in this order. The address family restricts each of them.
template <typename Attributes>
Place place_of(const Attributes& attributes, int fd) {
  const int family = attributes.ai_family;
  GLOO_ENFORCE(
      family == AF_UNSPEC || family == AF_INET || family == AF_INET6, "ai_family is ", family, ", not AF_INET or AF_INET6");
  Place place;
  sockaddr_storage given{};
  socklen_t length = 0;
  if (fd >= 0) {
    length = sizeof given;
    const int failure = getsockname(fd, reinterpret_cast<sockaddr*>(&given), &length);
    GLOO_ENFORCE_EQ(failure, 0, "ai_fd ", fd, " is not a socket: ", std::strerror(errno));
    // The library binds a socket of its own to the address.
    close(fd);
  } else if (attributes.iface.empty() && attributes.hostname.empty() && attributes.ai_addrlen > 0) {
    length = static_cast<socklen_t>(attributes.ai_addrlen);
    std::memcpy(&given, &attributes.ai_addr, sizeof given);
  }
  if (length > 0) {
    const auto* address = reinterpret_cast<const sockaddr*>(&given);
    const std::string host = numeric(address, length, &place.port);
    if (!is_any(address)) {
      place.hostname = host;
      return place;
    }
  }
  if (!attributes.iface.empty()) {
    if (family == AF_UNSPEC) {
      place.interface_name = attributes.iface;
    } else {
      place.hostname = address_of_interface(attributes.iface, family);
    }
  } else if (!attributes.hostname.empty()) {
    place.hostname = family == AF_UNSPEC ? attributes.hostname : address_of_host(attributes.hostname, family);
  } else if (family != AF_UNSPEC) {
    place.interface_name = family == AF_INET ? "0.0.0.0/0" : "::/0";
  }
  return place;
}

/// The files of a device with TLS.
struct TlsFiles {
  std::string key;
  std::string cert;
  std::string ca_file;
  std::string ca_path;
};

/// The ports of a device over InfiniBand or RoCE.
struct Verbs {
  std::string hca;
  int port = 0;
  int gid_index = -1;
};

/// The names of this host's InfiniBand and RoCE devices.
inline std::vector<std::string> ibverbs_names() {
  size_t count = 0;
  std::vector<gloo_rs_ibverbs_port_t> ports;
  // A device may be added between the calls.
  do {
    const gloo_rs_status_t status = gloo_rs_ibverbs_devices(nullptr, 0, &count);
    if (status == GLOO_RS_ERROR_UNSUPPORTED) {
      return {};
    }
    check(status);
    ports.resize(count);
    for (auto& port : ports) {
      gloo_rs_ibverbs_port_init(&port, sizeof port);
    }
  } while (gloo_rs_ibverbs_devices(ports.data(), ports.size(), &count) != GLOO_RS_OK && count > ports.size());
  std::vector<std::string> names;
  for (size_t i = 0; i < count; i++) {
    if (names.empty() || names.back() != ports[i].device) {
      names.emplace_back(ports[i].device);
    }
  }
  return names;
}

class Device : public transport::Device, public std::enable_shared_from_this<Device> {
 public:
  /// `name` is the transport for people, and `transport` its name in the library; NULL for the one that the environment
  /// names.
  Device(std::string name, const char* transport, const Place& place, const TlsFiles* tls, gloo_rs_connect_t connect,
         const Verbs* verbs = nullptr)
      : name_(std::move(name)), connect_(connect) {
    const auto text = [](const std::string& value) { return value.empty() ? nullptr : value.c_str(); };
    gloo_rs_device_options_t options;
    gloo_rs_device_options_init(&options, sizeof options);
    options.interface_name = text(place.interface_name);
    options.hostname = text(place.hostname);
    options.port = place.port;
    options.transport = transport;
    gloo_rs_tls_options_t files;
    if (tls != nullptr) {
      gloo_rs_tls_options_init(&files, sizeof files);
      files.key = text(tls->key);
      files.cert = text(tls->cert);
      files.ca_file = text(tls->ca_file);
      files.ca_path = text(tls->ca_path);
      options.tls = &files;
    }
    gloo_rs_ibverbs_options_t ports;
    if (verbs != nullptr) {
      gloo_rs_ibverbs_options_init(&ports, sizeof ports);
      ports.hca = text(verbs->hca);
      ports.port = verbs->port == 0 ? GLOO_RS_IBVERBS_DEFAULT : verbs->port;
      ports.gid_index = verbs->gid_index;
      options.ibverbs = &ports;
    }
    gloo_rs_device_t* device = nullptr;
    check(gloo_rs_device_create(&options, &device));
    device_.reset(device);
  }

  std::string str() const override {
    const std::string address = copied_text([&](char* text, size_t capacity, size_t* needed) {
      return gloo_rs_device_address(device_.get(), text, capacity, needed);
    });
    return MakeString(
        name_,
        ", pci=",
        getPCIBusID(),
        ", iface=",
        interface(),
        ", speed=",
        getInterfaceSpeed(),
        ", addr=",
        address.empty() ? "(selected when a context connects)" : address);
  }

  const std::string& getPCIBusID() const override {
    return interfaceToBusID(interface());
  }

  int getInterfaceSpeed() const override {
    return getInterfaceSpeedByName(interface());
  }

  std::shared_ptr<transport::Context> createContext(int rank, int size) override {
    return std::make_shared<TransportContext>(shared_from_this(), device_.get(), connect_, rank, size);
  }

 private:
  /// The name of the network interface; empty if none is selected yet.
  std::string interface() const {
    return copied_text([&](char* text, size_t capacity, size_t* needed) {
      return gloo_rs_device_interface(device_.get(), text, capacity, needed);
    });
  }

  const std::string name_;
  const gloo_rs_connect_t connect_;
  Owned<gloo_rs_device_t> device_;
};

}  // namespace detail
}  // namespace gloo_rs_api
}  // namespace gloo
