/*
 * The name of a buffer for other ranks.
 */
#pragma once

#include <cstddef>
#include <string>

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {

/// Names an unbound buffer of a rank, which others can then write to and read from by UnboundBuffer::put and get.
class RemoteKey {
 public:
  RemoteKey(int owner, size_t bytes) : rank(owner), size(bytes) {}
  virtual ~RemoteKey() = default;

  /// A text without NUL bytes, for Context::deserializeRemoteKey on another rank.
  virtual std::string serialize() const = 0;

  /// The rank of the buffer.
  const int rank;

  /// The bytes of the buffer.
  const size_t size;
};

}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
