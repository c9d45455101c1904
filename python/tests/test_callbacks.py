"""Callbacks of requests and unbound buffers."""

import gc
import queue
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import TIMEOUT_S, run_ranks

import gloo_rs

N = 1000


def test_each_end_is_told_once(size, shared_memory):
    def rank_main(context):
        entries = queue.SimpleQueue()
        buffers = [np.full(N, context.rank + n, np.float32) for n in range(4)]
        for n, buffer in enumerate(buffers):
            # The request is kept until it has ended.
            context.start("allreduce", buffer, tag=n).set_callback(entries.put)
        told = [entries.get(timeout=TIMEOUT_S) for _ in buffers]
        assert all(entry.error is None and entry.kind == gloo_rs.EntryKind.REQUEST and entry.rank is None for entry in told)
        assert len({id(entry.value) for entry in told}) == len(buffers)
        assert not any(entry.value.is_active for entry in told)
        for n, buffer in enumerate(buffers):
            assert (buffer == n * size + size * (size - 1) / 2).all()
        assert entries.empty()

    run_ranks(size, rank_main, shared_memory=shared_memory)


def test_a_callback_starts_its_request_again(shared_memory):
    def rank_main(context):
        values, done, steps = np.ones(N, np.float64), threading.Event(), []
        request = context.prepare("allreduce", values)

        def step(entry):
            steps.append(entry.error)
            if len(steps) < 20:
                entry.value.start()
            else:
                done.set()

        request.set_callback(step)
        request.start()
        assert done.wait(TIMEOUT_S)
        assert steps == [None] * 20
        assert (values == 2.0**20).all()
        with pytest.raises(gloo_rs.InvalidOperation, match="the request has a callback already"):
            request.set_callback(step)
        with pytest.raises(gloo_rs.InvalidOperation, match="the request has a callback already"):
            gloo_rs.Queue().attach(request)

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_callbacks_wait_for_each_other():
    def rank_main(context):
        together, ended = threading.Barrier(3), queue.SimpleQueue()

        def meet(entry):
            together.wait(TIMEOUT_S)
            ended.put(entry)

        for n in range(3):
            context.start("allreduce", np.ones(4), tag=n).set_callback(meet)
        for _ in range(3):
            assert ended.get(timeout=TIMEOUT_S).error is None

    run_ranks(2, rank_main)


def test_failures_are_entries(shared_memory):
    def rank_main(context):
        entries = queue.SimpleQueue()
        context.barrier(tag=9)
        if context.rank == 0:
            context.start("allreduce", np.ones(4)).set_callback(entries.put)
            context.abort("enough")
            entry = entries.get(timeout=TIMEOUT_S)
            assert isinstance(entry.error, gloo_rs.Aborted)
            assert "enough" in str(entry.error)
        while not context.aborted:
            time.sleep(0.001)

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_what_a_callback_raises_is_unraisable(monkeypatch):
    raised = queue.SimpleQueue()
    monkeypatch.setattr(sys, "unraisablehook", lambda what: raised.put((type(what.exc_value), str(what.exc_value))))

    def rank_main(context):
        def fails(_):
            raise KeyError("no")

        context.start("allreduce", np.ones(4)).set_callback(fails)
        context.barrier(tag=9)

    run_ranks(2, rank_main)
    assert [raised.get(timeout=TIMEOUT_S) for _ in range(2)] == [(KeyError, "'no'")] * 2


def test_messages_are_told(shared_memory):
    def rank_main(context):
        entries, other = queue.SimpleQueue(), 1 - context.rank
        source, target = context.unbound_buffer(b"\x05" * 8), context.unbound_buffer(bytearray(16))
        source.set_callback(entries.put)
        target.set_callback(entries.put)
        with pytest.raises(gloo_rs.InvalidOperation, match="the buffer has a callback already"):
            source.set_callback(entries.put)
        for _ in range(3):
            target.recv(other, 1)
            source.send(other, 1)
            told = {entry.kind: entry for entry in (entries.get(timeout=TIMEOUT_S) for _ in range(2))}
            sent, got = told[gloo_rs.EntryKind.SEND], told[gloo_rs.EntryKind.RECV]
            assert (sent.value, sent.error, sent.rank) == (source, None, other)
            assert (got.value, got.error, got.rank, got.bytes) == (target, None, other, 8)
        with pytest.raises(gloo_rs.InvalidOperation, match="has a callback"):
            target.wait_recv(timeout=0)

    run_ranks(2, rank_main, shared_memory=shared_memory)


def test_a_cycle_through_a_callback_is_collected():
    def rank_main(context):
        class Owner:
            pass

        owner = Owner()
        owner.request = context.prepare("allreduce", np.ones(4))
        owner.request.set_callback(lambda entry: owner)
        gone = weakref.ref(owner)
        del owner
        gc.collect()
        assert gone() is None

    run_ranks(1, rank_main)
