"""torch's stores as stores of the library."""

from __future__ import annotations

import time
import uuid

import torch.distributed as dist

# How long to wait before a store is asked again, at first and at most.
_FIRST_PAUSE_S = 0.0002
_LAST_PAUSE_S = 0.02


class TorchStore:
    """A store of torch with the methods that `gloo_rs.Store.custom` needs.

    It asks again and again where it has to wait: a wait of torch's TCPStore would keep other threads from the store meanwhile.
    """

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        #: What the store has raised last.
        self.error: BaseException | None = None

    def set(self, key: str, value: bytes) -> None:
        self._try(self._store.set, key, value)

    def get(self, key: str, timeout: float) -> bytes:
        self.wait([key], timeout)
        return self._try(self._store.get, key)

    def wait(self, keys: list[str], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        pause = _FIRST_PAUSE_S
        while not self._try(self._store.check, keys):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the store has not all of {', '.join(keys)}")
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_PAUSE_S)

    def add(self, key: str, amount: int) -> int:
        return self._try(self._store.add, key, amount)

    def delete(self, key: str) -> bool:
        return self._try(self._store.delete_key, key)

    def meet(self, rank: int, size: int, timeout: float) -> str:
        """The name of a new session of these ranks, under which no earlier session has set keys.

        torchrun's restarted ranks get the store of those before them, whose keys are still there. So each rank draws a name. Rank 0 answers
        each name that it finds with its own, which is the session's, until all have found an answer to theirs.
        """
        own = uuid.uuid4().hex
        if rank != 0:
            self.set(f"join/{rank}", own.encode())
            session = self.get(f"answer/{own}", timeout).decode()
            self.set(f"come/{session}/{rank}", b"1")
            return session
        deadline = time.monotonic() + timeout
        pause = _FIRST_PAUSE_S
        answered: dict[int, bytes] = {}
        missing = list(range(1, size))
        while missing := [other for other in missing if not self._try(self._store.check, [f"come/{own}/{other}"])]:
            for other in missing:
                if self._try(self._store.check, [f"join/{other}"]):
                    name = self._try(self._store.get, f"join/{other}")
                    if answered.get(other) != name:
                        self.set(f"answer/{name.decode()}", own.encode())
                        answered[other] = name
            if time.monotonic() > deadline:
                raise TimeoutError(f"ranks that have not arrived: {', '.join(map(str, missing))}")
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_S)
        return own

    def _try(self, call, *arguments):
        try:
            return call(*arguments)
        except BaseException as error:
            self.error = error
            raise
