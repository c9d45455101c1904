/*
 * Allreduce of the pointers of one rank.
 */
#pragma once

#include <memory>
#include <vector>

#include "gloo/context.h"
#include "gloo/detail/class_algorithm.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Combines the `count` elements at all pointers of this rank; all pointers get the result. Needs no other rank. `fn`
/// must commute, and outlive the object.
template <typename T>
class AllreduceLocal : public detail::ReducingAlgorithm<T> {
 public:
  AllreduceLocal(
      const std::shared_ptr<Context>& context,
      const std::vector<T*>& ptrs,
      const int count,
      const ReductionFunction<T>* fn = ReductionFunction<T>::sum)
      : detail::ReducingAlgorithm<T>(context, ptrs, count, fn) {}

  void run() override {
    if (this->count_ > 0) {
      this->reduce_pointers();
      detail::copy_first(this->pointers_, this->count_ * sizeof(T));
    }
  }
};

}  // namespace gloo_rs_api
}  // namespace gloo
