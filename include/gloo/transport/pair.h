/*
 * The connection of a context to one peer.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gloo/common/logging.h"
#include "gloo/transport/address.h"
#include "gloo/transport/buffer.h"
#include "gloo/transport/remote_key.h"
#include "gloo/transport/unbound_buffer.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {

class Pair {
 public:
  virtual ~Pair() = 0;

  /// The address of this side, whose bytes the peer passes to connect.
  virtual const Address& address() const = 0;

  /// Connects to the peer, whose pair for this rank has the address `bytes`, until the context's timeout expires. Both
  /// sides call it. Throws IoException if the peer does not.
  virtual void connect(const std::vector<char>& bytes) = 0;

  /// Closes the connection. Waits for it, in any thread, throw IoException.
  virtual void close() = 0;

  /// Sets how threads wait if they wait for this pair only. `sync`: they sleep at once. `busyPoll`: they never sleep.
  /// Neither, as at first: they poll for a short time, and sleep then.
  virtual void setSync(bool sync, bool busyPoll) = 0;

  virtual bool isConnected() = 0;

  /// The peer's rank.
  virtual int getPeerRank() const = 0;

  /// The peer, for messages.
  std::string peerDescription() const {
    return MakeString("rank ", getPeerRank());
  }

  /// A buffer that writes into the peer's receive buffer of the same slot.
  virtual std::unique_ptr<Buffer> createSendBuffer(int slot, void* ptr, size_t size) = 0;

  /// A buffer into which the peer's send buffer of the same slot writes, at any time until it is destroyed.
  virtual std::unique_ptr<Buffer> createRecvBuffer(int slot, void* ptr, size_t size) = 0;

  // The following call the function of `buffer` with this name for the peer; `tag` is the slot there.

  virtual void send(UnboundBuffer* buffer, uint64_t tag, size_t offset = 0, size_t nbytes = 0) = 0;
  virtual void recv(UnboundBuffer* buffer, uint64_t tag, size_t offset = 0, size_t nbytes = 0) = 0;
  virtual void put(
      UnboundBuffer* buffer, const RemoteKey& key, uint64_t slot, size_t offset, size_t roffset, size_t nbytes) = 0;
  virtual void get(
      UnboundBuffer* buffer, const RemoteKey& key, uint64_t slot, size_t offset, size_t roffset, size_t nbytes) = 0;

  /// Sets what getLocalRank returns.
  void setLocalRank(int localRank) {
    GLOO_ENFORCE(localRank >= 0, "the local rank is ", localRank);
    localRank_ = localRank;
  }

  /// The number of this rank among those of its host, from 0.
  int getLocalRank() const {
    return localRank_;
  }

 protected:
  int localRank_ = 0;
};

inline Pair::~Pair() = default;

}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
