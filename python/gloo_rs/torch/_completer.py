"""Completes the futures of a group, by threads that wait on a completion queue of the library."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import gloo_rs

if TYPE_CHECKING:
    from ._work import Work

# How long the end of a group waits for callbacks of futures.
_JOIN_S = 5.0
# How often a thread looks for messages whose time is over: the library ends a collective at its timeout, but no message.
_LOOK_S = 1.0


class Completer:
    """Reports the ends of calls to their works, in the order in which they come.

    One thread waits on the queue. While it runs the callbacks of a future, another one waits if calls are in progress, since a callback
    may wait for them.
    """

    def __init__(self) -> None:
        self._queue = gloo_rs.Queue()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        # A thread waits on the queue, or is about to.
        self._is_waited_for = False
        # Threads that do nothing.
        self._idle = 0
        # Ends that are to come.
        self._active = 0
        # Works that end at a time, with that.
        self._deadlines: dict[Work, float] = {}
        self._closed = False

    def attach(self, work: Work, calls: list[gloo_rs.Request] | list[gloo_rs.UnboundBuffer], deadline: float | None = None) -> bool:
        """Has the ends of these calls, each of which is in progress, reported to the work; at `deadline`, by time.monotonic, the work
        is told that its time is over. Returns False if the group has been left."""
        with self._changed:
            if self._closed:
                return False
            self._active += len(calls)
            if deadline is not None:
                self._deadlines[work] = deadline
        for call in calls:
            self._queue.attach(call, work)
        with self._changed:
            self._wake()
        return True

    def detach(self, work: Work) -> None:
        """The work has ended by itself, and drops its call, which gives no entry any more."""
        with self._changed:
            if self._deadlines.pop(work, None) is not None:
                self._active -= 1
                self._close_queue()

    def close(self) -> None:
        """Ends the threads, once they have reported what is in progress."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._close_queue()
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(_JOIN_S)

    def _close_queue(self) -> None:
        """Ends the wait of the last thread. The lock is held."""
        if self._closed and self._active == 0:
            self._queue.close()

    def _wake(self) -> None:
        """Has a thread wait for the calls in progress. The lock is held."""
        if self._active == 0 or self._is_waited_for:
            return
        if self._idle:
            self._changed.notify()
            return
        self._is_waited_for = True
        thread = threading.Thread(target=self._run, name="gloo_rs-futures", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        is_mine = True
        while is_mine or self._take_over():
            is_mine = False
            try:
                entry = self._queue.wait_entry(timeout=_LOOK_S)
            except gloo_rs.Timeout:
                entry = None
            except gloo_rs.Closed:
                break
            with self._changed:
                self._is_waited_for = False
                late = self._late()
                if entry is not None:
                    self._active -= 1
                    self._deadlines.pop(entry.value, None)
                self._wake()
                self._close_queue()
            if entry is not None:
                entry.value.report(entry)
            for work in late:
                work.report(None)
            # What only the future keeps need not wait for the next entry.
            entry = late = work = None
        with self._changed:
            self._threads.discard(threading.current_thread())

    def _late(self) -> list[Work]:
        """The works whose time is over. The lock is held."""
        now = time.monotonic()
        return [work for work, deadline in self._deadlines.items() if deadline <= now]

    def _take_over(self) -> bool:
        """Waits until this thread is the one that waits on the queue; false if there is nothing to wait for any more."""
        with self._changed:
            while self._is_waited_for:
                if self._closed and self._active == 0:
                    return False
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            self._is_waited_for = not (self._closed and self._active == 0)
            return self._is_waited_for
