"""Groups of starts."""

import asyncio

import numpy as np
import pytest
from conftest import TIMEOUT_S, run_ranks

import gloo_rs

N = 1000


def test_starts_begin_together_in_whatever_order(size, shared_memory):
    def rank_main(context):
        sums = [np.full(N + n, context.rank + n, np.float32) for n in range(6)]
        order = [(n + context.rank) % 6 for n in range(6)]
        with context.group() as group:
            requests = [context.start("allreduce", sums[n], tag=n, group=group) for n in order]
            with pytest.raises(gloo_rs.InvalidOperation, match="in a group: end the group first"):
                requests[0].wait()
        gloo_rs.wait_all(requests, timeout=TIMEOUT_S)
        for n, values in enumerate(sums):
            assert (values == n * size + size * (size - 1) / 2).all()
        with context.group() as group:
            for request in reversed(requests):
                request.start(group=group)
        gloo_rs.wait_all(requests, timeout=TIMEOUT_S)

    run_ranks(size, rank_main, shared_memory=shared_memory)


def test_a_group_joins_allreduces_when_told_to():
    def rank_main(context):
        sums = [np.full(N + n, context.rank + n, np.float32) for n in range(6)]
        with context.group() as group:
            group.fuse(1 << 20)
            requests = [context.start("allreduce", values, algorithm="recursive_doubling", group=group) for values in sums]
        gloo_rs.wait_all(requests, timeout=TIMEOUT_S)
        for n, values in enumerate(sums):
            assert (values == 2 * n + 1).all()
        assert [(call["algorithm"], call["calls"]) for call in context.counters()["calls"]] == [("recursive_doubling", 1)]
        with pytest.raises(gloo_rs.InvalidOperation, match="the group has ended"):
            group.fuse(0)

    run_ranks(2, rank_main, shared_memory=False)


def test_each_rank_sends_to_every_other_one(shared_memory):
    def rank_main(context):
        sent, received = np.full((3, 100_000), context.rank, np.uint8), np.full((3, 100_000), 9, np.uint8)
        source, sink = context.unbound_buffer(sent), context.unbound_buffer(received)
        peers = [rank for rank in range(3) if rank != context.rank]
        with context.group() as group:
            for at, rank in enumerate(peers):
                place = {"offset": rank * 100_000, "bytes": 100_000}
                source.send(rank, 4, group=group, **place)
                sink.recv(rank if at == 0 else [rank], 4, group=group, **place)
        for _ in peers:
            source.wait_send(timeout=TIMEOUT_S)
        assert sorted(sink.wait_recv(timeout=TIMEOUT_S) for _ in peers) == [(rank, 100_000) for rank in peers]
        for rank in peers:
            assert (received[rank] == rank).all()

    run_ranks(3, rank_main, shared_memory=shared_memory)


def test_a_queue_reports_requests_that_a_group_starts():
    def rank_main(context):
        queue, values = gloo_rs.Queue(), [np.ones(N), np.ones(N)]
        with context.group() as group:
            requests = [context.start("allreduce", value, group=group) for value in values]
        gloo_rs.wait_all(requests)
        for n, request in enumerate(requests):
            queue.attach(request, n)
        for _ in range(3):
            with context.group() as group:
                for request in requests:
                    request.start(group=group)
            assert sorted(list(queue)) == [(0, None), (1, None)]
        with pytest.raises(ZeroDivisionError):
            with context.group() as group:
                requests[0].start(group=group)
                1 / 0
        assert list(queue) == [] and not requests[0].is_active

    run_ranks(2, rank_main)


def test_a_group_that_is_refused_begins_nothing():
    def rank_main(context):
        values = np.ones(N)
        group = context.group()
        request = context.start("allreduce", values, group=group)
        prepared = context.prepare("allreduce", np.ones(N))
        with pytest.raises(gloo_rs.InvalidOperation, match="a group takes requests of"):
            prepared.start(group=group)
        with pytest.raises(gloo_rs.InvalidOperation, match="a start of this group was refused"):
            group.end()
        assert not request.is_active and (values == 1).all()
        for call in (group.end, lambda: request.start(group=group)):
            with pytest.raises(gloo_rs.InvalidOperation, match="the group has ended"):
                call()
        with context.group() as group:
            request.start(group=group)
            group.cancel()
        with context.group() as group:
            request.start(group=group)
            group.end()
        request.wait()
        assert (values == 2).all()
        # A request that nobody has kept.
        group = context.group()
        context.start("allreduce", values, group=group)
        with pytest.raises(gloo_rs.InvalidOperation, match="a request of this group was freed"):
            group.end()
        del group
        context.barrier()

    run_ranks(2, rank_main)


def test_requests_of_a_group_are_awaited():
    async def sum_of(context):
        values = [np.ones(N), np.ones(N)]
        with context.group() as group:
            requests = [context.start("allreduce", value, group=group) for value in values]
        for request in requests:
            await request
        assert all((value == 2).all() for value in values)

    run_ranks(2, lambda context: asyncio.run(sum_of(context)))
