/*
 * Copies the elements of all ranks to all ranks, with a number of elements for each rank.
 */
#pragma once

#include <cstddef>
#include <memory>

#include "gloo/context.h"
#include "gloo/detail/collective.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Options of allgatherv. Every rank has an output with `elementsPerRank[r]` elements of rank r, in the order of ranks;
/// the numbers are the same on all ranks. It has an input with its elements; or none, if they are at their position in
/// the output.
class AllgathervOptions : public detail::CountedBufferOptions {
 public:
  explicit AllgathervOptions(const std::shared_ptr<Context>& context) : CountedBufferOptions(context) {}

 protected:
  friend void allgatherv(AllgathervOptions&);
};

/// Throws EnforceNotMet if the options are wrong, IoException if the timeout expires or a rank is lost.
inline void allgatherv(AllgathervOptions& opts) {
  GLOO_ENFORCE(opts.elementSize_ > 0, "allgatherv needs an output");
  GLOO_ENFORCE(opts.out_, "allgatherv needs an output");
  if (opts.in_) {
    GLOO_ENFORCE_EQ(opts.bytesPerRank_[static_cast<size_t>(opts.context_->rank)], opts.in_.bytes());
  }

  detail::Call call(*opts.context_, opts.tag_, opts.timeout_);
  call.recv_counts = opts.bytesPerRank_.data();
  call.num_counts = opts.bytesPerRank_.size();
  call.set_input(opts.in_);
  call.set_output(opts.out_);
  call.run(GLOO_RS_ALLGATHERV);
}

}  // namespace gloo_rs_api
}  // namespace gloo
