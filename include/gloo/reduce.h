/*
 * Combines the elements of all ranks; the root gets the result.
 */
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "gloo/context.h"
#include "gloo/detail/collective.h"
#include "gloo/detail/reduction.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Options of reduce. Inputs and outputs, of all ranks, have the same number of elements. The output of a rank without
/// an input is its input. Only the root's output is written; another rank with an input needs none.
class ReduceOptions : public detail::BufferOptions {
 public:
  /// `c[i] = a[i] op b[i]` for `n` elements; `c` may be `a` or `b`. The operation must be associative and commutative.
  using Func = detail::ReduceFunction;

  explicit ReduceOptions(const std::shared_ptr<Context>& context) : BufferOptions(context) {}

  void setRoot(int root) {
    root_ = root;
  }

  void setReduceFunction(Func fn) {
    reduce_ = std::move(fn);
  }

  /// The most bytes of a message; the same on all ranks.
  void setMaxSegmentSize(size_t maxSegmentSize) {
    maxSegmentSize_ = maxSegmentSize;
  }

 protected:
  /// Bytes of a message, unless the caller sets a limit.
  static constexpr size_t kMaxSegmentSize = 1024 * 1024;

  int root_ = -1;
  Func reduce_;
  size_t maxSegmentSize_ = kMaxSegmentSize;

  friend void reduce(ReduceOptions&);
};

/// Throws EnforceNotMet if the options are wrong, IoException if the timeout expires or a rank is lost, and what the
/// reduction function throws.
inline void reduce(ReduceOptions& opts) {
  const detail::Memory& memory = opts.out_ ? opts.out_ : opts.in_;
  if (memory.bytes() == 0) {
    return;
  }
  detail::enforce_root(opts.root_, *opts.context_);
  GLOO_ENFORCE(opts.out_ || opts.context_->rank != opts.root_, "the root of reduce needs an output");
  const size_t elements = memory.bytes() / opts.elementSize_;
  GLOO_ENFORCE_EQ(memory.bytes(), elements * opts.elementSize_);
  if (opts.in_) {
    GLOO_ENFORCE_EQ(opts.in_.bytes(), memory.bytes());
  }
  GLOO_ENFORCE(opts.reduce_ != nullptr, "reduce needs a reduction function");

  detail::Call call(*opts.context_, opts.tag_, opts.timeout_);
  call.root = opts.root_;
  call.count = elements;
  call.max_segment_bytes = detail::segment_bytes(opts.maxSegmentSize_, opts.kMaxSegmentSize, opts.elementSize_);
  call.set_input(opts.in_);
  call.set_output(opts.out_);
  const detail::Kernel kernel = detail::kernel_of(opts.reduce_, opts.elementSize_);
  detail::run_reduction(call, GLOO_RS_REDUCE, opts.elementSize_, kernel, opts.reduce_);
}

}  // namespace gloo_rs_api
}  // namespace gloo
