"""Completion queues, and `await`."""

import asyncio
import gc
import os
import select
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import TIMEOUT_S, run_ranks

import gloo_rs

N = 1000


def started(context, count, first=0):
    buffers = [np.full(N + n, context.rank + n, np.float32) for n in range(first, first + count)]
    return buffers, [context.start("allreduce", buffer, tag=n) for n, buffer in enumerate(buffers, first)]


def test_each_end_is_reported_once(size, shared_memory):
    def rank_main(context):
        queue = gloo_rs.Queue()
        buffers, requests = started(context, 6)
        for n, request in enumerate(requests):
            queue.attach(request, None if n == 0 else n)
        entries = list(queue)
        assert all(error is None for _, error in entries)
        values = [value for value, _ in entries]
        assert requests[0] in values
        assert sorted(value for value in values if value is not requests[0]) == [1, 2, 3, 4, 5]
        for n, buffer in enumerate(buffers):
            assert (buffer == n * size + size * (size - 1) / 2).all()
        assert not any(request.is_active for request in requests)
        with pytest.raises(gloo_rs.Timeout, match="there is no entry"):
            queue.wait(timeout=0)

    run_ranks(size, rank_main, shared_memory=shared_memory)


def test_messages_have_entries(shared_memory):
    def rank_main(context):
        queue, other = gloo_rs.Queue(), 1 - context.rank
        source, target = context.unbound_buffer(b"\x05" * 8), context.unbound_buffer(bytearray(16))
        queue.attach(source, "source")
        queue.attach(target)
        with pytest.raises(gloo_rs.InvalidOperation, match="is attached to a queue already"):
            queue.attach(source)
        for _ in range(3):
            target.recv(other, 1)
            source.send(other, 1)
            entries = {entry.kind: entry for entry in (queue.wait_entry(timeout=TIMEOUT_S) for _ in range(2))}
            sent, got = entries[gloo_rs.EntryKind.SEND], entries[gloo_rs.EntryKind.RECV]
            assert (sent.value, sent.error, sent.rank) == ("source", None, other)
            assert (got.error, got.rank, got.bytes) == (None, other, 8)
            assert got.value is target
        with pytest.raises(gloo_rs.InvalidOperation, match="attached"):
            target.wait_recv()
        # A request has the same entries, without a peer.
        request = context.start("barrier")
        queue.attach(request, "request")
        entry = queue.wait_entry(timeout=TIMEOUT_S)
        assert (entry.value, entry.kind, entry.rank, entry.bytes) == ("request", gloo_rs.EntryKind.REQUEST, None, 0)
        # A message that does not come ends with its context.
        target.recv(other, 2)
        context.close()
        value, error = queue.wait(timeout=TIMEOUT_S)
        # Either context may be the first that is closed.
        assert value is target and isinstance(error, (gloo_rs.Closed, gloo_rs.ConnectionLost))

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_a_buffer_that_is_dropped_leaves_the_queue():
    class Value:
        pass

    collecting = threading.Lock()

    def rank_main(context):
        queue, value = gloo_rs.Queue(), Value()
        buffer = context.unbound_buffer(bytearray(8))
        value.buffer = buffer
        queue.attach(buffer, value)
        gone = weakref.ref(buffer), weakref.ref(value)
        buffer.recv(1 - context.rank, 1)
        # What refers to the buffer does not keep it.
        del buffer, value
        # A thread that begins while another one collects collects nothing.
        with collecting:
            gc.collect()
        assert [ref() for ref in gone] == [None, None]
        with pytest.raises(gloo_rs.Timeout, match="there is no entry"):
            queue.wait(timeout=0)

    run_ranks(2, rank_main)


def test_a_request_that_is_started_again_has_an_entry_again():
    def rank_main(context):
        queue, buffer = gloo_rs.Queue(), np.zeros(N)
        request = context.prepare("allreduce", buffer)
        queue.attach(request, "value")
        assert list(queue) == [] and not request.is_active
        for n in range(5):
            buffer[:] = n
            request.start()
            assert request.is_active
            with pytest.raises(gloo_rs.InvalidOperation, match="take its entry"):
                request.wait()
            assert queue.wait(timeout=TIMEOUT_S) == ("value", None)
            assert (buffer == 2 * n).all()
        with pytest.raises(gloo_rs.InvalidOperation, match="is attached to a queue already"):
            gloo_rs.Queue().attach(request)
        queue.close()
        request.start()
        request.wait()
        with pytest.raises(gloo_rs.Closed):
            queue.wait()

    run_ranks(2, rank_main)


def test_threads_take_entries_until_the_queue_is_closed():
    def rank_main(context):
        queue, taken, all_taken = gloo_rs.Queue(), [], threading.Event()

        def take():
            with pytest.raises(gloo_rs.Closed):
                while True:
                    taken.append(queue.wait()[0])
                    if len(taken) == 60:
                        all_taken.set()

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        buffers = []
        for round in range(10):
            buffers, requests = started(context, 6, first=6 * round)
            for n, request in enumerate(requests):
                queue.attach(request, 6 * round + n)
        assert all_taken.wait(TIMEOUT_S)
        queue.close()
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert sorted(taken) == list(range(60))
        assert (buffers[-1] == 2 * 59 + 1).all()

    run_ranks(2, rank_main)


def test_a_descriptor_becomes_readable(shared_memory):
    def rank_main(context):
        queue = gloo_rs.Queue()
        fd = queue.fileno()
        assert fd == queue.fileno() and not os.get_inheritable(fd)
        buffer = np.full(N, context.rank + 1.0)
        queue.attach(context.start("allreduce", buffer))
        assert select.select([fd], [], [], TIMEOUT_S)[0] == [fd]
        request, error = queue.wait()
        assert error is None and (buffer == 3).all() and isinstance(request, gloo_rs.Request)

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_the_error_of_an_entry(shared_memory):
    def rank_main(context):
        if context.rank == 1:
            with pytest.raises(gloo_rs.ConnectionLost):
                context.barrier(tag=5)
            return
        queue = gloo_rs.Queue()
        queue.attach(context.start("allreduce", np.ones(N), timeout=0.2), "late")
        value, error = queue.wait()
        assert value == "late" and isinstance(error, gloo_rs.Timeout)
        assert error.rank == 1 and error.operation == "allreduce" and error.bytes_wanted > 0

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_buffers_live_until_the_entry_is_taken():
    late = threading.Event()

    def rank_main(context):
        if context.rank == 1:
            assert late.wait(TIMEOUT_S)
        queue = gloo_rs.Queue()
        buffer = np.full(1 << 16, 1.0)
        alive = weakref.ref(buffer)
        request = context.start("allreduce", buffer)
        queue.attach(request)
        del buffer, request
        gc.collect()
        assert alive() is not None
        late.set()
        assert queue.wait()[1] is None
        gc.collect()
        assert alive() is None

    run_ranks(2, rank_main)


def test_a_queue_that_is_dropped_waits_for_its_requests():
    def rank_main(context):
        buffer = np.full(1 << 16, 1.0)
        if context.rank == 1:
            time.sleep(0.2)
        queue = gloo_rs.Queue()
        queue.attach(context.start("allreduce", buffer))
        del queue
        gc.collect()
        assert (buffer == 2).all() and context.broken is None

    run_ranks(2, rank_main)


def test_a_cycle_with_the_value_is_collected():
    class Work:
        pass

    def rank_main(context):
        queue, work = gloo_rs.Queue(), Work()
        work.request = context.start("allreduce", np.ones(N))
        queue.attach(work.request, work)
        assert queue.wait() == (work, None)
        alive = weakref.ref(work)
        del work
        gc.collect()
        assert alive() is None

    run_ranks(1, rank_main)


def test_ctrl_c_ends_a_wait_and_closes_nothing():
    with gloo_rs.Context(gloo_rs.Store.hash("interrupted queue"), 0, 1) as context:
        queue = gloo_rs.Queue()
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            queue.wait(timeout=TIMEOUT_S)
        assert time.monotonic() - begin < TIMEOUT_S / 2
        timer.join()
        queue.attach(context.start("allreduce", np.ones(N)), 1)
        assert queue.wait() == (1, None) and context.broken is None


def test_a_child_by_fork_cannot_use_it():
    with gloo_rs.Context(gloo_rs.Store.hash("forked queue"), 0, 1) as context:
        queue = gloo_rs.Queue()
        queue.fileno()
        request = context.prepare("allreduce", np.ones(N))
        queue.attach(request)
        child = os.fork()
        if child == 0:
            try:
                queue.wait(timeout=0)
            except gloo_rs.InvalidOperation:
                del queue, request
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        request.start()
        assert queue.wait()[1] is None


async def gathered(context):
    buffers, requests = started(context, 6)
    await asyncio.gather(*map(awaiting, requests))
    for n, buffer in enumerate(buffers):
        assert (buffer == 2 * n + 1).all()


async def awaiting(request):
    await request


def test_requests_are_awaited(shared_memory):
    def rank_main(context):
        asyncio.run(gathered(context))
        asyncio.run(gathered(context))

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_the_loop_goes_on_while_a_request_is_awaited():
    late = threading.Event()

    def rank_main(context):
        async def main():
            if context.rank == 1:
                assert late.wait(TIMEOUT_S)
            buffer = np.ones(N)
            request = context.prepare("allreduce", buffer)
            request.start()
            if context.rank == 0:
                asyncio.get_running_loop().call_later(0.05, late.set)
            await request
            assert (buffer == 2).all()
            for _ in range(3):
                request.start()
                # One that gives up leaves it to others.
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(awaiting(request), 0)
                await asyncio.gather(awaiting(request), awaiting(request))
                assert not request.is_active
            # The end is known.
            await request
            with pytest.raises(gloo_rs.InvalidOperation, match="inactive"):
                await context.prepare("allreduce", buffer)

        asyncio.run(main())

    run_ranks(2, rank_main)


def test_what_is_awaited_raises(shared_memory):
    def rank_main(context):
        async def main():
            with pytest.raises(gloo_rs.Timeout) as raised:
                await context.start("allreduce", np.ones(N), timeout=0.2)
            assert raised.value.rank == 1

        if context.rank == 0:
            asyncio.run(main())
        else:
            with pytest.raises(gloo_rs.ConnectionLost):
                context.barrier(tag=5)

    run_ranks(2, rank_main, shared_memory=shared_memory)
