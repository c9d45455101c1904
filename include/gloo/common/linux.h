/*
 * What Linux knows of network interfaces and other devices. Elsewhere, and of devices that do not exist, nothing is
 * known.
 */
#pragma once

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#ifdef __linux__
#include <dirent.h>
#include <stdlib.h>
#endif

#include "gloo/common/enforce.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Devices whose class, masked, has a value.
struct PCIClassMatch {
  int value;
  int mask;
};

namespace detail {

inline const std::string kPCIDevices = "/sys/bus/pci/devices/";

/// The names in a folder, in order; none if it cannot be read.
inline std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
#ifdef __linux__
  if (DIR* stream = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(stream)) {
      if (entry->d_name[0] != '.') {
        names.insert(entry->d_name);
      }
    }
    closedir(stream);
  }
#else
  (void)folder;
#endif
  return names;
}

/// The parts of `path` after all links are resolved; none if it does not exist.
inline std::vector<std::string> resolved_parts(const std::string& path) {
  std::vector<std::string> parts;
#ifdef __linux__
  if (char* resolved = realpath(path.c_str(), nullptr)) {
    std::istringstream stream(resolved);
    std::free(resolved);
    for (std::string part; std::getline(stream, part, '/');) {
      if (!part.empty()) {
        parts.push_back(part);
      }
    }
  }
#else
  (void)path;
#endif
  return parts;
}

/// The PCI device that the device at `path` is, or belongs to; empty if there is none.
inline std::string pci_device_of(const std::string& path) {
  const std::vector<std::string> parts = resolved_parts(path);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (!resolved_parts(kPCIDevices + *part).empty()) {
      return *part;
    }
  }
  return "";
}

/// What `find` returns for `path`, in memory that stays until the program ends: the device of an interface does not
/// change.
inline const std::string& remembered(const std::string& path, std::string (*find)(const std::string&)) {
  static std::mutex mutex;
  static std::map<std::string, std::string>& known = *new std::map<std::string, std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = known.find(path);
  if (found == known.end()) {
    found = known.emplace(path, find(path)).first;
  }
  return found->second;
}

}  // namespace detail

/// The names of the kernel modules that were loaded at the first call.
inline const std::set<std::string>& kernelModules() {
  static const std::set<std::string>& modules = *new std::set<std::string>([] {
    std::set<std::string> names;
    std::ifstream file("/proc/modules");
    for (std::string line; std::getline(file, line);) {
      names.insert(line.substr(0, line.find(' ')));
    }
    return names;
  }());
  return modules;
}

/// The bus ids of the PCI devices of a class, in order.
inline std::vector<std::string> pciDevices(PCIClassMatch match) {
  std::vector<std::string> devices;
  for (const std::string& device : detail::names_in(detail::kPCIDevices)) {
    std::ifstream file(detail::kPCIDevices + device + "/class");
    std::string number;
    if (file >> number && (std::strtol(number.c_str(), nullptr, 16) & match.mask) == match.value) {
      devices.push_back(device);
    }
  }
  return devices;
}

/// The number of steps between two PCI devices in the tree of buses and devices. Throws EnforceNotMet if one does not
/// exist.
inline int pciDistance(const std::string& a, const std::string& b) {
  const auto path = [](std::string device) {
    for (char& letter : device) {
      letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
    }
    const auto parts = detail::resolved_parts(detail::kPCIDevices + device);
    GLOO_ENFORCE(!parts.empty(), "there is no PCI device ", device);
    return parts;
  };
  const auto from = path(a);
  const auto to = path(b);
  size_t common = 0;
  while (common < from.size() && common < to.size() && from[common] == to[common]) {
    common++;
  }
  return static_cast<int>(from.size() + to.size() - 2 * common);
}

/// The PCI bus id of a network interface, such as `0000:3b:00.0`; empty if it has none.
inline const std::string& interfaceToBusID(const std::string& name) {
  return detail::remembered("/sys/class/net/" + name + "/device", detail::pci_device_of);
}

/// The PCI bus id of an InfiniBand device, such as `mlx5_0`; empty if it has none.
inline const std::string& infinibandToBusID(const std::string& name) {
  return detail::remembered("/sys/class/infiniband/" + name + "/device", detail::pci_device_of);
}

/// The speed of a network interface in Mbit/s; 0 if it is not known, as for loopback.
inline int getInterfaceSpeedByName(const std::string& ifname) {
  std::ifstream file("/sys/class/net/" + ifname + "/speed");
  int speed = 0;
  return file >> speed && speed > 0 ? speed : 0;
}

}  // namespace gloo_rs_api
}  // namespace gloo
