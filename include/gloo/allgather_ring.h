/*
 * Allgather in a ring, as an algorithm.
 */
#pragma once

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

/// Copies the `count` elements at each pointer of all ranks to all ranks. All ranks have as many pointers. `outPtr`
/// gets the elements of rank 0, those of its first pointer first, then those of rank 1 and so on.
template <typename T>
class AllgatherRing : public Algorithm {
 public:
  AllgatherRing(
      const std::shared_ptr<Context>& context, const std::vector<const T*>& inPtrs, T* outPtr, int count)
      : Algorithm(context), tag_(detail::next_tag(*context)) {
    GLOO_ENFORCE_GE(count, 0);
    bytes_ = static_cast<size_t>(count) * sizeof(T);
    inputs_ = detail::untyped_list(inPtrs, static_cast<size_t>(count));
    output_ = detail::Memory(outPtr, inPtrs.size() * static_cast<size_t>(count) * static_cast<size_t>(context->size));
    // The C function takes several inputs only if they are elsewhere.
    char* own = output_.pointer() + static_cast<size_t>(context->rank) * inPtrs.size() * bytes_;
    inPlace_ = inputs_.size() > 1;
    for (size_t i = 0; i < inputs_.size(); i++) {
      inPlace_ = inPlace_ && inputs_[i] == own + i * bytes_;
    }
  }

  void run() override {
    detail::Call call(*context_, tag_, detail::chosen_timeout(*context_));
    call.algorithm = "ring";
    call.count = inPlace_ ? bytes_ * inputs_.size() : bytes_;
    if (!inPlace_) {
      call.set_inputs(inputs_);
    }
    call.set_output(output_);
    call.run(GLOO_RS_ALLGATHER);
  }

 private:
  const uint64_t tag_;
  size_t bytes_;
  std::vector<void*> inputs_;
  detail::Memory output_;
  bool inPlace_;
};

}  // namespace gloo_rs_api
}  // namespace gloo
