"""Collective communications between processes.

>>> import gloo_rs
>>> store = gloo_rs.Store.hash("a job of one rank")
>>> with gloo_rs.Context(store, rank=0, size=1) as context:
...     values = bytearray(b"\\x01\\x02\\x03")
...     context.allreduce(values)
...     values
bytearray(b'\\x01\\x02\\x03')

The manual is docs/python.md in the sources.
"""

from __future__ import annotations

import enum
import pathlib

from ._errors import (
    Aborted,
    CallbackFailed,
    Closed,
    ConnectionLost,
    Error,
    Internal,
    InvalidArgument,
    InvalidOperation,
    IOFailure,
    Mismatch,
    NotFound,
    ResourceExhausted,
    Status,
    Timeout,
    Unsupported,
)
from ._native import (
    Allocation,
    Buffer,
    Context,
    Device,
    Entry,
    Group,
    Pair,
    Queue,
    Request,
    Store,
    UnboundBuffer,
    built_features,
    launch_from_env,
    library_version,
    local_rank_from_env,
    prometheus_text,
    reduce_local,
    remote_key_parse,
    wait_all,
    wait_any,
)


class Op(enum.IntEnum):
    """The operation that combines two elements: gloo_rs_op_t."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    AVERAGE = 4
    AND = 5
    OR = 6
    XOR = 7


class EntryKind(enum.IntEnum):
    """What an entry of a completion queue is the end of: gloo_rs_entry_kind_t."""

    REQUEST = 0
    SEND = 1
    RECV = 2


def prefix() -> pathlib.Path:
    """The folder with include/, lib/ and bin/ of the library that this package contains, for CMake and compilers."""
    return pathlib.Path(__file__).parent


__version__ = library_version()

__all__ = [
    "Aborted",
    "Allocation",
    "Buffer",
    "CallbackFailed",
    "Closed",
    "ConnectionLost",
    "Context",
    "Device",
    "Entry",
    "EntryKind",
    "Error",
    "Group",
    "IOFailure",
    "Internal",
    "InvalidArgument",
    "InvalidOperation",
    "Mismatch",
    "NotFound",
    "Op",
    "Pair",
    "Queue",
    "Request",
    "ResourceExhausted",
    "Status",
    "Store",
    "Timeout",
    "UnboundBuffer",
    "Unsupported",
    "built_features",
    "launch_from_env",
    "library_version",
    "local_rank_from_env",
    "prefix",
    "prometheus_text",
    "reduce_local",
    "remote_key_parse",
    "wait_all",
    "wait_any",
]
