/*
 * The network interface that contexts use.
 */
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "gloo/transport/context.h"
#include "gloo/transport/pair.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {

/// Made by the CreateDevice of a transport. Any number of contexts may share a device; they keep it alive.
class Device {
 public:
  virtual ~Device() = 0;

  /// A text for people.
  virtual std::string str() const = 0;

  /// The PCI bus id of the network interface, such as `0000:3b:00.0`; empty if it has none, or is not selected yet.
  virtual const std::string& getPCIBusID() const = 0;

  /// The speed of the network interface in Mbit/s; 0 if the system does not know it.
  virtual int getInterfaceSpeed() const {
    return 0;
  }

  /// Whether buffers may be memory of a GPU.
  virtual bool hasGPUDirect() const {
    return false;
  }

  /// A context of `size` ranks for this process as rank `rank`, not connected yet.
  virtual std::shared_ptr<Context> createContext(int rank, int size) = 0;
};

inline Device::~Device() = default;

}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
