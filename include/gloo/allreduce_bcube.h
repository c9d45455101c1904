/*
 * Allreduce in groups, and groups of groups, as an algorithm.
 */
#pragma once

#include <memory>
#include <vector>

#include "gloo/context.h"
#include "gloo/detail/class_algorithm.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Combines the `count` elements at all pointers of all ranks; all pointers get the result. `fn` must commute, and
/// outlive the object. Groups have `base` ranks of the context, as far as its size divides.
template <typename T>
class AllreduceBcube : public detail::AllreduceAlgorithm<T> {
 public:
  AllreduceBcube(
      const std::shared_ptr<Context>& context,
      const std::vector<T*>& ptrs,
      const int count,
      const ReductionFunction<T>* fn = ReductionFunction<T>::sum)
      : detail::AllreduceAlgorithm<T>(context, ptrs, count, fn, "bcube", static_cast<size_t>(context->base)) {}
};

}  // namespace gloo_rs_api
}  // namespace gloo
