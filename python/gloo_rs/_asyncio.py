"""`await request`: an event loop reads the descriptor of a queue of its own."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Generator
from typing import Any

from ._errors import Error, InvalidOperation, Status, Timeout
from ._native import Queue, Request

_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Queue] = weakref.WeakKeyDictionary()


class _Ends:
    """The end of a request's last call, for the coroutines that wait for it."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.future: asyncio.Future[None] | None = None

    def add(self, error: Error | None) -> None:
        """The call that was started has ended."""
        future = self.of_active()
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def of_active(self) -> asyncio.Future[None]:
        """The end of a call that is not known yet."""
        if self.future is None or self.future.done():
            self.future = asyncio.get_running_loop().create_future()
        return self.future


def awaited(request: Request) -> Generator[Any, None, None]:
    """What `await` takes from a request."""
    queue = _queue_of(asyncio.get_running_loop())
    ends = request._attached
    if request.is_active:
        if not isinstance(ends, _Ends) or ends.queue is not queue:
            ends = _Ends(queue)
            # Refused if it is attached to another queue.
            queue.attach(request, ends)
        future = ends.of_active()
    elif isinstance(ends, _Ends) and ends.queue is queue and ends.future is not None:
        future = ends.future
    else:
        raise InvalidOperation(Status.INVALID_OPERATION, "await: the request is inactive: start it first")
    # Others may wait for it, too.
    return asyncio.shield(future).__await__()


def _queue_of(loop: asyncio.AbstractEventLoop) -> Queue:
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = Queue()
        loop.add_reader(queue.fileno(), _take_all, queue)
    return queue


def _take_all(queue: Queue) -> None:
    """Takes the entries that are there."""
    while True:
        try:
            ends, error = queue.wait(timeout=0)
        except Timeout:
            return
        ends.add(error)
