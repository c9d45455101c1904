// The C functions of gloo_rs, for the process group: errors as exceptions, handles that are destroyed, collectives on
// tensors.
#pragma once

#include <ATen/ATen.h>
#include <gloo_rs.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace gloo_rs_torch {

// Throws with the library's message about the last failed call of this thread: `what` says what failed, and on which
// rank.
[[noreturn]] inline void fail(const std::string &what) { throw std::runtime_error("gloo_rs: " + what + ": " + gloo_rs_last_error_message()); }

inline void check(gloo_rs_status_t status, const std::string &what) {
  if (status != GLOO_RS_OK) fail(what);
}

// What torch calls a timeout, for the library: a negative one is the group's.
inline int64_t timeout_ms(std::chrono::milliseconds timeout) { return timeout.count() < 0 ? GLOO_RS_TIMEOUT_DEFAULT : timeout.count(); }

// Destroys the store that torch's store is for the library. The library's threads call torch's store without the
// interpreter's lock.
using StoreHandle = std::unique_ptr<gloo_rs_store_t, decltype(&gloo_rs_store_destroy)>;
StoreHandle wrap_store(const c10::intrusive_ptr<c10d::Store> &store);

// The context of a group, which its works share.
class Context {
 public:
  Context(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, std::chrono::milliseconds timeout);
  ~Context() { gloo_rs_context_destroy(handle_); }
  Context(const Context &) = delete;
  Context &operator=(const Context &) = delete;

  gloo_rs_context_t *handle() const { return handle_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // `call` and which rank made it, for messages.
  std::string describe(const std::string &call) const {
    return call + " on rank " + std::to_string(rank_) + " of " + std::to_string(size_);
  }
  // Ends all calls of this group, on all ranks.
  void abort() const { gloo_rs_context_close(handle_); }

 private:
  gloo_rs_context_t *handle_ = nullptr;
  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
};

// Where a tensor's elements are. The library takes no null pointers, and tensors without elements have no other.
inline void *memory_of(const at::Tensor &tensor) {
  alignas(16) static char nothing[16];
  return tensor.numel() == 0 ? nothing : tensor.data_ptr();
}

// The elements of a tensor in one piece, in the order of indices: the tensor itself, or a copy.
inline at::Tensor dense(const at::Tensor &tensor) { return tensor.resolve_conj().resolve_neg().contiguous(); }

// The elements of `tensors`, one tensor after the other.
inline at::Tensor flatten(const std::vector<at::Tensor> &tensors) {
  std::vector<at::Tensor> flat;
  for (const auto &tensor : tensors) flat.push_back(dense(tensor).view(-1));
  return at::cat(flat);
}

// Copies the elements of `flat` to `tensors`, one after the other.
inline void unflatten(const at::Tensor &flat, const std::vector<at::Tensor> &tensors) {
  int64_t begin = 0;
  for (const auto &tensor : tensors) {
    const int64_t end = begin + tensor.numel();
    at::Tensor(tensor).copy_(flat.slice(0, begin, end).view(tensor.sizes()));
    begin = end;
  }
}

// Elements of the type of `like`, for a result.
inline at::Tensor flat_like(const at::Tensor &like, int64_t count) { return at::empty({count}, like.options().memory_format(c10::nullopt)); }

// Tensors that a call writes in place: `memory` is in one piece each, and `finish` copies where it had to be a copy.
class InPlace {
 public:
  explicit InPlace(const std::vector<at::Tensor> &tensors) : tensors_(tensors) {
    for (const auto &tensor : tensors) memory.push_back(dense(tensor));
  }
  void finish() {
    for (size_t i = 0; i < memory.size(); ++i) {
      if (memory[i].unsafeGetTensorImpl() != tensors_[i].unsafeGetTensorImpl()) tensors_[i].copy_(memory[i]);
    }
  }
  std::vector<at::Tensor> memory;

 private:
  std::vector<at::Tensor> tensors_;
};

inline gloo_rs_data_type_t data_type(at::ScalarType type) {
  switch (type) {
    case at::kChar: return GLOO_RS_INT8;
    case at::kByte: return GLOO_RS_UINT8;
    case at::kShort: return GLOO_RS_INT16;
    case at::kInt: return GLOO_RS_INT32;
    case at::kLong: return GLOO_RS_INT64;
    case at::kHalf: return GLOO_RS_FLOAT16;
    case at::kBFloat16: return GLOO_RS_BFLOAT16;
    case at::kFloat: return GLOO_RS_FLOAT32;
    case at::kDouble: return GLOO_RS_FLOAT64;
    case at::kComplexFloat: return GLOO_RS_COMPLEX64;
    case at::kComplexDouble: return GLOO_RS_COMPLEX128;
    case at::kBool: return GLOO_RS_BOOL;
    default: return GLOO_RS_DATA_TYPE_UNSET;
  }
}

inline gloo_rs_op_t operation(const c10d::ReduceOp &op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM: return GLOO_RS_SUM;
    case c10d::ReduceOp::AVG: return GLOO_RS_AVERAGE;
    case c10d::ReduceOp::PRODUCT: return GLOO_RS_PRODUCT;
    case c10d::ReduceOp::MIN: return GLOO_RS_MIN;
    case c10d::ReduceOp::MAX: return GLOO_RS_MAX;
    case c10d::ReduceOp::BAND: return GLOO_RS_AND;
    case c10d::ReduceOp::BOR: return GLOO_RS_OR;
    case c10d::ReduceOp::BXOR: return GLOO_RS_XOR;
    default: throw std::invalid_argument("gloo_rs: there is no such reduction: PREMUL_SUM is NCCL's alone");
  }
}

// One collective: its options, and the tensors, all in one piece.
class Call {
 public:
  Call(const Context &context, std::string name, uint64_t tag, std::chrono::milliseconds timeout) : context_(context), name_(std::move(name)) {
    gloo_rs_collective_options_init(&options, sizeof options);
    options.tag = tag;
    options.timeout_ms = timeout_ms(timeout);
  }
  void type(const at::Tensor &tensor) {
    options.data_type = data_type(tensor.scalar_type());
    if (options.data_type == GLOO_RS_DATA_TYPE_UNSET) options.element_bytes = tensor.element_size();
  }
  void input(const at::Tensor &tensor) { inputs_.push_back(memory_of(tensor)); }
  void output(const at::Tensor &tensor) { outputs_.push_back(memory_of(tensor)); }
  void send_counts(std::vector<size_t> counts) { send_counts_ = std::move(counts); }
  void recv_counts(std::vector<size_t> counts) { recv_counts_ = std::move(counts); }

  void run(gloo_rs_collective_t kind) {
    options.inputs = inputs_.data();
    options.num_inputs = inputs_.size();
    options.outputs = outputs_.data();
    options.num_outputs = outputs_.size();
    options.send_counts = send_counts_.empty() ? nullptr : send_counts_.data();
    options.recv_counts = recv_counts_.empty() ? nullptr : recv_counts_.data();
    options.num_counts = std::max(send_counts_.size(), recv_counts_.size());
    check(gloo_rs_collective(context_.handle(), kind, &options), context_.describe(name_));
  }

  const Context &context() const { return context_; }
  gloo_rs_collective_options_t options;

 private:
  const Context &context_;
  const std::string name_;
  std::vector<const void *> inputs_;
  std::vector<void *> outputs_;
  std::vector<size_t> send_counts_;
  std::vector<size_t> recv_counts_;
};

}  // namespace gloo_rs_torch
