/*
 * A group of ranks that communicate, as one rank sees it.
 */
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "gloo/common/error.h"
#include "gloo/common/logging.h"
#include "gloo/detail/c_api.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/unbound_buffer.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Made by a rendezvous: rendezvous::Context, mpi::Context, or a class of the program that derives from this one, makes
/// a transport context by Device::createContext, connects it, and sets `device_` and `transportContext_`. Thread-safe,
/// but for nextSlot and setTimeout.
class Context {
 public:
  /// Throws EnforceNotMet unless 0 <= rank < size.
  Context(int own, int ranks, int groups_of = 2) : rank(own), size(ranks), base(groups_of) {
    GLOO_ENFORCE_GE(rank, 0);
    GLOO_ENFORCE_LT(rank, size);
    GLOO_ENFORCE_GE(size, 1);
  }

  virtual ~Context() = default;

  const int rank;
  const int size;

  /// The group size of AllreduceBcube.
  int base;

  /// Throws EnforceNotMet while there is none.
  std::shared_ptr<transport::Device>& getDevice() {
    GLOO_ENFORCE(device_ != nullptr, "Device not set: the context is not connected");
    return device_;
  }

  /// The pair with rank `i`; NULL for this rank itself.
  std::unique_ptr<transport::Pair>& getPair(int i) {
    return connected().getPair(i);
  }

  /// A buffer for messages, on memory that stays the caller's.
  std::unique_ptr<transport::UnboundBuffer> createUnboundBuffer(void* ptr, size_t bytes) {
    return connected().createUnboundBuffer(ptr, bytes);
  }

  /// Reserves `numToSkip` slots and returns the first. All ranks get the same if they reserve the same numbers in the
  /// same order.
  int nextSlot(int numToSkip = 1) {
    GLOO_ENFORCE_GT(numToSkip, 0);
    const int first = slot_;
    slot_ += numToSkip;
    return first;
  }

  /// Closes all connections. Operations that wait, in any thread, and later ones throw IoException.
  void closeConnections() {
    detail::check(gloo_rs_context_close(connected().gloo_rs_handle()));
  }

  /// Sets the timeout of operations that begin later and have none of their own, the connecting included. Zero for
  /// none; 30 s at first.
  void setTimeout(std::chrono::milliseconds timeout) {
    GLOO_ENFORCE(timeout >= kNoTimeout, "the timeout is ", timeout.count(), " ms");
    timeout_ = timeout;
    timeoutIsSet_ = true;
    if (transportContext_) {
      transportContext_->setTimeout(timeout);
    }
  }

  std::chrono::milliseconds getTimeout() const {
    return timeout_;
  }

  /// Whether all ranks are on this host.
  bool isIntraNode() const {
    return connected().isIntraNode();
  }

  /// The key of another rank's buffer, from the text of RemoteKey::serialize. Throws EnforceNotMet if it is none.
  std::unique_ptr<transport::RemoteKey> deserializeRemoteKey(const std::string& serialized) {
    return connected().deserializeRemoteKey(serialized);
  }

 protected:
  std::shared_ptr<transport::Device> device_;
  std::shared_ptr<transport::Context> transportContext_;
  int slot_ = 0;
  std::chrono::milliseconds timeout_ = detail::default_timeout();

 private:
  transport::Context& connected() const {
    GLOO_ENFORCE(transportContext_ != nullptr, "Transport context not set: rank ", rank, " is not connected");
    return *transportContext_;
  }

  bool timeoutIsSet_ = false;

  friend gloo_rs_context_t* detail::handle(const Context& context);
  friend std::chrono::milliseconds detail::chosen_timeout(const Context& context);
};

namespace detail {

inline gloo_rs_context_t* handle(const Context& context) {
  return context.connected().gloo_rs_handle();
}

inline std::chrono::milliseconds chosen_timeout(const Context& context) {
  return context.timeoutIsSet_ ? context.timeout_ : transport::kUnsetTimeout;
}

/// Gives the transport context of `context` the timeout that the program has set, if it has set one.
inline void pass_timeout(const Context& context, transport::Context& to) {
  if (chosen_timeout(context) != transport::kUnsetTimeout) {
    to.setTimeout(context.getTimeout());
  }
}

}  // namespace detail
}  // namespace gloo_rs_api
}  // namespace gloo
