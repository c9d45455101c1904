#!/usr/bin/python3
"""What goes wrong between ranks is an exception that names the rank: late ranks, aborts, killed ranks, ranks that do not come."""
import datetime
import os
import signal
import threading
import time
import unittest

import torch
import torch.distributed as dist

from ranks import group_of, raises, run, same


def seconds(number):
    return datetime.timedelta(seconds=number)


def wait_for(store, key):
    # Longer than the test may take.
    store.wait([key], seconds(300))


def late_rank(rank, size, store):
    """Rank 1 makes no call until the others' timeouts have expired."""
    group = group_of(rank, size, store)
    tensor = torch.ones(4)
    if rank == 1:
        wait_for(store, "given up")
        # The group has ended for all of its ranks, also for calls that find no rank that is missing.
        raises(lambda: dist.all_reduce(tensor), "allreduce on rank 1 of 2", "rank 0")
        return
    # A receive's timeout leaves the message on its way, and the group as it is.
    work = dist.irecv(received := torch.zeros(4), 1)
    raises(lambda: work.wait(seconds(0.3)), "recv from rank 1 on rank 0 of 2", "timed out after 300ms")
    assert not work.is_completed()
    raises(lambda: group.monitored_barrier(seconds(0.3)), "monitored_barrier on rank 0 of 2", "rank 1 did not come")
    options = dist.AllreduceOptions()
    options.timeout = seconds(0.5)
    began = time.monotonic()
    work = group.allreduce([tensor], options)
    # The wait's own timeout, which is before the call's.
    raises(lambda: work.wait(seconds(0.1)), "allreduce on rank 0 of 2 has not ended after 100 ms")
    raises(work.wait, "allreduce on rank 0 of 2", "timed out after 500ms", "rank 1 at ")
    # Before the group's own timeout, of a minute.
    assert time.monotonic() - began < 50
    assert work.is_completed() and "rank 1 at " in str(work.exception()), work.exception()
    raises(work.get_future().wait, "rank 1 at ")
    raises(lambda: dist.all_reduce(tensor), "rank 1")
    store.set("given up", "")


def aborts(rank, size, store):
    group_of(rank, size, store)
    # A receive is aborted alone, before and during a wait.
    for waits in (False, True):
        work = dist.irecv(torch.zeros(4), 1 - rank, tag=5)
        if waits:
            errors = []
            waiter = threading.Thread(target=lambda: errors.append(raises(work.wait, f"rank {1 - rank}")))
            waiter.start()
            time.sleep(0.1)
            work.abort()
            waiter.join()
            assert errors
        else:
            work.abort()
        assert work.is_completed() and work.exception() is not None
        raises(work.wait, f"recv from rank {1 - rank} on rank {rank} of 2")
    dist.all_reduce(tensor := torch.ones(2))
    same(tensor, torch.full((2,), 2.0), "after aborted receives")

    # A collective is aborted with its group, on all ranks; other groups go on.
    other = dist.new_group(backend="gloo_rs")
    for aborts_group in (False, True):
        pair = dist.new_group(backend="gloo_rs")
        if rank == 1:
            # Never comes to the first; waits in the second, and learns of the abort.
            if aborts_group:
                raises(lambda: dist.all_reduce(torch.ones(8), group=pair), "allreduce on rank 1 of 2", "rank 0")
        else:
            work = dist.barrier(pair, async_op=True) if aborts_group else dist.all_reduce(torch.ones(8), group=pair, async_op=True)
            queued = [dist.all_reduce(torch.ones(8), group=pair, async_op=True) for _ in range(5)]
            time.sleep(0.1)
            pair.abort() if aborts_group else work.abort()
            for one in [work, *queued]:
                raises(one.wait, "on rank 0 of 2", "closed")
        dist.barrier(other)


def killed_rank(rank, size, store):
    group_of(rank, size, store)
    dist.all_reduce(torch.ones(4))
    receive = dist.irecv(torch.zeros(4), 2) if rank != 2 else None
    store.add("ready", 1)
    if rank == 2:
        while store.add("ready", 0) < size:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    # Before the group's timeout, of a minute.
    raises(lambda: dist.all_reduce(torch.ones(1 << 20)), f"allreduce on rank {rank} of 3", "rank 2")
    raises(receive.wait, f"recv from rank 2 on rank {rank} of 3")
    assert time.monotonic() - began < 50


def missing_rank(rank, size, store):
    """Rank 2 does not come."""
    if rank == 2:
        return
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    from gloo_rs_torch import ProcessGroupGlooRs

    raises(lambda: ProcessGroupGlooRs(dist.PrefixStore("missing", store), rank, size, seconds(1)), f"connecting on rank {rank} of 3", "have not arrived: 2")


def different_calls(rank, size, store):
    group_of(rank, size, store)
    raises(lambda: dist.all_reduce(torch.ones(4 + rank)), f"on rank {rank} of 2", "allreduce")


class Failures(unittest.TestCase):
    def test_a_late_rank_is_named_at_the_timeout(self):
        run(2, late_rank)

    def test_aborts_end_what_waits(self):
        run(2, aborts)

    def test_a_killed_rank_is_named(self):
        run(3, killed_rank, killed=[2])

    def test_a_rank_that_does_not_come_is_named(self):
        run(3, missing_rank)

    def test_ranks_that_disagree_learn_it(self):
        run(2, different_calls)


if __name__ == "__main__":
    unittest.main()
