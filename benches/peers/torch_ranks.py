#!/usr/bin/python3
"""Two ranks that time allreduce of torch.distributed over gloo_rs and over torch's own backend gloo, in turn. benches/torch.py runs it.

    torch_ranks.py SIZES ROUNDS

Prints a line for each size and round, as JSON: bytes, round, and the microseconds of either backend, the slower rank's median.
"""

import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples", "torch"))

import torch
import torch.distributed as dist

from ranks import both, run

# What a round of a size takes at most, in seconds for one backend; and its calls.
BUDGET = 0.3
FEWEST, MOST = 3, 400


def times(group, tensor, calls):
    """The microseconds of each call."""
    found = []
    dist.barrier(group)
    for _ in range(calls):
        began = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        found.append((time.perf_counter() - began) * 1e6)
    return found


def ranks(rank, size, store, sizes, rounds):
    theirs, ours = both(rank, size, store)
    groups = {"gloo": theirs, "gloo_rs": ours}
    calls = {}
    for number in range(-1, rounds):  # the first is not counted
        for bytes in sizes:
            tensor = torch.ones(bytes // 4)
            for group in groups.values():
                dist.all_reduce(tensor, group=group)
            assert torch.equal(tensor, torch.full_like(tensor, size ** len(groups))), "wrong sums"
            tensor.zero_()  # so that no sum overflows
            row = {"bytes": bytes, "round": number}
            # Each is the first in every other round.
            for name in sorted(groups, reverse=number % 2 == 0):
                key = (name, bytes)
                measured = torch.tensor([statistics.median(times(groups[name], tensor, calls.get(key, 5)))], dtype=torch.float64)
                dist.all_reduce(measured, dist.ReduceOp.MAX, theirs)
                row[name] = measured.item()
                calls.setdefault(key, max(FEWEST, min(MOST, int(BUDGET * 1e6 / row[name]))))
            if number >= 0 and rank == 0:
                print(json.dumps(row), flush=True)


run(2, ranks, [int(size) for size in sys.argv[1].split(",")], int(sys.argv[2]), limit=1800)
