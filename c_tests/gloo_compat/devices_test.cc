// Devices: what their attributes select, and what they say of themselves.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gloo/barrier.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/hash_store.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/tcp/tls/device.h"
#include "gloo/transport/uv/device.h"
#if GLOO_HAVE_TRANSPORT_IBVERBS
#include "gloo/transport/ibverbs/device.h"
#endif

namespace {

namespace tcp = gloo::transport::tcp;
namespace uv = gloo::transport::uv;
using Device = std::shared_ptr<gloo::transport::Device>;

// Programs bind the function to a name of theirs.
constexpr auto CreateDevice = tcp::CreateDevice;
constexpr auto CreateUvDevice = uv::CreateDevice;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool built_with(const std::string& feature) {
  return contains("," + std::string(gloo_rs_built_features()) + ",", "," + feature + ",");
}

/// Has two ranks, each with a device of its own, meet in a barrier.
void meet(const std::function<Device()>& create) {
  gloo::rendezvous::HashStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; rank++) {
    threads.emplace_back([&, rank] {
      auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
      context->connectFullMesh(store, create());
      gloo::BarrierOptions options(context);
      gloo::barrier(options);
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

sockaddr_storage loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  sockaddr_storage storage{};
  std::memcpy(&storage, &address, sizeof address);
  return storage;
}

/// Whether this host has an IPv6 address of loopback.
bool has_ipv6() {
  ifaddrs* list = nullptr;
  bool found = false;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      found = found || (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET6 && std::string("lo") == entry->ifa_name);
    }
    freeifaddrs(list);
  }
  return found;
}

TEST(Device, SaysWhereItListens) {
  const Device device = CreateDevice("127.0.0.1");
  const std::string text = device->str();
  EXPECT_TRUE(contains(text, "iface=lo")) << text;
  EXPECT_TRUE(contains(text, "addr=127.0.0.1:")) << text;
  EXPECT_TRUE(contains(text, "speed=0")) << text;
  EXPECT_EQ(device->getInterfaceSpeed(), 0);
  EXPECT_EQ(device->getPCIBusID(), "");
  EXPECT_FALSE(device->hasGPUDirect());
  auto context = device->createContext(0, 2);
  EXPECT_TRUE(contains(context->createPair(1)->address().str(), "127.0.0.1:"));
}

TEST(Device, SelectsAnAddressWhenItConnectsIfNothingIsNamed) {
  const Device device = CreateDevice(tcp::attr());
  if (std::getenv("GLOO_RS_SOCKET_IFNAME") == nullptr) {
    EXPECT_TRUE(contains(device->str(), "selected when")) << device->str();
  }
  meet([] { return CreateDevice(tcp::attr()); });
}

TEST(Device, TakesAHostName) {
  meet([] { return CreateDevice("localhost"); });
  EXPECT_THROW(CreateDevice("there-is-none.invalid"), gloo::EnforceNotMet);
  EXPECT_THROW(CreateDevice("192.0.2.1"), gloo::EnforceNotMet);
}

TEST(Device, TakesAnInterface) {
  const auto create = [](const char* iface, int family) {
    tcp::attr attr;
    attr.iface = iface;
    attr.ai_family = family;
    return CreateDevice(attr);
  };
  meet([&] { return create("lo", AF_UNSPEC); });
  meet([&] { return create("lo", AF_INET); });
  EXPECT_TRUE(contains(create("lo", AF_INET)->str(), "addr=127.0.0.1:"));
  if (has_ipv6()) {
    meet([&] { return create("lo", AF_INET6); });
    EXPECT_TRUE(contains(create("lo", AF_INET6)->str(), "addr=[::1]:"));
  }
  EXPECT_THROW(create("there-is-none", AF_UNSPEC), gloo::EnforceNotMet);
  EXPECT_THROW(create("there-is-none", AF_INET), gloo::EnforceNotMet);
  EXPECT_THROW(create("lo", AF_UNIX), gloo::EnforceNotMet);
  // More than Gloo understands.
  EXPECT_TRUE(contains(create("there-is-none,lo", AF_UNSPEC)->str(), "iface=lo"));
}

TEST(Device, KeepsToAFamily) {
  const auto create = [](const char* hostname, int family) {
    tcp::attr attr(hostname);
    attr.ai_family = family;
    return CreateDevice(attr);
  };
  EXPECT_TRUE(contains(create("localhost", AF_INET)->str(), "addr=127.0.0.1:"));
  EXPECT_THROW(create("127.0.0.1", AF_INET6), gloo::EnforceNotMet);
  EXPECT_FALSE(contains(create("", AF_INET)->str(), "addr=["));
  meet([&] { return create("", AF_INET); });
  if (has_ipv6()) {
    EXPECT_THROW(create("::1", AF_INET), gloo::EnforceNotMet);
    meet([&] { return create("::1", AF_INET6); });
  }
}

TEST(Device, TakesASocketAddress) {
  tcp::attr attr;
  attr.ai_addr = loopback(0);
  attr.ai_addrlen = sizeof(sockaddr_in);
  EXPECT_TRUE(contains(CreateDevice(attr)->str(), "addr=127.0.0.1:"));
  meet([&] { return CreateDevice(attr); });

  // A name comes first.
  attr.ai_addrlen = 1;
  attr.hostname = "localhost";
  EXPECT_TRUE(contains(CreateDevice(attr)->str(), "iface=lo"));
  attr.hostname.clear();
  EXPECT_THROW(CreateDevice(attr), gloo::EnforceNotMet);
}

TEST(Device, TakesABoundSocketOver) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(fd, 0);
  sockaddr_storage address = loopback(0);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(sockaddr_in)), 0);
  socklen_t length = sizeof address;
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const auto port = ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  tcp::attr attr;
  attr.ai_fd = fd;
  const Device device = CreateDevice(attr);
  EXPECT_TRUE(contains(device->str(), "addr=127.0.0.1:" + std::to_string(port))) << device->str();

  // The port is in use now.
  tcp::attr other;
  other.ai_addr = address;
  other.ai_addrlen = sizeof(sockaddr_in);
  EXPECT_THROW(CreateDevice(other), gloo::IoException);

  attr.ai_fd = 0x7fffffff;
  EXPECT_THROW(CreateDevice(attr), gloo::EnforceNotMet);
}

TEST(LazyDevice, ConnectsToARankWhenItIsNeeded) {
  EXPECT_TRUE(std::dynamic_pointer_cast<tcp::Device>(tcp::CreateLazyDevice("localhost"))->isLazyInit());
  EXPECT_FALSE(std::dynamic_pointer_cast<tcp::Device>(CreateDevice("localhost"))->isLazyInit());
  meet([] { return tcp::CreateLazyDevice("localhost"); });
}

TEST(TlsDevice, WantsItsFiles) {
  const auto message = [](const char* key, const char* cert, const char* ca_file, const char* ca_path) -> std::string {
    try {
      tcp::tls::CreateDevice("localhost", key, cert, ca_file, ca_path);
    } catch (const gloo::EnforceNotMet& exception) {
      return exception.what();
    }
    return "";
  };
  EXPECT_TRUE(contains(message("", "", "", ""), "Private key and certificate location must be specified"));
  EXPECT_TRUE(contains(message("key", "", "ca", ""), "Private key and certificate location must be specified"));
  EXPECT_TRUE(contains(message("", "cert", "ca", ""), "Private key and certificate location must be specified"));
  EXPECT_TRUE(contains(message("key", "cert", "", ""), "CAfile or CApath must be specified"));
  if (built_with("tls")) {
    EXPECT_THROW(tcp::tls::CreateDevice("localhost", "/none", "/none", "/none", ""), gloo::IoException);
  }
}

TEST(TlsDevice, ConnectsRanksWithCertificatesOfOneAuthority) {
  const char* variable = std::getenv("GLOO_RS_TEST_TLS");
  if (variable == nullptr || !built_with("tls")) {
    GTEST_SKIP() << "GLOO_RS_TEST_TLS names no certificates, or this build has no TLS";
  }
  const std::string folder = variable;
  meet([&] {
    auto device = tcp::tls::CreateDevice("localhost", folder + "/rank.key", folder + "/rank.pem", folder + "/ca.pem", "");
    EXPECT_TRUE(contains(device->str(), "tcp_tls")) << device->str();
    EXPECT_EQ(std::dynamic_pointer_cast<tcp::tls::Device>(device)->getCertFile(), folder + "/rank.pem");
    return device;
  });
}

TEST(UvDevice, ConnectsWhereTheLibraryHasIt) {
  if (!built_with("uv")) {
    EXPECT_THROW(CreateUvDevice("localhost"), gloo::EnforceNotMet);
    return;
  }
  uv::attr attr;
  attr.ai_family = AF_INET;
  meet([&] { return CreateUvDevice(attr); });
  meet([] { return CreateUvDevice("localhost"); });
  EXPECT_TRUE(contains(CreateUvDevice("localhost")->str(), "uv, "));
}

TEST(IbverbsDevice, IsThereExactlyWhereTheLibraryHasIt) {
  EXPECT_EQ(built_with("ibverbs"), GLOO_HAVE_TRANSPORT_IBVERBS == 1);
  EXPECT_EQ(GLOO_USE_IBVERBS, GLOO_HAVE_TRANSPORT_IBVERBS);
#if __has_include(<gloo/transport/ibverbs/device.h>)
  EXPECT_TRUE(built_with("ibverbs"));
#endif
}

#if GLOO_HAVE_TRANSPORT_IBVERBS
TEST(IbverbsDevice, ConnectsWhereThereIsADevice) {
  namespace ibverbs = gloo::transport::ibverbs;
  constexpr auto CreateIbverbsDevice = ibverbs::CreateDevice;
  ibverbs::attr attr;
  attr.name = "no_such_device";
  EXPECT_ANY_THROW(CreateIbverbsDevice(attr));
  const std::vector<std::string> names = ibverbs::getDeviceNames();
  if (names.empty()) {
    EXPECT_THROW(CreateIbverbsDevice({}), gloo::InvalidOperationException);
    return;
  }
  try {
    CreateIbverbsDevice({});
  } catch (const gloo::IoException& error) {
    GTEST_SKIP() << error.what(); // All ports are down.
  }
  meet([&] { return CreateIbverbsDevice({}); });
  EXPECT_TRUE(contains(CreateIbverbsDevice({})->str(), "ibverbs, "));
}
#endif

}  // namespace
