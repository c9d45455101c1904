"""The module in Rust: its classes are those of gloo_rs. docs/python.md describes the calls."""

import os
import sys
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypedDict, Unpack, final

from typing_extensions import Buffer as _Exporter

from . import Error

__all__ = [
    "Allocation",
    "Buffer",
    "Context",
    "Device",
    "Pair",
    "Queue",
    "Request",
    "Store",
    "UnboundBuffer",
    "built_features",
    "launch_from_env",
    "library_version",
    "local_rank_from_env",
    "reduce_local",
    "remote_key_parse",
    "wait_all",
    "wait_any",
]

class _Tensor(Protocol):
    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

# What calls take as memory: whatever has the buffer protocol or DLPack.
_Memory: TypeAlias = _Exporter | _Tensor

class _CallOptions(TypedDict, total=False):
    timeout: float | None
    tag: int
    algorithm: str | None
    max_segment_bytes: int
    groups: Sequence[int] | None
    dims: Sequence[int] | None
    base: int
    dtype: str | None

class _ContextOptions(TypedDict, total=False):
    timeout: float | None
    connect: str
    check_calls: bool | None
    max_segment_bytes: int
    token: str | None
    tuning: str | None
    commit_memory: bool
    wait: str | None

class _TlsFiles(TypedDict, total=False):
    cert: str | None
    key: str | None
    ca_file: str | None
    ca_path: str | None
    names: str | None

class _DeviceOptions(TypedDict, total=False):
    interface_name: str | None
    hostname: str | None
    port: int
    port_range: str | None
    shared_memory: bool | None
    streams: int
    transport: str | None
    tls: _TlsFiles | None
    wait: str | None
    ptracer: str | None

@final
class Device:
    def __new__(cls, **options: Unpack[_DeviceOptions]) -> Self: ...
    @property
    def address(self) -> str: ...
    @property
    def interface(self) -> str: ...
    @property
    def handle_address(self) -> int: ...

@final
class Store:
    @staticmethod
    def file(path: str | os.PathLike[str]) -> Store: ...
    @staticmethod
    def tcp(
        host: str,
        port: int,
        *,
        serve: bool = False,
        timeout: float | None = None,
        token: str | None = None,
        transport: str | None = None,
    ) -> Store: ...
    @staticmethod
    def hash(name: str) -> Store: ...
    @staticmethod
    def redis(
        host: str,
        port: int = 6379,
        *,
        prefix: str | None = None,
        username: str | None = None,
        password: str | None = None,
        database: int = 0,
        ttl: int | None = None,
        tls: bool = False,
        insecure: bool = False,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        timeout: float | None = None,
    ) -> Store: ...
    @staticmethod
    def url(url: str, rank: int, *, timeout: float | None = None) -> Store: ...
    def prefix(self, prefix: str) -> Store: ...
    @property
    def port(self) -> int: ...
    def set(self, key: str, value: _Memory) -> None: ...
    def get(self, key: str, *, timeout: float | None = None) -> bytes: ...
    def multi_get(self, keys: Sequence[str], *, timeout: float | None = None) -> list[bytes]: ...
    def wait(self, keys: Sequence[str], *, timeout: float | None = None) -> None: ...
    def add(self, key: str, amount: int) -> int: ...
    def append(self, key: str, value: _Memory) -> None: ...
    def delete(self, key: str) -> bool: ...

@final
class Context:
    def __new__(
        cls, store: Store, rank: int, size: int, *, device: Device | None = None, **options: Unpack[_ContextOptions]
    ) -> Self: ...
    @staticmethod
    def from_env(*, device: Device | None = None, **options: Unpack[_ContextOptions]) -> Context: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def timeout(self) -> float: ...
    @timeout.setter
    def timeout(self, value: float | None) -> None: ...
    @property
    def broken(self) -> Error | None: ...
    @property
    def handle_address(self) -> int: ...
    def shares_host(self, rank: int) -> bool: ...
    def next_slot(self, n: int = 1) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _class: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    def split(self, color: int | None, key: int = 0) -> Context | None: ...
    def abort(self, reason: str | None = None) -> None: ...
    @property
    def aborted(self) -> bool: ...
    def agree(self, flags: int = ..., timeout: float | None = None) -> tuple[int, bool]: ...
    @property
    def lost_ranks(self) -> list[int]: ...
    def shrink(self, timeout: float | None = None) -> Context: ...
    def alloc(self, bytes: int) -> Allocation: ...
    def allreduce(
        self,
        input: _Memory,
        out: _Memory | None = None,
        *,
        op: int | None = None,
        timeout: float | None = None,
        tag: int | None = None,
        algorithm: str | None = None,
        max_segment_bytes: int | None = None,
        groups: Sequence[int] | None = None,
        dims: Sequence[int] | None = None,
        base: int | None = None,
        dtype: str | None = None,
    ) -> None: ...
    def reduce(
        self,
        input: _Memory,
        out: _Memory | None = None,
        *,
        op: int | None = None,
        root: int = 0,
        **options: Unpack[_CallOptions],
    ) -> None: ...
    def reduce_scatter(
        self,
        input: _Memory,
        out: _Memory | None = None,
        *,
        op: int | None = None,
        counts: Sequence[int] | None = None,
        **options: Unpack[_CallOptions],
    ) -> None: ...
    def scan(
        self, input: _Memory, out: _Memory | None = None, *, op: int | None = None, **options: Unpack[_CallOptions]
    ) -> None: ...
    def exscan(
        self, input: _Memory, out: _Memory | None = None, *, op: int | None = None, **options: Unpack[_CallOptions]
    ) -> None: ...
    def broadcast(self, buffer: _Memory, *, root: int = 0, **options: Unpack[_CallOptions]) -> None: ...
    def allgather(self, input: _Memory | None, out: _Memory, **options: Unpack[_CallOptions]) -> None: ...
    def allgatherv(
        self, input: _Memory | None, out: _Memory, counts: Sequence[int], **options: Unpack[_CallOptions]
    ) -> None: ...
    def gather(
        self, input: _Memory | None, out: _Memory | None = None, *, root: int = 0, **options: Unpack[_CallOptions]
    ) -> None: ...
    def gatherv(
        self,
        input: _Memory | None,
        out: _Memory | None = None,
        counts: Sequence[int] | None = None,
        *,
        root: int = 0,
        **options: Unpack[_CallOptions],
    ) -> None: ...
    def scatter(
        self, input: _Memory | None, out: _Memory | None = None, *, root: int = 0, **options: Unpack[_CallOptions]
    ) -> None: ...
    def scatterv(
        self,
        input: _Memory | None,
        out: _Memory | None = None,
        counts: Sequence[int] | None = None,
        *,
        root: int = 0,
        **options: Unpack[_CallOptions],
    ) -> None: ...
    def alltoall(self, input: _Memory, out: _Memory | None = None, **options: Unpack[_CallOptions]) -> None: ...
    def alltoallv(
        self,
        input: _Memory,
        out: _Memory,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        **options: Unpack[_CallOptions],
    ) -> None: ...
    def pairwise_exchange(
        self, input: _Memory, out: _Memory, destinations: int, **options: Unpack[_CallOptions]
    ) -> None: ...
    def barrier(self, **options: Unpack[_CallOptions]) -> None: ...
    def prepare(
        self,
        collective: str,
        input: _Memory | None = None,
        out: _Memory | None = None,
        *,
        op: int | None = None,
        root: int = 0,
        counts: Sequence[int] | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        destinations: int = 0,
        **options: Unpack[_CallOptions],
    ) -> Request: ...
    def start(
        self,
        collective: str,
        input: _Memory | None = None,
        out: _Memory | None = None,
        *,
        op: int | None = None,
        root: int = 0,
        counts: Sequence[int] | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        destinations: int = 0,
        **options: Unpack[_CallOptions],
    ) -> Request: ...
    def unbound_buffer(self, memory: _Memory) -> UnboundBuffer: ...
    def pair(self, rank: int) -> Pair: ...

@final
class Allocation:
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Request:
    def start(self) -> None: ...
    def wait(self, *, timeout: float | None = None) -> None: ...
    def test(self) -> bool: ...
    @property
    def is_active(self) -> bool: ...
    @property
    def _attached(self) -> Any: ...
    def __await__(self) -> Generator[Any, None, None]: ...

@final
class Queue:
    def __new__(cls) -> Self: ...
    def attach(self, request: Request, value: Any = None) -> None: ...
    def wait(self, *, timeout: float | None = None) -> tuple[Any, Error | None]: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[Any, Error | None]: ...

@final
class UnboundBuffer:
    def __len__(self) -> int: ...
    def send(self, to: int, slot: int, *, offset: int = 0, bytes: int | None = None) -> None: ...
    def recv(self, source: int | Sequence[int], slot: int, *, offset: int = 0, bytes: int | None = None) -> None: ...
    def wait_send(self, *, timeout: float | None = None) -> int: ...
    def wait_recv(self, *, timeout: float | None = None) -> tuple[int, int]: ...
    def abort_wait_send(self) -> None: ...
    def abort_wait_recv(self) -> None: ...
    @property
    def remote_key(self) -> str: ...
    def put(self, key: str, *, offset: int = 0, remote_offset: int = 0, bytes: int | None = None) -> None: ...
    def get(self, key: str, *, offset: int = 0, remote_offset: int = 0, bytes: int | None = None) -> None: ...

@final
class Pair:
    @property
    def rank(self) -> int: ...
    @property
    def address(self) -> bytes: ...
    def connect(self, address: bytes) -> None: ...
    @property
    def is_connected(self) -> bool: ...
    def set_sync(self, sync: bool, *, busy_poll: bool = False) -> None: ...
    def close(self) -> None: ...
    def send_buffer(self, slot: int, memory: _Memory) -> Buffer: ...
    def recv_buffer(self, slot: int, memory: _Memory) -> Buffer: ...

@final
class Buffer:
    def __len__(self) -> int: ...
    def send(self, *, offset: int = 0, bytes: int | None = None, remote_offset: int = 0) -> None: ...
    def wait_send(self, *, timeout: float | None = None) -> None: ...
    def wait_recv(self, *, timeout: float | None = None) -> tuple[int, int]: ...

def built_features() -> list[str]: ...
def library_version() -> str: ...
def launch_from_env(*, timeout: float | None = None) -> tuple[Store, int, int]: ...
def local_rank_from_env() -> tuple[int | None, int | None]: ...
def reduce_local(input: _Memory, inout: _Memory, *, op: int | None = None) -> None: ...
def remote_key_parse(key: str) -> tuple[int, int]: ...
def wait_all(requests: Sequence[Request], *, timeout: float | None = None) -> None: ...
def wait_any(requests: Sequence[Request], *, timeout: float | None = None) -> int | None: ...
