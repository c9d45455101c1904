/*
 * Pairs, buffers and contexts of all transports, over the C functions.
 */
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gloo/common/enforce.h"
#include "gloo/common/error.h"
#include "gloo/detail/c_api.h"
#include "gloo/detail/store.h"
#include "gloo/transport/address.h"
#include "gloo/transport/buffer.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/remote_key.h"
#include "gloo/transport/unbound_buffer.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace detail {

/// The text that a C function copies out, in two calls.
template <typename Copy>
std::string copied_text(Copy&& copy) {
  size_t needed = 0;
  check(copy(nullptr, 0, &needed));
  std::string text(needed, '\0');
  check(copy(text.data(), text.size(), &needed));
  text.resize(needed - 1);
  return text;
}

/// The number of bytes that a caller means by `nbytes`, which are in `size` bytes. Throws EnforceNotMet if they are
/// not.
inline size_t bytes_in(size_t size, size_t offset, size_t nbytes) {
  GLOO_ENFORCE_LE(offset, size, "the offset is not in the buffer");
  if (nbytes == transport::UnboundBuffer::kUnspecifiedByteCount) {
    return size - offset;
  }
  GLOO_ENFORCE_LE(nbytes, size - offset, "the bytes from offset ", offset, " on are not in the buffer");
  return nbytes;
}

class RemoteKey final : public transport::RemoteKey {
 public:
  explicit RemoteKey(const std::string& text) : RemoteKey(parse(text.c_str()), text) {}

  std::string serialize() const override {
    return text_;
  }

 private:
  RemoteKey(std::pair<int, size_t> parts, const std::string& text)
      : transport::RemoteKey(parts.first, parts.second), text_(text) {}

  static std::pair<int, size_t> parse(const char* text) {
    int32_t rank = 0;
    size_t size = 0;
    check(gloo_rs_remote_key_parse(text, &rank, &size));
    return {rank, size};
  }

  const std::string text_;
};

class UnboundBuffer final : public transport::UnboundBuffer {
 public:
  UnboundBuffer(std::shared_ptr<const transport::Context> context, void* memory, size_t bytes)
      : transport::UnboundBuffer(memory, bytes), context_(std::move(context)) {
    gloo_rs_unbound_buffer_t* buffer = nullptr;
    // The C functions want a pointer also for no bytes.
    void* data = memory == nullptr && bytes == 0 ? &buffer_ : memory;
    check(gloo_rs_unbound_buffer_create(context_->gloo_rs_handle(), data, bytes, &buffer));
    buffer_.reset(buffer);
  }

  using transport::UnboundBuffer::waitRecv;
  using transport::UnboundBuffer::waitSend;

  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
    int32_t from = 0;
    const gloo_rs_status_t status = gloo_rs_unbound_buffer_wait_recv(buffer_.get(), timeout_ms(timeout), &from, nullptr);
    return ended(status, from, rank);
  }

  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    int32_t to = 0;
    const gloo_rs_status_t status = gloo_rs_unbound_buffer_wait_send(buffer_.get(), timeout_ms(timeout), &to);
    return ended(status, to, rank);
  }

  void abortWaitRecv() override {
    check(gloo_rs_unbound_buffer_abort_wait_recv(buffer_.get()));
  }

  void abortWaitSend() override {
    check(gloo_rs_unbound_buffer_abort_wait_send(buffer_.get()));
  }

  void send(int dstRank, uint64_t slot, size_t offset, size_t nbytes) override {
    nbytes = bytes_in(size, offset, nbytes);
    check(gloo_rs_unbound_buffer_send(buffer_.get(), dstRank, slot, offset, nbytes));
  }

  void recv(int srcRank, uint64_t slot, size_t offset, size_t nbytes) override {
    nbytes = bytes_in(size, offset, nbytes);
    check(gloo_rs_unbound_buffer_recv(buffer_.get(), srcRank, slot, offset, nbytes));
  }

  void recv(std::vector<int> srcRanks, uint64_t slot, size_t offset, size_t nbytes) override {
    nbytes = bytes_in(size, offset, nbytes);
    const std::vector<int32_t> ranks(srcRanks.begin(), srcRanks.end());
    check(gloo_rs_unbound_buffer_recv_any(buffer_.get(), ranks.data(), ranks.size(), slot, offset, nbytes));
  }

  std::unique_ptr<transport::RemoteKey> getRemoteKey() const override {
    return std::make_unique<RemoteKey>(copied_text([&](char* text, size_t capacity, size_t* needed) {
      return gloo_rs_unbound_buffer_remote_key(buffer_.get(), text, capacity, needed);
    }));
  }

  void put(const transport::RemoteKey& key, uint64_t slot, size_t offset, size_t roffset, size_t nbytes) override {
    nbytes = bytes_in(size, offset, nbytes);
    bytes_in(key.size, roffset, nbytes);
    check(gloo_rs_unbound_buffer_put(buffer_.get(), key.serialize().c_str(), slot, offset, roffset, nbytes));
  }

  void get(const transport::RemoteKey& key, uint64_t slot, size_t offset, size_t roffset, size_t nbytes) override {
    nbytes = bytes_in(size, offset, nbytes);
    bytes_in(key.size, roffset, nbytes);
    check(gloo_rs_unbound_buffer_get(buffer_.get(), key.serialize().c_str(), slot, offset, roffset, nbytes));
  }

 private:
  /// What a wait returns.
  static bool ended(gloo_rs_status_t status, int32_t peer, int* rank) {
    if (status == GLOO_RS_ERROR_ABORTED) {
      return false;
    }
    check(status);
    if (rank != nullptr) {
      *rank = peer;
    }
    return true;
  }

  // While a thread waits in a buffer, destroying the C context would close it.
  const std::shared_ptr<const transport::Context> context_;
  Owned<gloo_rs_unbound_buffer_t> buffer_;
};

class Buffer final : public transport::Buffer {
 public:
  Buffer(std::shared_ptr<const transport::Context> context, gloo_rs_buffer_t* buffer, int slot, void* ptr, size_t size)
      : transport::Buffer(slot, ptr, size), context_(std::move(context)), buffer_(buffer) {}

  using transport::Buffer::send;

  void send(size_t offset, size_t length, size_t roffset) override {
    bytes_in(size_, offset, length);
    check(gloo_rs_buffer_send(buffer_.get(), offset, length, roffset));
    sends_++;
  }

  void waitRecv() override {
    check(gloo_rs_buffer_wait_recv(buffer_.get(), GLOO_RS_TIMEOUT_DEFAULT, nullptr, nullptr));
  }

  void waitSend() override {
    GLOO_ENFORCE_GT(sends_.load(), 0, "No send to wait for");
    check(gloo_rs_buffer_wait_send(buffer_.get(), GLOO_RS_TIMEOUT_DEFAULT));
    sends_--;
  }

 private:
  // The context stays open as long as the buffer does: destroying it would close the buffer.
  const std::shared_ptr<const transport::Context> context_;
  Owned<gloo_rs_buffer_t> buffer_;
  /// Sends that nobody has waited for.
  std::atomic<int64_t> sends_{0};
};

class Pair final : public transport::Pair {
 public:
  /// The pair of `context` with `rank`; the context outlives it.
  Pair(const transport::Context& context, const transport::Device& device, int rank)
      : context_(context), rank_(rank), address_(*this, device) {
    gloo_rs_pair_t* pair = nullptr;
    if (rank != context.rank) {
      check(gloo_rs_context_pair(context.gloo_rs_handle(), rank, &pair));
    }
    pair_.reset(pair);
  }

  const transport::Address& address() const override {
    return address_;
  }

  void connect(const std::vector<char>& bytes) override {
    check(gloo_rs_pair_connect(peer(), bytes.data(), bytes.size()));
  }

  void close() override {
    if (pair_) {
      check(gloo_rs_pair_close(pair_.get()));
    }
  }

  void setSync(bool sync, bool busyPoll) override {
    check(gloo_rs_pair_set_sync(peer(), sync, busyPoll));
  }

  bool isConnected() override {
    bool connected = false;
    if (pair_) {
      check(gloo_rs_pair_is_connected(pair_.get(), &connected));
    }
    return connected;
  }

  int getPeerRank() const override {
    return rank_;
  }

  std::unique_ptr<transport::Buffer> createSendBuffer(int slot, void* ptr, size_t size) override {
    gloo_rs_buffer_t* buffer = nullptr;
    check(gloo_rs_pair_create_send_buffer(peer(), number(slot), memory(ptr, size), size, &buffer));
    return owner(buffer, slot, ptr, size);
  }

  std::unique_ptr<transport::Buffer> createRecvBuffer(int slot, void* ptr, size_t size) override {
    gloo_rs_buffer_t* buffer = nullptr;
    check(gloo_rs_pair_create_recv_buffer(peer(), number(slot), memory(ptr, size), size, &buffer));
    return owner(buffer, slot, ptr, size);
  }

  void send(transport::UnboundBuffer* buffer, uint64_t tag, size_t offset, size_t nbytes) override {
    buffer->send(rank_, tag, offset, nbytes);
  }

  void recv(transport::UnboundBuffer* buffer, uint64_t tag, size_t offset, size_t nbytes) override {
    buffer->recv(rank_, tag, offset, nbytes);
  }

  void put(
      transport::UnboundBuffer* buffer,
      const transport::RemoteKey& key,
      uint64_t slot,
      size_t offset,
      size_t roffset,
      size_t nbytes) override {
    buffer->put(key, slot, offset, roffset, nbytes);
  }

  void get(
      transport::UnboundBuffer* buffer,
      const transport::RemoteKey& key,
      uint64_t slot,
      size_t offset,
      size_t roffset,
      size_t nbytes) override {
    buffer->get(key, slot, offset, roffset, nbytes);
  }

 private:
  /// The bytes are asked for when they are needed: a device that has selected no address selects one then.
  class Address final : public transport::Address {
   public:
    Address(const Pair& pair, const transport::Device& device) : pair_(pair), device_(device) {}

    std::string str() const override {
      return MakeString(device_.str(), ", rank ", pair_.context_.rank, " for rank ", pair_.rank_);
    }

    std::vector<char> bytes() const override;

   private:
    const Pair& pair_;
    const transport::Device& device_;
  };

  gloo_rs_pair_t* peer() const {
    if (!pair_) {
      throw InvalidOperationException(MakeString("rank ", rank_, " has no connection to itself"));
    }
    return pair_.get();
  }

  /// The slot for the C functions. Gloo's may be negative.
  static uint64_t number(int slot) {
    return static_cast<uint32_t>(slot);
  }

  /// A pointer also for no bytes.
  void* memory(void* ptr, size_t size) {
    return ptr == nullptr && size == 0 ? this : ptr;
  }

  std::unique_ptr<transport::Buffer> owner(gloo_rs_buffer_t* buffer, int slot, void* ptr, size_t size);

  const transport::Context& context_;
  const int rank_;
  const Address address_;
  Owned<gloo_rs_pair_t> pair_;
};

class TransportContext final : public transport::Context, public std::enable_shared_from_this<TransportContext> {
 public:
  TransportContext(
      std::shared_ptr<transport::Device> device, gloo_rs_device_t* handle, gloo_rs_connect_t connect, int own, int ranks)
      : transport::Context(own, ranks), device_(std::move(device)) {
    gloo_rs_context_options_t options;
    gloo_rs_context_options_init(&options, sizeof options);
    options.connect = connect;
    gloo_rs_context_t* context = nullptr;
    check(gloo_rs_context_create(handle, rank, size, &options, &context));
    context_.reset(context);
    pairs_.resize(static_cast<size_t>(size));
  }

  std::unique_ptr<transport::Pair>& getPair(int i) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<transport::Pair>& pair = place(i);
    if (!pair && i != rank) {
      make(pair, i);
      pair->setLocalRank(localRank_);
    }
    return pair;
  }

  std::unique_ptr<transport::Pair>& createPair(int i) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<transport::Pair>& pair = place(i);
    make(pair, i);
    return pair;
  }

  void createAndConnectAllPairs(std::shared_ptr<IStore> store) override {
    GLOO_ENFORCE(store != nullptr, "there is no store");
    ConnectStore connecting(*store, getTimeout());
    check(gloo_rs_context_connect(context_.get(), connecting.handle()));
    connected();
  }

  /// After the C context has been connected by another function.
  void connected() {
    int localRank = 0;
    bool intraNode = true;
    for (int i = 0; i < size; i++) {
      bool shares = i == rank;
      if (i != rank) {
        check(gloo_rs_context_shares_host(context_.get(), i, &shares));
      }
      localRank += shares && i < rank ? 1 : 0;
      intraNode = intraNode && shares;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    localRank_ = localRank;
    intraNode_ = intraNode;
    for (auto& pair : pairs_) {
      if (pair) {
        pair->setLocalRank(localRank);
      }
    }
  }

  std::unique_ptr<transport::UnboundBuffer> createUnboundBuffer(void* ptr, size_t bytes) override {
    return std::make_unique<UnboundBuffer>(shared_from_this(), ptr, bytes);
  }

  void setTimeout(std::chrono::milliseconds timeout) override {
    check(gloo_rs_context_set_timeout(context_.get(), timeout_ms(timeout)));
    transport::Context::setTimeout(timeout);
  }

  bool isIntraNode() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return intraNode_;
  }

  std::unique_ptr<transport::RemoteKey> deserializeRemoteKey(const std::string& serialized) override {
    return std::make_unique<RemoteKey>(serialized);
  }

  gloo_rs_context_t* gloo_rs_handle() const override {
    return context_.get();
  }

 private:
  std::unique_ptr<transport::Pair>& place(int i) {
    GLOO_ENFORCE(i >= 0 && i < size, "there is no rank ", i, " of ", size);
    return pairs_[static_cast<size_t>(i)];
  }

  void make(std::unique_ptr<transport::Pair>& pair, int i) {
    pair = std::make_unique<Pair>(*this, *device_, i);
  }

  const std::shared_ptr<transport::Device> device_;
  Owned<gloo_rs_context_t> context_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<transport::Pair>> pairs_;
  int localRank_ = 0;
  bool intraNode_ = false;
};

/// Connects a context that Device::createContext has made by a C function, which gets its handle and returns a status.
template <typename Function>
void connect(transport::Context& context, Function&& function) {
  check(function(context.gloo_rs_handle()));
  static_cast<TransportContext&>(context).connected();
}

inline std::unique_ptr<transport::Buffer> Pair::owner(gloo_rs_buffer_t* buffer, int slot, void* ptr, size_t size) {
  Owned<gloo_rs_buffer_t> owned(buffer);
  auto context = static_cast<const TransportContext&>(context_).shared_from_this();
  return std::make_unique<Buffer>(std::move(context), owned.release(), slot, ptr, size);
}

inline std::vector<char> Pair::Address::bytes() const {
  Owned<gloo_rs_pair_t> any;
  const gloo_rs_pair_t* pair = pair_.pair_.get();
  if (pair == nullptr && pair_.context_.size > 1) {
    // All pairs of a context have the same address.
    gloo_rs_pair_t* other = nullptr;
    check(gloo_rs_context_pair(pair_.context_.gloo_rs_handle(), pair_.rank_ == 0 ? 1 : 0, &other));
    any.reset(other);
    pair = other;
  }
  std::vector<char> bytes(kMaxByteSize);
  if (pair != nullptr) {
    size_t needed = 0;
    check(gloo_rs_pair_address(pair, bytes.data(), bytes.size(), &needed));
    bytes.resize(needed);
  }
  return bytes;
}

}  // namespace detail
}  // namespace gloo_rs_api
}  // namespace gloo
