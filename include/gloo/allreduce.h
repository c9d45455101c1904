/*
 * Combines the elements of all ranks; all ranks get the result.
 */
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gloo/context.h"
#include "gloo/detail/collective.h"
#include "gloo/detail/reduction.h"
#include "gloo/transport/unbound_buffer.h"

namespace gloo {
inline namespace gloo_rs_api {

namespace detail {

struct AllreduceOptionsImpl {
  using Func = ReduceFunction;

  enum Algorithm {
    UNSPECIFIED = 0,
    RING = 1,
    BCUBE = 2,
  };

  explicit AllreduceOptionsImpl(const std::shared_ptr<Context>& given)
      : context(given), timeout(chosen_timeout(*given)) {}

  /// Bytes of a message, unless the caller sets a limit.
  static constexpr size_t kMaxSegmentSize = 1024 * 1024;

  std::shared_ptr<Context> context;
  std::chrono::milliseconds timeout;
  Algorithm algorithm = UNSPECIFIED;
  MemoryList in;
  MemoryList out;
  size_t elements = 0;
  size_t elementSize = 0;
  Func reduce;
  uint32_t tag = 0;
  size_t maxSegmentSize = kMaxSegmentSize;
};

}  // namespace detail

/// Options of allreduce. All inputs and outputs, of all ranks, have the same number of elements. Each rank has at least
/// one output. Its inputs are combined first; without inputs, its outputs are the inputs.
class AllreduceOptions {
 public:
  /// `c[i] = a[i] op b[i]` for `n` elements; `c` may be `a` or `b`. The operation must be associative and commutative.
  using Func = detail::AllreduceOptionsImpl::Func;
  using Algorithm = detail::AllreduceOptionsImpl::Algorithm;

  explicit AllreduceOptions(const std::shared_ptr<Context>& context) : impl_(context) {}

  /// UNSPECIFIED lets the library choose.
  void setAlgorithm(Algorithm algorithm) {
    impl_.algorithm = algorithm;
  }

  template <typename T>
  void setInput(std::unique_ptr<transport::UnboundBuffer> buffer) {
    setInputs<T>(detail::list_of(std::move(buffer)));
  }

  template <typename T>
  void setInputs(std::vector<std::unique_ptr<transport::UnboundBuffer>> buffers) {
    set<T>(impl_.in, detail::MemoryList(std::move(buffers)));
  }

  template <typename T>
  void setInput(T* pointer, size_t elements) {
    set<T>(impl_.in, detail::MemoryList(&pointer, 1, elements));
  }

  template <typename T>
  void setInputs(std::vector<T*> pointers, size_t elements) {
    setInputs(pointers.data(), pointers.size(), elements);
  }

  template <typename T>
  void setInputs(T** pointers, size_t length, size_t elements) {
    set<T>(impl_.in, detail::MemoryList(pointers, length, elements));
  }

  template <typename T>
  void setOutput(std::unique_ptr<transport::UnboundBuffer> buffer) {
    setOutputs<T>(detail::list_of(std::move(buffer)));
  }

  template <typename T>
  void setOutputs(std::vector<std::unique_ptr<transport::UnboundBuffer>> buffers) {
    set<T>(impl_.out, detail::MemoryList(std::move(buffers)));
  }

  template <typename T>
  void setOutput(T* pointer, size_t elements) {
    set<T>(impl_.out, detail::MemoryList(&pointer, 1, elements));
  }

  template <typename T>
  void setOutputs(std::vector<T*> pointers, size_t elements) {
    setOutputs(pointers.data(), pointers.size(), elements);
  }

  template <typename T>
  void setOutputs(T** pointers, size_t length, size_t elements) {
    set<T>(impl_.out, detail::MemoryList(pointers, length, elements));
  }

  void setReduceFunction(Func fn) {
    impl_.reduce = std::move(fn);
  }

  void setTag(uint32_t tag) {
    impl_.tag = tag;
  }

  /// The most bytes of a message; the same on all ranks.
  void setMaxSegmentSize(size_t maxSegmentSize) {
    impl_.maxSegmentSize = maxSegmentSize;
  }

  void setTimeout(std::chrono::milliseconds timeout) {
    impl_.timeout = timeout;
  }

 protected:
  detail::AllreduceOptionsImpl impl_;

  friend void allreduce(const AllreduceOptions&);

 private:
  template <typename T>
  void set(detail::MemoryList& list, detail::MemoryList value) {
    list = std::move(value);
    impl_.elements = list.bytes() / sizeof(T);
    impl_.elementSize = sizeof(T);
  }
};

/// Throws EnforceNotMet if the options are wrong, IoException if the timeout expires or a rank is lost, and what the
/// reduction function throws.
inline void allreduce(const AllreduceOptions& opts) {
  const detail::AllreduceOptionsImpl& options = opts.impl_;
  if (options.elements == 0) {
    return;
  }
  GLOO_ENFORCE(options.out.size() > 0, "allreduce needs an output");
  GLOO_ENFORCE(options.reduce != nullptr, "allreduce needs a reduction function");
  const size_t bytes = options.elements * options.elementSize;
  options.out.enforce_bytes(bytes);
  options.in.enforce_bytes(bytes);

  detail::Call call(*options.context, options.tag, options.timeout);
  switch (options.algorithm) {
    case detail::AllreduceOptionsImpl::UNSPECIFIED:
      break;
    case detail::AllreduceOptionsImpl::RING:
      call.algorithm = "ring";
      break;
    case detail::AllreduceOptionsImpl::BCUBE:
      call.algorithm = "bcube";
      break;
    default:
      GLOO_ENFORCE(false, "allreduce has no algorithm ", static_cast<int>(options.algorithm));
  }
  call.count = options.elements;
  call.max_segment_bytes = detail::segment_bytes(options.maxSegmentSize, options.kMaxSegmentSize, options.elementSize);
  const detail::Kernel kernel = detail::kernel_of(options.reduce, options.elementSize);
  const std::vector<void*>& in = options.in.pointers();
  const std::vector<void*>& out = options.out.pointers();
  if (in == out || !detail::have_common(in, out)) {
    call.set_inputs(in);
    call.set_outputs(out);
    detail::run_reduction(call, GLOO_RS_ALLREDUCE, options.elementSize, kernel, options.reduce);
    return;
  }
  // Some outputs are inputs: the C function would not know in which order to read and write.
  detail::reduce_locally(out[0], in, options.elements, options.elementSize, options.reduce);
  const std::vector<void*> first{out[0]};
  call.set_outputs(first);
  detail::run_reduction(call, GLOO_RS_ALLREDUCE, options.elementSize, kernel, options.reduce);
  detail::copy_first(out, bytes);
}

}  // namespace gloo_rs_api
}  // namespace gloo
