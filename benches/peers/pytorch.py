#!/usr/bin/env python3
"""Times collectives of torch.distributed over gloo_rs.torch and over torch's own backend gloo, in turn, in one run.

    build/pytorch/bin/python benches/peers/pytorch.py [--ranks 2] [--sizes 4,64Ki,4Mi] [--rounds 15]

With the environment that scripts/test-torch.sh makes. Prints a table: medians over the rounds of the slower rank's median, and of the ratios.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "python" / "tests" / "pytorch"))

import torch
import torch.distributed as dist
from ranks import both, run

# What a round of a size takes at most, in seconds for one backend; and its calls.
BUDGET_S = 0.3
FEWEST, MOST = 3, 400


def bytes_of(text):
    units = {"Ki": 1 << 10, "Mi": 1 << 20}
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units else int(text)


def calls_of(size, bytes):
    """Each collective, as a function of its group. The bytes are those of a rank's input."""
    n = max(1, bytes // 4)
    # Zeros, so that no sum overflows.
    value, large = torch.zeros(n), torch.zeros(n * size)
    return {
        "all_reduce": lambda group: dist.all_reduce(value, group=group),
        "all_reduce, async": lambda group: dist.all_reduce(value, group=group, async_op=True).wait(),
        "broadcast": lambda group: dist.broadcast(value, 0, group),
        "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(large, value, group),
        "reduce_scatter_tensor": lambda group: dist.reduce_scatter_tensor(value, large, group=group),
        "all_to_all_single": lambda group: dist.all_to_all_single(large, large.clone(), group=group),
    }


def times(call, group, n):
    """The microseconds of each call."""
    found = []
    dist.barrier(group)
    for _ in range(n):
        began = time.perf_counter()
        call(group)
        found.append((time.perf_counter() - began) * 1e6)
    return found


def ranks(rank, size, store, sizes, rounds, path):
    theirs, ours = both(rank, size, store)
    groups = {"gloo": theirs, "gloo_rs": ours}
    counts, rows = {}, []
    for number in range(-1, rounds):  # the first is not counted
        for bytes in sizes:
            for name, call in calls_of(size, bytes).items():
                row = {"call": name, "bytes": bytes}
                # Each is the first in every other round.
                for backend in sorted(groups, reverse=number % 2 == 0):
                    key = (backend, name, bytes)
                    found = statistics.median(times(call, groups[backend], counts.get(key, 5)))
                    slowest = torch.tensor([found], dtype=torch.float64)
                    dist.all_reduce(slowest, dist.ReduceOp.MAX, theirs)
                    row[backend] = slowest.item()
                    counts.setdefault(key, max(FEWEST, min(MOST, int(BUDGET_S * 1e6 / row[backend]))))
                if number >= 0:
                    rows.append(row)
    if rank == 0:
        pathlib.Path(path).write_text(json.dumps(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=lambda text: [bytes_of(size) for size in text.split(",")], default="4,64Ki,4Mi")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    path = f"/tmp/gloo_rs-pytorch-{os.getpid()}.json"
    run(arguments.ranks, ranks, arguments.sizes, arguments.rounds, path, limit_s=3600)
    rows = json.loads(pathlib.Path(path).read_text())
    os.unlink(path)
    print("| call | bytes | gloo, µs | gloo_rs, µs | ratio |\n|---|---|---|---|---|")
    for call, bytes in dict.fromkeys((row["call"], row["bytes"]) for row in rows):
        own = [row for row in rows if (row["call"], row["bytes"]) == (call, bytes)]
        theirs, ours = (statistics.median(row[name] for row in own) for name in ("gloo", "gloo_rs"))
        ratio = statistics.median(row["gloo_rs"] / row["gloo"] for row in own)
        print(f"| {call} | {bytes} | {theirs:.1f} | {ours:.1f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
