"""Works: calls that have been started, and the futures that tell their ends."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Work as TorchWork
from torch._C._distributed_c10d import WorkResult

import gloo_rs

if TYPE_CHECKING:
    import datetime

    from ._core import Core

_creating_futures = threading.Lock()


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
        self._ended = False
        self._error: BaseException | None = None
        # Held by the thread that waits for the end, or that looks for it.
        self._waiting = threading.Lock()
        self._future: torch.futures.Future | None = None
        self._settled: torch.futures.Future | None = None

    # What the library has of the call: these two are what classes of works differ in.

    def _wait_for(self, seconds: float | None) -> None:
        """Waits for at most so long, if that is given. Raises what the call has failed by, or Timeout."""

    def _is_active(self) -> bool:
        """Whether the call goes on after a wait for some time."""
        return False

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
                self._waiting.release()
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

    def get_future(self) -> torch.futures.Future:
        """A future of the outputs."""
        with _creating_futures:
            if self._future is None:
                # A callback that raises is the only way by which C++ sees an error.
                self._settled = torch.futures.Future()
                self._future = self._settled.then(lambda _: self._outcome())
                is_new = True
            else:
                is_new = False
        if is_new:
            if self._ended:
                self._settle()
            else:
                self._complete()
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

    def _settle(self) -> None:
        assert self._settled is not None
        self._settled.set_result(None)

    def _complete(self) -> None:
        """Has a thread complete the future when the call ends."""
        self._backend.completer().add(self)

    def _end(self, seconds: float | None) -> None:
        """Waits for the end; raises if that does not come in time."""
        if seconds is None:
            self._waiting.acquire()
        else:
            began = time.monotonic()
            if not self._waiting.acquire(timeout=seconds):
                raise self._backend.failure(self._operation, None, seconds)
            seconds = max(0.0, seconds - (time.monotonic() - began))
        try:
            if self._ended:
                return
            try:
                self._wait_for(seconds)
            except gloo_rs.Timeout as error:
                if seconds is not None and self._is_active():
                    raise self._backend.failure(self._operation, error, seconds) from error
                self._ends_with(error)
            except gloo_rs.Error as error:
                self._ends_with(error)
            except BaseException:
                # Ctrl-C, which has closed the context.
                self._ends_with(self._backend.broken())
                raise
            else:
                self._ends_with(None)
        finally:
            self._waiting.release()

    def _look(self) -> None:
        """Ends the work if the call has ended. Its lock is held."""
        if self._ended:
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
        self._keep = self._finish = None
        if self._record is not None:
            self._record, record = None, self._record
            end_record(record)
        self._ended = True
        self._backend.has_ended(self)


class Done(Work):
    """A call that has been made already."""

    def __init__(self, backend: Core, operation: str, outputs: list[list[torch.Tensor]]) -> None:
        TorchWork.__init__(self)
        self._backend = backend
        self._operation = operation
        self._outputs = outputs
        self._ended = True
        self._error = None
        self._future = self._settled = None

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        return True


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
        try:
            return not self._requests[0].test()
        except gloo_rs.Error:
            return False


class Message(Work):
    """A message that is sent or received."""

    def __init__(self, buffer: gloo_rs.UnboundBuffer, is_send: bool, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._buffer: gloo_rs.UnboundBuffer | None = buffer
        self._is_send = is_send
        self._source = -1
        self._aborted = False

    def _wait_for(self, seconds: float | None) -> None:
        buffer = self._buffer
        assert buffer is not None
        if self._is_send:
            buffer.wait_send(timeout=seconds)
        else:
            self._source, got = buffer.wait_recv(timeout=seconds)
            if got != len(buffer):
                self._finish = None
                text = f"{self._operation}: the message has {got} bytes, and the tensor {len(buffer)}"
                raise gloo_rs.Mismatch(gloo_rs.Status.MISMATCH, text, self._source, self._operation)

    def _is_active(self) -> bool:
        # A message whose wait has timed out is still on its way.
        return True

    def _ends_with(self, error: gloo_rs.Error | None) -> None:
        # What is still on its way, the library cancels.
        self._buffer = None
        super()._ends_with(error)

    def source_rank(self) -> int:
        """The rank that has sent what was received."""
        if self._source < 0:
            return super().source_rank()
        return self._source

    def _complete(self) -> None:
        # A message comes when its sender sends it, so that no other work may wait for its end.
        threading.Thread(target=self._complete_alone, name="gloo_rs-message", daemon=True).start()

    def _complete_alone(self) -> None:
        until_ended(self)
        self._settle()


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


class Completer:
    """Completes the futures of a group's collectives, in the order of their starts.

    One thread at a time waits for the first work. When that has ended, another one goes on, while this one runs the callbacks of the
    future: these may wait for other futures.
    """

    def __init__(self) -> None:
        self._works: collections.deque[Work] = collections.deque()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._is_waiting = False
        self._idle = 0
        self._closed = False

    def add(self, work: Work) -> None:
        with self._changed:
            if not self._closed:
                self._works.append(work)
                self._wake()
                return
        until_ended(work)
        work._settle()

    def close(self) -> None:
        """Ends the threads, once they have completed what there is."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(_JOIN_S)

    def _wake(self) -> None:
        """Has a thread take the next work. The lock is held."""
        if not self._works or self._is_waiting:
            return
        if self._idle:
            self._changed.notify()
            return
        thread = threading.Thread(target=self._run, name="gloo_rs-futures", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        while (work := self._take()) is not None:
            until_ended(work)
            with self._changed:
                self._is_waiting = False
                self._wake()
            work._settle()
            # Objects that only the future keeps need not wait for the next work.
            del work

    def _take(self) -> Work | None:
        with self._changed:
            while self._is_waiting or not self._works:
                if self._closed and not self._works:
                    self._threads.discard(threading.current_thread())
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            self._is_waiting = True
            return self._works.popleft()


# How long the end of a group waits for callbacks of futures.
_JOIN_S = 5.0
