"""Aborts, agreements, and contexts of the ranks that are left. The ranks are threads."""

import numpy
import pytest
from conftest import run_ranks

import gloo_rs


def test_an_abort_ends_the_calls_of_all_ranks(size, shared_memory):
    def program(context):
        assert not context.aborted
        with pytest.raises(gloo_rs.Aborted, match="rank 0 has aborted this context: the loss is not a number") as caught:
            while True:
                context.allreduce(numpy.ones(4))
                if context.rank == 0:
                    context.abort("the loss is not a number")
        assert caught.value.rank == 0
        assert context.aborted
        assert isinstance(context.broken, gloo_rs.Aborted)

    run_ranks(size, program, shared_memory=shared_memory)


def test_the_ranks_that_are_left_agree_and_go_on(shared_memory):
    def program(context):
        assert context.agree() == (0xFFFFFFFFFFFFFFFF, False)
        assert context.agree(0b100 | 1 << context.rank) == (0b100, False)
        if context.rank == 1:
            context.close()
            with pytest.raises(gloo_rs.Closed):
                context.shrink()
            return
        assert context.agree(7, timeout=60) == (7, True)
        assert context.agree(7) == (7, False)
        assert context.lost_ranks == [1]
        smaller = context.shrink()
        assert (smaller.rank, smaller.size) == (context.rank // 2, 2)
        numbers = numpy.full(3, context.rank)
        smaller.allreduce(numbers)
        assert list(numbers) == [2] * 3
        assert smaller.lost_ranks == []
        smaller.barrier()
        context.close()

    run_ranks(3, program, shared_memory=shared_memory)


def test_an_agreement_has_a_timeout():
    def program(context):
        if context.rank == 0:
            with pytest.raises(gloo_rs.Timeout, match="cannot agree: timed out after 50ms: waiting for rank 1 ") as caught:
                context.agree(timeout=0.05)
            assert caught.value.rank == 1
            # The other one may come now.
            context.barrier()
            assert context.agree(0) == (0xFFFFFFFFFFFFFFFF, False)
        else:
            context.barrier()
            context.agree()

    run_ranks(2, program)
