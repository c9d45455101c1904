"""What goes wrong between ranks is an exception that names the rank: late ranks, aborts, killed ranks, ranks that do not come."""

import datetime
import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from ranks import group_of, raises, run, same

import gloo_rs
import gloo_rs.torch


def seconds(number):
    return datetime.timedelta(seconds=number)


def late_rank(rank, size, store):
    """Rank 1 makes no call until the others' timeouts have expired."""
    group = group_of(rank, size, store)
    tensor = torch.ones(4)
    if rank == 1:
        # Longer than the test may take.
        store.wait(["given up"], seconds(300))
        # The group has ended for all of its ranks, also for calls that find no rank that is missing.
        raises(lambda: dist.all_reduce(tensor), "all_reduce on rank 1 of 2", "rank 0")
        return
    # A receive's timeout leaves the message on its way, and the group as it is.
    work = dist.irecv(torch.zeros(4), 1)
    raises(lambda: work.wait(seconds(0.3)), "Timed out waiting 300ms", "recv from rank 1", "on rank 0 of 2")
    assert not work.is_completed()
    raises(lambda: group.monitored_barrier(seconds(0.3)), "Rank 1 failed to pass monitoredBarrier in 300 ms")
    options = torch._C._distributed_c10d.AllreduceOptions()
    options.timeout = seconds(0.5)
    began = time.monotonic()
    work = group.allreduce([tensor], options)
    # The wait's own timeout, which is before the call's.
    raises(lambda: work.wait(seconds(0.1)), "Timed out waiting", "for all_reduce operation")
    assert not work.is_completed()
    raises(work.wait, "Timed out waiting 500ms for all_reduce", "timed out after 500ms", "rank 1 at ")
    # Before the group's own timeout, of a minute.
    assert time.monotonic() - began < 50
    assert work.is_completed()
    assert "rank 1 at " in str(work.exception())
    assert isinstance(work.exception().__cause__, gloo_rs.Timeout)
    assert work.exception().__cause__.rank == 1
    raises(work.get_future().wait, "rank 1 at ")
    raises(lambda: dist.all_reduce(tensor), "rank 1")
    store.set("given up", "")


def failing_futures(rank, size, store):
    """Futures of calls that fail are complete with the error, for what is written in Python as in C++."""
    group = group_of(rank, size, store, seconds(1))
    if rank == 1:
        store.wait(["given up"], seconds(300))
        return
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2)]
    futures = [work.get_future() for work in works]
    both = torch.futures.collect_all(futures)
    chained = futures[0].then(lambda future: future.value())
    raises(both.wait, "all_reduce")
    raises(chained.wait, "all_reduce")
    for work, future in zip(works, futures):
        raises(future.wait, "all_reduce")
        assert work.is_completed()
        assert work.get_future_result().wait() != int(torch._C._distributed_c10d.WorkResult.SUCCESS)
    group.abort()
    store.set("given up", "")


def aborted(rank, size, store):
    group_of(rank, size, store)
    other = dist.new_group(backend="gloo_rs")
    pair = dist.new_group(backend="gloo_rs")
    if rank == 0:
        works = [dist.all_reduce(torch.ones(8), group=pair, async_op=True) for _ in range(5)]
        future = works[-1].get_future()
        pair.abort()
        for work in works:
            raises(work.wait, "on rank 0 of 2")
        raises(future.wait, "on rank 0 of 2")
        store.set("aborted", "")
    else:
        store.wait(["aborted"], seconds(300))
        raises(lambda: dist.all_reduce(torch.ones(8), group=pair), "all_reduce on rank 1 of 2", "rank 0")
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
    raises(lambda: dist.all_reduce(torch.ones(1 << 20)), f"all_reduce on rank {rank} of 3", "rank 2")
    raises(receive.wait, "recv from rank 2", f"on rank {rank} of 3")
    assert time.monotonic() - began < 50


def missing_rank(rank, size, store):
    """Rank 2 does not come."""
    if rank == 2:
        return
    missing = dist.PrefixStore("missing", store)
    raises(lambda: gloo_rs.torch.Backend(missing, rank, size, seconds(1)), f"connecting operation to complete on rank {rank} of 3", "2")


def different_calls(rank, size, store):
    group_of(rank, size, store)
    raises(lambda: dist.all_reduce(torch.ones(4 + rank)), f"on rank {rank} of 2", "all_reduce")


def a_callback_that_waits(rank, size, store):
    """Callbacks of futures may wait for other futures of the group."""
    group_of(rank, size, store)

    def again(future, depth):
        tensor = future.value()[0]
        if depth == 0:
            return tensor
        following = dist.all_reduce(tensor, async_op=True).get_future()
        return following.then(lambda future: again(future, depth - 1)).wait()

    first = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    same(first.then(lambda future: again(future, 3)).wait(), torch.full((2,), float(size**4)), "sums of sums")


def futures_share_threads(rank, size, store):
    """Threads wait for the group's futures, not one for each; and a callback may wait for a future that is complete later."""
    group_of(rank, size, store)
    other = 1 - rank
    received = [torch.zeros(2) for _ in range(40)]
    futures = [dist.irecv(tensor, other, tag=tag).get_future() for tag, tensor in enumerate(received)]
    last = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    first = futures[-1].then(lambda future: (future.value(), last.wait(), futures[0].wait()))
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("gloo_rs")]
    assert len(threads) <= 2, threads
    dist.barrier()
    # The first message comes last.
    for tag in reversed(range(len(received))):
        dist.send(torch.full((2,), float(tag)), other, tag=tag)
    same(first.wait()[1][0], torch.full((2,), 2.0), "a sum in a callback")
    for tag, future in enumerate(futures):
        same(future.wait()[0], torch.full((2,), float(tag)), f"message {tag}")
    work = dist.isend(torch.ones(2), other, tag=100)
    assert work.get_future() is work.get_future()
    dist.recv(torch.zeros(2), other, tag=100)
    work.get_future().wait()
    assert work.wait() and work.is_completed()


def late_messages(rank, size, store):
    """The future of a message that does not come ends at the group's timeout, and that of one that does not fit with what is wrong."""
    group_of(rank, size, store, seconds(1))
    if rank == 1:
        dist.send(torch.zeros(3), 0, tag=1)
        store.wait(["given up"], seconds(300))
        return
    short = dist.irecv(torch.zeros(4), 1, tag=1)
    raises(short.get_future().wait, "12 bytes", "16")
    late = dist.irecv(torch.zeros(4), 1, tag=2)
    future = late.get_future()
    raises(lambda: late.wait(seconds(0.1)), "Timed out waiting 100ms", "recv from rank 1")
    assert not late.is_completed()
    raises(future.wait, "Timed out waiting 1000ms", "recv from rank 1")
    raises(late.wait, "recv from rank 1")
    assert late.is_completed() and isinstance(late.exception().__cause__, gloo_rs.Timeout)
    store.set("given up", "")


def ends_with_works(rank, size, store):
    """A process may end while calls of its groups wait."""
    group_of(rank, size, store)
    if rank == 0:
        dist.all_reduce(torch.ones(2), async_op=True).get_future()
        dist.irecv(torch.ones(2), 1).get_future()
        store.set("started", "")
        time.sleep(0.2)
    else:
        store.wait(["started"], seconds(300))
    dist.distributed_c10d._abort_process_group()


@pytest.mark.parametrize(
    ("size", "function", "killed"),
    [
        (2, late_rank, ()),
        (2, failing_futures, ()),
        (2, aborted, ()),
        (3, killed_rank, (2,)),
        (3, missing_rank, ()),
        (2, different_calls, ()),
        (2, a_callback_that_waits, ()),
        (2, futures_share_threads, ()),
        (2, late_messages, ()),
        (2, ends_with_works, ()),
    ],
)
def test_failures(size, function, killed):
    run(size, function, killed=killed)
