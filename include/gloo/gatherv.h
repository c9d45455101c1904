/*
 * Copies the elements of all ranks to the root, with a number of elements for each rank.
 */
#pragma once

#include <cstddef>
#include <memory>

#include "gloo/context.h"
#include "gloo/detail/collective.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Options of gatherv. Every rank has an input. The output of the root has `elementsPerRank[r]` elements of rank r, in
/// the order of ranks. On other ranks the output itself is ignored, and `elementsPerRank[r]` is the number of elements
/// that rank r sends; without an output, it sends its whole input.
class GathervOptions : public detail::CountedBufferOptions {
 public:
  explicit GathervOptions(const std::shared_ptr<Context>& context) : CountedBufferOptions(context) {}

  void setRoot(int root) {
    root_ = root;
  }

 protected:
  int root_ = -1;

  friend void gatherv(GathervOptions&);
};

/// Throws EnforceNotMet if the options are wrong, IoException if the timeout expires or a rank is lost.
inline void gatherv(GathervOptions& opts) {
  GLOO_ENFORCE(opts.elementSize_ > 0, "gatherv needs an input");
  detail::enforce_root(opts.root_, *opts.context_);
  GLOO_ENFORCE(opts.in_, "gatherv needs an input");
  const size_t rank = static_cast<size_t>(opts.context_->rank);

  detail::Call call(*opts.context_, opts.tag_, opts.timeout_);
  call.root = opts.root_;
  call.set_input(opts.in_);
  if (opts.context_->rank == opts.root_) {
    GLOO_ENFORCE(opts.out_, "the root of gatherv needs an output");
    GLOO_ENFORCE_EQ(opts.bytesPerRank_[rank], opts.in_.bytes());
    call.recv_counts = opts.bytesPerRank_.data();
    call.num_counts = opts.bytesPerRank_.size();
    call.set_output(opts.out_);
  } else {
    call.count = opts.bytesPerRank_.empty() ? opts.in_.bytes() : opts.bytesPerRank_[rank];
    GLOO_ENFORCE_GE(opts.in_.bytes(), call.count);
  }
  call.run(GLOO_RS_GATHERV);
}

}  // namespace gloo_rs_api
}  // namespace gloo
