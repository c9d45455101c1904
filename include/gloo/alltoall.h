/*
 * Exchanges a block of elements between each two ranks.
 */
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "gloo/context.h"
#include "gloo/detail/collective.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Options of alltoall. Block j of rank i's input goes to block i of rank j's output. All have one block for each rank,
/// in the order of ranks, and all blocks have the same length.
class AlltoallOptions : public detail::BufferOptions {
 public:
  explicit AlltoallOptions(const std::shared_ptr<Context>& context) : BufferOptions(context) {}

  /// Throws EnforceNotMet for zero, as Gloo's does.
  void setTimeout(std::chrono::milliseconds timeout) {
    GLOO_ENFORCE_GT(timeout.count(), 0);
    BufferOptions::setTimeout(timeout);
  }

 protected:
  friend void alltoall(AlltoallOptions&);
};

/// Throws EnforceNotMet if the options are wrong, IoException if the timeout expires or a rank is lost.
inline void alltoall(AlltoallOptions& opts) {
  GLOO_ENFORCE(opts.elementSize_ > 0, "alltoall needs an input");
  GLOO_ENFORCE(opts.in_, "alltoall needs an input");
  GLOO_ENFORCE(opts.out_, "alltoall needs an output");
  const size_t size = static_cast<size_t>(opts.context_->size);
  GLOO_ENFORCE_EQ(opts.in_.bytes() % size, size_t{0});
  GLOO_ENFORCE_EQ(opts.in_.bytes(), opts.out_.bytes());

  detail::Call call(*opts.context_, opts.tag_, opts.timeout_);
  call.count = opts.in_.bytes() / size;
  call.set_input(opts.in_);
  call.set_output(opts.out_);
  call.run(GLOO_RS_ALLTOALL);
}

}  // namespace gloo_rs_api
}  // namespace gloo
