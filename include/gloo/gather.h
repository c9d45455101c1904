/*
 * Copies the elements of all ranks to the root.
 */
#pragma once

#include <cstddef>
#include <memory>

#include "gloo/context.h"
#include "gloo/detail/collective.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Options of gather. Every rank has an input, all of the same length. The root has an output of as many elements for
/// each rank, in the order of ranks; the output of other ranks is ignored.
class GatherOptions : public detail::BufferOptions {
 public:
  explicit GatherOptions(const std::shared_ptr<Context>& context) : BufferOptions(context) {}

  void setRoot(int root) {
    root_ = root;
  }

 protected:
  int root_ = -1;

  friend void gather(GatherOptions&);
};

/// Throws EnforceNotMet if the options are wrong, IoException if the timeout expires or a rank is lost.
inline void gather(GatherOptions& opts) {
  GLOO_ENFORCE(opts.elementSize_ > 0, "gather needs an input");
  detail::enforce_root(opts.root_, *opts.context_);
  GLOO_ENFORCE(opts.in_, "gather needs an input");
  const bool root = opts.context_->rank == opts.root_;
  if (root) {
    GLOO_ENFORCE(opts.out_, "the root of gather needs an output");
    GLOO_ENFORCE_EQ(detail::bytes_of(opts.in_.bytes(), static_cast<size_t>(opts.context_->size)), opts.out_.bytes());
  }

  detail::Call call(*opts.context_, opts.tag_, opts.timeout_);
  call.root = opts.root_;
  call.count = opts.in_.bytes();
  call.set_input(opts.in_);
  if (root) {
    call.set_output(opts.out_);
  }
  call.run(GLOO_RS_GATHER);
}

}  // namespace gloo_rs_api
}  // namespace gloo
