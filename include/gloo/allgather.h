/*
 * Copies the elements of all ranks to all ranks.
 */
#pragma once

#include <cstddef>
#include <memory>

#include "gloo/context.h"
#include "gloo/detail/collective.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Options of allgather. Every rank has an output with the same number of elements for each rank, in the order of
/// ranks. It has an input with as many elements; or none, if they are at their position in the output.
class AllgatherOptions : public detail::BufferOptions {
 public:
  explicit AllgatherOptions(const std::shared_ptr<Context>& context) : BufferOptions(context) {}

 protected:
  friend void allgather(AllgatherOptions&);
};

/// Throws EnforceNotMet if the options are wrong, IoException if the timeout expires or a rank is lost.
inline void allgather(AllgatherOptions& opts) {
  GLOO_ENFORCE(opts.elementSize_ > 0, "allgather needs an output");
  GLOO_ENFORCE(opts.out_, "allgather needs an output");
  const size_t size = static_cast<size_t>(opts.context_->size);
  if (opts.in_) {
    GLOO_ENFORCE_EQ(opts.out_.bytes(), detail::bytes_of(opts.in_.bytes(), size));
  } else {
    GLOO_ENFORCE_EQ(opts.out_.bytes() % size, size_t{0});
  }

  detail::Call call(*opts.context_, opts.tag_, opts.timeout_);
  call.count = opts.out_.bytes() / size;
  call.set_input(opts.in_);
  call.set_output(opts.out_);
  call.run(GLOO_RS_ALLGATHER);
}

}  // namespace gloo_rs_api
}  // namespace gloo
