/*
 * Contexts whose ranks find each other through a store, or through another context.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gloo/common/enforce.h"
#include "gloo/common/error.h"
#include "gloo/context.h"
#include "gloo/detail/c_api.h"
#include "gloo/detail/transport.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/address.h"
#include "gloo/transport/device.h"

namespace gloo {
inline namespace gloo_rs_api {
namespace rendezvous {

class ContextFactory;

class Context : public ::gloo::Context {
 public:
  Context(int own, int ranks, int groups_of = 2) : ::gloo::Context(own, ranks, groups_of) {}

  /// Connects to all ranks, which find each other through `store`, a store or a prefix that no other context has used.
  /// Every rank calls it. The store is used only during the call. Throws IoException, with the missing ranks, if the
  /// timeout expires, and what a store of the program throws.
  void connectFullMesh(std::shared_ptr<Store> store, const std::shared_ptr<transport::Device>& dev) {
    GLOO_ENFORCE(dev != nullptr, "there is no device");
    auto transportContext = dev->createContext(rank, size);
    ::gloo::detail::pass_timeout(*this, *transportContext);
    transportContext->createAndConnectAllPairs(std::move(store));
    device_ = dev;
    transportContext_ = std::move(transportContext);
  }

  void connectFullMesh(Store& store, const std::shared_ptr<transport::Device>& dev) {
    connectFullMesh(std::shared_ptr<Store>(&store, [](Store*) {}), dev);
  }

 protected:
  /// Returns, for classes that exchange addresses by themselves, the address for this rank in `all`, which is what rank
  /// `peer` has published: the addresses of its pairs with all ranks but itself, in the order of the ranks. Throws
  /// InvalidOperationException if `all` is not that.
  std::vector<char> extractAddress(const std::vector<char>& all, int peer) const {
    if (peer < 0 || peer >= size || peer == rank) {
      GLOO_THROW_INVALID_OPERATION_EXCEPTION("rank ", rank, " of ", size, " has no address for rank ", peer);
    }
    const size_t others = static_cast<size_t>(size - 1);
    if (all.empty() || all.size() % others != 0) {
      GLOO_THROW_INVALID_OPERATION_EXCEPTION("rank ", peer, " has published ", all.size(), " bytes, which are not ", others, " addresses");
    }
    const size_t length = all.size() / others;
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(length * static_cast<size_t>(rank > peer ? rank - 1 : rank));
    return {begin, begin + static_cast<std::ptrdiff_t>(length)};
  }

  friend class ContextFactory;
};

/// Makes contexts out of a connected one, with the same ranks and without a store.
class ContextFactory {
 public:
  static constexpr auto kMaxAddressSize = transport::Address::kMaxByteSize;

  /// Every rank makes its factory in the same order as other users of nextSlot. Throws EnforceNotMet if the context is
  /// not connected.
  explicit ContextFactory(std::shared_ptr<::gloo::Context> backingContext)
      : backingContext_(std::move(backingContext)) {
    GLOO_ENFORCE(backingContext_ != nullptr, "there is no context");
    ::gloo::detail::handle(*backingContext_);
    tag_ = static_cast<uint64_t>(backingContext_->nextSlot());
  }

  /// A new context on `dev`, with the timeout of the backing context. Every rank calls it.
  std::shared_ptr<::gloo::Context> makeContext(const std::shared_ptr<transport::Device>& dev) {
    GLOO_ENFORCE(dev != nullptr, "there is no device");
    auto context = std::make_shared<Context>(backingContext_->rank, backingContext_->size);
    if (::gloo::detail::chosen_timeout(*backingContext_) != transport::kUnsetTimeout) {
      context->setTimeout(backingContext_->getTimeout());
    }
    auto transportContext = dev->createContext(context->rank, context->size);
    ::gloo::detail::pass_timeout(*context, *transportContext);
    ::gloo::detail::connect(*transportContext, [&](gloo_rs_context_t* handle) {
      return gloo_rs_context_connect_from(handle, ::gloo::detail::handle(*backingContext_), tag_);
    });
    context->device_ = dev;
    context->transportContext_ = std::move(transportContext);
    return context;
  }

 protected:
  std::shared_ptr<::gloo::Context> backingContext_;

 private:
  uint64_t tag_ = 0;
};

}  // namespace rendezvous
}  // namespace gloo_rs_api
}  // namespace gloo
