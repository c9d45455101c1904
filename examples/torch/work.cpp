#include "work.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace gloo_rs_torch {
namespace {

// A future's value is a list of tensors, or one for each list of tensors of the call.
c10::TypePtr future_type(const CollectiveWork::Outputs &outputs) {
  c10::TypePtr list = c10::ListType::create(c10::TensorType::get());
  return outputs.size() <= 1 ? list : c10::ListType::create(list);
}

c10::IValue future_value(const CollectiveWork::Outputs &outputs) {
  if (outputs.empty()) return std::vector<at::Tensor>();
  if (outputs.size() == 1) return outputs[0];
  return outputs;
}

}  // namespace

std::string GlooRsWork::failure() const {
  const std::exception_ptr thrown = exception();
  if (!thrown) return "";
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception &known) {
    return known.what();
  }
}

CollectiveWork::CollectiveWork(std::shared_ptr<Context> context, std::shared_ptr<Workers> workers, c10d::OpType type, std::string name,
                               uint64_t tag, std::chrono::milliseconds timeout, const std::vector<at::Tensor> &inputs, Outputs outputs,
                               Function function)
    : GlooRsWork(context->rank(), type, ("gloo_rs:" + name).c_str(), inputs),
      context_(std::move(context)),
      workers_(std::move(workers)),
      name_(std::move(name)),
      tag_(tag),
      timeout_(timeout),
      outputs_(std::move(outputs)),
      function_(std::move(function)),
      future_(c10::make_intrusive<c10::ivalue::Future>(future_type(outputs_))) {}

void CollectiveWork::execute() {
  std::exception_ptr thrown;
  try {
    // Results may be leaves of a graph, which nothing but a computation without gradients may write.
    const at::NoGradGuard no_grad;
    Call call(*context_, name_, tag_, timeout_);
    function_(call);
  } catch (...) {
    thrown = std::current_exception();
  }
  function_ = nullptr;
  // First the future: who has waited for the work may ask it for its value.
  if (thrown) {
    future_->setError(thrown);
  } else {
    future_->markCompleted(future_value(outputs_));
  }
  finish(thrown);
}

bool CollectiveWork::wait(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout) workers_->execute_if_queued(this);
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ended = [this] { return completed_; };
  if (timeout == kNoTimeout) {
    cv_.wait(lock, ended);
  } else if (!cv_.wait_for(lock, timeout, ended)) {
    throw std::runtime_error("gloo_rs: " + context_->describe(name_) + " has not ended after " + std::to_string(timeout.count()) +
                             " ms, the timeout of this wait; it goes on until its own timeout");
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void CollectiveWork::abort() {
  if (!isCompleted()) context_->abort();
}

std::vector<at::Tensor> CollectiveWork::result() {
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(completed_, "gloo_rs: ", context_->describe(name_), " has not ended: wait for it first");
  TORCH_CHECK(outputs_.size() <= 1, "gloo_rs: ", context_->describe(name_), " has several lists of tensors: its future returns them");
  return outputs_.empty() ? std::vector<at::Tensor>() : outputs_[0];
}

void Workers::start(size_t threads) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

void Workers::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto &thread : threads_) {
    // The last reference to the group may be dropped in a callback of a future, on one of these threads.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

void Workers::submit(Item work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queued_.push_back(std::move(work));
  }
  changed_.notify_one();
}

std::vector<Workers::Item> Workers::unfinished() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Item> works(running_);
  works.insert(works.end(), queued_.begin(), queued_.end());
  return works;
}

void Workers::execute_if_queued(CollectiveWork *work) {
  Item item;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(queued_.begin(), queued_.end(), [&](const Item &one) { return one.get() == work; });
    if (found == queued_.end()) return;
    item = *found;
    queued_.erase(found);
    running_.push_back(item);
  }
  execute(item);
}

void Workers::run() {
  const auto self = shared_from_this();
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queued_.empty(); });
    if (queued_.empty()) return;
    const Item item = std::move(queued_.front());
    queued_.pop_front();
    running_.push_back(item);
    lock.unlock();
    execute(item);
    lock.lock();
  }
}

void Workers::execute(const Item &work) {
  work->execute();
  const std::lock_guard<std::mutex> lock(mutex_);
  running_.erase(std::find(running_.begin(), running_.end(), work));
}

}  // namespace gloo_rs_torch
