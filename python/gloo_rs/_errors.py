"""The exceptions, and the status codes of the C ABI that they stand for."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """The status of a call: gloo_rs_status_t."""

    INVALID_ARGUMENT = 1
    INVALID_OPERATION = 2
    TIMEOUT = 3
    IO = 4
    CONNECTION_LOST = 5
    ABORTED = 6
    MISMATCH = 7
    NOT_FOUND = 8
    UNSUPPORTED = 9
    RESOURCE_EXHAUSTED = 10
    CALLBACK = 11
    INTERNAL = 12
    CLOSED = 13


class Error(Exception):
    """A call that failed. `str()` of it is the library's message."""

    #: The status of the call, or its number, if it is one of a later version of the library.
    code: Status | int
    #: The message.
    message: str
    #: The rank with which the failure began; None if that is unknown, or no rank's failure.
    rank: int | None
    #: The operation that failed, such as "allreduce".
    operation: str
    #: The operating system's error number, as in errno; None if there is none.
    system_error: int | None
    #: After a timeout: the bytes that arrived of the `bytes_wanted` that the call waited for.
    bytes_done: int
    #: See bytes_done.
    bytes_wanted: int

    def __init__(
        self,
        code: Status | int,
        message: str,
        rank: int | None = None,
        operation: str = "",
        system_error: int | None = None,
        bytes_done: int = 0,
        bytes_wanted: int = 0,
    ) -> None:
        super().__init__(code, message, rank, operation, system_error, bytes_done, bytes_wanted)
        self.code = code
        self.message = message
        self.rank = rank
        self.operation = operation
        self.system_error = system_error
        self.bytes_done = bytes_done
        self.bytes_wanted = bytes_wanted

    def __str__(self) -> str:
        return self.message


class InvalidArgument(Error, ValueError):
    """An argument is invalid."""


class InvalidOperation(Error, RuntimeError):
    """The state of the object does not allow the call."""


class Timeout(Error, TimeoutError):
    """The timeout expired before the operation completed."""


class IOFailure(Error, OSError):
    """The operating system reported an error of a file, a socket or an interface."""


class ConnectionLost(Error, ConnectionError):
    """The connection to a peer broke, the peer's process ended, or the peer's context failed."""


class Aborted(Error):
    """An abort function ended the wait."""


class Mismatch(Error):
    """Ranks disagree about the collective, count, type, operation, root or token."""


class NotFound(Error, KeyError):
    """The store has no such key."""


class Unsupported(Error, NotImplementedError):
    """This build, this version or this machine lacks a feature that the call needs."""


class ResourceExhausted(Error, MemoryError):
    """Memory or file descriptors ran out."""


class CallbackFailed(Error):
    """A callback of the caller returned an error."""


class Internal(Error):
    """A defect of the library."""


class Closed(Error):
    """This process closed the context or the pair, or destroyed the buffer."""


_CLASSES: dict[int, type[Error]] = {
    Status.INVALID_ARGUMENT: InvalidArgument,
    Status.INVALID_OPERATION: InvalidOperation,
    Status.TIMEOUT: Timeout,
    Status.IO: IOFailure,
    Status.CONNECTION_LOST: ConnectionLost,
    Status.ABORTED: Aborted,
    Status.MISMATCH: Mismatch,
    Status.NOT_FOUND: NotFound,
    Status.UNSUPPORTED: Unsupported,
    Status.RESOURCE_EXHAUSTED: ResourceExhausted,
    Status.CALLBACK: CallbackFailed,
    Status.INTERNAL: Internal,
    Status.CLOSED: Closed,
}

# The name by which programs know them, for tracebacks.
for _class in (Error, *_CLASSES.values()):
    _class.__module__ = "gloo_rs"


def make(
    status: int, message: str, rank: int, operation: str, system_error: int, bytes_done: int, bytes_wanted: int
) -> Error:
    """The exception of a failure as gloo_rs_error_t describes it."""
    code = Status(status) if status in _CLASSES else status
    made = _CLASSES.get(status, Error)
    return made(code, message, rank if rank >= 0 else None, operation, system_error or None, bytes_done, bytes_wanted)
