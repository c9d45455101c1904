"""Every collective on numpy arrays, beside what numpy computes."""

import ml_dtypes
import numpy as np
import pytest
from conftest import run_ranks

import gloo_rs
from gloo_rs import Op

TYPES = [
    np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
    np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64, np.complex128,
]  # fmt: skip
N = 12  # a multiple of every size


def values(rank, n=N, dtype=np.float64):
    """Small integers, which every type adds and multiplies without rounding, different on each rank."""
    return ((np.arange(n) + 3 * rank) % 5 + 1).astype(dtype)


def all_values(size, n=N, dtype=np.float64):
    return np.stack([values(rank, n, dtype) for rank in range(size)])


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_allreduce_of_every_type(size, shared_memory, dtype):
    def rank_main(context):
        out = np.zeros(N, dtype)
        context.allreduce(values(context.rank, dtype=dtype), out)
        in_place = values(context.rank, dtype=dtype)
        context.allreduce(in_place)
        return out, in_place

    expected = all_values(size, dtype=dtype).sum(axis=0, dtype=dtype)
    for out, in_place in run_ranks(size, rank_main, shared_memory=shared_memory):
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(in_place, expected)


OPERATIONS = {
    Op.SUM: np.add, Op.PRODUCT: np.multiply, Op.MIN: np.minimum, Op.MAX: np.maximum,
    Op.AND: np.bitwise_and, Op.OR: np.bitwise_or, Op.XOR: np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.name)
def test_operations(size, op):
    everything = all_values(size, dtype=np.int32)
    combined = OPERATIONS[op].reduce(everything, axis=0)
    scanned = OPERATIONS[op].accumulate(everything, axis=0)

    def rank_main(context):
        rank, mine = context.rank, everything[context.rank].copy()
        reduced, scattered, scan, exscan = np.zeros_like(mine), np.zeros(N // size, np.int32), mine.copy(), mine.copy()
        context.reduce(mine, reduced, op=op, root=size - 1)
        context.reduce_scatter(mine, scattered, op=op)
        context.scan(scan, op=op)
        context.exscan(mine, exscan, op=op)
        if rank == size - 1:
            np.testing.assert_array_equal(reduced, combined)
        np.testing.assert_array_equal(scattered, combined.reshape(size, -1)[rank])
        np.testing.assert_array_equal(scan, scanned[rank])
        np.testing.assert_array_equal(exscan, scanned[rank - 1] if rank else mine)
        np.testing.assert_array_equal(mine, everything[rank])

    run_ranks(size, rank_main)


def test_average_and_reduce_local(size):
    def rank_main(context):
        mine = values(context.rank)
        context.allreduce(mine, op=Op.AVERAGE)
        np.testing.assert_allclose(mine, all_values(size).mean(axis=0), rtol=1e-15)

    run_ranks(size, rank_main)
    inout = values(1)
    gloo_rs.reduce_local(values(0), inout, op=Op.MAX)
    np.testing.assert_array_equal(inout, np.maximum(values(0), values(1)))


def test_in_place(size):
    everything, total = all_values(size), all_values(size).sum(axis=0)

    def rank_main(context):
        rank = context.rank
        buffer = values(rank)
        context.reduce(buffer, root=0)
        np.testing.assert_array_equal(buffer, everything[rank] if rank else total)
        buffer = values(rank)
        context.reduce_scatter(buffer)
        np.testing.assert_array_equal(buffer[: N // size], total.reshape(size, -1)[rank])
        buffer = values(rank)
        block = buffer.reshape(size, -1)[rank]
        context.reduce_scatter(buffer, block)
        np.testing.assert_array_equal(block, total.reshape(size, -1)[rank])
        buffer = np.zeros((size, N))
        buffer[rank] = values(rank)
        context.allgather(None, buffer)
        np.testing.assert_array_equal(buffer, everything)
        buffer = np.arange(size) + 10 * rank
        context.alltoall(buffer)
        np.testing.assert_array_equal(buffer, rank + 10 * np.arange(size))
        buffer = np.zeros((size, N))
        buffer[rank] = values(rank)
        context.gather(None if rank == 0 else buffer[rank], buffer)
        if rank == 0:
            np.testing.assert_array_equal(buffer, everything)
        buffer = everything.copy()
        if rank == 0:
            context.scatter(buffer)
        else:
            context.scatter(None, buffer[0])
        np.testing.assert_array_equal(buffer[0], everything[rank])

    run_ranks(size, rank_main)


@pytest.mark.parametrize("n", [0, 1, 5, 100_003])
def test_movement(size, shared_memory, n):
    everything = all_values(size, n, np.float32)

    def rank_main(context):
        rank = context.rank
        for root in range(size):
            buffer = values(rank, n, np.float32)
            context.broadcast(buffer, root=root)
            np.testing.assert_array_equal(buffer, everything[root])
            gathered = np.zeros((size, n), np.float32)
            context.gather(values(rank, n, np.float32), gathered if rank == root else None, root=root)
            if rank == root:
                np.testing.assert_array_equal(gathered, everything)
            out = np.zeros(n, np.float32)
            context.scatter(everything if rank == root else None, out, root=root)
            np.testing.assert_array_equal(out, everything[rank])
        gathered = np.zeros((size, n), np.float32)
        context.allgather(values(rank, n, np.float32), gathered)
        np.testing.assert_array_equal(gathered, everything)
        blocks = np.stack([values(rank + 7 * to, n, np.float32) for to in range(size)])
        received = np.zeros_like(blocks)
        context.alltoall(blocks, received)
        np.testing.assert_array_equal(received, [values(source + 7 * rank, n, np.float32) for source in range(size)])

    run_ranks(size, rank_main, shared_memory=shared_memory)


def test_movement_of_different_counts(size, shared_memory):
    counts = [3 * rank + 1 for rank in range(size)]
    everything = np.concatenate([values(rank, counts[rank]) for rank in range(size)])

    def rank_main(context):
        rank = context.rank
        mine = values(rank, counts[rank])
        out = np.zeros_like(everything)
        context.allgatherv(mine, out, counts)
        np.testing.assert_array_equal(out, everything)
        out = np.zeros_like(everything)
        if rank == size - 1:
            context.gatherv(mine, out, counts, root=size - 1)
            np.testing.assert_array_equal(out, everything)
        else:
            context.gatherv(mine, root=size - 1)
        out = np.zeros(counts[rank])
        if rank == 0:
            context.scatterv(everything, out, counts)
        else:
            context.scatterv(None, out)
        np.testing.assert_array_equal(out, mine)
        whole = np.arange(sum(counts), dtype=np.int64) + rank
        out = np.zeros(counts[rank], np.int64)
        context.reduce_scatter(whole, out, counts=counts)
        begin = sum(counts[:rank])
        np.testing.assert_array_equal(out, size * np.arange(begin, begin + counts[rank]) + size * (size - 1) // 2)
        # To rank r go r + 1 elements, whoever sends.
        sent = np.concatenate([np.full(to + 1, 10 * rank + to) for to in range(size)])
        received = np.zeros(size * (rank + 1), sent.dtype)
        context.alltoallv(sent, received, [to + 1 for to in range(size)], [rank + 1] * size)
        np.testing.assert_array_equal(received, np.repeat(10 * np.arange(size) + rank, rank + 1))

    run_ranks(size, rank_main, shared_memory=shared_memory)


def test_pairwise_exchange():
    def rank_main(context):
        out = np.zeros(2, np.int32)
        context.pairwise_exchange(np.array([context.rank, 10 + context.rank], np.int32), out, 2)
        np.testing.assert_array_equal(out, [context.rank ^ 1, 10 + (context.rank ^ 2)])

    run_ranks(4, rank_main)


def test_bool_and_types_that_are_only_moved(size):
    record = np.dtype([("a", np.int32), ("b", np.float64), ("c", np.uint8)])

    def rank_main(context):
        flags = np.array([context.rank == 0, False, True])
        context.allreduce(flags, op=Op.SUM)
        np.testing.assert_array_equal(flags, [True, False, True])
        for dtype in [record, np.dtype(ml_dtypes.float8_e4m3fn), np.dtype("M8[s]"), np.dtype("S5")]:
            mine = np.zeros(3, dtype)
            mine.view(np.uint8)[:] = context.rank + 1
            out = np.zeros((size, 3), dtype)
            context.allgather(mine, out)
            np.testing.assert_array_equal(out.view(np.uint8).reshape(size, -1)[:, 0], np.arange(size) + 1)
            with pytest.raises(gloo_rs.InvalidArgument, match="no arithmetic"):
                context.allreduce(mine)

    run_ranks(size, rank_main)


def test_options():
    def rank_main(context):
        for options in [
            {"algorithm": "ring"},
            {"algorithm": "bcube", "base": 3, "tag": 5},
            {"algorithm": "hierarchical", "groups": [0, 0, 1, 1]},
            {"algorithm": "torus_2d", "dims": [2, 2]},
            {"max_segment_bytes": 64, "timeout": 7.5},
        ]:
            buffer = values(context.rank)
            context.allreduce(buffer, **options)
            np.testing.assert_array_equal(buffer, all_values(4).sum(axis=0))
        for wrong, error in [({"algorithm": "no such"}, ValueError), ({"timeout": -1.0}, ValueError), ({"tags": 1}, TypeError)]:
            with pytest.raises(error):
                context.allreduce(buffer, **wrong)

    run_ranks(4, rank_main, shared_memory=False)


def test_factor(size):
    """Each input is multiplied by the factor of its rank before it is combined."""

    def rank_main(context):
        rank = context.rank
        for dtype, by in [(np.float32, 0.5), (np.float64, np.array([0.5])), (ml_dtypes.bfloat16, 0.5), (np.float16, None)]:
            whole = np.full(N, sum(range(1, size + 1)) / 2, dtype)
            factor = np.full(1, 0.5, dtype) if by is None or dtype == ml_dtypes.bfloat16 else by
            mine, out = np.full(N, rank + 1, dtype), np.zeros(N, dtype)
            context.allreduce(mine, out, factor=factor)
            np.testing.assert_array_equal(out, whole)
            np.testing.assert_array_equal(mine, rank + 1)
            context.start("allreduce", mine, factor=factor).wait()
            np.testing.assert_array_equal(mine, whole)
        for buffer, by, why in [
            (np.zeros(3, np.int32), 2, "a number is for float32 and float64"),
            (np.zeros(3, np.int32), np.ones(1, np.int32), "not for int32"),
            (np.zeros(3, np.float32), np.ones(1, np.float64), "one element of the type"),
            (np.zeros(3, np.float32), np.ones(2, np.float32), "one element of the type"),
        ]:
            with pytest.raises(gloo_rs.InvalidArgument, match=why):
                context.allreduce(buffer, factor=by)
        with pytest.raises(gloo_rs.InvalidArgument, match="broadcast does not use factor"):
            context.broadcast(np.zeros(3), factor=2.0)

    run_ranks(size, rank_main)


def test_order_of_ranks(size, shared_memory):
    """With order="ranks", sums have the bits of additions in the order of ranks."""

    def inputs():
        return [np.random.default_rng(rank).standard_normal(3 * N * size).astype(np.float32) for rank in range(size)]

    def rank_main(context):
        mine, expected = inputs()[context.rank], inputs()[0].copy()
        for other in inputs()[1:]:
            expected += other
        for algorithm in [None, "bcube", "reduce_broadcast"]:
            out = np.zeros_like(mine)
            context.allreduce(mine, out, order="ranks", algorithm=algorithm)
            np.testing.assert_array_equal(out, expected)
        block = np.zeros(3 * N, np.float32)
        context.reduce_scatter(mine, block, order="ranks")
        np.testing.assert_array_equal(block, expected[3 * N * context.rank :][: 3 * N])
        context.reduce(mine, out, order="ranks")
        for options, why in [({"order": "any"}, "it must be"), ({"order": "ranks", "algorithm": "ring_segmented"}, "from the left")]:
            with pytest.raises(gloo_rs.InvalidArgument, match=why):
                context.allreduce(mine, **options)

    run_ranks(size, rank_main, shared_memory=shared_memory)


def test_reproducible_sums(shared_memory):
    """With order="reproducible", a sum is the exact one, rounded once."""
    # Numbers of 24 bits, whose sums are exact as integers.
    units = np.random.default_rng(1).integers(-(2**23), 2**23, (8, N)) * 2 ** np.random.default_rng(2).integers(0, 30, (8, N))

    for size in [2, 3, 8]:
        total = units[:size].sum(axis=0).astype(np.float32)

        def rank_main(context):
            mine, out = units[context.rank].astype(np.float32), np.zeros(N, np.float32)
            context.allreduce(mine, out, order="reproducible")
            np.testing.assert_array_equal(out, total)
            context.allreduce(mine, out, order="reproducible", op=gloo_rs.Op.AVERAGE)
            np.testing.assert_array_equal(out, total / np.float32(size))
            with pytest.raises(gloo_rs.InvalidArgument, match="but not the product of float32"):
                context.allreduce(mine, out, order="reproducible", op=gloo_rs.Op.PRODUCT)

        run_ranks(size, rank_main, shared_memory=shared_memory)


def test_lists_of_buffers(size, shared_memory):
    """A list with a buffer for each rank takes the place of a buffer with a block for each."""

    def rank_main(context):
        rank = context.rank
        mine, out = np.arange(N) + rank, [np.zeros(N, int) for _ in range(size)]
        context.allgather(mine, out)
        for other in range(size):
            np.testing.assert_array_equal(out[other], np.arange(N) + other)
        counts = [1 + other for other in range(size)]
        out = tuple(np.zeros(count, int) for count in counts)
        context.allgatherv(np.full(1 + rank, rank), out, counts)
        assert [list(block) for block in out] == [[other] * (1 + other) for other in range(size)]
        blocks, out = [np.full(3, 10 * rank + other) for other in range(size)], [np.zeros(3, int) for _ in range(size)]
        context.start("alltoall", blocks, out).wait()
        assert [block[2] for block in out] == [10 * other + rank for other in range(size)]
        context.alltoall(blocks)
        assert [block[0] for block in blocks] == [10 * other + rank for other in range(size)]
        rows = [[np.full(other + 1, rank) for other in range(size)], [np.zeros(rank + 1, int) for _ in range(size)]]
        context.alltoallv(*rows, counts, [rank + 1] * size)
        assert [list(block) for block in rows[1]] == [[other] * (rank + 1) for other in range(size)]
        result = np.zeros(2)
        context.reduce_scatter([np.full(2, other + rank, float) for other in range(size)], result, factor=0.5)
        assert result[1] == sum(rank + other for other in range(size)) / 2
        at_root = rank == size - 1
        out = [np.zeros(2, int) for _ in range(size)]
        context.gather(np.full(2, rank), out if at_root else None, root=size - 1)
        assert [block[1] for block in out] == (list(range(size)) if at_root else [0] * size)
        own = np.zeros(4, int)
        context.scatter([np.full(4, other) for other in range(size)] if at_root else None, own, root=size - 1)
        np.testing.assert_array_equal(own, rank)
        for call, why in [
            (lambda: context.allgather(own, [own] * (size + 1)), f"out has {size + 1} buffers, but there are {size} ranks"),
            (lambda: context.allreduce([own]), "input is a list; here the call takes one buffer"),
            (lambda: context.reduce_scatter([own] * size), "input is a list"),
            (lambda: context.alltoall([own] * size, np.zeros(4 * size, int)), "must both be lists"),
            (lambda: context.allgather(own, [np.zeros(4 + 4 * (other == 0), int) for other in range(size)]), "elements"),
            (lambda: context.allgather(own, [np.zeros(4)] * size), "different types"),
        ]:
            with pytest.raises(gloo_rs.InvalidArgument, match=why):
                call()

    run_ranks(size, rank_main, shared_memory=shared_memory)


def test_threads_with_tags_of_their_own(size):
    """Several threads call on one context at the same time, with the interpreter's lock released while they wait."""
    import concurrent.futures

    def rank_main(context):
        def call(tag):
            for i in range(20):
                buffer = np.full(N, tag * 100 + i + context.rank)
                context.allreduce(buffer, tag=tag)
                np.testing.assert_array_equal(buffer, size * (tag * 100 + i) + size * (size - 1) // 2)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(call, range(4)))

    run_ranks(size, rank_main)


def test_split(size):
    def rank_main(context):
        half = context.split(context.rank % 2, key=-context.rank)
        members = sorted(range(context.rank % 2, size, 2), reverse=True)
        assert (half.rank, half.size) == (members.index(context.rank), len(members))
        buffer = np.array([context.rank])
        half.allreduce(buffer)
        assert buffer[0] == sum(members)
        assert (context.split(None) is None) == True  # noqa: E712

    run_ranks(size, rank_main)


def test_memory_of_the_library():
    def rank_main(context):
        memory = context.alloc(1 << 20)
        assert len(memory) == 1 << 20
        array = np.frombuffer(memory, np.float32)
        assert not array.any()
        del memory
        array[:] = context.rank + 1
        context.allreduce(array)
        assert (array == 3).all()

    run_ranks(2, rank_main)
