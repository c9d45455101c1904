"""Aborts, agreements, and contexts of the ranks that are left. The ranks are threads."""

import threading

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


def _handles(store, step, own, context, size):
    """The handles of `size` processes, of which this one is `own`."""
    store.set(f"handle/{step}/{own}", context.handle.encode())
    return [store.get(f"handle/{step}/{process}", timeout=20).decode() for process in range(size)]


def test_a_membership_grows_and_shrinks(shared_memory):
    store = gloo_rs.Store.hash(f"reconfigured with shared memory {shared_memory}")

    def gathered(context, own):
        numbers = numpy.zeros(context.size)
        context.allgather(numpy.full(1, float(own)), numbers)
        return list(numbers)

    def program(of_two):
        own, device = of_two.rank, gloo_rs.Device(shared_memory=shared_memory)
        memory = of_two.alloc(1 << 16)
        second = gloo_rs.Context.without_members(device=device, timeout=20)
        assert (second.rank, second.size) == (-1, -1)
        with pytest.raises(gloo_rs.InvalidOperation, match="has no members"):
            second.barrier()
        # Four processes, as far as the library is concerned, two of them new.
        handles = _handles(store, 1, own, of_two, 2) + _handles(store, "new", own, second, 2)
        before = of_two.handle
        other = threading.Thread(target=second.reconfigure, args=(store, 1, handles))
        other.start()
        of_two.reconfigure(store, 1, handles)
        other.join(20)
        assert (of_two.rank, of_two.size, second.rank, second.size) == (own, 4, own + 2, 4)
        assert of_two.handle != before
        gather = threading.Thread(target=gathered, args=(second, own + 2))
        gather.start()
        assert gathered(of_two, own) == [0, 1, 2, 3]
        gather.join(20)
        # In a set, ranks are the library's.
        handles = _handles(store, 2, own, of_two, 2)
        of_two.reconfigure(store, 2, set(handles))
        assert of_two.size == 2
        assert sorted(gathered(of_two, own)) == [0, 1]
        with pytest.raises(gloo_rs.Aborted, match="has reconfigured its context"):
            second.barrier()
        with pytest.raises(gloo_rs.Mismatch, match="the id 2 "):
            of_two.reconfigure(store, 2, _handles(store, 3, own, of_two, 2))
        with pytest.raises(gloo_rs.InvalidArgument, match="is not among the 1"):
            of_two.reconfigure(store, 3, [second.handle])
        del memory
        second.close()

    run_ranks(2, program, shared_memory=shared_memory)


def test_a_store_without_append_serves(shared_memory):
    class Table(dict):
        """What `Store.custom` demands, and no more."""

        condition = threading.Condition()

        def set(self, key, value):
            with self.condition:
                self[key] = bytes(value)
                self.condition.notify_all()

        def wait(self, keys, timeout):
            with self.condition:
                if not self.condition.wait_for(lambda: all(key in self for key in keys), timeout):
                    raise TimeoutError

        def get(self, key, timeout):
            self.wait([key], timeout)
            return self[key]

        def add(self, key, amount):
            with self.condition:
                self[key] = str(int(self.get(key, 0)) + amount if key in self else amount).encode()
                return int(self[key])

        def delete(self, key):
            return self.pop(key, None) is not None

    table = Table()

    def program(context):
        store = gloo_rs.Store.custom(table)
        context.reconfigure(store, 1, _handles(store, 1, context.rank, context, 2))
        with pytest.raises(gloo_rs.Mismatch, match="the id 1 "):
            context.reconfigure(store, 1, _handles(store, 2, context.rank, context, 2))

    run_ranks(2, program, shared_memory=shared_memory)
