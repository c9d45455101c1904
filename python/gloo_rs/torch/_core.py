"""What a backend has besides its calls: the context, what has been started, and the ends."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import gloo_rs

from . import _tensors
from ._compiler import not_compiled
from ._completer import Completer
from ._store import TorchStore
from ._work import Collective, Done, Message, Work, end_record, until_ended

# Works that nobody has waited for are looked at when there are this many.
_PENDING_WORKS = 64

# The library's operations by the hashes of torch's, which are their numbers: all else that tells one from another is slower.
_OPS = {
    hash(dist.ReduceOp.SUM): int(gloo_rs.Op.SUM),
    hash(dist.ReduceOp.AVG): int(gloo_rs.Op.AVERAGE),
    hash(dist.ReduceOp.PRODUCT): int(gloo_rs.Op.PRODUCT),
    hash(dist.ReduceOp.MIN): int(gloo_rs.Op.MIN),
    hash(dist.ReduceOp.MAX): int(gloo_rs.Op.MAX),
    hash(dist.ReduceOp.BAND): int(gloo_rs.Op.AND),
    hash(dist.ReduceOp.BOR): int(gloo_rs.Op.OR),
    hash(dist.ReduceOp.BXOR): int(gloo_rs.Op.XOR),
}

_profiles = torch.autograd._profiler_enabled

Tensors = list[torch.Tensor]


class WorkInfo(NamedTuple):
    """What a completion hook is told of a work, as torch's class of this name, which cannot be made in Python. Times are those of
    time.monotonic."""

    op_type: c10d.OpType
    seq: int
    time_started: datetime.timedelta
    time_finished: datetime.timedelta
    active_duration: datetime.timedelta


_device_of_process: tuple[int, gloo_rs.Device] | None = None
_device_lock = threading.Lock()

# Groups that have not been shut down. torch's C++ objects refer to them, and lose what is overridden here with them.
_live: set[Core] = set()


def _device() -> gloo_rs.Device:
    """The device of this process, which all groups share."""
    global _device_of_process
    with _device_lock:
        if _device_of_process is None or _device_of_process[0] != os.getpid():
            # The variable of torch's own backend counts where the library's is not set.
            names = os.environ.get("GLOO_SOCKET_IFNAME")
            options = {"interface_name": names} if names and "GLOO_RS_SOCKET_IFNAME" not in os.environ else {}
            _device_of_process = os.getpid(), gloo_rs.Device(**options)
        return _device_of_process[1]


@not_compiled
class Core(c10d.Backend):
    """A rank's membership in a group."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: datetime.timedelta,
        name: str = "gloo_rs",
        enable_reconfigure: bool = False,
    ) -> None:
        super().__init__(rank, size)
        self._name = name
        self._timeout_s = timeout.total_seconds()
        self._begin(rank, size)
        # The context has no members until it is reconfigured, and survives aborts.
        self._is_reconfigurable = enable_reconfigure
        self._completer: Completer | None = None
        self._lock = threading.Lock()
        # Started and not known to have ended; with the number of each collective among them.
        self._pending: dict[Work, str] = {}
        self._started: dict[str, int] = {}
        self._is_shut_down = False
        # What torch's programs have asked to be told of.
        self._abort_hooks: dict[int, Callable[[], None]] = {}
        self._on_completion: Callable[[WorkInfo], None] | None = None
        # Seconds by which the timeouts of new works are longer, and the first of these works.
        self._extensions: list[tuple[float, Work | None]] = []
        self._store = store
        self._collecting: dict[int, list[Work]] = {}
        if enable_reconfigure:
            self._context = gloo_rs.Context.without_members(device=_device(), timeout=self._timeout_s)
        else:
            self._context = self._connected(rank, size)
        _live.add(self)

    def _connected(self, rank: int, size: int) -> gloo_rs.Context:
        own_store = TorchStore(self._store)
        try:
            own_store = TorchStore(dist.PrefixStore(own_store.meet(rank, size, self._timeout_s), self._store))
            return gloo_rs.Context(gloo_rs.Store.custom(own_store), rank, size, device=_device(), timeout=self._timeout_s)
        except (gloo_rs.Error, TimeoutError) as error:
            raise self.failure("connecting", error, self._timeout_s) from (own_store.error or error)

    def _begin(self, rank: int, size: int) -> None:
        """Begins as this rank of so many, all of which count from here."""
        self._rank = rank
        self._size = size
        self._place = f"on rank {rank} of {size}"
        self._sequence = 0
        self._monitored = itertools.count()
        self._has_run_abort_hooks = False

    # What torch asks about a backend.

    def name(self) -> str:
        return self._name

    def getBackendName(self) -> str:
        return self._name

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_shrinking(self) -> bool:
        # Without this function, the group would be one that crashes: see _shrink_to_own_groups.
        return hasattr(dist.distributed_c10d, "_create_shrunk_process_group")

    @property
    def supports_coalescing(self) -> bool:
        return False

    # torch's own properties of these names call themselves without end, if they are those of a backend in Python.

    @property
    def supports_window(self) -> bool:
        return False

    @property
    def supports_reconfigure(self) -> bool:
        return False

    @property
    def _supports_time_estimate(self) -> bool:
        return False

    @property
    def options(self) -> c10d.Backend.Options:
        """A copy of the options with which the group was made, with the timeout of today."""
        return c10d.Backend.Options(self._name, datetime.timedelta(seconds=self._timeout_s))

    def get_error(self) -> c10d.ErrorType:
        """Why the group can make no calls any more."""
        broken = self._context.broken
        if broken is None:
            return c10d.ErrorType.SUCCESS
        if isinstance(broken, gloo_rs.Timeout):
            return c10d.ErrorType.TIMEOUT
        return c10d.ErrorType.REMOTE_ERROR if isinstance(broken, gloo_rs.Aborted) else c10d.ErrorType.COMM_ERROR

    # Other groups of the same ranks. Those of a new group meet over a store of its own; the others take no part.

    def split(self, store: dist.Store, ranks: list[int], opts: c10d.Backend.Options) -> Self:
        """The group of these ranks, in this order."""
        if self._rank not in ranks:
            raise ValueError(f"[{self._name}] split {self._place}: this rank is not one of {ranks}, and only these can make the group")
        return type(self)(store, ranks.index(self._rank), len(ranks), opts._timeout, self._name)

    def merge(self, store: dist.Store, opts: c10d.Backend.Options, rank: int, size: int) -> Self:
        """A group of the ranks of several groups."""
        return type(self)(store, rank, size, opts._timeout, self._name)

    def shrink(self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: c10d.Backend.Options | None = None) -> Self:
        """The group without these ranks."""
        if shrink_flags & dist.distributed_c10d.SHRINK_ABORT:
            self.abort()
        left = [rank for rank in range(self._size) if rank not in ranks_to_exclude]
        store = dist.PrefixStore(f"shrunk/{','.join(map(str, left))}", self._store)
        timeout = (opts_override or self.options)._timeout
        return type(self)(store, left.index(self._rank), len(left), timeout, self._name)

    def reconfigure_over(self, store: dist.Store, id: int, contexts: list[str] | set[str], seconds: float) -> Work:
        """Gives the context these members. What was started before fails, and what all ranks count begins anew. If it fails, the
        members are those of before."""
        began = time.monotonic()
        own_store = TorchStore(store)
        try:
            self._context.reconfigure(gloo_rs.Store.custom(own_store), id, contexts, timeout=seconds)
        except gloo_rs.Error as error:
            self.has_failed(error)
            raise self.failure("reconfigure", error, seconds) from (own_store.error or error)
        self._begin(self._context.rank, self._context.size)
        for work in list(self._pending):
            work.is_completed()
        return Done(self, "reconfigure", [[]], seconds, time.monotonic() - began)

    # Timeouts.

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Sets the timeout of calls that have none of their own."""
        self._timeout_s = timeout.total_seconds()
        self._context.timeout = self._timeout_s

    _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: datetime.timedelta) -> None:
        """Makes the timeouts of new calls longer, until the first of them has ended."""
        with self._lock:
            self._extensions.append((timeout.total_seconds(), None))

    def _extended(self, seconds: float) -> float:
        """The timeout of a new call."""
        with self._lock:
            return seconds + sum(extension for extension, _ in self._extensions)

    def _first_of_extensions(self, work: Work) -> None:
        with self._lock:
            self._extensions = [(extension, first or work) for extension, first in self._extensions]

    # What torch's programs ask to be told of.

    @property
    def supports_abort_hooks(self) -> bool:
        return True

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Has the hook be called before an abort, and when a call has failed."""
        self._abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        self._abort_hooks.pop(hook_id, None)

    # The names by which C++ calls them.
    registerAbortHook = register_abort_hook
    unregisterAbortHook = unregister_abort_hook

    def _run_abort_hooks(self) -> None:
        if not self._has_run_abort_hooks:
            self._has_run_abort_hooks = True
            for hook in list(self._abort_hooks.values()):
                self._run_hook(hook)

    def _run_hook(self, hook: Callable[..., None], *arguments: object) -> None:
        """Calls a hook of the program, whose failure is not that of the call which it is told of."""
        try:
            hook(*arguments)
        except Exception:  # noqa: BLE001 - whatever it raises
            logging.getLogger(__name__).exception("[%s] a hook has failed", self._name)

    def has_failed(self, error: gloo_rs.Error) -> None:
        """A call has failed by this."""
        if self._abort_hooks and self._context.broken is not None:
            self._run_abort_hooks()

    def set_completion_hook(self, hook: Callable[[WorkInfo], None]) -> None:
        """Has the hook be called with each work that has ended well."""
        self._on_completion = hook

    def has_completion_hook(self) -> bool:
        return self._on_completion is not None

    def _has_completed(self, work: Work) -> None:
        if self._on_completion is not None:
            took = datetime.timedelta(seconds=work._took)
            finished = datetime.timedelta(seconds=time.monotonic())
            info = WorkInfo(work._get_op_type(), work._get_sequence_number(), finished - took, finished, took)
            self._run_hook(self._on_completion, info)

    def _set_sequence_number_for_group(self) -> None:
        """Calls are counted from the beginning, on every rank."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    # Ends.

    def shutdown(self) -> None:
        """Waits for what has been started, and leaves the group."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        self._end_collectives()
        self._close()

    def abort(self) -> None:
        """Ends the calls of this group, on all ranks; and the group, unless it was made to be reconfigured."""
        self._run_abort_hooks()
        if self._context.size > 0:
            self._context.abort("its program has aborted the group")
        if not self._is_reconfigurable:
            self._is_shut_down = True
            self._close()

    def _close(self) -> None:
        self._context.close()
        if self._completer is not None:
            self._completer.close()
        _live.discard(self)

    def broken(self) -> gloo_rs.Error | None:
        return self._context.broken

    def completer(self) -> Completer:
        with self._lock:
            if self._completer is None:
                self._completer = Completer()
            return self._completer

    def failure(self, operation: str, error: Exception | None, seconds: float) -> Exception:
        """What is raised for a failure of the library; None stands for a wait whose time is over."""
        if isinstance(error, gloo_rs.InvalidArgument):
            return ValueError(f"[{self._name}] {operation} {self._place}: {error}")
        if error is None or isinstance(error, TimeoutError):
            late = f"[{self._name}] Timed out waiting {math.ceil(seconds * 1000)}ms for {operation} operation to complete"
            text = f"{late} {self._place}" + (f": {error}" if error else "")
        else:
            text = f"[{self._name}] {operation} {self._place}: {error}"
        return dist.DistBackendError(text)

    # Starts.

    def _reduction(self, reduce_op: dist.ReduceOp, data: torch.Tensor) -> dict[str, Any]:
        """What names the operation and the type of the elements."""
        dtype = _tensors.NAMES.get(data.dtype)
        if dtype is None:
            raise ValueError(f"[{self._name}] the library does not compute with elements of {data.dtype}")
        own = _OPS.get(hash(reduce_op))
        if own is not None:
            return {"op": own, "dtype": dtype}
        if hash(reduce_op) != hash(dist.ReduceOp.PREMUL_SUM):
            raise ValueError(f"[{self._name}] there is no operation {reduce_op}")
        # A real factor: of complex numbers, it multiplies both parts.
        real = data.dtype.to_real() if data.is_complex() else data.dtype
        factor = torch.as_tensor(reduce_op.__getstate__()[1], dtype=real).detach()
        return {"dtype": _tensors.NAMES[real], "factor": factor}

    def _call(
        self,
        collective: str,
        operation: str,
        options: Any,
        outputs: list[Tensors],
        input: object,
        out: object,
        keywords: dict[str, Any],
        keep: object,
        finish: Callable[[], None] | None = None,
        given: Tensors | None = None,
    ) -> Work | None:
        """One collective: started; or made, if the caller waits for it anyway: then there is no work, as with torch's own backends.
        `given` are the inputs, if the outputs are others."""
        self._sequence += 1
        seconds = self._timeout_s
        timeout = options.timeout
        if timeout.days >= 0:
            seconds = keywords["timeout"] = timeout.total_seconds()
        if self._extensions:
            seconds = keywords["timeout"] = self._extended(seconds)
        record = None
        if _profiles():
            record = torch.autograd._record_function_with_args_enter(f"{self._name}:{operation}", *(given or itertools.chain(*outputs)))
        began = 0.0 if self._on_completion is None else time.monotonic()
        buffers = (input, out) if out is not None else (input,) if input is not None else ()
        try:
            # A plain call cannot run beside one that was started.
            if options.asyncOp or self._started.get(collective):
                request = self._context.start(collective, *buffers, **keywords)
            else:
                getattr(self._context, collective)(*buffers, **keywords)
                if finish is not None:
                    finish()
                if record is not None:
                    end_record(record)
                if self._extensions or self._on_completion is not None:
                    work = Done(self, operation, outputs, seconds, time.monotonic() - began)
                    self._first_of_extensions(work)
                    self.has_ended(work)
                return None
        except gloo_rs.Error as error:
            if record is not None:
                end_record(record)
            self.has_failed(error)
            raise self.failure(operation, error, seconds) from error
        work = Collective([request], self, operation, outputs, seconds, keep, finish, record)
        self._has_started(work, collective)
        return work

    def _has_started(self, work: Work, collective: str) -> None:
        if self._collecting:
            self._collect(work)
        with self._lock:
            self._pending[work] = collective
            self._started[collective] = self._started.get(collective, 0) + 1
        if self._extensions:
            self._first_of_extensions(work)
        if self._on_completion is not None:
            # Its end is to be learnt though nobody waits for it.
            work.get_future()
        if len(self._pending) >= _PENDING_WORKS:
            for old in list(itertools.islice(self._pending, _PENDING_WORKS // 8)):
                old.is_completed()

    def _collect(self, work: Work) -> None:
        works = self._collecting.get(threading.get_ident())
        if works is not None:
            works.append(work)

    @contextlib.contextmanager
    def collected(self) -> Iterator[list[Work]]:
        """Makes a list of the works that this thread gets meanwhile."""
        thread = threading.get_ident()
        if thread in self._collecting:
            # One override that calls another.
            yield self._collecting[thread]
            return
        self._collecting[thread] = works = []
        try:
            yield works
        finally:
            del self._collecting[thread]

    def has_merged(self, work: Work) -> None:
        """Another work has this one's calls."""
        with self._lock:
            collective = self._pending.pop(work, None)
            if collective is not None:
                self._started[collective] -= 1

    def has_ended(self, work: Work) -> None:
        self.has_merged(work)
        if self._extensions:
            with self._lock:
                self._extensions = [extension for extension in self._extensions if extension[1] is not work]
        if work._error is None:
            self._has_completed(work)

    def _end_collectives(self) -> None:
        """Waits for what has been started; whoever waits for the works gets how they have ended."""
        for work in list(self._pending):
            if not isinstance(work, Message):
                until_ended(work)

    def _one(self, operation: str, tensors: Tensors) -> Tensors:
        if len(tensors) == 1 and tensors[0].is_cpu and tensors[0].layout is torch.strided:
            return tensors
        _tensors.check(operation, tensors)
        raise ValueError(f"[{self._name}] {operation}: it takes one tensor per rank, and there are {len(tensors)}")


@atexit.register
def _leave() -> None:
    """Ends what threads wait for, before the interpreter goes away under them."""
    for backend in list(_live):
        backend.abort()
        backend._close()
