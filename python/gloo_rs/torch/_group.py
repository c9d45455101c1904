"""The group of a backend that is its only one: calls from Python reach the backend without torch's dispatcher, and get its works."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ._backend import Backend
from ._compiler import not_compiled
from ._core import WorkInfo
from ._membership import Handle
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


def _observers_by_environment() -> set[object]:
    """torch's hooks that the environment asks for. Its flight recorder is always on, but slower than our calls, and the library has one;
    so it gets the calls only if the variable is set."""
    sizes = [os.environ.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")]
    recorder = next((size for size in sizes if size), "0")
    observers = {"flight recorder": recorder != "0", "check for NaN": os.environ.get("TORCH_DIST_NAN_CHECK") == "1"}
    return {name for name, is_on in observers.items() if is_on}


class Group(dist.ProcessGroup):
    """A process group whose only backend is gloo_rs."""

    def __init__(self, backend: Backend, store: dist.Store, rank: int, size: int) -> None:
        super().__init__(store, rank, size)
        self._backend = backend
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
        # Who looks at torch's operators.
        self._observers: set[object] = _observers_by_environment()

    def rank(self) -> int:
        return self._backend._rank

    def size(self) -> int:
        return self._backend._size

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

    def _add_ephemeral_timeout(self, timeout: datetime.timedelta) -> None:
        self._backend._add_ephemeral_timeout(timeout)

    # Other groups. C++ makes them of other backends that this one's makes; so they have one of this class, too.

    def split_group(self, ranks: list[int], *arguments: Any, **keywords: Any) -> Group | None:
        if self.rank() not in ranks:
            return None
        return self.like(super().split_group(ranks, *arguments, **keywords))

    def merge_remote_group(self, *arguments: Any, **keywords: Any) -> Group:
        return self.like(super().merge_remote_group(*arguments, **keywords))

    @classmethod
    def like(cls, other: dist.ProcessGroup) -> Group:
        """A group of this class in place of `other`, whose backend is one of ours."""
        group = cls(other._get_backend(torch.device("cpu")), other.get_group_store(), other.rank(), other.size())
        group._set_group_name(other.group_name)
        group._set_group_desc(other.group_desc)
        return group

    # Another membership. Groups have this and backends do not: what C++ takes for a backend's rank cannot change.

    @property
    def supports_reconfigure(self) -> bool:
        return True

    def _handle(self) -> Handle:
        return Handle.of(self._backend._context.handle, self._backend._store, self.group_name)

    def get_reconfigure_handle(self) -> str:
        return str(self._handle())

    def reconfigure(self, opts: c10d.ReconfigureOptions) -> Work:
        """Gives the group the members whose handles these are, in this order, or, of a set, in one that the library makes."""
        if opts.hints:
            raise ValueError(f"[{self.name()}] reconfigure: there are no hints, and these were given: {', '.join(sorted(opts.hints))}")
        members = [Handle.parse(text) for text in opts.handles]
        if not members:
            raise ValueError(f"[{self.name()}] reconfigure: there are no handles")
        is_list = isinstance(opts.handles, list)
        first = members[0] if is_list else min(members)
        contexts = [member.context for member in members]
        timeout = opts.timeout or self._backend.options._timeout
        store = first.meeting_store(self._handle(), self._backend._store, timeout)
        work = self._backend.reconfigure_over(store, opts.uuid, contexts if is_list else set(contexts), timeout.total_seconds())
        if self is dist.GroupMember.WORLD:
            dist.distributed_c10d._world.pg_group_ranks[self] = {rank: rank for rank in range(self.size())}
        return work

    # Hooks.

    def register_pre_hook(self, hook_id: int, hook: Callable[[c10d.PreHookArgs], None]) -> None:
        super().register_pre_hook(hook_id, hook)
        self._observers.add(("pre", hook_id))

    def unregister_pre_hook(self, hook_id: int) -> None:
        super().unregister_pre_hook(hook_id)
        self._observers.discard(("pre", hook_id))

    def register_post_hook(self, hook_id: int, hook: Callable[[c10d.PostHookArgs], None]) -> None:
        super().register_post_hook(hook_id, hook)
        self._observers.add(("post", hook_id))

    def unregister_post_hook(self, hook_id: int) -> None:
        super().unregister_post_hook(hook_id)
        self._observers.discard(("post", hook_id))

    @property
    def supports_abort_hooks(self) -> bool:
        return True

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        self._backend.register_abort_hook(hook_id, hook)

    def unregister_abort_hook(self, hook_id: int) -> None:
        self._backend.unregister_abort_hook(hook_id)

    def _register_on_completion_hook(self, hook: Callable[[WorkInfo], None]) -> None:
        self._backend.set_completion_hook(hook)

    def _has_hooks(self) -> bool:
        return self._backend.has_completion_hook()

    def _wait_for_pending_works(self) -> None:
        self._backend._end_collectives()

    def _enable_collectives_timing(self) -> None:
        """Works are always timed."""

    # Ends.

    def abort(self) -> None:
        self._backend.abort()

    def shutdown(self) -> None:
        self._backend.shutdown()


def _override(name: str, base: Callable[..., Any], direct: Callable[..., Work | None], options: type | None) -> Callable[..., Any]:
    """The method `name` of a group: `direct`, unless somebody looks at torch's operators, or the arguments are not those that
    torch.distributed passes. Then it goes the way of torch's own groups, through the dispatcher, to the same backend. That gives a work
    which can only be waited for, so that the backend's is returned instead."""

    def method(self: Group, *arguments: Any, **keywords: Any) -> Any:
        if not _dispatch_modes() and not _profiles() and not self._observers:
            if options is None:
                return direct(self._backend, *arguments, **keywords)
            opts = keywords.get("opts") if keywords else arguments[-1] if arguments else None
            if type(opts) is options and not (_registers_works() and opts.asyncOp):
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

not_compiled(Group)
