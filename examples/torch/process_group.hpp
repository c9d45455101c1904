// A process group of torch.distributed over gloo_rs, with the calls of torch's group over Gloo, and reduce_scatter and
// alltoall besides.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "work.hpp"

namespace gloo_rs_torch {

// All ranks make the same collectives in the same order; each has a number, which is its tag. Any thread may call.
// Tensors are dense and on the CPU, of any strides. A collective that fails ends the group: all later ones fail with
// the same reason.
class ProcessGroupGlooRs : public c10d::ProcessGroup {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Returns once all ranks have come; fails after `timeout`, which is also that of calls that give none.
  ProcessGroupGlooRs(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, std::chrono::milliseconds timeout);
  // Waits until what was called has ended.
  ~ProcessGroupGlooRs() override;

  const std::string getBackendName() const override { return "gloo_rs"; }
  // Ends all calls of the group, on all ranks, with an exception.
  void abort() { context_->abort(); }

  WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) override;
  WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) override;
  WorkPtr allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options) override;
  // Writes the root's tensor alone.
  WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &options) override;
  WorkPtr allgather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::AllgatherOptions &options) override;
  WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::AllgatherOptions &options) override;
  WorkPtr gather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::GatherOptions &options) override;
  WorkPtr scatter(Tensors &outputs, std::vector<Tensors> &inputs, const c10d::ScatterOptions &options) override;
  // The inputs for different ranks may have different sizes.
  WorkPtr reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs, const c10d::ReduceScatterOptions &options) override;
  WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input, const c10d::ReduceScatterOptions &options) override;
  WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options) override;
  WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits, std::vector<int64_t> &input_splits,
                        const c10d::AllToAllOptions &options) override;
  WorkPtr send(Tensors &tensors, int to, int tag) override;
  WorkPtr recv(Tensors &tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors &tensors, int tag) override;
  // Ends when all ranks have called it, and what was called before on this rank has ended.
  WorkPtr barrier(const c10d::BarrierOptions &options) override;
  // A barrier over messages, whose error on rank 0 names the ranks that did not come: the first, or all.
  void monitoredBarrier(const c10d::BarrierOptions &options, bool all_ranks) override;

  // The ranks agree on it as they are: all count from 0.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }

 private:
  // Queues a collective; `function` fills and runs the call, on another thread.
  WorkPtr submit(c10d::OpType type, const char *name, std::chrono::milliseconds timeout, const Tensors &inputs,
                 CollectiveWork::Outputs outputs, CollectiveWork::Function function);
  WorkPtr message(c10d::OpType type, const Tensors &tensors, int peer, uint64_t slot);
  // Throws unless the tensors can be communicated, and have one element type.
  void check_tensors(const char *name, const Tensors &tensors) const;
  void check_rank(const char *name, int64_t rank) const;
  // Throws a message that says which call on which rank is wrong, unless `right`.
  void require(bool right, const char *name, const std::string &message) const;
  // Elements per rank of a tensor's first dimension split by `splits`, or evenly.
  std::vector<size_t> split_counts(const char *name, const at::Tensor &tensor, const std::vector<int64_t> &splits) const;

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<Workers> workers_ = std::make_shared<Workers>();
  std::mutex order_;  // of numbers, and of the queue
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> monitored_{0};
};

}  // namespace gloo_rs_torch
