"""The backend: torch's collectives as calls of the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from . import _tensors
from ._compiler import not_compiled
from ._core import Tensors
from ._messages import Messages
from ._work import Collective, Done, Work, end_record

# The tag of what a sum of sparse tensors needs.
_SPARSE_TAG = 1


@not_compiled
class Backend(Messages):
    """A group of ranks. What it starts, it starts in the order of the calls, which is the same on all ranks."""

    # Collectives. Their names are those by which torch looks for them.

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work | None:
        opts = opts or c10d.BroadcastOptions()
        (tensor,) = self._one("broadcast", tensors)
        data = _tensors.dense(tensor)
        keywords = {"root": opts.rootRank, **_dtype(data)}
        finish = None if data is tensor else lambda: tensor.detach().copy_(data)
        return self._call("broadcast", "broadcast", opts, [tensors], _tensors.view(data), None, keywords, data, finish)

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work | None:
        opts = opts or c10d.AllreduceOptions()
        if len(tensors) == 1 and tensors[0].layout is torch.sparse_coo:
            return self.allreduce_sparse(tensors, opts)
        (tensor,) = self._one("all_reduce", tensors)
        data = _tensors.dense(tensor)
        keywords = self._reduction(opts.reduceOp, data)
        finish = None if data is tensor else lambda: tensor.detach().copy_(data)
        return self._call("allreduce", "all_reduce", opts, [tensors], _tensors.view(data), None, keywords, data, finish)

    def allreduce_sparse(self, tensors: Tensors, opts: Any = None) -> Work:
        """Adds sparse tensors, whose ranks may have any numbers of elements."""
        opts = opts or c10d.AllreduceOptions()
        (tensor,) = tensors
        if not tensor.is_cpu or int(opts.reduceOp.op) != int(dist.ReduceOp.SUM):
            raise ValueError(f"[{self._name}] all_reduce of sparse tensors: it adds tensors on the CPU, and does nothing else")
        own = tensor.detach().coalesce()
        numbers = torch.zeros(self._size, dtype=torch.int64)
        number = torch.tensor([own._nnz()])
        self._context.allgather(_tensors.view(number), _tensors.view(numbers), dtype="int64", tag=_SPARSE_TAG)
        counts = numbers.tolist()
        indices, values = own.indices().t().contiguous(), own.values().contiguous()
        every_index = torch.empty(sum(counts), own.sparse_dim(), dtype=torch.int64)
        every_value = torch.empty(sum(counts), *values.shape[1:], dtype=values.dtype)
        for given, every in (indices, every_index), (values, every_value):
            row = math.prod(given.shape[1:]) * given.element_size()
            blocks = [count * row for count in counts]
            self._context.allgatherv(_tensors.view(given), _tensors.view(every), blocks, tag=_SPARSE_TAG)
        total = torch.sparse_coo_tensor(every_index.t(), every_value, tensor.shape).coalesce()
        with torch.no_grad():
            tensor.copy_(total)
        return Done(self, "all_reduce", [tensors], self._timeout_s)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work | None:
        opts = opts or c10d.AllreduceCoalescedOptions()
        _tensors.check("all_reduce", tensors)
        flat = _tensors.flatten(tensors)
        keywords = self._reduction(opts.reduceOp, flat)
        finish = lambda: _tensors.unflatten(flat, tensors)
        return self._call("allreduce", "all_reduce", opts, [tensors], _tensors.view(flat), None, keywords, flat, finish)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Work | None:
        opts = opts or c10d.ReduceOptions()
        (tensor,) = self._one("reduce", tensors)
        data = _tensors.dense(tensor)
        keywords = {"root": opts.rootRank, **self._reduction(opts.reduceOp, data)}
        finish = None if data is tensor or opts.rootRank != self._rank else lambda: tensor.detach().copy_(data)
        return self._call("reduce", "reduce", opts, [tensors], _tensors.view(data), None, keywords, data, finish)

    def allgather(self, output_lists: list[Tensors], inputs: Tensors, opts: Any = None) -> Work | None:
        opts = opts or c10d.AllgatherOptions()
        (tensor,) = self._one("all_gather", inputs)
        (outputs,) = self._lists("all_gather", output_lists, 1, inputs)
        if outputs[self._rank].numel() != tensor.numel():
            raise ValueError(
                f"[{self._name}] all_gather: the input has {tensor.numel()} elements, and this rank's output "
                f"{outputs[self._rank].numel()}"
            )
        data = _tensors.dense(tensor)
        blocks, finish = _results(outputs)
        counts = _counts(outputs)
        keywords = _dtype(data)
        collective = "allgather"
        if any(count != counts[0] for count in counts):
            collective, keywords = "allgatherv", {"counts": counts, **keywords}
        return self._call(
            collective, "all_gather", opts, output_lists, _tensors.view(data), _views(blocks), keywords, (data, blocks), finish, inputs
        )

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work | None:
        opts = opts or c10d.AllgatherOptions()
        _tensors.check("_allgather_base", [output, input])
        self._fits("_allgather_base", "output", output, input.numel() * self._size)
        data, flat = _tensors.dense(input), _tensors.dense(output)
        finish = None if flat is output else lambda: output.detach().copy_(flat)
        return self._call(
            "allgather", "_all_gather_base", opts, [[output]], _tensors.view(data), _tensors.view(flat), _dtype(data),
            (data, flat), finish, [input],
        )  # fmt: skip

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        opts = opts or c10d.AllgatherOptions()
        return self._several(outputs, [self.all_gather_single(*pair, _Started(opts)) for pair in zip(outputs, inputs, strict=True)])

    def allgather_coalesced(self, output_lists: list[Tensors], inputs: Tensors, opts: Any = None) -> Work | None:
        opts = opts or c10d.AllgatherOptions()
        _tensors.check("all_gather", inputs)
        if len(output_lists) != self._size:
            raise ValueError(f"[{self._name}] all_gather: there are {len(output_lists)} lists of outputs for {self._size} ranks")
        for outputs in output_lists:
            if _tensors.counts(outputs) != _tensors.counts(inputs):
                raise ValueError(f"[{self._name}] all_gather: outputs and inputs have different sizes")
        every = [tensor for outputs in output_lists for tensor in outputs]
        data, flat = _tensors.flatten(inputs), _tensors.flat_like(every)
        finish = lambda: _tensors.unflatten(flat, every)
        return self._call(
            "allgather", "all_gather", opts, output_lists, _tensors.view(data), _tensors.view(flat), _dtype(data), (data, flat),
            finish, inputs,
        )  # fmt: skip

    def gather(self, output_lists: list[Tensors], inputs: Tensors, opts: Any = None) -> Work | None:
        opts = opts or c10d.GatherOptions()
        (tensor,) = self._one("gather", inputs)
        data = _tensors.dense(tensor)
        keywords = {"root": opts.rootRank, **_dtype(data)}
        blocks = out = finish = None
        if opts.rootRank == self._rank:
            (outputs,) = self._lists("gather", output_lists, 1, inputs)
            for output in outputs:
                self._fits("gather", "an output", output, tensor.numel())
            blocks, finish = _results(outputs)
            out = _views(blocks)
        elif output_lists:
            raise ValueError(f"[{self._name}] gather: only the root, rank {opts.rootRank}, has outputs")
        return self._call("gather", "gather", opts, output_lists, _tensors.view(data), out, keywords, (data, blocks), finish, inputs)

    def scatter(self, outputs: Tensors, input_lists: list[Tensors], opts: Any = None) -> Work | None:
        opts = opts or c10d.ScatterOptions()
        (output,) = self._one("scatter", outputs)
        blocks = given = None
        if opts.rootRank == self._rank:
            (inputs,) = self._lists("scatter", input_lists, 1, outputs)
            for tensor in inputs:
                self._fits("scatter", "an input", tensor, output.numel())
            blocks = [_tensors.dense(tensor) for tensor in inputs]
            given = _views(blocks)
        elif input_lists:
            raise ValueError(f"[{self._name}] scatter: only the root, rank {opts.rootRank}, has inputs")
        data = _tensors.dense(output)
        keywords = {"root": opts.rootRank, **_dtype(data)}
        finish = None if data is output else lambda: output.detach().copy_(data)
        return self._call("scatter", "scatter", opts, [outputs], given, _tensors.view(data), keywords, (data, blocks), finish)

    def reduce_scatter(self, outputs: Tensors, input_lists: list[Tensors], opts: Any = None) -> Work | None:
        opts = opts or c10d.ReduceScatterOptions()
        (output,) = self._one("reduce_scatter", outputs)
        (inputs,) = self._lists("reduce_scatter", input_lists, 1, outputs)
        self._fits("reduce_scatter", "this rank's input", inputs[self._rank], output.numel())
        data, blocks = _tensors.dense(output), [_tensors.dense(tensor) for tensor in inputs]
        keywords = self._reduction(opts.reduceOp, data)
        parts = 2 if data.is_complex() and "factor" in keywords else 1
        keywords["counts"] = [parts * count for count in _tensors.counts(inputs)]
        finish = None if data is output else lambda: output.detach().copy_(data)
        return self._call(
            "reduce_scatter", "reduce_scatter", opts, [outputs], _views(blocks), _tensors.view(data), keywords, (data, blocks),
            finish, inputs,
        )  # fmt: skip

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work | None:
        opts = opts or c10d.ReduceScatterOptions()
        _tensors.check("_reduce_scatter_base", [output, input])
        self._fits("_reduce_scatter_base", "input", input, output.numel() * self._size)
        given, data = _tensors.dense(input), _tensors.dense(output)
        finish = None if data is output else lambda: output.detach().copy_(data)
        return self._call(
            "reduce_scatter", "_reduce_scatter_base", opts, [[output]], _tensors.view(given), _tensors.view(data),
            self._reduction(opts.reduceOp, data), (given, data), finish, [input],
        )  # fmt: skip

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        opts = opts or c10d.ReduceScatterOptions()
        return self._several(outputs, [self.reduce_scatter_single(*pair, _Started(opts)) for pair in zip(outputs, inputs, strict=True)])

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> Work | None:
        opts = opts or c10d.AllToAllOptions()
        _tensors.check("all_to_all", [output, input])
        given, data = _tensors.dense(input), _tensors.dense(output)
        finish = None if data is output else lambda: output.detach().copy_(data)
        collective, keywords = "alltoall", _dtype(data)
        if output_splits or input_splits or given.numel() != data.numel() or given.numel() % self._size:
            collective = "alltoallv"
            keywords["send_counts"] = self._split_counts(input, input_splits)
            keywords["recv_counts"] = self._split_counts(output, output_splits)
        return self._call(
            collective, "all_to_all", opts, [[output]], _tensors.view(given), _tensors.view(data), keywords, (given, data), finish, [input]
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work | None:
        opts = opts or c10d.AllToAllOptions()
        _tensors.check("all_to_all", [*outputs, *inputs])
        if len(outputs) != self._size or len(inputs) != self._size:
            raise ValueError(
                f"[{self._name}] all_to_all: there are {len(outputs)} outputs and {len(inputs)} inputs for {self._size} ranks"
            )
        given = [_tensors.dense(tensor) for tensor in inputs]
        received, finish = _results(outputs)
        keywords = {"send_counts": _counts(inputs), "recv_counts": _counts(outputs), **_dtype(inputs[0])}
        return self._call(
            "alltoallv", "all_to_all", opts, [outputs], _views(given), _views(received), keywords, (given, received), finish, inputs
        )

    def barrier(self, opts: Any = None) -> Work | None:
        opts = opts or c10d.BarrierOptions()
        # A barrier ends after what was started before it.
        self._end_collectives()
        return self._call("barrier", "barrier", opts, [[]], None, None, {}, None)

    # The names of torch 2.14 and older.
    _allgather_base = all_gather_single
    all_gather_into_tensor = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Checks.

    def _lists(self, operation: str, lists: list[Tensors], n: int, likes: Tensors) -> list[Tensors]:
        if len(lists) != n:
            raise ValueError(f"[{self._name}] {operation}: there must be {n} list of tensors, and there are {len(lists)}")
        for tensors in lists:
            if len(tensors) != self._size:
                raise ValueError(f"[{self._name}] {operation}: there are {len(tensors)} tensors in a list for {self._size} ranks")
            _tensors.check(operation, [*likes, *tensors])
        return lists

    def _fits(self, operation: str, name: str, tensor: torch.Tensor, needed: int) -> None:
        if tensor.numel() != needed:
            raise ValueError(f"[{self._name}] {operation}: {name} has {tensor.numel()} elements, and the call needs {needed}")

    def _split_counts(self, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """How many of its elements go to each rank, or come from it."""
        rows = tensor.size(0) if tensor.dim() else 0
        if not splits:
            if rows % self._size:
                raise ValueError(f"[{self._name}] all_to_all: {rows} rows cannot be split evenly among {self._size} ranks")
            splits = [rows // self._size] * self._size
        if len(splits) != self._size or min(splits) < 0 or sum(splits) != rows:
            raise ValueError(f"[{self._name}] all_to_all: {list(splits)} are no split sizes of {rows} rows for {self._size} ranks")
        row = tensor.numel() // rows if rows else 0
        unit = 1 if tensor.dtype in _tensors.NAMES else tensor.element_size()
        return [split * row * unit for split in splits]

    def _several(self, outputs: Tensors, works: list[Work]) -> Work:
        """One work of several."""
        if not works:
            raise ValueError(f"[{self._name}] there is no tensor")
        requests = [request for work in works for request in work._requests]
        finishes = [work._finish for work in works if work._finish is not None]

        def finish() -> None:
            for one in finishes:
                one()

        merged = Collective(requests, self, works[0]._operation, [outputs], works[0]._timeout_s, [work._keep for work in works], finish)
        self._has_started(merged, self._pending[works[0]])
        for work in works:
            work._requests = []
            if work._record is not None:
                end_record(work._record)
            self.has_merged(work)
        return merged


class _Started:
    """Options of a call, so that it is started."""

    asyncOp = True

    def __init__(self, options: Any) -> None:
        self._options = options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._options, name)


def _dtype(tensor: torch.Tensor) -> dict[str, Any]:
    """What names the type of the elements. Those that the library does not know are moved as bytes."""
    name = _tensors.NAMES.get(tensor.dtype)
    return {"dtype": name} if name else {}


def _counts(tensors: Tensors) -> list[int]:
    """How many elements each has, or bytes."""
    if tensors[0].dtype in _tensors.NAMES:
        return _tensors.counts(tensors)
    return [tensor.nbytes for tensor in tensors]


def _views(tensors: Tensors) -> list[object]:
    """The memory of a block for each rank."""
    return [_tensors.view(tensor) for tensor in tensors]


def _results(outputs: Tensors) -> tuple[Tensors, Callable[[], None] | None]:
    """Where the blocks of all ranks go, and what moves those that are not there yet to the outputs in the end."""
    blocks = [_tensors.dense(output) for output in outputs]
    moved = [(output, block) for output, block in zip(outputs, blocks, strict=True) if block is not output]

    def move() -> None:
        for output, block in moved:
            output.detach().copy_(block)

    return blocks, move if moved else None
