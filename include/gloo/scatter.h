/*
 * Copies one buffer of the root to each rank.
 */
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "gloo/context.h"
#include "gloo/detail/collective.h"
#include "gloo/transport/unbound_buffer.h"

namespace gloo {
inline namespace gloo_rs_api {

/// Options of scatter. Every rank has an output, all of the same length. The root has one input of that length for each
/// rank, in the order of ranks; the inputs of other ranks are ignored.
class ScatterOptions : public detail::CollectiveOptions {
 public:
  explicit ScatterOptions(const std::shared_ptr<Context>& context) : CollectiveOptions(context) {}

  template <typename T>
  void setInputs(std::vector<std::unique_ptr<transport::UnboundBuffer>> buffers) {
    elementSize_ = sizeof(T);
    in_ = detail::MemoryList(std::move(buffers));
  }

  template <typename T>
  void setInputs(std::vector<T*> pointers, size_t elements) {
    setInputs(pointers.data(), pointers.size(), elements);
  }

  template <typename T>
  void setInputs(T** pointers, size_t length, size_t elements) {
    elementSize_ = sizeof(T);
    in_ = detail::MemoryList(pointers, length, elements);
  }

  template <typename T>
  void setOutput(std::unique_ptr<transport::UnboundBuffer> buffer) {
    elementSize_ = sizeof(T);
    out_ = detail::Memory(std::move(buffer));
  }

  template <typename T>
  void setOutput(T* pointer, size_t elements) {
    elementSize_ = sizeof(T);
    out_ = detail::Memory(pointer, elements);
  }

  void setRoot(int root) {
    root_ = root;
  }

 protected:
  detail::MemoryList in_;
  detail::Memory out_;
  size_t elementSize_ = 0;
  int root_ = -1;

  friend void scatter(ScatterOptions&);
};

/// The root returns when all ranks have called it. Throws EnforceNotMet if the options are wrong, IoException if the
/// timeout expires or a rank is lost.
inline void scatter(ScatterOptions& opts) {
  GLOO_ENFORCE(opts.elementSize_ > 0, "scatter needs an output");
  detail::enforce_root(opts.root_, *opts.context_);
  GLOO_ENFORCE(opts.out_, "scatter needs an output");

  detail::Call call(*opts.context_, opts.tag_, opts.timeout_);
  call.root = opts.root_;
  call.count = opts.out_.bytes();
  call.set_output(opts.out_);
  std::vector<char> unused;
  detail::Memory scratch;
  if (opts.context_->rank == opts.root_) {
    GLOO_ENFORCE_EQ(opts.in_.size(), static_cast<size_t>(opts.context_->size));
    opts.in_.enforce_bytes(opts.out_.bytes());
    call.set_inputs(opts.in_.pointers());
    // The C function refuses an output that is one of several inputs, although the root's part need not be moved then.
    if (opts.in_.pointers()[static_cast<size_t>(opts.root_)] == opts.out_.pointer() && opts.out_.bytes() > 0) {
      unused.resize(opts.out_.bytes());
      scratch = detail::Memory(unused.data(), unused.size());
      call.set_output(scratch);
    }
  }
  call.run_until_all_called(GLOO_RS_SCATTER);
}

}  // namespace gloo_rs_api
}  // namespace gloo
