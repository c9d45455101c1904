"""Every call of torch.distributed over gloo_rs, beside torch's own backend gloo on the same inputs, with 2 and with 4 ranks."""

import pytest
import torch
import torch.distributed as dist
from ranks import both, raises, random, run, same
from torch.distributed import ReduceOp

# What gloo reduces.
TYPES = [torch.float32, torch.float64, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
# What it does not, and gloo_rs does.
MORE_TYPES = [torch.bfloat16, torch.int16, torch.complex64]
SHAPES = [(), (0,), (1,), (3, 5), (1000, 3)]
LARGE = (1 << 18,)


def filled(shapes):
    """Those with elements: gloo divides by their number in gather, scatter and allgather."""
    return [shape for shape in shapes if 0 not in shape]


def allreduce(rank, size, store):
    theirs, ours = both(rank, size, store)

    def compare(value, op, what):
        one, other = value.clone(), value.clone()
        dist.all_reduce(one, op, theirs)
        dist.all_reduce(other, op, ours)
        same(other, one, what)

    for dtype in TYPES:
        for op in [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]:
            for shape in [(3, 5)] + (SHAPES + [LARGE] if op == ReduceOp.SUM else []):
                compare(random(rank, shape, dtype), op, f"{dtype} {op} {shape}")
    for dtype in INTEGERS:
        for op in [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]:
            compare(random(rank, (50,), dtype), op, f"{dtype} {op}")
    for dtype in MORE_TYPES:
        inputs = [random(r, (50,), dtype) for r in range(size)]
        value = inputs[rank].clone()
        dist.all_reduce(value, group=ours)
        same(value, sum(inputs[1:], inputs[0]), f"{dtype}")
    value = random(rank, (50,), torch.bool)
    dist.all_reduce(value, ReduceOp.MAX, ours)
    same(value, torch.stack([random(r, (50,), torch.bool) for r in range(size)]).any(0), "bool")

    # Which gloo cannot.
    total = average = torch.randn(100, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    total, average = total.clone(), average.clone()
    dist.all_reduce(total, group=theirs)
    dist.all_reduce(average, ReduceOp.AVG, ours)
    # Two ranks add two numbers, which has one result. Four may add in another order: each addition rounds by at most 2^-53 of sums of
    # some units, so that 1e-14 is more than all of them together, and less than any error of a program.
    tolerance = {"rtol": 0, "atol": 0} if size == 2 else {"rtol": 0, "atol": 1e-14}
    torch.testing.assert_close(average, total / size, **tolerance)
    dist.all_reduce(one := torch.full((9,), 0.1 + rank), group=theirs)
    dist.all_reduce(other := torch.full((9,), 0.1 + rank), group=ours)
    torch.testing.assert_close(other, one, **(tolerance if size == 2 else {"rtol": 4e-7, "atol": 0}))

    # Not in one piece in memory: gloo takes the memory as it lies, so it gets a copy.
    for view in [lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1], lambda t: t[1:, 1:3]]:
        base = random(rank, (6, 8), torch.float32)
        before = base.clone()
        one = view(base.clone()).clone(memory_format=torch.contiguous_format)
        dist.all_reduce(one, group=theirs)
        dist.all_reduce(view(base), group=ours)
        same(view(base), one, "a view")
        view(base).copy_(view(before))
        same(base, before, "what is beside a view")
    # A leaf that requires a gradient, as a parameter of a model is.
    leaf = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(leaf, group=ours)
    same(leaf.detach(), torch.full((4,), float(size)), "a leaf")

    tensors = [random(rank, shape, torch.float32) for shape in [(3,), (0,), (2, 2), (1000,)]]
    one, other = [t.clone() for t in tensors], [t.clone() for t in tensors]
    dist.all_reduce_coalesced(one, group=theirs)
    dist.all_reduce_coalesced(other, group=ours)
    for a, b in zip(other, one):
        same(a, b, "all_reduce_coalesced")
    for root in range(size):
        value = random(rank, (3, 5), torch.float32)
        one, other = value.clone(), value.clone()
        dist.reduce(one, root, group=theirs)
        dist.reduce(other, root, group=ours)
        same(other, one if rank == root else value, f"reduce to {root}")


def moving(rank, size, store):
    theirs, ours = both(rank, size, store)
    for root in range(size):
        for dtype in TYPES:
            for shape in SHAPES:
                one, other = random(rank, shape, dtype), random(rank, shape, dtype)
                dist.broadcast(one, root, theirs)
                dist.broadcast(other, root, ours)
                same(other, one, f"broadcast {dtype} {shape}")
        other = random(rank, (7, 5), torch.complex64).t()
        dist.broadcast(other, root, ours)
        same(other, random(root, (7, 5), torch.complex64).t(), "broadcast of complex numbers")

        for shape in filled(SHAPES) + [LARGE]:
            value = random(rank, shape, torch.int64)
            lists = [[torch.zeros_like(value) for _ in range(size)] if rank == root else None for _ in range(2)]
            dist.gather(value, lists[0], root, theirs)
            dist.gather(value, lists[1], root, ours)
            if rank == root:
                for one, other in zip(*lists):
                    same(other, one, f"gather {shape}")
            inputs = [random(r, shape, torch.float64) for r in range(size)] if rank == root else None
            one, other = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
            dist.scatter(one, inputs, root, theirs)
            dist.scatter(other, inputs, root, ours)
            same(other, one, f"scatter {shape}")

    for dtype in TYPES:
        for shape in filled(SHAPES) + [LARGE]:
            value = random(rank, shape, dtype)
            lists = [[torch.zeros_like(value) for _ in range(size)] for _ in range(2)]
            dist.all_gather(lists[0], value, theirs)
            dist.all_gather(lists[1], value, ours)
            for one, other in zip(*lists):
                same(other, one, f"all_gather {dtype} {shape}")
    empty = [torch.zeros(0, 3) for _ in range(size)]
    dist.all_gather(empty, torch.zeros(0, 3), ours)
    dist.gather(empty[0], empty if rank == 0 else None, 0, ours)
    dist.scatter(empty[0], empty if rank == 0 else None, 0, ours)
    views = [torch.zeros(5, 2).t() for _ in range(size)]
    dist.all_gather(views, random(rank, (5, 2), torch.float32).t(), ours)
    for r, view in enumerate(views):
        same(view, random(r, (5, 2), torch.float32).t(), "all_gather of views")
    output = torch.zeros(2 * size, 3)
    dist.all_gather_into_tensor(output, random(rank, (2, 3), torch.float32), ours)
    same(output, torch.cat([random(r, (2, 3), torch.float32) for r in range(size)]), "all_gather_into_tensor")
    tensors = [random(rank, shape, torch.float32) for shape in filled(SHAPES)]
    lists = [[[torch.zeros_like(tensor) for tensor in tensors] for _ in range(size)] for _ in range(2)]
    dist.all_gather_coalesced(lists[0], tensors, theirs)
    dist.all_gather_coalesced(lists[1], tensors, ours)
    for one, other in zip(sum(lists[0], []), sum(lists[1], [])):
        same(other, one, "all_gather_coalesced")

    # Which gloo cannot, but it can add all.
    inputs = [random(rank, (r + 1, 3), torch.float32, seed=r) for r in range(size)]
    wanted = random(rank, (rank + 1, 3), torch.float32, seed=rank)
    for r in range(size):
        total = inputs[r].clone()
        dist.all_reduce(total, group=theirs)
        wanted = total if r == rank else wanted
    output = torch.zeros(rank + 1, 3)
    dist.reduce_scatter(output, inputs, group=ours)
    same(output, wanted, "reduce_scatter")
    value = random(rank, (2 * size, 3), torch.int32)
    total = value.clone()
    dist.all_reduce(total, group=theirs)
    output = torch.zeros(2, 3, dtype=torch.int32)
    dist.reduce_scatter_tensor(output, value, group=ours)
    same(output, total[2 * rank : 2 * rank + 2], "reduce_scatter_tensor")

    value = random(rank, (2 * size, 3), torch.float32)
    one, other = torch.zeros_like(value), torch.zeros_like(value)
    dist.all_to_all_single(one, value, group=theirs)
    dist.all_to_all_single(other, value, group=ours)
    same(other, one, "all_to_all_single")
    # Rank r sends r + i rows to rank i: none from 0 to 0.
    sent, received = [rank + i for i in range(size)], [i + rank for i in range(size)]
    value = random(rank, (sum(sent), 3), torch.float32)
    one, other = torch.zeros(sum(received), 3), torch.zeros(sum(received), 3)
    dist.all_to_all_single(one, value, received, sent, theirs)
    dist.all_to_all_single(other, value, received, sent, ours)
    same(other, one, "all_to_all_single with splits")
    outputs = [torch.zeros(n, 3) for n in received]
    dist.all_to_all(outputs, list(value.split(sent)), ours)
    same(torch.cat(outputs), one, "all_to_all")

    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank}, ours)
    assert objects == [{"rank": r} for r in range(size)], objects
    objects = [rank, "text"] if rank == 1 else [None, None]
    dist.broadcast_object_list(objects, 1, ours)
    assert objects == [1, "text"], objects


def messages(rank, size, store):
    theirs, ours = both(rank, size, store)
    following, previous = (rank + 1) % size, (rank - 1) % size
    for shape in SHAPES + [LARGE]:
        value, got = random(rank, shape, torch.float32), [torch.zeros(shape), torch.zeros(shape)]
        for group, tensor in zip((theirs, ours), got):
            # Two messages that arrive in the order of their tags, not of their sends.
            works = [dist.isend(value + tag, following, group, tag) for tag in (7, 8)]
            other = torch.zeros(shape)
            dist.recv(other, previous, group, 8)
            dist.recv(tensor, previous, group, 7)
            same(other, tensor + 1, f"tags {shape}")
            for work in works:
                work.wait()
        same(got[1], got[0], f"send {shape}")

    # Views, sent and received.
    target = torch.zeros(4, 6)
    work = dist.irecv(target[:, ::2], previous, ours)
    dist.send(random(rank, (3, 4), torch.float32).t(), following, ours)
    work.wait()
    same(target[:, ::2], random(previous, (3, 4), torch.float32).t(), "a view received")
    same(target[:, 1::2], torch.zeros(4, 3), "what is beside it")
    assert work.is_completed() and work.exception() is None
    same(work.result()[0], target[:, ::2], "the result")

    for group in (theirs, ours):
        if rank == 0:
            sources = []
            for _ in range(1, size):
                tensor = torch.zeros(3)
                sources.append(dist.recv(tensor, None, group, 3))
                same(tensor, random(sources[-1], (3,), torch.float32), "from any rank")
            assert sorted(sources) == list(range(1, size)), sources
        else:
            dist.send(random(rank, (3,), torch.float32), 0, group, 3)

    got = []
    for group in (theirs, ours):
        tensor = torch.zeros(50)
        operations = [
            dist.P2POp(dist.isend, random(rank, (50,), torch.float32), following, group),
            dist.P2POp(dist.irecv, tensor, previous, group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        got.append(tensor)
    same(got[1], got[0], "batch_isend_irecv")

    # Without a wait, by asking.
    tensor = torch.zeros(2)
    work = dist.irecv(tensor, previous, ours)
    dist.send(torch.full((2,), float(rank)), following, ours)
    while not work.is_completed():
        pass
    same(tensor, torch.full((2,), float(previous)), "is_completed")

    # The message is not what was expected; the next one is.
    if rank == 0:
        dist.send(torch.zeros(3), 1, ours)
        dist.send(torch.ones(4), 1, ours)
    elif rank == 1:
        raises(lambda: dist.recv(torch.zeros(4), 0, ours), "rank 1", "rank 0", "12 bytes", "16")
        dist.recv(tensor := torch.zeros(4), 0, ours)
        same(tensor, torch.ones(4), "the message after it")


def works(rank, size, store):
    theirs, ours = both(rank, size, store)
    # Many at once, of all sizes, waited for from the last to the first.
    values = [[random(rank, (1 + 997 * i,), torch.float32, seed=i) for i in range(60)] for _ in range(2)]
    for group, tensors in zip((theirs, ours), values):
        queued = []
        for i, tensor in enumerate(tensors):
            if i % 3 == 2:
                queued.append(dist.broadcast(tensor, i % size, group, async_op=True))
            else:
                queued.append(dist.all_reduce(tensor, group=group, async_op=True))
        for work in reversed(queued):
            assert work.wait()
            assert work.is_completed()
    for i, (one, other) in enumerate(zip(*values)):
        same(other, one, f"work {i}")
    assert queued[0].exception() is None
    same(queued[0].result()[0], values[1][0], "the result")

    # A barrier ends what was called before it.
    pending = dist.all_reduce(torch.ones(1 << 16), group=ours, async_op=True)
    dist.barrier(ours)
    assert pending.is_completed()
    ours.monitored_barrier()

    # Works that are asked again and again, whose ends come between any two looks.
    for number in range(2000 if size == 2 else 100):
        work = dist.all_reduce(value := torch.ones(1000), group=ours, async_op=True)
        while not work.is_completed():
            pass
        assert work.exception() is None, f"work {number}: {work.exception()}"
        assert value[0] == size

    # Futures, and functions that run when they are complete.
    future = dist.all_reduce(torch.ones(3), group=ours, async_op=True).get_future()
    same(future.then(lambda f: f.value()[0] + 1).wait(), torch.full((3,), size + 1.0), "a future")
    assert future.done()

    # Groups of some ranks; every process makes all groups, in the same order.
    for members in ([0, size - 1], list(range(1, size)), [size - 1]):
        pair = [dist.new_group(members, backend=backend) for backend in ("gloo", "gloo_rs")]
        if rank not in members:
            continue
        results = []
        for group in pair:
            tensor = random(rank, (100,), torch.float32)
            dist.all_reduce(tensor, group=group)
            dist.broadcast(tensor, members[-1], group)
            results.append(tensor)
        same(results[1], results[0], f"the group {members}")
        # Ranks are those of the job.
        if len(members) > 1 and rank == members[0]:
            dist.send(torch.ones(2), members[1], pair[1])
        elif len(members) > 1 and rank == members[1]:
            assert dist.recv(torch.zeros(2), None, pair[1]) == members[0]
    dist.destroy_process_group(ours)

    # Wrong calls are refused, and the group goes on.
    ours = dist.new_group(backend="gloo_rs")
    raises(lambda: dist.all_to_all_single(torch.zeros(4, device="meta"), torch.zeros(4), group=ours), "meta", "CPU")
    raises(lambda: dist.broadcast(torch.zeros(2, 2).to_sparse(), 0, ours), "sparse")
    raises(lambda: ours.allreduce_coalesced([torch.zeros(2), torch.zeros(2).int()]), "float32 and torch.int32")
    raises(lambda: ours.allgather([[torch.zeros(2)]], [torch.zeros(2)]), f"1 tensors in a list for {size} ranks")
    raises(lambda: ours.allreduce([torch.zeros(2)] * 2), "one tensor per rank")
    raises(lambda: ours.send([torch.zeros(2)], size, 0), f"send to rank {size}", f"on rank {rank} of {size}")
    raises(lambda: ours.alltoall_base(torch.zeros(3), torch.zeros(3), [1] * size, [3] + [0] * (size - 1)), "no split sizes")
    dist.all_reduce(tensor := torch.ones(2), group=ours)
    same(tensor, torch.full((2,), float(size)), "after wrong calls")


@pytest.mark.parametrize("shared_memory", ["1", "0"], ids=["shared memory", "tcp"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("calls", [allreduce, moving, messages, works])
def test_calls(calls, size, shared_memory):
    run(size, calls, environment={"GLOO_RS_SHM": shared_memory})
