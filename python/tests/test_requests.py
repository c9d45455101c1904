"""Persistent requests."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import TIMEOUT_S, run_ranks

import gloo_rs
from gloo_rs import Op

N = 12


def test_every_collective_as_a_request(size):
    def rank_main(context):
        rank = context.rank
        mine, out, whole = np.zeros(N), np.zeros(N), np.zeros((size, N))
        counts = [N] * size
        requests = {
            "allreduce": context.prepare("allreduce", mine, out, op=Op.MAX),
            "reduce": context.prepare("reduce", mine, out, root=size - 1),
            "reduce_scatter": context.prepare("reduce_scatter", whole, out),
            "broadcast": context.prepare("broadcast", out, root=0),
            "allgather": context.prepare("allgather", mine, whole),
            "allgatherv": context.prepare("allgatherv", mine, whole, counts=counts),
            "gather": context.prepare("gather", mine, whole),
            "gatherv": context.prepare("gatherv", mine, whole, counts=counts),
            "scatter": context.prepare("scatter", whole, out),
            "scatterv": context.prepare("scatterv", whole, out, counts=counts),
            "alltoall": context.prepare("alltoall", whole, whole.copy()),
            "alltoallv": context.prepare("alltoallv", whole, whole.copy(), send_counts=counts, recv_counts=counts),
            "barrier": context.prepare("barrier"),
            "scan": context.prepare("scan", mine, out),
            "exscan": context.prepare("exscan", mine, out),
        }
        everything = np.arange(size)[:, None] + np.zeros(N)
        expected = {
            "allreduce": (out, everything.max(axis=0)),
            "reduce": (out, everything.sum(axis=0) if rank == size - 1 else None),
            "reduce_scatter": (out, size * everything[rank]),
            "allgather": (whole, everything),
            "allgatherv": (whole, everything),
            "gather": (whole, everything if rank == 0 else None),
            "gatherv": (whole, everything if rank == 0 else None),
            "scatter": (out, everything[rank]),
            "scatterv": (out, everything[rank]),
            "scan": (out, everything[: rank + 1].sum(axis=0)),
            "exscan": (out, everything[:rank].sum(axis=0) if rank else None),
        }
        for _ in range(3):
            for name, request in requests.items():
                mine[:], whole[:], out[:] = rank, everything, -1
                request.start()
                request.wait()
                result, wanted = expected.get(name, (None, None))
                if wanted is not None:
                    np.testing.assert_array_equal(result, wanted, err_msg=name)

    run_ranks(size, rank_main)


def test_tests_until_it_is_done(shared_memory):
    def rank_main(context):
        buffer = np.full(N, context.rank + 1.0)
        request = context.prepare("allreduce", buffer)
        if context.rank == 1:
            time.sleep(0.05)
        request.start()
        deadline = time.monotonic() + TIMEOUT_S
        tests = 0
        while not request.test():
            tests += 1
            assert time.monotonic() < deadline
        assert (buffer == 3).all()
        # Inactive again.
        with pytest.raises(gloo_rs.InvalidOperation):
            request.test()
        return tests

    tests = run_ranks(2, rank_main, shared_memory=shared_memory)
    assert tests[0] > 0


def test_states():
    def rank_main(context):
        request = context.prepare("allreduce", np.ones(1))
        with pytest.raises(gloo_rs.InvalidOperation):
            request.wait()
        request.start()
        with pytest.raises(gloo_rs.InvalidOperation):
            request.start()
        request.wait()
        for make in [context.prepare, context.start]:
            with pytest.raises(ValueError, match=f"{make.__name__}: there is no collective \"allreduces\""):
                make("allreduces", np.ones(1))

    run_ranks(1, rank_main)


def test_a_request_keeps_its_buffer():
    def rank_main(context):
        buffer = np.full(1 << 16, 1.0)
        alive = weakref.ref(buffer)
        request = context.prepare("allreduce", buffer)
        del buffer
        gc.collect()
        assert alive() is not None
        request.start()
        request.wait()
        assert (alive() == 2).all()
        del request
        gc.collect()
        assert alive() is None

    run_ranks(2, rank_main)


def test_an_active_request_that_is_dropped_is_waited_for():
    def rank_main(context):
        buffer = np.full(1 << 16, 1.0)
        request = context.prepare("allreduce", buffer)
        if context.rank == 1:
            time.sleep(0.3)
        request.start()
        del request
        gc.collect()
        assert (buffer == 2).all()
        assert context.broken is None

    run_ranks(2, rank_main)


def test_started_calls_of_one_tag_run_beside_each_other(shared_memory):
    def rank_main(context):
        buffers = [np.full(1000 + n, context.rank + n, np.float32) for n in range(6)]
        requests = [context.start("allreduce", buffer) for buffer in buffers]
        gloo_rs.wait_all(requests[3:])
        ended = set()
        for _ in range(3):
            ended.add(gloo_rs.wait_any(requests))
        assert ended == {0, 1, 2}
        # None is active any more.
        assert gloo_rs.wait_any(requests) is None
        gloo_rs.wait_all(requests)
        for n, buffer in enumerate(buffers):
            assert (buffer == 2 * n + 1).all()

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_started_scatterv_takes_counts():
    def rank_main(context):
        out = np.zeros(context.rank + 1)
        request = context.start("scatterv", np.arange(3.0), out, counts=[1, 2])
        request.wait()
        assert list(out) == [[0], [1, 2]][context.rank]

    run_ranks(2, rank_main)


def test_waits_for_a_time_fail_nothing(shared_memory):
    late = threading.Event()

    def rank_main(context):
        buffer = np.full(N, context.rank + 1.0)
        if context.rank == 1:
            assert late.wait(TIMEOUT_S)
        request = context.start("allreduce", buffer)
        if context.rank == 0:
            for wait in [
                lambda: request.wait(timeout=0.01),
                lambda: gloo_rs.wait_any([request], timeout=0.05),
                lambda: gloo_rs.wait_all([request], timeout=0.05),
            ]:
                with pytest.raises(gloo_rs.Timeout):
                    wait()
            assert not request.test() and context.broken is None
            late.set()
        gloo_rs.wait_all([request], timeout=TIMEOUT_S)
        assert (buffer == 3).all()

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_wait_all_raises_what_a_call_has_failed_by(shared_memory):
    def rank_main(context):
        if context.rank == 1:
            with pytest.raises(gloo_rs.ConnectionLost):
                context.barrier(tag=5)
            return
        requests = [context.start("allreduce", np.ones(N), tag=tag, timeout=0.1 + 60 * tag) for tag in range(2)]
        with pytest.raises(gloo_rs.Timeout, match="waiting.*rank 1") as raised:
            gloo_rs.wait_all(requests)
        assert raised.value.operation and context.broken is not None
        with pytest.raises(gloo_rs.InvalidOperation):
            requests[0].wait()

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_a_request_given_twice_is_refused():
    def rank_main(context):
        request = context.start("barrier")
        for wait in [gloo_rs.wait_any, gloo_rs.wait_all]:
            with pytest.raises(gloo_rs.InvalidOperation):
                wait([request, request])
        request.wait()

    run_ranks(1, rank_main)


def test_a_thread_is_lent():
    def rank_main(context):
        began = time.monotonic()
        context.progress(timeout=0)
        context.progress(timeout=0.05)
        assert time.monotonic() - began >= 0.05
        values = np.ones(N)
        request = context.start("allreduce", values)
        context.progress(timeout=0.05)
        request.wait()
        assert (values == 2).all()
        ended = []

        def lend():
            with pytest.raises(gloo_rs.Closed):
                while True:
                    context.progress(timeout=TIMEOUT_S)
            ended.append(True)

        thread = threading.Thread(target=lend)
        thread.start()
        context.barrier()
        context.close()
        thread.join(TIMEOUT_S)
        assert ended

    run_ranks(2, rank_main)
