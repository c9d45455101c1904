"""Messages, and the barrier that is made of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import gloo_rs

from . import _tensors
from ._compiler import not_compiled
from ._core import Core, Tensors
from ._work import Message, Work, end_record

# The slots of monitored barriers; those of the program's messages are tags, which are ints.
_MONITORED_SLOTS = 1 << 63


@not_compiled
class Messages(Core):
    """The part of a backend that sends and receives."""

    def send(self, tensors: Tensors, dst: int, tag: int) -> Work:
        (tensor,) = self._one("send", tensors)
        data = _tensors.dense(tensor)
        return self._message("send", f"send to rank {dst}", tensor, data, tag, lambda buffer: buffer.send(dst, tag))

    def recv(self, tensors: Tensors, src: int, tag: int) -> Work:
        (tensor,) = self._one("recv", tensors)
        data = _tensors.dense(tensor)
        return self._message("recv", f"recv from rank {src}", tensor, data, tag, lambda buffer: buffer.recv(src, tag))

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        (tensor,) = self._one("recv", tensors)
        data = _tensors.dense(tensor)
        others = [rank for rank in range(self._size) if rank != self._rank]
        return self._message("recvAnySource", "recv from any rank", tensor, data, tag, lambda buffer: buffer.recv(others, tag))

    def _message(
        self, title: str, operation: str, tensor: torch.Tensor, data: torch.Tensor, tag: int, start: Callable[[gloo_rs.UnboundBuffer], None]
    ) -> Work:
        if tag < 0:
            raise ValueError(f"[{self._name}] {operation}: the tag is {tag}, which is negative")
        record = None
        if torch.autograd._profiler_enabled():
            record = torch.autograd._record_function_with_args_enter(f"{self._name}:{title}", tensor)
        try:
            buffer = self._context.unbound_buffer(_tensors.view(data))
            start(buffer)
        except gloo_rs.Error as error:
            if record is not None:
                end_record(record)
            raise self.failure(operation, error, self._timeout_s) from error
        is_send = title == "send"
        finish = None if is_send or data is tensor else lambda: tensor.detach().copy_(data)
        seconds = self._extended(self._timeout_s) if self._extensions else self._timeout_s
        work = Message(buffer, is_send, self, operation, [[tensor]], seconds, data, finish, record)
        self._has_started(work, title)
        return work

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks have not come."""
        # C++ passes options.
        timeout = getattr(timeout, "timeout", timeout)
        seconds = self._timeout_s if timeout is None or timeout.days < 0 else timeout.total_seconds()
        slot = _MONITORED_SLOTS + next(self._monitored)
        nothing = bytearray(1)
        if self._rank != 0:
            self._come(slot, nothing, seconds)
            return
        deadline = time.monotonic() + seconds
        arrivals = [self._context.unbound_buffer(bytearray(1)) for _ in range(1, self._size)]
        for rank, buffer in enumerate(arrivals, 1):
            buffer.recv(rank, slot)
        missing: list[int] = []
        cause = None
        for rank, buffer in enumerate(arrivals, 1):
            left = max(0.0, deadline - time.monotonic())
            if left == 0 and not wait_all_ranks:
                come = ", ".join(map(str, range(1, rank))) or "none"
                raise dist.DistBackendError(
                    f"[{self._name}] [Rank 0]: Rank 0 timed out in monitoredBarrier after {math.ceil(seconds * 1000)} ms. "
                    f"The ranks that have come: {come}"
                )
            try:
                buffer.wait_recv(timeout=left)
            except gloo_rs.Error as error:
                missing.append(rank)
                cause = cause or error
                if not wait_all_ranks:
                    break
        if missing:
            ranks = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            raise dist.DistBackendError(
                f"[{self._name}] [Rank 0]: {ranks} failed to pass monitoredBarrier in {math.ceil(seconds * 1000)} ms"
            ) from cause
        sends = [self._context.unbound_buffer(nothing) for _ in range(1, self._size)]
        for rank, buffer in enumerate(sends, 1):
            buffer.send(rank, slot)
        for buffer in sends:
            buffer.wait_send(timeout=seconds)

    def _come(self, slot: int, nothing: bytearray, seconds: float) -> None:
        """A rank's part in a monitored barrier of which rank 0 keeps the list."""
        buffer = self._context.unbound_buffer(nothing)
        try:
            buffer.recv(0, slot)
            buffer.send(0, slot)
            buffer.wait_send(timeout=seconds)
            buffer.wait_recv(timeout=seconds)
        except gloo_rs.Error as error:
            raise dist.DistBackendError(
                f"[{self._name}] Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for "
                "send/recv from rank 0. Please check rank 0 logs for faulty rank."
            ) from error
