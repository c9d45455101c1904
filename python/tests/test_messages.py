"""Messages by unbound buffers, puts and gets, and the buffers of pairs."""

import threading
import time

import numpy as np
import pytest
from conftest import run_ranks

import gloo_rs


def test_send_and_recv(shared_memory):
    def rank_main(context):
        rank, size = context.rank, context.size
        for n in [0, 1, 1000, 1 << 20]:
            sent = np.arange(n, dtype=np.uint8) + rank
            received = np.zeros(n, np.uint8)
            send, recv = context.unbound_buffer(sent), context.unbound_buffer(received)
            slot = context.next_slot()
            recv.recv((rank - 1) % size, slot)
            send.send((rank + 1) % size, slot)
            assert recv.wait_recv() == ((rank - 1) % size, n)
            assert send.wait_send() == (rank + 1) % size
            np.testing.assert_array_equal(received, np.arange(n, dtype=np.uint8) + (rank - 1) % size)

    run_ranks(3, rank_main, shared_memory=shared_memory)


def test_recv_from_any_and_ranges():
    def rank_main(context):
        if context.rank:
            buffer = context.unbound_buffer(bytes([9, context.rank, 9]))
            buffer.send(0, 7, offset=1, bytes=1)
            buffer.wait_send()
            with pytest.raises(BufferError, match="read-only"):
                buffer.recv(0, 7)
            return
        memory = bytearray(4)
        buffer = context.unbound_buffer(memory)
        assert len(buffer) == 4
        seen = set()
        for offset in (1, 2):
            buffer.recv([1, 2], 7, offset=offset, bytes=1)
            rank, n = buffer.wait_recv(timeout=10)
            assert (n, memory[offset]) == (1, rank)
            seen.add(rank)
        assert seen == {1, 2}
        with pytest.raises(gloo_rs.InvalidArgument):
            buffer.recv(1, 7, offset=5)

    run_ranks(3, rank_main)


def test_timeout_and_abort_of_a_wait():
    def rank_main(context):
        if context.rank == 0:
            buffer = context.unbound_buffer(bytearray(4))
            buffer.recv(1, 3)
            with pytest.raises(gloo_rs.Timeout) as caught:
                buffer.wait_recv(timeout=0.05)
            assert caught.value.code == gloo_rs.Status.TIMEOUT
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.bytes_wanted == 4
            threading.Timer(0.05, buffer.abort_wait_recv).start()
            with pytest.raises(gloo_rs.Aborted):
                buffer.wait_recv(timeout=20)
        context.barrier()
        if context.rank == 1:
            send = context.unbound_buffer(b"abcd")
            send.send(0, 3)
            send.wait_send()
        else:
            assert buffer.wait_recv() == (1, 4)

    run_ranks(2, rank_main)


def test_puts_and_gets():
    def rank_main(context):
        memory = np.zeros(8, np.uint8)
        target = context.unbound_buffer(memory)
        keys = np.zeros((2, 64), np.uint8)
        mine = target.remote_key.encode()
        keys[context.rank, : len(mine)] = list(mine)
        context.allgather(None, keys)
        other = bytes(keys[1 - context.rank]).rstrip(b"\0").decode()
        assert gloo_rs.remote_key_parse(other) == (1 - context.rank, 8)
        source = context.unbound_buffer(np.full(4, 5 + context.rank, np.uint8))
        source.put(other, remote_offset=2, bytes=3)
        source.wait_send()
        context.barrier()
        expected = np.array([0, 0, 6, 6, 6, 0, 0, 0]) - context.rank
        expected[memory == 0] = 0
        np.testing.assert_array_equal(memory, expected)
        fetched = np.zeros(8, np.uint8)
        into = context.unbound_buffer(fetched)
        into.get(other)
        into.wait_send()
        assert fetched[2:5].tolist() == [5 + context.rank] * 3
        context.barrier()
        with pytest.raises(ValueError):
            into.get("no key")

    run_ranks(2, rank_main)


def test_buffers_of_a_pair():
    def rank_main(context):
        pair = context.pair(1 - context.rank)
        assert pair.rank == 1 - context.rank
        pair.set_sync(True)
        received = bytearray(8)
        send, recv = pair.send_buffer(5, bytes([context.rank + 1] * 4)), pair.recv_buffer(5, received)
        context.barrier()
        send.send(bytes=3, remote_offset=2)
        assert recv.wait_recv() == (2, 3)
        send.wait_send()
        assert bytes(received) == bytes([0, 0, *[2 - context.rank] * 3, 0, 0, 0])
        assert pair.is_connected
        assert isinstance(pair.address, bytes)
        with pytest.raises(gloo_rs.Timeout):
            recv.wait_recv(timeout=0)

    run_ranks(2, rank_main)


def test_a_wait_releases_the_interpreter():
    """Else the other rank's thread, of the same interpreter, could not send."""

    def rank_main(context):
        buffer = context.unbound_buffer(bytearray(1))
        if context.rank == 0:
            buffer.recv(1, 1)
            buffer.wait_recv()
        else:
            time.sleep(0.05)
            buffer.send(0, 1)
            buffer.wait_send()

    run_ranks(2, rank_main)
