/*
 * Devices over InfiniBand and RoCE.
 */
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gloo/common/linux.h"
#include "gloo/config.h"
#include "gloo/detail/device.h"
#include "gloo/transport/device.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {
namespace ibverbs {

/// Selects the port of a device, and its address.
struct attr {
  /// The device, such as `mlx5_0`, or several ports, as `mlx5_0:1,mlx5_1:1`; the nearest ones if it is empty.
  std::string name;
  /// The number of the port, from 1 on; 0 for any.
  int port = 0;
  /// The index of the port's GID; -1 for the best.
  int index = -1;
};

/// The names of this host's devices, in order; none if there is no libibverbs.
inline std::vector<std::string> getDeviceNames() {
  return ::gloo::detail::ibverbs_names();
}

class Device : public ::gloo::detail::Device {
 public:
  explicit Device(const struct attr& attr)
      : Device(attr, verbs(attr)) {}

  std::string str() const override {
    return ::gloo::MakeString(
        ::gloo::detail::Device::str(), ", dev=", attr_.name.empty() ? "(the nearest)" : attr_.name, ", port=", attr_.port,
        ", index=", attr_.index);
  }

  const std::string& getPCIBusID() const override {
    return infinibandToBusID(attr_.name.substr(0, attr_.name.find_first_of(":,")));
  }

 private:
  Device(const struct attr& attr, const ::gloo::detail::Verbs& verbs)
      : ::gloo::detail::Device("ibverbs", "ibverbs", {}, nullptr, GLOO_RS_CONNECT_FULL, &verbs), attr_(attr) {}

  static ::gloo::detail::Verbs verbs(const struct attr& attr) {
    // A list of the library's stands for all names that begin so.
    const bool is_list = attr.name.empty() || attr.name.find_first_of("^=,") != std::string::npos;
    return {is_list ? attr.name : "=" + attr.name, attr.port, attr.index};
  }

  const struct attr attr_;
};

/// Throws EnforceNotMet if there is no such device, port or index, IoException if the port is down, and
/// InvalidOperationException if this host has no device or no libibverbs.
inline std::shared_ptr<::gloo::transport::Device> CreateDevice(const struct attr& attr) {
  return std::make_shared<Device>(attr);
}

}  // namespace ibverbs
}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
