"""What a backend has besides its calls: the context, what has been started, and the ends."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import gloo_rs

from . import _tensors
from ._completer import Completer
from ._store import TorchStore
from ._work import Collective, Done, Message, Work, end_record, until_ended

# Works that nobody has waited for are looked at when there are this many.
_PENDING_WORKS = 64

# The library's operations by the numbers of torch's.
_OPS = {
    int(dist.ReduceOp.SUM): gloo_rs.Op.SUM,
    int(dist.ReduceOp.AVG): gloo_rs.Op.AVERAGE,
    int(dist.ReduceOp.PRODUCT): gloo_rs.Op.PRODUCT,
    int(dist.ReduceOp.MIN): gloo_rs.Op.MIN,
    int(dist.ReduceOp.MAX): gloo_rs.Op.MAX,
    int(dist.ReduceOp.BAND): gloo_rs.Op.AND,
    int(dist.ReduceOp.BOR): gloo_rs.Op.OR,
    int(dist.ReduceOp.BXOR): gloo_rs.Op.XOR,
}

Tensors = list[torch.Tensor]

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


class Core(c10d.Backend):
    """A rank's membership in a group."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta, name: str = "gloo_rs") -> None:
        super().__init__(rank, size)
        self._name = name
        self._rank = rank
        self._size = size
        self._place = f"on rank {rank} of {size}"
        self._timeout_s = timeout.total_seconds()
        self._sequence = 0
        self._monitored = itertools.count()
        self._completer: Completer | None = None
        self._lock = threading.Lock()
        # Started and not known to have ended; with the number of each collective among them.
        self._pending: dict[Work, str] = {}
        self._started: dict[str, int] = {}
        self._is_shut_down = False
        self._collecting: dict[int, list[Work]] = {}
        own_store = TorchStore(store)
        try:
            own_store = TorchStore(dist.PrefixStore(own_store.meet(rank, size, self._timeout_s), store))
            self._context = gloo_rs.Context(
                gloo_rs.Store.custom(own_store), rank, size, device=_device(), timeout=self._timeout_s
            )
        except (gloo_rs.Error, TimeoutError) as error:
            raise self.failure("connecting", error, self._timeout_s) from (own_store.error or error)
        _live.add(self)

    # What torch asks about a backend.

    def name(self) -> str:
        return self._name

    def getBackendName(self) -> str:
        return self._name

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Sets the timeout of calls that have none of their own."""
        self._timeout_s = timeout.total_seconds()
        self._context.timeout = self._timeout_s

    _set_default_timeout = set_timeout

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
        """Ends the calls of this group, on all ranks."""
        self._is_shut_down = True
        self._context.abort("its program has aborted the group")
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

    def _op(self, reduce_op: dist.ReduceOp, tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
        """The library's operation, and what is combined."""
        number = int(reduce_op.op) if hasattr(reduce_op, "op") else int(reduce_op)
        own = _OPS.get(number)
        if own is not None:
            return own, tensor
        if number == int(dist.ReduceOp.RedOpType.PREMUL_SUM):
            factor = reduce_op.__getstate__()[1]
            return gloo_rs.Op.SUM, tensor.detach() * factor
        raise ValueError(f"[{self._name}] there is no operation {reduce_op}")

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
    ) -> Work:
        """One collective: made, if the caller waits for it anyway, or started. `given` are the inputs, if the outputs are others."""
        self._sequence += 1
        seconds = self._timeout_s
        timeout = options.timeout
        if timeout.days >= 0:
            seconds = keywords["timeout"] = timeout.total_seconds()
        record = None
        if torch.autograd._profiler_enabled():
            record = torch.autograd._record_function_with_args_enter(f"{self._name}:{operation}", *(given or itertools.chain(*outputs)))
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
                work = Done(self, operation, outputs)
                if self._collecting:
                    self._collect(work)
                return work
        except gloo_rs.Error as error:
            if record is not None:
                end_record(record)
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

    def has_ended(self, work: Work) -> None:
        with self._lock:
            collective = self._pending.pop(work, None)
            if collective is not None:
                self._started[collective] -= 1

    def _end_collectives(self) -> None:
        """Waits for what has been started; whoever waits for the works gets how they have ended."""
        for work in list(self._pending):
            if not isinstance(work, Message):
                until_ended(work)

    def _one(self, operation: str, tensors: Tensors) -> Tensors:
        _tensors.check(operation, tensors)
        if len(tensors) != 1:
            raise ValueError(f"[{self._name}] {operation}: it takes one tensor per rank, and there are {len(tensors)}")
        return tensors


@atexit.register
def _leave() -> None:
    """Ends what threads wait for, before the interpreter goes away under them."""
    for backend in list(_live):
        backend.abort()
