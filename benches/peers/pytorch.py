#!/usr/bin/env python3
"""Times torch.distributed over gloo_rs.torch and over torch's own backend gloo, in turn, in one run.

    build/pytorch/bin/python benches/peers/pytorch.py [--ranks 2,4] [--sizes 4,64Ki,4Mi,64Mi] [--rounds 15] [--quick] [--record FOLDER]
    build/pytorch/bin/python benches/peers/pytorch.py --share

With the environment that scripts/test-torch.sh makes. Prints a table of collectives and of steps of training; with --record, writes
pytorch.csv and pytorch.md in FOLDER. --share times what Python takes of a call, by one rank.
"""

import argparse
import csv
import datetime
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
import timeit

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(ROOT.parent / "python" / "tests" / "pytorch"), str(ROOT)]

import report
import torch
import torch.distributed as dist
from ranks import both, run
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

# What a round of a size takes at most, in seconds for one backend; and its calls.
BUDGET_S = 0.3
FEWEST, MOST = 3, 400
# The most that the time over gloo_rs may be of that over gloo: of an all_reduce with two ranks, by its bytes, and of a step.
OF_ALL_REDUCE = {4: 0.08, 64 << 10: 0.1, 4 << 20: 0.2}
OF_STEP = {"a step of FSDP2": 0.4}
# The most that Python may take of a call, in microseconds.
SHARE_US = 3.0
# The model whose steps are timed: so many layers, and the numbers of each.
LAYERS, WIDTH, BATCH = 8, 512, 16
FIELDS = ["ranks", "call", "bytes", "round", "gloo", "gloo_rs"]


def bytes_of(text):
    units = {"Ki": 1 << 10, "Mi": 1 << 20}
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units else int(text)


def calls_of(size, bytes, groups):
    """Each collective, as a function of the name of its backend. The bytes are those of a rank's input."""
    n = max(1, bytes // 4)
    # Zeros, so that no sum overflows.
    value, own, every = torch.zeros(n), torch.zeros(max(1, n // size)), torch.zeros(n * size)
    # A block for each rank.
    blocks = torch.zeros(own.numel() * size)
    to, group = torch.zeros_like(blocks), groups.__getitem__
    return {
        "all_reduce": lambda name: dist.all_reduce(value, group=group(name)),
        "all_reduce, async_op": lambda name: dist.all_reduce(value, group=group(name), async_op=True).wait(),
        "broadcast": lambda name: dist.broadcast(value, 0, group(name)),
        "all_gather_into_tensor": lambda name: dist.all_gather_into_tensor(every, value, group(name)),
        "reduce_scatter_tensor": lambda name: dist.reduce_scatter_tensor(own, blocks, group=group(name)),
        "all_to_all_single": lambda name: dist.all_to_all_single(to, blocks, group=group(name)),
    }


def steps_of(groups):
    """A step of training, with a model for each backend."""
    batch = torch.randn(BATCH, WIDTH)

    def step(name, prepare):
        model = prepare(torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))), groups[name])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

        def one():
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        return one

    def sharded(model, group):
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh)
        return model

    ways = {
        "a step of DistributedDataParallel": lambda model, group: DistributedDataParallel(model, process_group=group),
        "a step of FSDP2": sharded,
    }
    steps = {way: {name: step(name, prepare) for name in groups} for way, prepare in ways.items()}
    return {way: lambda name, own=own: own[name]() for way, own in steps.items()}


def times(call, name, group, n):
    """The microseconds of each call."""
    found = []
    dist.barrier(group)
    for _ in range(n):
        began = time.perf_counter()
        call(name)
        found.append((time.perf_counter() - began) * 1e6)
    return found


def ranks(rank, size, store, sizes, rounds, path):
    theirs, ours = both(rank, size, store)
    groups = {"gloo": theirs, "gloo_rs": ours}
    calls = [(call, bytes, function) for bytes in sizes for call, function in calls_of(size, bytes, groups).items()]
    # The bytes of the model's parameters.
    calls += [(call, 4 * LAYERS * WIDTH * (WIDTH + 1), function) for call, function in steps_of(groups).items()]
    counts, rows = {}, []
    for number in range(-1, rounds):  # the first is not counted
        for call, bytes, function in calls:
            row = {"ranks": size, "call": call, "bytes": bytes, "round": number}
            # Each is the first in every other round.
            for name in sorted(groups, reverse=number % 2 == 0):
                key = (name, call, bytes)
                found = statistics.median(times(function, name, groups[name], counts.get(key, FEWEST)))
                slowest = torch.tensor([found], dtype=torch.float64)
                dist.all_reduce(slowest, dist.ReduceOp.MAX, theirs)
                row[name] = slowest.item()
                counts.setdefault(key, max(FEWEST, min(MOST, int(BUDGET_S * 1e6 / row[name]))))
            if number >= 0:
                rows.append(row)
    if rank == 0:
        pathlib.Path(path).write_text(json.dumps(rows))


def share(rank, size, store):
    """The microseconds of an all_reduce of 4 bytes by one rank, and of its parts."""
    from torch.testing._internal.distributed import fake_pg

    def best(function, n=300):
        # Many short rounds, of which the shortest was not interrupted.
        return min(timeit.repeat(function, number=n, repeat=200)) / n * 1e6

    _, ours = both(rank, size, store)
    nothing = dist.ProcessGroup(fake_pg.FakeStore(), rank, size)
    nothing._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, fake_pg.FakeProcessGroup._create_internal(rank, size))
    nothing._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    value, memory = torch.zeros(1), bytearray(4)
    options = torch._C._distributed_c10d.AllreduceOptions()
    options.asyncOp = False
    context = ours._backend._context
    figures = {
        "dist.all_reduce over gloo_rs": best(lambda: dist.all_reduce(value, group=ours)),
        "the group's allreduce": best(lambda: ours.allreduce([value], options)),
        "the group's allreduce of a backend that does nothing, by torch's dispatcher": best(lambda: nothing.allreduce([value], options)),
        "the context's allreduce": best(lambda: context.allreduce(memory, dtype="float32")),
    }
    _, group, dispatcher, library = figures.values()
    figures[f"Python's share of the group's allreduce, above the two below it (at most {SHARE_US:.2f})"] = group - dispatcher - library
    for name, figure in figures.items():
        print(f"{name:80} {figure:6.2f} µs", flush=True)


def table(rows):
    lines = ["| ranks | call | bytes | gloo, µs | gloo_rs, µs | ratio | target |", "|---|---|---|---|---|---|---|"]
    for ranks, call, bytes in dict.fromkeys((row["ranks"], row["call"], row["bytes"]) for row in rows):
        own = [row for row in rows if (row["ranks"], row["call"], row["bytes"]) == (ranks, call, bytes)]
        theirs, ours = (statistics.median(row[name] for row in own) for name in ("gloo", "gloo_rs"))
        ratio = statistics.median(row["gloo_rs"] / row["gloo"] for row in own)
        target = OF_STEP.get(call) if call != "all_reduce" else OF_ALL_REDUCE.get(bytes)
        said = f"{target} {'met' if ratio <= target else 'missed'}" if target and ranks == 2 else ""
        lines.append(f"| {ranks} | {call} | {report.human(bytes)} | {theirs:.1f} | {ours:.1f} | {ratio:.3f} | {said} |")
    return "\n".join(lines)


def record(folder, rows, rounds, loads):
    with open(folder / "pytorch.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {name: f"{row[name]:.2f}" for name in ("gloo", "gloo_rs")} for row in rows)
    (folder / "pytorch.md").write_text(f"""# gloo_rs.torch

Made by `benches/peers/pytorch.py --record docs/benchmarks --rounds {rounds}`, on {report.machine()}, {datetime.date.today()}, with PyTorch
{torch.__version__}; the machine's load was {loads[0]:.1f} before and {loads[1]:.1f} after.

Calls of `torch.distributed` on float32, over [gloo_rs](../pytorch.md) and over PyTorch's own backend gloo, which uses TCP on loopback. Both groups
are in the same processes, and take turns in each of {rounds} rounds; who is first changes from round to round. A round's time is the median of
its calls, of the slowest rank. The table has the medians of the rounds, and of the ratio in each round. The bytes are those of a rank's input;
of a step of training, those of the model's parameters.

{table(rows)}
""")


def main():
    numbers = lambda text: [bytes_of(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default="2,4")
    parser.add_argument("--sizes", type=numbers, default="4,64Ki,4Mi,64Mi")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="two ranks, sizes up to 64 KiB, two rounds")
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--share", action="store_true")
    arguments = parser.parse_args()
    if arguments.share:
        run(1, share)
        return
    if arguments.quick:
        arguments.ranks, arguments.sizes, arguments.rounds = [2], [4, 64 << 10], 2
    before, rows = os.getloadavg()[0], []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rows.json")
        for size in arguments.ranks:
            run(size, ranks, arguments.sizes, arguments.rounds, str(path), limit_s=3600)
            rows += json.loads(path.read_text())
    print(table(rows))
    if arguments.record:
        record(arguments.record, rows, arguments.rounds, (before, os.getloadavg()[0]))


if __name__ == "__main__":
    main()
