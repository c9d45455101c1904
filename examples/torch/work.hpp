// The works that calls return: collectives, which threads of the group execute, and messages, which need no thread.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "library.hpp"

namespace gloo_rs_torch {

// Either kind. wait() throws what went wrong, also after an abort; exception() returns it.
class GlooRsWork : public c10d::Work {
 public:
  using c10d::Work::Work;
  // The message of exception(), or nothing.
  std::string failure() const;
};

class Workers;

// A collective. Its outputs are those of each tensor list, as torch's futures return them.
class CollectiveWork : public GlooRsWork {
 public:
  using Outputs = std::vector<std::vector<at::Tensor>>;
  using Function = std::function<void(Call &)>;
  CollectiveWork(std::shared_ptr<Context> context, std::shared_ptr<Workers> workers, c10d::OpType type, std::string name, uint64_t tag,
                 std::chrono::milliseconds timeout, const std::vector<at::Tensor> &inputs, Outputs outputs, Function function);

  // Waits until the collective has ended; 0 waits as long as that takes, which its own timeout bounds. If `timeout`
  // expires first, this throws, and the collective goes on.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Ends this collective, and with it all others of the group, on all ranks. The group cannot be used afterwards.
  void abort() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  // Makes the call, on the calling thread.
  void execute();

 private:
  const std::shared_ptr<Context> context_;
  const std::shared_ptr<Workers> workers_;
  const std::string name_;
  const uint64_t tag_;
  const std::chrono::milliseconds timeout_;
  const Outputs outputs_;
  Function function_;  // holds the tensors; cleared at the end
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// A queue of collectives, and threads that execute them in its order: two, so that a collective that waits for a late
// rank does not hold up the next. A thread that waits for a collective that nobody has begun executes it itself, which
// saves the change of threads.
class Workers : public std::enable_shared_from_this<Workers> {
 public:
  using Item = c10::intrusive_ptr<CollectiveWork>;
  void start(size_t threads);
  // Executes what is queued, and ends the threads.
  void stop();
  void submit(Item work);
  // All works that have not ended.
  std::vector<Item> unfinished();
  // Executes `work` on this thread if it is queued.
  void execute_if_queued(CollectiveWork *work);

 private:
  void run();
  void execute(const Item &work);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queued_;
  std::vector<Item> running_;
  std::vector<std::thread> threads_;
  bool stopping_ = false;
};

// A message to or from one rank, or from any.
class MessageWork : public GlooRsWork {
 public:
  // Starts the send or receive of `tensor`. `peer` is -1 for a receive from any rank.
  MessageWork(std::shared_ptr<Context> context, c10d::OpType type, at::Tensor tensor, int peer, uint64_t slot);
  ~MessageWork() override;

  bool isCompleted() override;
  // Waits until the message has been sent, or has arrived; 0 is the group's timeout. After a timeout, which throws, the
  // message is still on its way, and may be waited for again.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Ends this work alone: a receive takes no message any more; a send that has begun may arrive.
  void abort() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return {tensor_}; }

 private:
  bool is_send() const { return opType_ == c10d::OpType::SEND; }
  gloo_rs_status_t poll(int64_t timeout_ms);
  void end(std::exception_ptr exception);
  std::string describe() const;

  const std::shared_ptr<Context> context_;
  at::Tensor tensor_;
  at::Tensor memory_;
  gloo_rs_unbound_buffer_t *buffer_ = nullptr;
  const int peer_;
  // Where a message came from, and its bytes: of the thread that waits, and of all once the work has ended.
  int32_t source_ = -1;
  size_t received_ = 0;
  // Under mutex_: whether a thread is in the library's wait, outside the lock, and whether abort() was called.
  bool waiting_ = false;
  bool aborted_ = false;
};

}  // namespace gloo_rs_torch
