"""The group of a backend that is its only one: calls from Python reach the backend without torch's dispatcher, and get its works."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ._backend import Backend
from ._work import Work

_dispatch_modes = torch._C._len_torch_dispatch_stack
_profiles = torch.autograd._profiler_enabled
_registers_works = c10d._allow_inflight_collective_as_graph_input

# The calls, with the class of their options, and the names that they have in C++ or had before.
_CALLS: list[tuple[type | None, list[str]]] = [
    (c10d.AllreduceOptions, ["allreduce"]),
    (c10d.AllreduceCoalescedOptions, ["allreduce_coalesced"]),
    (c10d.BroadcastOptions, ["broadcast"]),
    (c10d.ReduceOptions, ["reduce"]),
    (c10d.AllgatherOptions, ["allgather"]),
    (c10d.AllgatherOptions, ["allgather_coalesced"]),
    (c10d.AllgatherOptions, ["all_gather_single", "_allgather_base"]),
    (c10d.AllgatherOptions, ["all_gather_single_coalesced", "allgather_into_tensor_coalesced"]),
    (c10d.GatherOptions, ["gather"]),
    (c10d.ScatterOptions, ["scatter"]),
    (c10d.ReduceScatterOptions, ["reduce_scatter"]),
    (c10d.ReduceScatterOptions, ["reduce_scatter_single", "_reduce_scatter_base"]),
    (c10d.ReduceScatterOptions, ["reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"]),
    (c10d.AllToAllOptions, ["all_to_all_single", "alltoall_base"]),
    (c10d.AllToAllOptions, ["alltoall"]),
    (c10d.BarrierOptions, ["barrier"]),
    (None, ["send"]),
    (None, ["recv"]),
    (None, ["recv_anysource", "recvAnysource"]),
]


class Group(dist.ProcessGroup):
    """A process group whose only backend is gloo_rs."""

    def __init__(self, backend: Backend, store: dist.Store, rank: int, size: int) -> None:
        super().__init__(store, rank, size)
        self._backend = backend
        self._rank = rank
        self._size = size
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank = rank
    getSize = size

    def name(self) -> str:
        return self._backend.name()

    getBackendName = name
    _get_backend_name = name

    def monitored_barrier(self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self._backend.monitored_barrier(timeout, wait_all_ranks)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._backend.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        self._backend._set_sequence_number_for_group()

    def _get_sequence_number_for_group(self) -> int:
        return self._backend._get_sequence_number_for_group()

    def abort(self) -> None:
        self._backend.abort()

    def shutdown(self) -> None:
        self._backend.shutdown()


def _override(name: str, base: Callable[..., Any], direct: Callable[..., Work], options: type | None) -> Callable[..., Any]:
    """The method `name` of a group: `direct`, unless somebody looks at torch's operators, or the arguments are not those that
    torch.distributed passes. Then it goes the way of torch's own groups, through the dispatcher, to the same backend. That gives a work
    which can only be waited for, so that the backend's is returned instead."""

    def method(self: Group, *arguments: Any, **keywords: Any) -> Any:
        if not _dispatch_modes() and not _profiles():
            if options is None:
                return direct(self._backend, *arguments, **keywords)
            opts = keywords.get("opts") if keywords else arguments[-1] if arguments else None
            if type(opts) is options and not (opts.asyncOp and _registers_works()):
                return direct(self._backend, *arguments, **keywords)
        with self._backend.collected() as works:
            wrapped = base(self, *arguments, **keywords)
        return works[-1] if works else wrapped

    # By the name of the calling function, pybind11 knows that an override calls what it overrides.
    method.__code__ = method.__code__.replace(co_name=name)
    method.__name__ = name
    method.__qualname__ = f"Group.{name}"
    return method


for _options, _names in _CALLS:
    for _name in _names:
        # C++ finds them by the same names, as the reducer of DistributedDataParallel does.
        _base = getattr(dist.ProcessGroup, _name, None) or getattr(dist.ProcessGroup, _names[0], None)
        if _base is not None:
            setattr(Group, _name, _override(_name, _base, getattr(Backend, _names[0]), _options))
