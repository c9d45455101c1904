"""What exceptions say, and what state a failure leaves."""

import pickle
import threading
import time

import numpy as np
import pytest
from conftest import run_ranks

import gloo_rs


def test_a_timeout_names_rank_and_operation(shared_memory):
    def rank_main(context):
        if context.rank == 0:
            with pytest.raises(gloo_rs.Timeout, match="rank 1") as caught:
                context.allreduce(np.ones(4), timeout=0.1)
            error = caught.value
            assert (error.code, error.rank, error.operation) == (gloo_rs.Status.TIMEOUT, 1, "allreduce")
            assert str(error) == error.message
            broken = context.broken
            assert isinstance(broken, gloo_rs.Timeout) and broken.rank == 1
            with pytest.raises(gloo_rs.Error):
                context.barrier()
        else:
            time.sleep(0.3)
            with pytest.raises(gloo_rs.Error):
                context.allreduce(np.ones(4))

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_different_calls_are_a_mismatch():
    def rank_main(context):
        with pytest.raises(gloo_rs.Mismatch) as caught:
            context.allreduce(np.ones(4 + context.rank))
        assert caught.value.rank == 1 - context.rank or caught.value.rank == context.rank

    run_ranks(2, rank_main)


def test_checked_calls_leave_the_context_usable():
    def rank_main(context):
        with pytest.raises(gloo_rs.Mismatch, match="rank 1"):
            context.broadcast(np.ones(4), root=context.rank)
        assert context.broken is None
        context.barrier()

    run_ranks(2, rank_main, check_calls=True)


def test_close_ends_a_wait_of_another_thread():
    def rank_main(context):
        if context.rank == 0:
            threading.Timer(0.1, context.close).start()
            with pytest.raises(gloo_rs.Closed):
                context.allreduce(np.ones(1))
            assert isinstance(context.broken, gloo_rs.Closed)
        else:
            with pytest.raises(gloo_rs.Error) as caught:
                context.broadcast(np.ones(1), root=0)
            assert caught.value.rank == 0

    run_ranks(2, rank_main)


def test_wrong_numbers():
    def rank_main(context):
        values = np.ones(2)
        for call, error in [
            (lambda: context.broadcast(values, root=5), gloo_rs.InvalidArgument),
            (lambda: context.allreduce(values, op=99), gloo_rs.InvalidArgument),
            (lambda: context.allreduce(values, op=gloo_rs.Op.XOR), gloo_rs.Error),
            (lambda: context.allreduce(values, op=-1), OverflowError),
            (lambda: context.allreduce(values, op="sum"), TypeError),
            (lambda: context.allreduce(values, tag=-1), OverflowError),
            (lambda: context.allreduce(values, timeout=float("nan")), ValueError),
            (lambda: context.pair(7), gloo_rs.InvalidArgument),
            (lambda: context.split(-5), gloo_rs.InvalidArgument),
        ]:
            with pytest.raises(error):
                call()
        context.allreduce(values)

    run_ranks(1, rank_main)


def test_exceptions_can_be_sent_to_another_process():
    error = gloo_rs.Timeout(gloo_rs.Status.TIMEOUT, "late", 3, "barrier", None, 4, 8)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is gloo_rs.Timeout
    assert (str(copy), copy.rank, copy.bytes_done, copy.bytes_wanted) == ("late", 3, 4, 8)


def test_every_status_has_a_class():
    from gloo_rs._errors import make

    for status in gloo_rs.Status:
        error = make(status, "text", -1, "operation", 0, 0, 0)
        assert type(error) is not gloo_rs.Error
        assert (error.code, error.rank, error.system_error, str(error)) == (status, None, None, "text")
    later = make(99, "text", 0, "", 5, 0, 0)
    assert (type(later), later.code, later.rank, later.system_error) == (gloo_rs.Error, 99, 0, 5)
