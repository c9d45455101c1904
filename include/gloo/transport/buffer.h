/*
 * Memory that is bound to one peer and one slot.
 */
#pragma once

#include <stddef.h>

namespace gloo {
inline namespace gloo_rs_api {
namespace transport {

/// A send buffer writes into the receive buffer of the same slot on the other side of its pair. Timeouts are those of
/// the context. Waits throw IoException for a timeout, a lost peer, and a closed pair.
class Buffer {
 public:
  explicit Buffer(int slot, void* ptr, size_t size) : slot_(slot), ptr_(ptr), size_(size) {}
  virtual ~Buffer() = 0;

  /// Has no effect.
  virtual void setDebug(bool debug) {
    debug_ = debug;
  }

  /// Starts to write `length` bytes at `offset` into the peer's buffer, at `roffset`. Throws EnforceNotMet if they are
  /// not in this buffer.
  virtual void send(size_t offset, size_t length, size_t roffset = 0) = 0;

  /// Sends the whole buffer.
  void send() {
    send(0, size_);
  }

  /// Waits until one more write of the peer has arrived.
  virtual void waitRecv() = 0;

  /// Waits until one more send is complete, and its bytes may be changed. Throws EnforceNotMet if there is none.
  virtual void waitSend() = 0;

 protected:
  int slot_;
  void* ptr_;
  size_t size_;
  bool debug_ = false;
};

inline Buffer::~Buffer() = default;

}  // namespace transport
}  // namespace gloo_rs_api
}  // namespace gloo
