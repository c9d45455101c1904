#!/usr/bin/env python3
"""Writes tables of the measurements of record.py.

    benches/report.py FOLDER

Reads allreduce.csv in FOLDER and writes allreduce.md.
"""

import csv
import os
import platform
import statistics
import sys

FIELDS = ["round", "program", "setting", "algorithm", "ranks", "bytes", "iterations"]
FIELDS += ["min_us", "p50_us", "p99_us", "max_us"]
PEERS = {"gloo": "Gloo", "openmpi": "Open MPI", "floor": "floor"}
# By (ranks, bytes): maximum ratio of gloo_rs' time to that of each other implementation.
TARGETS = {
    (2, 4): {"gloo": 0.4, "openmpi": 1.0, "floor": 1.5},
    (2, 64 << 10): {"gloo": 0.75, "openmpi": 1.0, "floor": 1.3},
    (2, 4 << 20): {"gloo": 1.0, "openmpi": 1.0, "floor": 1.3},
    (2, 256 << 20): {"gloo": 0.65, "openmpi": 1.0, "floor": 1.4},
}
for many in (4, 8):
    TARGETS |= {(many, 4): {"gloo": 0.5}, (many, 64 << 10): {"gloo": 0.5}, (many, 4 << 20): {"gloo": 0.8}}
# Maximum ratio of p99 to p50, with more ranks than cores.
TAIL = 5.0


def row(program, setting, ranks, size, number, line):
    """A line of the CSV file, from a line of JSON that a program printed."""
    known = {"round": number, "program": program, "setting": setting, "ranks": ranks, "bytes": size}
    return {field: known.get(field, line.get(field)) for field in FIELDS}


def load(path):
    def typed(field, text):
        if field in ("ranks", "bytes") or (field == "round" and text != "trial"):
            return int(text)
        return float(text) if field.endswith("_us") and text else text

    with open(path, newline="") as file:
        return [{field: typed(field, text) for field, text in line.items()} for line in csv.DictReader(file)]


class Point:
    """The results of all rounds for one number of ranks and one size."""

    def __init__(self, rows, ranks, size):
        rows = [r for r in rows if (r["ranks"], r["bytes"]) == (ranks, size) and r["round"] != "trial"]
        self.ranks, self.bytes = ranks, size
        self.rounds = sorted({r["round"] for r in rows})
        self.best = {}
        for program in ["gloo_rs", *PEERS]:
            own = [[r for r in rows if r["program"] == program and r["round"] == number] for number in self.rounds]
            if self.rounds and all(own):
                self.best[program] = [min(group, key=lambda r: r["p50_us"]) for group in own]

    def time(self, program, field="p50_us"):
        return statistics.median(r[field] for r in self.best[program])

    def bus(self, program):
        """Bus bandwidth in GB/s as defined by nccl-tests."""
        return self.bytes / self.time(program) / 1e3 * 2 * (self.ranks - 1) / self.ranks

    def name(self, program):
        names = [r["algorithm"] if program == "gloo_rs" else r["setting"] for r in self.best[program]]
        return statistics.mode(names)

    def ratio(self, program, of="gloo_rs"):
        pairs = zip(self.best[of], self.best[program])
        return statistics.median(ours["p50_us"] / theirs["p50_us"] for ours, theirs in pairs)

    def tail(self, program="gloo_rs"):
        return statistics.median(r["p99_us"] / r["p50_us"] for r in self.best[program])


def human(size):
    for unit, power in (("Mi", 20), ("Ki", 10)):
        if size >= 1 << power:
            return f"{size >> power} {unit}B"
    return f"{size} B"


def summary(rows, ranks, size):
    point = Point(rows, ranks, size)
    parts = [f"{PEERS.get(p, p)} {point.time(p):.1f}" for p in point.best]
    return f"{ranks} ranks, {human(size)}: " + ", ".join(parts) + " µs"


def machine():
    with open("/proc/cpuinfo") as file:
        model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    return f"{os.cpu_count()} cores of {model}, Linux {platform.release()}"


def target_table(points):
    """Each target, whether it is met, and the ratio that the floor program would reach."""
    table = ["| ranks | size | against | at most | measured | met | the floor |", "|---|---|---|---|---|---|---|"]
    for point in points:
        targets = TARGETS.get((point.ranks, point.bytes), {})
        floor = lambda p: f"{point.ratio(p, 'floor'):.2f}" if "floor" in point.best else ""
        limits = [(PEERS[p], limit, point.ratio(p), floor(p)) for p, limit in targets.items() if p in point.best]
        if point.ranks in (4, 8):
            limits.append(("its own p50, for p99", TAIL, point.tail(), ""))
        for name, limit, ratio, least in limits:
            met = "yes" if ratio <= limit else "**no**"
            table.append(f"| {point.ranks} | {human(point.bytes)} | {name} | {limit} | {ratio:.2f} | {met} | {least} |")
    return table


def size_table(points):
    peers = [p for p in PEERS if all(p in point.best for point in points)]
    head = ["size", "gloo_rs p50 µs", "p99 µs", "bus GB/s", "algorithm"]
    for peer in peers:
        head += [f"{PEERS[peer]} p50 µs", "p99 µs", "its best", "ratio"]
    table = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for point in points:
        cells = [human(point.bytes), f"{point.time('gloo_rs'):.1f}", f"{point.time('gloo_rs', 'p99_us'):.1f}"]
        cells += [f"{point.bus('gloo_rs'):.3f}", point.name("gloo_rs")]
        for p in peers:
            cells += [f"{point.time(p):.1f}", f"{point.time(p, 'p99_us'):.1f}", point.name(p), f"{point.ratio(p):.2f}"]
        table.append("| " + " | ".join(cells) + " |")
    return table


def write(folder, rows):
    """Writes the tables of all measured points."""
    keys = sorted({(r["ranks"], r["bytes"]) for r in rows if r["round"] != "trial"})
    points = [Point(rows, *key) for key in keys]
    all_ranks = sorted({point.ranks for point in points})
    rounds = max(len(point.rounds) for point in points)
    command = f"make bench RANKS={','.join(map(str, all_ranks))} ROUNDS={rounds}"
    text = f"""# Allreduce of float32 sums over loopback TCP

Made by `{command}`, on {machine()}.

A time is the median iteration's, and an iteration's time its slowest rank's; a run has at least 15 iterations after its
warm-up, and the buffers hold numbers other than zero. All programs run in every round, one after the other, size by size. A
figure is the median over the rounds of the rounds' p50 or p99, and a ratio, ours divided by theirs, the median of the
rounds' ratios. Bus bandwidth is that of nccl-tests. [All lines](allreduce.csv).

- **Gloo** is Debian's `libgloo-dev`: a short trial of every algorithm it has, asynchronous and busy-polling, with ranks
  bound to cores as ours are and unbound; the best two go through the rounds, and the better one in a round stands for Gloo.
- **Open MPI** is Debian's, over its TCP transport (`--mca pml ob1 --mca btl tcp,self`), with its own choice
  of algorithm; bound and unbound where there are cores enough, and yielding when idle where there are not.
- The **floor** is two processes, each with a core of its own, that poll one connection and exchange as many bytes each way
  as the allreduce must, and compute nothing; the best of five sizes of send buffer, as above.
- With more ranks than cores no rank is bound, ours included.

## Targets

The last column is the floor's time divided by the peer's: no allreduce over one connection gets below it.

""".splitlines()
    text += target_table(points)
    for ranks in all_ranks:
        own = [point for point in points if point.ranks == ranks]
        text += ["", f"## {ranks} ranks", "", f"![time](time-{ranks}.svg) ![bus bandwidth](bandwidth-{ranks}.svg)", ""]
        text += size_table(own)
    with open(os.path.join(folder, "allreduce.md"), "w") as file:
        file.write("\n".join(text) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(sys.argv[1], load(os.path.join(sys.argv[1], "allreduce.csv")))
