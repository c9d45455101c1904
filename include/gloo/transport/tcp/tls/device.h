/*
 * Devices over TCP with TLS.
 */
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "gloo/common/enforce.h"
#include "gloo/transport/tcp/device.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {
namespace tcp {
namespace tls {

/// A device whose connections are encrypted, and whose peers have certificates of the same authorities.
class Device : public ::gloo::transport::tcp::Device {
 public:
  /// The files are in PEM format. `pkey_file` is the private key of the certificate in `cert_file`; `ca_file` has
  /// certificates of authorities, and `ca_path` is a folder of such files. One of the last two may be empty.
  Device(
      const struct attr& attr, std::string pkey_file, std::string cert_file, std::string ca_file, std::string ca_path)
      : Device(attr, ::gloo::detail::TlsFiles{std::move(pkey_file), std::move(cert_file), std::move(ca_file), std::move(ca_path)}) {}

  const std::string& getPKeyFile() const {
    return files_.key;
  }

  const std::string& getCertFile() const {
    return files_.cert;
  }

  const std::string& getCAFile() const {
    return files_.ca_file;
  }

  const std::string& getCAPath() const {
    return files_.ca_path;
  }

 private:
  Device(const struct attr& attr, ::gloo::detail::TlsFiles files)
      : ::gloo::transport::tcp::Device("tcp_tls", "tls", attr, &checked(files)), files_(std::move(files)) {}

  static const ::gloo::detail::TlsFiles& checked(const ::gloo::detail::TlsFiles& files) {
    GLOO_ENFORCE(
        !files.key.empty() && !files.cert.empty(), "Private key and certificate location must be specified");
    GLOO_ENFORCE(!files.ca_file.empty() || !files.ca_path.empty(), "CAfile or CApath must be specified");
    return files;
  }

  const ::gloo::detail::TlsFiles files_;
};

/// Throws EnforceNotMet if a file is missing among the arguments, or cannot be used, and IoException if one cannot be
/// read.
inline std::shared_ptr<::gloo::transport::Device> CreateDevice(
    const struct attr& attr, std::string pkey_file, std::string cert_file, std::string ca_file, std::string ca_path) {
  return std::make_shared<Device>(
      attr, std::move(pkey_file), std::move(cert_file), std::move(ca_file), std::move(ca_path));
}

}  // namespace tls
}  // namespace tcp
}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
