/*
 * The connections of one rank to the other ranks of a group.
 */
#pragma once

#include <gloo_rs.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gloo/common/store.h"
#include "gloo/detail/c_api.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/remote_key.h"
#include "gloo/transport/unbound_buffer.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {

/// Made by Device::createContext, not connected yet: by createAndConnectAllPairs, or by the program, which creates all
/// pairs, exchanges the bytes of their addresses and connects each of them.
class Context {
 public:
  using slot_t = uint64_t;
  using rank_t = int;

  Context(int own, int ranks) : rank(own), size(ranks) {}
  virtual ~Context() = default;

  const int rank;
  const int size;

  /// The pair with `rank`; NULL for this rank itself, unless createPair has made one. Throws EnforceNotMet if there is
  /// no such rank.
  virtual std::unique_ptr<Pair>& getPair(int rank) = 0;

  /// Makes the pair with `rank`, not connected yet, in place of an earlier one. A pair with this rank itself has an
  /// address, and cannot be connected.
  virtual std::unique_ptr<Pair>& createPair(int rank) = 0;

  /// Connects to all ranks, which find each other through `store`. The store is used only during the call.
  virtual void createAndConnectAllPairs(std::shared_ptr<IStore> store) = 0;

  virtual std::unique_ptr<UnboundBuffer> createUnboundBuffer(void* ptr, size_t size) = 0;

  /// Sets the timeout of operations that begin later and have none of their own; zero for none.
  virtual void setTimeout(std::chrono::milliseconds timeout) {
    timeout_ = timeout;
  }

  std::chrono::milliseconds getTimeout() const {
    return timeout_;
  }

  /// Whether all ranks are on this host. The context is connected.
  virtual bool isIntraNode() const = 0;

  /// The key that `serialized` is. Throws EnforceNotMet if it is none.
  virtual std::unique_ptr<RemoteKey> deserializeRemoteKey(const std::string& serialized) = 0;

  /// The C context that this is; it lives as long as this object.
  virtual gloo_rs_context_t* gloo_rs_handle() const = 0;

 protected:
  std::chrono::milliseconds timeout_ = ::gloo::detail::default_timeout();
};

}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
