/*
 * Broadcast from the root to each rank, as an algorithm.
 */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gloo/algorithm.h"
#include "gloo/context.h"
#include "gloo/detail/class_algorithm.h"
#include "gloo/detail/collective.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Copies the `count` elements at pointer `rootPointerRank` of rank `rootRank` to all pointers of all ranks. Throws
/// EnforceNotMet if there is no such rank or pointer.
template <typename T>
class BroadcastOneToAll : public Algorithm {
 public:
  BroadcastOneToAll(
      const std::shared_ptr<Context>& context,
      const std::vector<T*>& ptrs,
      size_t count,
      int rootRank = 0,
      int rootPointerRank = 0)
      : Algorithm(context), bytes_(detail::bytes_of<T>(count)), root_(rootRank) {
    detail::enforce_root(rootRank, *context);
    GLOO_ENFORCE_GE(rootPointerRank, 0);
    GLOO_ENFORCE_LT(static_cast<size_t>(rootPointerRank), ptrs.size());
    tag_ = detail::next_tag(*context);
    pointers_ = detail::untyped_list(ptrs, count);
    // The C function sends the first output.
    std::swap(pointers_[0], pointers_[static_cast<size_t>(rootPointerRank)]);
  }

  void run() override {
    detail::Call call(*context_, tag_, detail::chosen_timeout(*context_));
    call.algorithm = "one_to_all";
    call.root = root_;
    call.count = bytes_;
    call.set_outputs(pointers_);
    call.run(GLOO_RS_BROADCAST);
  }

 private:
  const size_t bytes_;
  const int root_;
  uint64_t tag_;
  std::vector<void*> pointers_;
};

}  // namespace gloo_rs_api
}  // namespace gloo
