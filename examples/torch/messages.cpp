#include <ATen/core/grad_mode.h>

#include "work.hpp"

namespace gloo_rs_torch {

MessageWork::MessageWork(std::shared_ptr<Context> context, c10d::OpType type, at::Tensor tensor, int peer, uint64_t slot)
    : GlooRsWork(context->rank(), type, type == c10d::OpType::SEND ? "gloo_rs:send" : "gloo_rs:recv", std::vector<at::Tensor>{tensor}),
      context_(std::move(context)),
      tensor_(std::move(tensor)),
      memory_(dense(tensor_)),
      peer_(peer) {
  const size_t bytes = memory_.nbytes();
  check(gloo_rs_unbound_buffer_create(context_->handle(), memory_of(memory_), bytes, &buffer_), describe());
  gloo_rs_status_t status;
  if (is_send()) {
    status = gloo_rs_unbound_buffer_send(buffer_, peer, slot, 0, bytes);
  } else if (peer >= 0) {
    status = gloo_rs_unbound_buffer_recv(buffer_, peer, slot, 0, bytes);
  } else {
    std::vector<int32_t> others;
    for (int rank = 0; rank < context_->size(); ++rank) {
      if (rank != context_->rank()) others.push_back(rank);
    }
    status = gloo_rs_unbound_buffer_recv_any(buffer_, others.data(), others.size(), slot, 0, bytes);
  }
  if (status != GLOO_RS_OK) {
    const std::string message = gloo_rs_last_error_message();
    gloo_rs_unbound_buffer_destroy(buffer_);
    throw std::runtime_error("gloo_rs: " + describe() + ": " + message);
  }
}

// What was sent continues from a copy; what was to be received is cancelled.
MessageWork::~MessageWork() { gloo_rs_unbound_buffer_destroy(buffer_); }

std::string MessageWork::describe() const {
  const std::string peer = peer_ < 0 ? "any rank" : "rank " + std::to_string(peer_);
  return context_->describe((is_send() ? "send to " : "recv from ") + peer);
}

gloo_rs_status_t MessageWork::poll(int64_t timeout_ms) {
  return is_send() ? gloo_rs_unbound_buffer_wait_send(buffer_, timeout_ms, nullptr)
                   : gloo_rs_unbound_buffer_wait_recv(buffer_, timeout_ms, &source_, &received_);
}

// With mutex_ held.
void MessageWork::end(std::exception_ptr exception) {
  gloo_rs_unbound_buffer_destroy(buffer_);
  buffer_ = nullptr;
  if (!exception && !is_send()) {
    if (received_ != memory_.nbytes()) {
      exception = std::make_exception_ptr(std::runtime_error("gloo_rs: " + describe() + ": the message has " + std::to_string(received_) +
                                                             " bytes, and the tensor " + std::to_string(memory_.nbytes())));
    } else if (memory_.unsafeGetTensorImpl() != tensor_.unsafeGetTensorImpl()) {
      const at::NoGradGuard no_grad;
      tensor_.copy_(memory_);
    }
  }
  completed_ = true;
  exception_ = exception;
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
  cv_.notify_all();
}

bool MessageWork::isCompleted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (completed_ || waiting_) return completed_;
  const gloo_rs_status_t status = poll(0);
  if (status == GLOO_RS_ERROR_TIMEOUT) return false;
  std::exception_ptr exception;
  if (status != GLOO_RS_OK) {
    exception = std::make_exception_ptr(std::runtime_error("gloo_rs: " + describe() + ": " + gloo_rs_last_error_message()));
  }
  end(exception);
  return true;
}

bool MessageWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  // Another thread's wait may end with its own timeout: then it is this thread's turn.
  cv_.wait(lock, [this] { return completed_ || !waiting_; });
  if (!completed_) {
    waiting_ = true;
    lock.unlock();
    const gloo_rs_status_t status = poll(timeout == kNoTimeout ? GLOO_RS_TIMEOUT_DEFAULT : timeout.count());
    std::exception_ptr exception;
    if (status != GLOO_RS_OK) {
      exception = std::make_exception_ptr(std::runtime_error("gloo_rs: " + describe() + ": " + gloo_rs_last_error_message()));
    }
    lock.lock();
    waiting_ = false;
    if (status == GLOO_RS_ERROR_TIMEOUT && !aborted_) {
      cv_.notify_all();
      std::rethrow_exception(exception);
    }
    end(exception);
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void MessageWork::abort() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (completed_ || aborted_) return;
  aborted_ = true;
  if (!waiting_) {
    end(std::make_exception_ptr(std::runtime_error("gloo_rs: " + describe() + ": it was aborted")));
  } else if (is_send()) {
    gloo_rs_unbound_buffer_abort_wait_send(buffer_);
  } else {
    gloo_rs_unbound_buffer_abort_wait_recv(buffer_);
  }
}

int MessageWork::sourceRank() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(completed_ && !is_send(), "gloo_rs: ", describe(), ": only a receive that has ended has a source");
  return source_;
}

}  // namespace gloo_rs_torch
