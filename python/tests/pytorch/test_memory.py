"""What calls do with the memory of the program: lists of tensors are used where they are, and factors are applied by the library."""

import pytest
import torch
import torch.distributed as dist
from ranks import group_of, raises, random, run, same

# Elements of a tensor of 1 MiB.
MEBI = 1 << 18


def allocated(function):
    """The bytes that torch allocates meanwhile."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    return sum(max(0, event.self_cpu_memory_usage) for event in profile.events())


def separate(size, elements, fill):
    """Tensors that do not lie one behind the other in memory."""
    return [torch.full((elements + 7,), float(fill(r)))[:elements] for r in range(size)]


def lists(rank, size, store):
    group_of(rank, size, store)
    zeros = lambda: separate(size, MEBI, lambda r: 0)
    of_ranks = lambda: separate(size, MEBI, lambda r: 10 * rank + r)
    outputs, inputs, one = zeros(), of_ranks(), torch.full((MEBI,), float(rank))
    wanted = [torch.full((MEBI,), float(r)) for r in range(size)]
    assert allocated(lambda: torch.cat(inputs)) >= 4 * MEBI, "a copy is seen"

    def check(call, results, wanted, what):
        assert allocated(call) < 1 << 16, what
        for result, one in zip(results, wanted, strict=True):
            same(result, one, what)

    check(lambda: dist.all_gather(outputs, one), outputs, wanted, "all_gather")
    for root in range(size):
        gathered, scattered = zeros(), torch.zeros(MEBI)
        mine = gathered if rank == root else None
        check(lambda: dist.gather(one, mine, root), mine or [], wanted if mine else [], "gather")
        given = of_ranks() if rank == root else None
        check(lambda: dist.scatter(scattered, given, root), [scattered], [torch.full((MEBI,), 10.0 * root + rank)], "scatter")
    outputs = zeros()
    check(lambda: dist.all_to_all(outputs, inputs), outputs, [torch.full((MEBI,), 10.0 * r + rank) for r in range(size)], "all_to_all")
    total = torch.zeros(MEBI)
    check(
        lambda: dist.reduce_scatter(total, inputs), [total], [torch.full((MEBI,), float(sum(10 * r + rank for r in range(size))))],
        "reduce_scatter",
    )  # fmt: skip

    # The blocks have different lengths, 0 too. Some are in pieces, some of a type that the library only moves.
    lengths = [0, 1000, 3, 17][:size]
    for dtype in (torch.float32, torch.float8_e4m3fn):
        values = [random(r, (lengths[r],), torch.float32).to(dtype) for r in range(size)]
        for views in (False, True):
            outputs = [torch.zeros(2 * n, dtype=dtype)[::2] if views else torch.zeros(n, dtype=dtype) for n in lengths]
            dist.all_gather(outputs, values[rank])
            for output, value in zip(outputs, values, strict=True):
                same(output.float(), value.float(), f"all_gather {lengths} {dtype} {views}")
            outputs = [torch.zeros(2 * n, dtype=dtype)[::2] if views else torch.zeros(n, dtype=dtype) for n in lengths]
            # Rank r sends to each what has this rank's length.
            dist.all_to_all(outputs, [values[rank]] * size)
            for output, value in zip(outputs, values, strict=True):
                same(output.float(), value.float(), f"all_to_all {lengths} {dtype} {views}")


def factors(rank, size, store):
    """A sum of products is that of inputs that were multiplied before, with each rank's own factor."""
    group_of(rank, size, store)
    number = 0.5 + rank
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
        for factor in (number, torch.tensor(number, dtype=torch.float64)):
            op = dist._make_nccl_premul_sum(factor)
            scaled = [random(r, (size, 50), dtype) * (0.5 + r) for r in range(size)]
            wanted = sum(scaled[1:], scaled[0])
            value = random(rank, (size, 50), dtype)
            for shown in (value.clone(), value.t().clone().t()):
                dist.all_reduce(shown, op)
                same(shown, wanted, f"all_reduce {dtype}")
            several = [value.clone()[:1], value.clone()[1:]]
            dist.all_reduce_coalesced(several, op)
            same(torch.cat(several), wanted, f"all_reduce_coalesced {dtype}")
            reduced = value.clone()
            dist.reduce(reduced, 1, op)
            same(reduced, wanted if rank == 1 else value, f"reduce {dtype}")
            output = torch.zeros(50, dtype=dtype)
            dist.reduce_scatter(output, list(value.clone()), op)
            same(output, wanted[rank], f"reduce_scatter {dtype}")
            dist.reduce_scatter_tensor(output := torch.zeros(1, 50, dtype=dtype), value.clone(), op)
            same(output[0], wanted[rank], f"reduce_scatter_tensor {dtype}")
            # The inputs of a call that has other outputs are as they were.
            given = value.clone()
            dist.reduce_scatter_tensor(output, given, op)
            same(given, value, "the input")
    raises(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist._make_nccl_premul_sum(2)), "factor", "int32")
    raises(lambda: dist.all_reduce(torch.zeros(3, dtype=torch.float8_e4m3fn)), "float8_e4m3fn")


@pytest.mark.parametrize("shared_memory", ["1", "0"], ids=["shared memory", "tcp"])
@pytest.mark.parametrize("calls", [lists, factors])
def test_memory(calls, shared_memory):
    run(3, calls, environment={"GLOO_RS_SHM": shared_memory})
