"""Ranks as threads of the test's process."""

from __future__ import annotations

import itertools
import threading

import pytest

import gloo_rs

# A rank that has not ended by then has hung: no operation of the tests waits that long.
JOIN_S = 60
TIMEOUT_S = 20.0
_names = itertools.count()


def run_ranks(size, function, *, shared_memory=None, **options):
    """Calls `function(context)` on a thread for each of `size` ranks. Returns what they return, in the order of ranks."""
    store = gloo_rs.Store.hash(f"test {next(_names)}")
    results, failures = [None] * size, [None] * size

    def rank_main(rank):
        try:
            device = gloo_rs.Device(shared_memory=shared_memory)
            with gloo_rs.Context(store, rank, size, device=device, **{"timeout": TIMEOUT_S, **options}) as context:
                results[rank] = function(context)
                # Nobody closes before all are done.
                if context.broken is None:
                    context.barrier(tag=1 << 40)
        except BaseException as failure:  # noqa: BLE001 - raised again below
            failures[rank] = failure

    threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive(), "a rank hangs"
    for failure in failures:
        # What began it, before the failures of the ranks that it was for.
        if failure is not None and not isinstance(failure, gloo_rs.ConnectionLost):
            raise failure
    for failure in failures:
        if failure is not None:
            raise failure
    return results


@pytest.fixture(params=[1, 2, 3, 4])
def size(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["shared memory", "tcp"])
def shared_memory(request):
    return request.param
