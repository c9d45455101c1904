"""Works: calls that have been started, and the futures that tell their ends."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import OpType, WorkResult
from torch._C._distributed_c10d import Work as TorchWork

import gloo_rs

from ._compiler import not_compiled

if TYPE_CHECKING:
    from ._core import Core

_creating_futures = threading.Lock()

# torch's types of calls, by the first words of our operations.
_OP_TYPES = {
    "broadcast": OpType.BROADCAST,
    "all_reduce": OpType.ALLREDUCE,
    "reduce": OpType.REDUCE,
    "all_gather": OpType.ALLGATHER,
    "_all_gather_base": OpType.ALLGATHER,
    "gather": OpType.GATHER,
    "scatter": OpType.SCATTER,
    "reduce_scatter": OpType.REDUCE_SCATTER,
    "_reduce_scatter_base": OpType.REDUCE_SCATTER,
    "all_to_all": OpType.ALLTOALL,
    "send": OpType.SEND,
    "recv": OpType.RECV,
    "barrier": OpType.BARRIER,
}


@not_compiled
class Work(TorchWork):
    """A call that has been started. Any thread may use it."""

    def __init__(
        self,
        backend: Core,
        operation: str,
        outputs: list[list[torch.Tensor]],
        timeout_s: float,
        keep: object = None,
        finish: Callable[[], None] | None = None,
        record: object = None,
    ) -> None:
        super().__init__()
        self._backend = backend
        #: For errors: what is done, and with whom.
        self._operation = operation
        self._outputs = outputs
        self._timeout_s = timeout_s
        # What the library uses until the end.
        self._keep = keep
        # Moves results to where they belong.
        self._finish = finish
        self._record = record
        self._sequence = backend._sequence
        self._began = time.monotonic()
        self._took = 0.0
        self._ended = False
        self._error: BaseException | None = None
        # Held by the thread that waits for the end, or that looks for it.
        self._waiting = threading.Lock()
        self._future: torch.futures.Future | None = None
        # What completes the future at the end.
        self._settled: torch.futures.Future | None = None
        # Set at the end, if the group's completer reports that: then nobody else can wait for the call.
        self._reported: threading.Event | None = None
        # What a call has failed by that was reported.
        self._failure: gloo_rs.Error | None = None

    # What the library has of the call: these are what classes of works differ in.

    def _wait_for(self, seconds: float | None) -> None:
        """Waits for at most so long, if that is given. Raises what the call has failed by, or Timeout."""

    def _is_active(self) -> bool:
        """Whether the call goes on after a wait for some time."""
        return False

    def _attach(self) -> bool:
        """Has the group's completer report the end; false if the group has been left."""
        return False

    def _is_last(self, entry: gloo_rs.Entry) -> bool:
        """Takes what an entry of the completion queue says of a call of this work; whether it is the last."""
        self._failure = self._failure or entry.error
        return True

    # The methods of torch's class.

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Waits until the call has ended; for at most `timeout`, if that is given and not 0: then the call goes on."""
        if not self._ended:
            self._end(timeout.total_seconds() if timeout else None)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._ended and self._waiting.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._release()
        return self._ended

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """What the call has failed by; None if it has not, or not yet."""
        self.is_completed()
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The outputs of a call that has ended."""
        if not self.is_completed():
            raise RuntimeError(f"[{self._backend.name()}] {self._operation}: the result is asked for before the call has ended")
        return self._value()

    def source_rank(self) -> int:
        raise RuntimeError(f"[{self._backend.name()}] {self._operation} has no source: only receives have one")

    def _source_rank(self) -> int:
        return self.source_rank()

    @property
    def timeout(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self._timeout_s)

    def _get_sequence_number(self) -> int:
        return self._sequence

    def _get_op_type(self) -> OpType:
        return _OP_TYPES.get(self._operation.split()[0], OpType.UNKNOWN)

    def _get_duration(self) -> float:
        """The milliseconds from the start to the end."""
        if not self.is_success():
            raise RuntimeError(f"[{self._backend.name()}] {self._operation}: the duration is asked for, and the call has not ended well")
        return self._took * 1e3

    def get_future(self) -> torch.futures.Future:
        """A future of the outputs."""
        with _creating_futures:
            if self._future is not None:
                return self._future
            # A callback that raises is the only way by which C++ sees an error.
            settled = torch.futures.Future()
            self._future = settled.then(lambda _: self._outcome())
            self._settled = settled
        self._hand_over()
        return self._future

    def get_future_result(self) -> torch.futures.Future:
        """A future of how the call has ended."""
        return self.get_future().then(lambda _: int(self._how_it_ended()))

    def _how_it_ended(self) -> WorkResult:
        if self._error is None:
            return WorkResult.SUCCESS
        return WorkResult.TIMEOUT if isinstance(self._error.__cause__, gloo_rs.Timeout) else WorkResult.COMM_ERROR

    # Ends.

    def _value(self) -> Any:
        outputs = self._outputs
        return outputs[0] if len(outputs) == 1 else outputs

    def _outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value()

    def _hand_over(self) -> None:
        """Has the future be completed: by this thread, if the call has ended; or else by a thread of the completer."""
        # Who has the lock sees that there is a future when he releases it.
        if self._waiting.acquire(blocking=False):
            self._release()

    def _release(self) -> None:
        """Releases the lock, and completes the future or hands it over."""
        settled = None
        if self._settled is not None:
            if not self._ended and self._reported is None:
                self._reported = threading.Event()
                if not self._attach():
                    # Its context is closed, so that this returns at once.
                    self._reported = None
                    self._end_within(None, None)
            if self._ended:
                settled, self._settled = self._settled, None
        self._waiting.release()
        if settled is not None:
            settled.set_result(None)
        elif self._settled is not None and (self._ended or self._reported is None):
            # That has changed since this thread looked.
            self._hand_over()

    def report(self, entry: gloo_rs.Entry | None) -> None:
        """A call of this work has ended, as the completion queue says; or, without an entry, the time of the work is over."""
        with self._waiting:
            if self._ended:
                return
            if entry is None:
                text = f"{self._operation}: the time is over"
                self._ends_with(gloo_rs.Timeout(gloo_rs.Status.TIMEOUT, text, None, self._operation))
            elif self._is_last(entry):
                self._ends_with(self._failure)
        self._hand_over()

    def _end(self, seconds: float | None) -> None:
        """Waits for the end; raises if that does not come in time."""
        began = time.monotonic()
        if not self._waiting.acquire(timeout=-1 if seconds is None else seconds):
            raise self._backend.failure(self._operation, None, seconds)
        left = None if seconds is None else max(0.0, seconds - (time.monotonic() - began))
        try:
            if self._ended:
                return
            if self._reported is None:
                self._end_within(left, seconds)
                return
        finally:
            self._release()
        if not self._reported.wait(left):
            raise self._backend.failure(self._operation, None, seconds)

    def _end_within(self, left: float | None, seconds: float | None) -> None:
        """Waits for the end for what is left of so many seconds. The lock is held."""
        try:
            self._wait_for(left)
        except gloo_rs.Timeout as error:
            if seconds is not None and self._is_active():
                raise self._backend.failure(self._operation, error, seconds) from error
            self._ends_with(error)
        except gloo_rs.Error as error:
            self._ends_with(error)
        except BaseException:
            # Ctrl-C, which closes the context if that has waited.
            broken = self._backend.broken()
            if broken is not None:
                self._ends_with(broken)
            raise
        else:
            self._ends_with(None)

    def _look(self) -> None:
        """Ends the work if the call has ended. Its lock is held."""
        if self._ended or self._reported is not None:
            return
        try:
            self._wait_for(0)
        except gloo_rs.Timeout as error:
            if self._is_active():
                return
            self._ends_with(error)
        except gloo_rs.Error as error:
            self._ends_with(error)
        else:
            self._ends_with(None)

    def _ends_with(self, error: gloo_rs.Error | None) -> None:
        if error is None and self._finish is not None:
            try:
                self._finish()
            except Exception as failure:  # noqa: BLE001 - as the outcome of the work
                self._error = failure
        elif error is not None:
            self._error = self._backend.failure(self._operation, error, self._timeout_s)
            self._error.__cause__ = error
            self._backend.has_failed(error)
        self._keep = self._finish = None
        self._took = time.monotonic() - self._began
        if self._record is not None:
            self._record, record = None, self._record
            end_record(record)
        self._ended = True
        if self._reported is not None:
            self._reported.set()
        self._backend.has_ended(self)


@not_compiled
class Done(Work):
    """A call that has been made already, in so many seconds if that is known."""

    _ended = True
    _error = None

    def __init__(self, backend: Core, operation: str, outputs: list[list[torch.Tensor]], timeout_s: float, took: float = 0.0) -> None:
        TorchWork.__init__(self)
        self._backend = backend
        self._operation = operation
        self._outputs = outputs
        self._timeout_s = timeout_s
        self._sequence = backend._sequence
        self._took = took

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        return True

    def get_future(self) -> torch.futures.Future:
        future = torch.futures.Future()
        future.set_result(self._value())
        return future


@not_compiled
class Collective(Work):
    """One collective, or several that were started together."""

    def __init__(self, requests: list[gloo_rs.Request], *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._requests = requests

    def _wait_for(self, seconds: float | None) -> None:
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._requests:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._requests[0].wait(timeout=left)
            self._requests.pop(0)

    def _is_active(self) -> bool:
        # Not whether it has ended meanwhile: the next wait tells how.
        return self._requests[0].is_active

    def _attach(self) -> bool:
        return self._backend.completer().attach(self, self._requests)

    def _is_last(self, entry: gloo_rs.Entry) -> bool:
        super()._is_last(entry)
        self._requests.pop()
        return not self._requests


@not_compiled
class Message(Work):
    """A message that is sent or received."""

    def __init__(self, buffer: gloo_rs.UnboundBuffer, is_send: bool, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._buffer: gloo_rs.UnboundBuffer | None = buffer
        self._is_send = is_send
        self._source = -1

    def _wait_for(self, seconds: float | None) -> None:
        buffer = self._buffer
        assert buffer is not None
        if self._is_send:
            buffer.wait_send(timeout=seconds)
        else:
            source, got = buffer.wait_recv(timeout=seconds)
            error = self._received(source, got)
            if error is not None:
                raise error

    def _received(self, source: int, got: int) -> gloo_rs.Error | None:
        """Takes a message of so many bytes; returns what is wrong with it."""
        self._source = source
        assert self._buffer is not None
        if got == len(self._buffer):
            return None
        self._finish = None
        text = f"{self._operation}: the message has {got} bytes, and the tensor {len(self._buffer)}"
        return gloo_rs.Mismatch(gloo_rs.Status.MISMATCH, text, source, self._operation)

    def _is_active(self) -> bool:
        # A message whose wait has timed out is still on its way.
        return True

    def _ends_with(self, error: gloo_rs.Error | None) -> None:
        # What is still on its way, the library cancels.
        self._buffer = None
        if self._reported is not None:
            self._backend.completer().detach(self)
        super()._ends_with(error)

    def source_rank(self) -> int:
        """The rank that has sent what was received."""
        if self._source < 0:
            return super().source_rank()
        return self._source

    def _attach(self) -> bool:
        assert self._buffer is not None
        return self._backend.completer().attach(self, [self._buffer], time.monotonic() + self._timeout_s)

    def _is_last(self, entry: gloo_rs.Entry) -> bool:
        self._failure = entry.error
        if entry.error is None and not self._is_send:
            self._failure = self._received(entry.rank, entry.bytes)
        return True


def end_record(record: object) -> None:
    """Ends a record of the profiler; in another thread, by which that knows that the call has gone on by itself."""
    thread = threading.Thread(target=torch.autograd._record_function_with_args_exit, args=(record,))
    thread.start()
    thread.join()


def until_ended(work: Work) -> None:
    """Waits until the work has ended, however that may be."""
    try:
        work._end(None)
    except Exception:  # noqa: BLE001, S110 - the work has it
        pass
