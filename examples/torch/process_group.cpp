#include "process_group.hpp"

#include <Python.h>

#include <algorithm>

namespace gloo_rs_torch {
namespace {

using c10d::OpType;
using Clock = std::chrono::steady_clock;
constexpr size_t kThreads = 2;
// Slots of monitored barriers; those of the program are tags, which are ints.
constexpr uint64_t kMonitoredSlots = uint64_t{1} << 63;

int64_t count_of(const std::vector<at::Tensor> &tensors) {
  int64_t count = 0;
  for (const auto &tensor : tensors) count += tensor.numel();
  return count;
}

std::vector<at::Tensor> concatenate(const std::vector<std::vector<at::Tensor>> &lists) {
  std::vector<at::Tensor> all;
  for (const auto &list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<size_t> counts_of(const std::vector<at::Tensor> &tensors) {
  std::vector<size_t> counts;
  for (const auto &tensor : tensors) counts.push_back(static_cast<size_t>(tensor.numel()));
  return counts;
}

}  // namespace

ProcessGroupGlooRs::ProcessGroupGlooRs(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, std::chrono::milliseconds timeout)
    : ProcessGroup(rank, size), context_(std::make_shared<Context>(store, rank, size, timeout)) {
  workers_->start(kThreads);
  init();
}

ProcessGroupGlooRs::~ProcessGroupGlooRs() {
  // Callbacks of futures need the interpreter's lock on the threads that are waited for here.
  PyThreadState *state = Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  workers_->stop();
  if (state != nullptr) PyEval_RestoreThread(state);
}

void ProcessGroupGlooRs::require(bool right, const char *name, const std::string &message) const {
  if (!right) throw std::invalid_argument("gloo_rs: " + context_->describe(name) + ": " + message);
}

void ProcessGroupGlooRs::check_tensors(const char *name, const Tensors &tensors) const {
  require(!tensors.empty(), name, "there is no tensor");
  for (const auto &tensor : tensors) {
    require(tensor.defined(), name, "a tensor is not defined");
    require(tensor.device().is_cpu(), name, "a tensor is on " + tensor.device().str() + ": this backend takes tensors on the CPU only");
    require(tensor.layout() == at::kStrided, name, "a tensor is sparse: this backend takes dense tensors only");
    require(tensor.scalar_type() == tensors[0].scalar_type(), name,
            std::string("tensors have different types: ") + c10::toString(tensors[0].scalar_type()) + " and " +
                c10::toString(tensor.scalar_type()));
  }
}

void ProcessGroupGlooRs::check_rank(const char *name, int64_t rank) const {
  require(rank >= 0 && rank < getSize(), name, "there is no rank " + std::to_string(rank));
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::submit(OpType type, const char *name, std::chrono::milliseconds timeout,
                                                       const Tensors &inputs, CollectiveWork::Outputs outputs,
                                                       CollectiveWork::Function function) {
  const std::lock_guard<std::mutex> lock(order_);
  auto work = c10::make_intrusive<CollectiveWork>(context_, workers_, type, name, calls_++, timeout, inputs, std::move(outputs),
                                                  std::move(function));
  workers_->submit(work);
  return work;
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) {
  const char *name = "broadcast";
  check_tensors(name, tensors);
  check_rank(name, options.rootRank);
  require(options.rootTensor >= 0 && options.rootTensor < static_cast<int64_t>(tensors.size()), name, "there is no such tensor of the root");
  for (const auto &tensor : tensors) require(tensor.numel() == tensors[0].numel(), name, "the tensors have different sizes");
  return submit(OpType::BROADCAST, name, options.timeout, tensors, {tensors}, [tensors, options](Call &call) {
    InPlace data(tensors);
    call.type(data.memory[0]);
    call.options.count = static_cast<size_t>(data.memory[0].numel());
    call.options.root = static_cast<int32_t>(options.rootRank);
    // In place, the library sends the first output.
    std::swap(data.memory[0], data.memory[static_cast<size_t>(options.rootTensor)]);
    for (const auto &tensor : data.memory) call.output(tensor);
    std::swap(data.memory[0], data.memory[static_cast<size_t>(options.rootTensor)]);
    call.run(GLOO_RS_BROADCAST);
    data.finish();
  });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) {
  const char *name = "allreduce";
  check_tensors(name, tensors);
  for (const auto &tensor : tensors) require(tensor.numel() == tensors[0].numel(), name, "the tensors have different sizes");
  const gloo_rs_op_t op = operation(options.reduceOp);
  return submit(OpType::ALLREDUCE, name, options.timeout, tensors, {tensors}, [tensors, op](Call &call) {
    InPlace data(tensors);
    call.type(data.memory[0]);
    call.options.op = op;
    call.options.count = static_cast<size_t>(data.memory[0].numel());
    for (const auto &tensor : data.memory) call.output(tensor);
    call.run(GLOO_RS_ALLREDUCE);
    data.finish();
  });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &options) {
  const char *name = "allreduce_coalesced";
  check_tensors(name, tensors);
  const gloo_rs_op_t op = operation(options.reduceOp);
  return submit(OpType::ALLREDUCE_COALESCED, name, options.timeout, tensors, {tensors}, [tensors, op](Call &call) {
    const at::Tensor flat = flatten(tensors);
    call.type(flat);
    call.options.op = op;
    call.options.count = static_cast<size_t>(flat.numel());
    call.output(flat);
    call.run(GLOO_RS_ALLREDUCE);
    unflatten(flat, tensors);
  });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::reduce(Tensors &tensors, const c10d::ReduceOptions &options) {
  const char *name = "reduce";
  check_tensors(name, tensors);
  check_rank(name, options.rootRank);
  require(tensors.size() == 1, name, "it takes one tensor");
  const gloo_rs_op_t op = operation(options.reduceOp);
  return submit(OpType::REDUCE, name, options.timeout, tensors, {tensors}, [tensors, op, root = options.rootRank](Call &call) {
    InPlace data(tensors);
    call.type(data.memory[0]);
    call.options.op = op;
    call.options.root = static_cast<int32_t>(root);
    call.options.count = static_cast<size_t>(data.memory[0].numel());
    call.output(data.memory[0]);
    call.run(GLOO_RS_REDUCE);
    if (call.context().rank() == root) data.finish();
  });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                                                          const c10d::AllgatherOptions &options) {
  const char *name = "allgather";
  check_tensors(name, inputs);
  require(outputs.size() == inputs.size(), name, "there must be one list of outputs for each input");
  for (const auto &list : outputs) {
    check_tensors(name, list);
    require(list.size() == inputs.size() * static_cast<size_t>(getSize()), name, "a list of outputs needs one tensor per rank and input");
  }
  for (const auto &tensor : concatenate(outputs)) {
    require(tensor.numel() == inputs[0].numel() && tensor.scalar_type() == inputs[0].scalar_type(), name,
            "outputs and inputs must have the same size and type");
  }
  return submit(OpType::ALLGATHER, name, options.timeout, inputs, outputs, [outputs, inputs](Call &call) {
    const InPlace data(inputs);
    const at::Tensor flat = flat_like(inputs[0], count_of(outputs[0]));
    call.type(flat);
    call.options.count = static_cast<size_t>(inputs[0].numel());
    for (const auto &tensor : data.memory) call.input(tensor);
    call.output(flat);
    call.run(GLOO_RS_ALLGATHER);
    for (const auto &list : outputs) unflatten(flat, list);
  });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::_allgather_base(at::Tensor &output, at::Tensor &input,
                                                                const c10d::AllgatherOptions &options) {
  const char *name = "_allgather_base";
  check_tensors(name, {output, input});
  require(output.numel() == input.numel() * getSize(), name, "the output needs the input's size for each rank");
  return submit(OpType::_ALLGATHER_BASE, name, options.timeout, {input}, {{output}}, [output, input](Call &call) {
    const at::Tensor from = dense(input);
    InPlace to({output});
    call.type(from);
    call.options.count = static_cast<size_t>(from.numel());
    call.input(from);
    call.output(to.memory[0]);
    call.run(GLOO_RS_ALLGATHER);
    to.finish();
  });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                                                    const c10d::AllgatherOptions &options) {
  const char *name = "allgather_coalesced";
  check_tensors(name, inputs);
  require(outputs.size() == static_cast<size_t>(getSize()), name, "there must be one list of outputs per rank");
  for (const auto &list : outputs) {
    require(list.size() == inputs.size(), name, "each rank needs as many outputs as there are inputs");
    for (size_t i = 0; i < list.size(); ++i) {
      check_tensors(name, {list[i], inputs[i]});
      require(list[i].numel() == inputs[i].numel(), name, "outputs and inputs must have the same sizes");
    }
  }
  return submit(OpType::ALLGATHER_COALESCED, name, options.timeout, inputs, outputs, [outputs, inputs](Call &call) {
    const at::Tensor from = flatten(inputs);
    const at::Tensor to = flat_like(from, from.numel() * call.context().size());
    call.type(from);
    call.options.count = static_cast<size_t>(from.numel());
    call.input(from);
    call.output(to);
    call.run(GLOO_RS_ALLGATHER);
    unflatten(to, concatenate(outputs));
  });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::gather(std::vector<Tensors> &outputs, Tensors &inputs, const c10d::GatherOptions &options) {
  const char *name = "gather";
  check_tensors(name, inputs);
  check_rank(name, options.rootRank);
  require(inputs.size() == 1, name, "it takes one input");
  const bool is_root = options.rootRank == getRank();
  if (is_root) {
    require(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(getSize()), name, "the root needs one output per rank");
    check_tensors(name, outputs[0]);
    for (const auto &tensor : outputs[0]) {
      require(tensor.numel() == inputs[0].numel() && tensor.scalar_type() == inputs[0].scalar_type(), name,
              "outputs and input must have the same size and type");
    }
  } else {
    require(outputs.empty(), name, "only the root has outputs");
  }
  return submit(OpType::GATHER, name, options.timeout, inputs, outputs, [outputs, inputs, is_root, root = options.rootRank](Call &call) {
    const at::Tensor from = dense(inputs[0]);
    const at::Tensor to = flat_like(from, is_root ? count_of(outputs[0]) : 0);
    call.type(from);
    call.options.root = static_cast<int32_t>(root);
    call.options.count = static_cast<size_t>(from.numel());
    call.input(from);
    call.output(to);
    call.run(GLOO_RS_GATHER);
    if (is_root) unflatten(to, outputs[0]);
  });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                                        const c10d::ScatterOptions &options) {
  const char *name = "scatter";
  check_tensors(name, outputs);
  check_rank(name, options.rootRank);
  require(outputs.size() == 1, name, "it takes one output");
  const bool is_root = options.rootRank == getRank();
  if (is_root) {
    require(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(getSize()), name, "the root needs one input per rank");
    check_tensors(name, inputs[0]);
    for (const auto &tensor : inputs[0]) {
      require(tensor.numel() == outputs[0].numel() && tensor.scalar_type() == outputs[0].scalar_type(), name,
              "inputs and output must have the same size and type");
    }
  } else {
    require(inputs.empty(), name, "only the root has inputs");
  }
  return submit(OpType::SCATTER, name, options.timeout, is_root ? inputs[0] : Tensors(), {outputs},
                [outputs, inputs, is_root, root = options.rootRank](Call &call) {
                  InPlace to(outputs);
                  const at::Tensor from = is_root ? flatten(inputs[0]) : flat_like(outputs[0], 0);
                  call.type(to.memory[0]);
                  call.options.root = static_cast<int32_t>(root);
                  call.options.count = static_cast<size_t>(to.memory[0].numel());
                  if (is_root) call.input(from);
                  call.output(to.memory[0]);
                  call.run(GLOO_RS_SCATTER);
                  to.finish();
                });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                                               const c10d::ReduceScatterOptions &options) {
  const char *name = "reduce_scatter";
  check_tensors(name, outputs);
  require(outputs.size() == 1 && inputs.size() == 1, name, "it takes one output and one list of inputs");
  require(inputs[0].size() == static_cast<size_t>(getSize()), name, "there must be one input per rank");
  check_tensors(name, inputs[0]);
  const at::Tensor &own = inputs[0][static_cast<size_t>(getRank())];
  require(own.numel() == outputs[0].numel() && own.scalar_type() == outputs[0].scalar_type(), name,
          "this rank's input and the output must have the same size and type");
  const gloo_rs_op_t op = operation(options.reduceOp);
  return submit(OpType::REDUCE_SCATTER, name, options.timeout, inputs[0], {outputs}, [outputs, inputs, op](Call &call) {
    const at::Tensor from = flatten(inputs[0]);
    InPlace to(outputs);
    call.type(from);
    call.options.op = op;
    call.recv_counts(counts_of(inputs[0]));
    call.input(from);
    call.output(to.memory[0]);
    call.run(GLOO_RS_REDUCE_SCATTER);
    to.finish();
  });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                                                     const c10d::ReduceScatterOptions &options) {
  const char *name = "_reduce_scatter_base";
  check_tensors(name, {output, input});
  require(input.numel() == output.numel() * getSize(), name, "the input needs the output's size for each rank");
  const gloo_rs_op_t op = operation(options.reduceOp);
  return submit(OpType::_REDUCE_SCATTER_BASE, name, options.timeout, {input}, {{output}}, [output, input, op](Call &call) {
    const at::Tensor from = dense(input);
    InPlace to({output});
    call.type(from);
    call.options.op = op;
    call.options.count = static_cast<size_t>(output.numel());
    call.input(from);
    call.output(to.memory[0]);
    call.run(GLOO_RS_REDUCE_SCATTER);
    to.finish();
  });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &options) {
  const char *name = "alltoall";
  Tensors all(outputs);
  all.insert(all.end(), inputs.begin(), inputs.end());
  check_tensors(name, all);
  require(outputs.size() == static_cast<size_t>(getSize()) && inputs.size() == outputs.size(), name,
          "there must be one output and one input per rank");
  return submit(OpType::ALLTOALL, name, options.timeout, inputs, {outputs}, [outputs, inputs](Call &call) {
    const at::Tensor from = flatten(inputs);
    const at::Tensor to = flat_like(from, count_of(outputs));
    call.type(from);
    call.send_counts(counts_of(inputs));
    call.recv_counts(counts_of(outputs));
    call.input(from);
    call.output(to);
    call.run(GLOO_RS_ALLTOALLV);
    unflatten(to, outputs);
  });
}

std::vector<size_t> ProcessGroupGlooRs::split_counts(const char *name, const at::Tensor &tensor, const std::vector<int64_t> &splits) const {
  const auto ranks = static_cast<size_t>(getSize());
  require(tensor.dim() > 0, name, "a tensor without dimensions cannot be split");
  const int64_t rows = tensor.size(0);
  if (splits.empty()) {
    require(rows % getSize() == 0, name, "the first dimension, " + std::to_string(rows) + ", cannot be split evenly");
    return std::vector<size_t>(ranks, static_cast<size_t>(tensor.numel()) / ranks);
  }
  require(splits.size() == ranks, name, "there must be one split size per rank");
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  std::vector<size_t> counts;
  int64_t sum = 0;
  for (const int64_t split : splits) {
    require(split >= 0, name, "a split size is negative");
    counts.push_back(static_cast<size_t>(split * row));
    sum += split;
  }
  require(sum == rows, name, "the split sizes add up to " + std::to_string(sum) + ", and the first dimension is " + std::to_string(rows));
  return counts;
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                                                              std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &options) {
  const char *name = "alltoall_base";
  check_tensors(name, {output, input});
  const auto recv_counts = split_counts(name, output, output_splits);
  const auto send_counts = split_counts(name, input, input_splits);
  return submit(OpType::ALLTOALL_BASE, name, options.timeout, {input}, {{output}}, [output, input, recv_counts, send_counts](Call &call) {
    const at::Tensor from = dense(input);
    InPlace to({output});
    call.type(from);
    call.send_counts(send_counts);
    call.recv_counts(recv_counts);
    call.input(from);
    call.output(to.memory[0]);
    call.run(GLOO_RS_ALLTOALLV);
    to.finish();
  });
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::message(OpType type, const Tensors &tensors, int peer, uint64_t slot) {
  const char *name = type == OpType::SEND ? "send" : "recv";
  check_tensors(name, tensors);
  require(tensors.size() == 1, name, "it takes one tensor");
  return c10::make_intrusive<MessageWork>(context_, type, tensors[0], peer, slot);
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::send(Tensors &tensors, int to, int tag) {
  check_rank("send", to);
  require(tag >= 0, "send", "the tag is negative");
  return message(OpType::SEND, tensors, to, static_cast<uint64_t>(tag));
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::recv(Tensors &tensors, int from, int tag) {
  check_rank("recv", from);
  require(tag >= 0, "recv", "the tag is negative");
  return message(OpType::RECV, tensors, from, static_cast<uint64_t>(tag));
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::recvAnysource(Tensors &tensors, int tag) {
  require(tag >= 0, "recv", "the tag is negative");
  return message(OpType::RECVANYSOURCE, tensors, -1, static_cast<uint64_t>(tag));
}

ProcessGroupGlooRs::WorkPtr ProcessGroupGlooRs::barrier(const c10d::BarrierOptions &options) {
  return submit(OpType::BARRIER, "barrier", options.timeout, {}, {}, [earlier = workers_->unfinished()](Call &call) {
    for (const auto &work : earlier) {
      try {
        work->wait();
      } catch (const std::exception &) {
        // Whoever waits for that work gets the exception; if the group has ended, so does the barrier.
      }
    }
    call.run(GLOO_RS_BARRIER);
  });
}

void ProcessGroupGlooRs::monitoredBarrier(const c10d::BarrierOptions &options, bool all_ranks) {
  const char *name = "monitored_barrier";
  const auto timeout = options.timeout.count() < 0 ? context_->timeout() : options.timeout;
  const auto deadline = Clock::now() + timeout;
  const uint64_t slot = kMonitoredSlots + monitored_++;
  const at::Tensor nothing = at::empty({0}, at::kByte);
  if (getRank() != 0) {
    message(OpType::SEND, {nothing}, 0, slot)->wait(timeout);
    message(OpType::RECV, {nothing}, 0, slot)->wait(timeout);
    return;
  }
  // One after the other: with the time over, those that have come are still seen.
  std::vector<WorkPtr> arrivals;
  for (int rank = 1; rank < getSize(); ++rank) arrivals.push_back(message(OpType::RECV, {nothing}, rank, slot));
  std::string missing;
  for (int rank = 1; rank < getSize(); ++rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    try {
      arrivals[static_cast<size_t>(rank - 1)]->wait(std::max(left, std::chrono::milliseconds(1)));
    } catch (const std::exception &) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      if (!all_ranks) break;
    }
  }
  if (!missing.empty()) {
    throw std::runtime_error("gloo_rs: " + context_->describe(name) + ": rank" + (all_ranks ? "s " : " ") + missing +
                             " did not come within " + std::to_string(timeout.count()) + " ms");
  }
  for (int rank = 1; rank < getSize(); ++rank) message(OpType::SEND, {nothing}, rank, slot)->wait(timeout);
}

}  // namespace gloo_rs_torch
