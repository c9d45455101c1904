/*
 * Memory for messages to and from any rank of a context.
 */
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "gloo/transport/remote_key.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {

/// The timeout that stands for the context's.
inline constexpr std::chrono::milliseconds kUnsetTimeout{-1};

/// The memory stays the caller's, who keeps it valid until the buffer is destroyed. Messages of one rank and slot keep
/// their order. Functions that start an operation throw EnforceNotMet if its bytes are not in the buffer. A buffer
/// keeps the connections of its context open.
class UnboundBuffer {
 public:
  UnboundBuffer(void* memory, size_t bytes) : ptr(memory), size(bytes) {}
  virtual ~UnboundBuffer() = 0;

  void* const ptr;
  const size_t size;

  /// Waits until one more receive is complete, and sets `*rank`, unless `rank` is NULL, to the sender. Returns false if
  /// abortWaitRecv ended the wait; receives stay posted then. Throws IoException for a timeout, a lost peer, and a
  /// closed pair. A timeout of zero never expires.
  virtual bool waitRecv(int* rank, std::chrono::milliseconds timeout) = 0;

  /// Waits for a send, put or get like waitRecv, with the rank of the peer and abortWaitSend.
  virtual bool waitSend(int* rank, std::chrono::milliseconds timeout) = 0;

  /// Ends the current waitRecv of another thread; if there is none, the next one.
  virtual void abortWaitRecv() = 0;

  /// Ends the current waitSend of another thread; if there is none, the next one.
  virtual void abortWaitSend() = 0;

  bool waitRecv() {
    return waitRecv(nullptr, kUnsetTimeout);
  }

  bool waitSend() {
    return waitSend(nullptr, kUnsetTimeout);
  }

  bool waitRecv(int* rank) {
    return waitRecv(rank, kUnsetTimeout);
  }

  bool waitSend(int* rank) {
    return waitSend(rank, kUnsetTimeout);
  }

  bool waitRecv(std::chrono::milliseconds timeout) {
    return waitRecv(nullptr, timeout);
  }

  bool waitSend(std::chrono::milliseconds timeout) {
    return waitSend(nullptr, timeout);
  }

  template <typename Clock, typename Duration>
  bool waitRecv(std::chrono::time_point<Clock, Duration> deadline) {
    return waitRecv(nullptr, until(deadline));
  }

  template <typename Clock, typename Duration>
  bool waitSend(std::chrono::time_point<Clock, Duration> deadline) {
    return waitSend(nullptr, until(deadline));
  }

  /// The number of bytes that stands for all from the offset on.
  static constexpr auto kUnspecifiedByteCount = std::numeric_limits<size_t>::max();

  /// Starts to send to rank `dstRank`. Each send needs one waitSend.
  virtual void send(int dstRank, uint64_t slot, size_t offset = 0, size_t nbytes = kUnspecifiedByteCount) = 0;

  /// Starts to receive from rank `srcRank` a message of at most `nbytes` bytes. Each receive needs one waitRecv.
  virtual void recv(int srcRank, uint64_t slot, size_t offset = 0, size_t nbytes = kUnspecifiedByteCount) = 0;

  /// Receives from whichever of `srcRanks` sends first. The list may contain this rank, and repeats.
  virtual void recv(std::vector<int> srcRanks, uint64_t slot, size_t offset = 0, size_t nbytes = kUnspecifiedByteCount) = 0;

  /// The key by which other ranks can put into this buffer and get from it until it is destroyed.
  virtual std::unique_ptr<RemoteKey> getRemoteKey() const = 0;

  /// Starts to write `nbytes` bytes at `offset` to the buffer of `key`, at `roffset`. The other rank calls nothing.
  /// waitSend returns when they are written.
  virtual void put(
      const RemoteKey& key, uint64_t slot, size_t offset, size_t roffset, size_t nbytes = kUnspecifiedByteCount) = 0;

  /// Starts to read `nbytes` bytes at `roffset` of the buffer of `key` to `offset`. The other rank calls nothing.
  /// waitSend returns when they are there.
  virtual void get(
      const RemoteKey& key, uint64_t slot, size_t offset, size_t roffset, size_t nbytes = kUnspecifiedByteCount) = 0;

 private:
  /// The time that is left until `deadline`: at least a millisecond, because zero means for ever.
  template <typename Clock, typename Duration>
  static std::chrono::milliseconds until(std::chrono::time_point<Clock, Duration> deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }
};

inline UnboundBuffer::~UnboundBuffer() = default;

}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
