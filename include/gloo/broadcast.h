/*
 * Copies the root's elements to all ranks.
 */
#pragma once

#include <cstddef>
#include <memory>

#include "gloo/context.h"
#include "gloo/detail/collective.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Options of broadcast. Every rank has an output. The root may have an input of the same length; without one, it sends
/// its output.
class BroadcastOptions : public detail::BufferOptions {
 public:
  explicit BroadcastOptions(const std::shared_ptr<Context>& context) : BufferOptions(context) {}

  void setRoot(int root) {
    root_ = root;
  }

 protected:
  int root_ = -1;

  friend void broadcast(BroadcastOptions&);
};

/// The root returns when all ranks have called it. Throws EnforceNotMet if the options are wrong, IoException if the
/// timeout expires or a rank is lost.
inline void broadcast(BroadcastOptions& opts) {
  GLOO_ENFORCE(opts.elementSize_ > 0, "broadcast needs an output");
  detail::enforce_root(opts.root_, *opts.context_);
  GLOO_ENFORCE(opts.out_, "broadcast needs an output");
  if (opts.in_) {
    GLOO_ENFORCE(opts.context_->rank == opts.root_, "only the root of broadcast has an input");
    GLOO_ENFORCE_EQ(opts.in_.bytes(), opts.out_.bytes());
  }

  detail::Call call(*opts.context_, opts.tag_, opts.timeout_);
  call.root = opts.root_;
  call.count = opts.out_.bytes();
  call.set_input(opts.in_);
  call.set_output(opts.out_);
  call.run_until_all_called(GLOO_RS_BROADCAST);
}

}  // namespace gloo_rs_api
}  // namespace gloo
