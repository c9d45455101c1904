#!/usr/bin/env python3
"""Writes tables of the measurements of record.py.

    benches/report.py host|tcp|tls|gloo FOLDER

Reads host.csv, allreduce.csv, tls.csv or gloo.csv in FOLDER and writes host.md, allreduce.md, tls.md or gloo.md.
"""

import csv
import dataclasses
import os
import platform
import statistics
import sys

FIELDS = ["round", "program", "setting", "collective", "dtype", "transport", "algorithm", "ranks", "bytes", "iterations"]
FIELDS += ["min_us", "p50_us", "p99_us", "max_us", "loop_us", "beside_us", "line_us", "failed"]
# From here on, a cache line's exchange shows that the cores share no cache: the time in microseconds.
FAR = 0.2
# What was measured in such an hour, while no record was made.
BY_HAND = "host-limits.md#two-ranks-whose-cores-share-no-cache"
# Below this, a call's time and a loop's are both compared.
SMALL = 64 << 10


@dataclasses.dataclass(frozen=True)
class Target:
    """A maximum of the ratio of gloo_rs' time to another's, for sizes in this range; of all peers, to the fastest. `beside` is what
    the same program measured beside it, as `beside_us`."""

    collective: str
    ranks: tuple
    against: str
    limit: float
    smallest: int = 0
    largest: int = 1 << 40
    # Only rounds in which the cores shared a cache, or those in which they did not; None for all.
    far: object = None
    # Whose time it is, if there is more than one of ours.
    of: str = "gloo_rs"
    # Times that are compared besides `p50_us`, and `loop_us` of small calls.
    fields: tuple = ()

    def applies(self, key):
        collective, dtype, ranks, size = key
        same = collective == self.collective and dtype == "float32" and ranks in self.ranks
        return same and self.smallest <= size <= self.largest


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    title: str
    peers: dict
    floors: dict
    targets: list
    # Maximum ratio of p99 to p50 with more ranks than cores; None for no such target.
    tail: object
    text: str

    def programs(self):
        return {"gloo_rs": "gloo_rs", **self.peers, **self.floors}


EXACT = lambda size: {"smallest": size, "largest": size}
# Targets for the time of two ranks over TCP, as a part of Gloo's, by size: for programs in C and for those with Gloo's headers.
OF_GLOO = {4: 0.4, 64 << 10: 0.75, 4 << 20: 0.6, 256 << 20: 0.65}
COMMON = """A time is the median iteration's, and an iteration's time its slowest rank's. Before an iteration, the ranks go through the
program's own barrier, and then meet once more in memory that the harness shares, so that all clocks start at the same time, whichever
rank a program's barrier releases first; with more ranks than cores, they start as the system runs the ranks. The
buffers hold numbers other than zero, and results are verified before and after. All programs are written in C++ with the same
harness, `benches/peers/harness.h`; ours makes plain calls of the C ABI. Only what is compared with gloo_rs alone, buffers of
`gloo_rs_alloc` and other types than float32, is measured by `gloo-rs bench`, after a barrier. Up to 64 KiB there is a second time, behind a
stroke: that of a call in a loop of back-to-back calls without a barrier. All programs run in every round, one after the other. A
figure is the median over the rounds, and a ratio, ours divided by theirs, the median of the rounds' ratios. A short trial of every
sensible setting of each program selects what goes through the rounds, and the best in a round stands for the program.
"""
OTHERS = ("reduce_scatter", "allgather", "broadcast", "alltoall", "barrier")
HOST = Kind(
    name="host",
    title="Collectives on one host",
    peers={"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI", "oneccl": "oneCCL"},
    floors={"allocated": "with gloo_rs_alloc", "bare": "bare exchange", "memory": "memory floor", "switches": "switches"},
    targets=[
        Target("allreduce", (2,), "peers", 0.8, largest=1 << 10, far=False),
        Target("allreduce", (2,), "bare", 1.25, largest=1 << 10, far=True),
        Target("allreduce", (2,), "peers", 0.8, smallest=8 << 10),
        Target("allreduce", (2,), "memory", 1.5, **EXACT(256 << 20)),
        Target("allreduce", (4, 8), "peers", 0.7, largest=64 << 20),
        *(Target(collective, (2, 4), "peers", 0.9) for collective in OTHERS),
    ],
    tail=None,
    text=f"""{COMMON}
- **Open MPI**, **MPICH**, **Intel MPI** and **oneCCL** (over Intel MPI) are the wheels of PyPI that `benches/peers/build.sh`
  names, with shared memory, ranks bound to cores and unbound, and more of each one's settings that are the best somewhere.
- MPICH and oneCCL poll without ever yielding: with more ranks than cores they take 8 ms and more, and are left out. Open MPI
  yields when idle there (`mpi_yield_when_idle`), Intel MPI by `I_MPI_THREAD_YIELD` or `I_MPI_WAIT_MODE`.
- **With gloo_rs_alloc** is gloo_rs on buffers that are shared memory from the beginning; all else, and all ratios, are on ordinary ones.
- The **bare exchange** is two bound processes that copy into a double buffer in shared memory, and add; the **memory floor** the
  bytes that an allreduce must move at least, divided by the bandwidth that both cores reach together; the **switches** the time
  in which a core runs all ranks that share it once, each of which gives it up by `sched_yield`.
- [What bounds](host-limits.md) the rows that miss their targets, and what was tried.
- With more ranks than cores, too, all programs' ranks are tried bound, equally many to each core, and unbound.
""",
)
TCP = Kind(
    name="allreduce",
    title="Allreduce of float32 sums over loopback TCP",
    peers={"gloo": "Gloo", "openmpi_tcp": "Open MPI, TCP"},
    floors={"floor": "floor"},
    targets=[
        Target("allreduce", (2,), "openmpi_tcp", 0.75),
        *(Target("allreduce", (2,), "gloo", limit, **EXACT(size)) for size, limit in OF_GLOO.items()),
        *(Target("allreduce", (2,), "floor", limit, **EXACT(size))
          for size, limit in ((4, 1.5), (64 << 10, 1.3), (4 << 20, 1.3), (256 << 20, 1.4))),
        *(Target("allreduce", (4, 8), "gloo", limit, **EXACT(size))
          for size, limit in ((4, 0.5), (64 << 10, 0.5), (4 << 20, 0.8))),
    ],
    tail=5.0,
    text=f"""{COMMON}
- **Gloo** is Debian's `libgloo-dev`: every algorithm it has, asynchronous and busy-polling, with ranks bound to cores as ours
  are and unbound.
- **Open MPI** is the wheel of PyPI over its TCP transport (`--mca pml ob1 --mca btl tcp,self`), with its own choice of
  algorithm; bound and unbound, and yielding when idle where ranks share cores.
- The **floor** is two processes, each with a core of its own, that poll one connection and exchange as many bytes each way
  as the allreduce must, and compute nothing; the best of five sizes of send buffer.
- With more ranks than cores, Gloo's are unbound; ours and Open MPI's are also bound, equally many to each core.
""",
)
TLS = Kind(
    name="tls",
    title="Allreduce of float32 sums over TLS on loopback",
    peers={"tls_pair": "bare pair"},
    floors={"gloo_rs_tcp": "gloo_rs, TCP"},
    targets=[
        *(Target("allreduce", (2,), "tls_pair", 1.5, **EXACT(size)) for size in (4, 1 << 10)),
        *(Target("allreduce", (2,), "tls_pair", 1.25, **EXACT(size)) for size in (64 << 10, 4 << 20, 256 << 20)),
    ],
    tail=None,
    text="""A time is the median iteration's, and an iteration's time its slowest rank's, after a barrier that is not timed; the
buffers hold random numbers other than zero, and results are verified before and after. Ours are measured by `gloo-rs bench`. Up to
64 KiB there is a second time, behind a stroke: that of a call in a loop of back-to-back calls without a barrier. All programs run in
every round, one after the other, bound to cores and unbound. A figure is the median over the rounds, and a ratio, ours divided by
theirs, the median of the rounds' ratios. A short trial of every setting of each program selects what goes through the rounds, and the
best in a round stands for the program.

- The **bare pair**, `benches/peers/tls_pair.rs`, is two processes, each with a core of its own, that poll one TLS 1.3 connection by the
  same rustls and ring, with the same cipher. They exchange as many bytes each way as the allreduce must, and sum up where the bytes lie
  decrypted. Its settings: each side sends everything and sums up everything (`whole`), or each sums up one half and sends the sums
  (`halves`); rustls reads from the socket (`direct`), or through a buffer of 128 KiB (`buffered`),
  or decrypts in that buffer (`unbuffered`, as the library does); two sizes of send buffer.
- **gloo_rs, TCP** is the same without TLS: what encryption costs.
""",
)
GLOO = Kind(
    name="gloo",
    title="A program written for Gloo, over Gloo and over gloo_rs",
    peers={"gloo": "Gloo"},
    floors={"shared": "gloo_rs, shared memory", "floor": "TCP floor", "bare": "bare exchange"},
    targets=[
        Target("allreduce", (2,), "gloo", limit, **EXACT(size), of=of)
        for of, limits in (("gloo_rs", OF_GLOO.values()), ("shared", (0.1, 0.2, 0.3, 0.5)))
        for size, limit in zip(OF_GLOO, limits)
    ],
    tail=None,
    text="""One program, `benches/peers/gloo.cpp`, is compiled twice without a difference: against Debian's `libgloo-dev`, and against the
headers of gloo_rs with the API of Gloo. It makes allreduces of float32 sums through `AllreduceOptions`. A time is the median iteration's,
and an iteration's time its slowest rank's, after a barrier that is not timed, and from the same moment on; results are verified before and
after. Up to 64 KiB there is a second time, behind a stroke: that of a call in a loop of back-to-back calls. All run in every round, one after the other. A figure is the
median over the rounds, and a ratio, ours divided by theirs, the median of the rounds' ratios. A short trial of every setting selects
what goes through the rounds, and the best in a round counts.

- **Gloo** is its best mode: every algorithm that it has (ring, bcube, and those of its older classes, also busy-polling), with ranks bound to
  cores and unbound.
- **gloo_rs** sets no algorithm, over TCP alone (`GLOO_RS_SHM=0`); **gloo_rs, shared memory** is the same program as it comes. Both with
  ranks bound and unbound, too.
- The **TCP floor** is two bound processes that poll one connection and exchange as many bytes each way as the allreduce must, and compute
  nothing; the **bare exchange** is two bound processes that copy into a double buffer in shared memory, and add.
""",
)
RECORDS = {"host": HOST, "tcp": TCP, "tls": TLS, "gloo": GLOO}
# The ratio of the time of `auto` to that of the best single algorithm (algorithms.py): in the median over sizes, and for any size.
AUTO_MEDIAN, AUTO_WORST = 1.05, 1.20
# The ratio of the time of 16-bit floats to that of as many float32; and how far single runs may be from their median.
HALF, STEADY = 0.65, 0.03


def row(known, line):
    """A line of the CSV file, from what is known and a line of JSON that a program printed."""
    return {field: known.get(field, line.get(field, None if field.endswith("_us") else "")) for field in FIELDS}


def load(path):
    def typed(field, text):
        if field in ("ranks", "bytes") or (field == "round" and text != "trial"):
            return int(text)
        return (float(text) if text else None) if field.endswith("_us") else text

    with open(path, newline="") as file:
        return [{field: typed(field, text) for field, text in line.items()} for line in csv.DictReader(file)]


def key_of(row):
    return row["collective"], row["dtype"], row["ranks"], row["bytes"]


class Point:
    """The results of all rounds for one collective, type, number of ranks and size."""

    def __init__(self, rows, key):
        self.key = key
        self.collective, self.dtype, self.ranks, self.bytes = key
        rows = [r for r in rows if key_of(r) == key and r["round"] != "trial"]
        self.rounds = sorted({r["round"] for r in rows})
        self.line = {number: next((r["line_us"] for r in rows if r["round"] == number), None) for number in self.rounds}
        self.rows = {}  # by program, then by round; only programs that finished every round
        for program in dict.fromkeys(r["program"] for r in rows):
            own = [r for r in rows if r["program"] == program and r["p50_us"] is not None and not r["failed"]]
            by_round = {number: [r for r in own if r["round"] == number] for number in self.rounds}
            if all(by_round.values()):
                self.rows[program] = by_round

    def best(self, program, field="p50_us"):
        """The best setting's row of each round."""
        groups = self.rows.get(program, {})
        with_field = {number: [r for r in rows if r[field] is not None] for number, rows in groups.items()}
        return {number: min(rows, key=lambda r: r[field]) for number, rows in with_field.items() if rows}

    def time(self, program, field="p50_us"):
        best = self.best(program, field)
        return statistics.median(r[field] for r in best.values()) if best else None

    def bus(self, program):
        """Bus bandwidth in GB/s as defined by nccl-tests."""
        others = (self.ranks - 1) / self.ranks
        factor = {"allreduce": 2 * others, "broadcast": 1, "barrier": 0}.get(self.collective, others)
        return self.bytes / self.time(program) / 1e3 * factor

    def name(self, program):
        return statistics.mode(r["setting"] for r in self.best(program).values())

    def ratio(self, program, field="p50_us", of="gloo_rs", far=None):
        """The median of the rounds' ratios, of all rounds or those of one state of the machine; None if there are none."""
        ours, theirs = self.best(of, field), self.best(program, field)
        far_rounds = {number: (self.line[number] or 0) >= FAR for number in self.rounds}
        rounds = [n for n in ours if n in theirs and (far is None or far_rounds[n] == far)]
        return statistics.median(ours[n][field] / theirs[n][field] for n in rounds) if rounds else None

    def beside(self, program):
        """The median of the rounds' ratios to what it measured beside it; None if there is none."""
        ratios = [r["p50_us"] / r["beside_us"] for r in self.best(program).values() if r["beside_us"]]
        return statistics.median(ratios) if ratios else None

    def tail(self, program="gloo_rs"):
        return statistics.median(r["p99_us"] / r["p50_us"] for r in self.best(program).values())


def points_of(rows):
    return [Point(rows, key) for key in sorted({key_of(r) for r in rows if r["round"] != "trial"})]


def human(size):
    for unit, power in (("Mi", 20), ("Ki", 10)):
        if size >= 1 << power:
            return f"{size >> power} {unit}B"
    return f"{size} B"


def number(value):
    """Microseconds, or ratios, with three digits that matter."""
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def summary(rows, cell):
    own = [p for p in points_of(rows) if p.collective in cell.collectives and (p.dtype, p.ranks) == (cell.dtype, cell.ranks)]
    lines = []
    for point in (point for point in own if point.bytes in cell.sizes):
        parts = [f"{program} {times(point, program)}" for program in point.rows]
        lines.append(f"{point.collective}, {point.ranks} ranks, {human(point.bytes)}: " + ", ".join(parts) + " µs")
    return "\n".join(lines)


def machine():
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores of {model}, Linux {platform.release()}"


def times(point, program):
    """A call's time, and a loop's if it was measured."""
    loop = point.time(program, "loop_us")
    return number(point.time(program)) + (f" / {number(loop)}" if loop is not None else "")


def met(ratios, limit):
    return "yes" if all(ratio <= limit for ratio in ratios) else "**no**"


def judge(kind, target, point):
    """The name of the other, of peers the fastest, and the ratios by calls and by loops; None if nothing can be compared."""
    if target.against == "beside":
        ratio = point.beside(target.of)
        return ratio and ("the same calls one after the other", [ratio])
    against = [p for p in (kind.peers if target.against == "peers" else [target.against]) if p in point.rows]
    fields = ["p50_us", *(["loop_us"] if point.bytes <= SMALL else []), *target.fields]
    found = []
    for field in fields:
        ratios = {p: point.ratio(p, field, target.of, target.far) for p in against}
        found.append(max(((r, p) for p, r in ratios.items() if r is not None), default=(None, None)))
    if found[0][0] is None:
        return None
    name = " / ".join(dict.fromkeys(kind.programs()[p] for _, p in found if p))
    return name, [ratio for ratio, _ in found if ratio is not None]


def target_table(kind, points):
    """Each target, what was measured, and whether it is met."""
    table = ["| collective | ranks | size | against | at most | measured | met |", "|---|---|---|---|---|---|---|"]
    for target in kind.targets:
        for point in (point for point in points if target.applies(point.key)):
            found = judge(kind, target, point)
            state = {None: "", True: ", no shared cache", False: ", shared cache"}[target.far]
            if not found:
                if target.far and target.against in point.rows:
                    cells = [point.collective, point.ranks, human(point.bytes), kind.programs()[target.against] + state, target.limit]
                    table.append(f"| {' | '.join(map(str, cells))} | no such round | [by hand]({BY_HAND}) |")
                continue
            measured = " / ".join(map(number, found[1]))
            ours = "" if target.of == "gloo_rs" else f", of {kind.programs()[target.of]}"
            cells = [point.collective, point.ranks, human(point.bytes), found[0] + ours + state, target.limit, measured]
            table.append(f"| {' | '.join(map(str, cells))} | {met(found[1], target.limit)} |")
    for point in (p for p in points if kind.tail and p.ranks in (4, 8) and "gloo_rs" in p.rows):
        cells = [point.collective, point.ranks, human(point.bytes), "its own p50, for p99", kind.tail, number(point.tail())]
        table.append(f"| {' | '.join(map(str, cells))} | {met([point.tail()], kind.tail)} |")
    return table


def half_table(points):
    """Sums of 16-bit floats against those of float32 with as many elements."""
    table = []
    floats = {(p.ranks, p.bytes): p for p in points if p.collective == "allreduce" and p.dtype == "float32"}
    for point in (p for p in points if p.dtype != "float32"):
        whole = floats.get((point.ranks, 2 * point.bytes))
        if not whole:
            continue
        halves, wholes = point.best("gloo_rs"), whole.best("gloo_rs")
        ratio = statistics.median(halves[n]["p50_us"] / wholes[n]["p50_us"] for n in halves if n in wholes)
        what = f"own float32, {point.bytes // 2} elements"
        cells = [f"allreduce of {point.dtype}", point.ranks, human(point.bytes), what, HALF, f"{ratio:.2f}", met([ratio], HALF)]
        table.append(f"| {' | '.join(map(str, cells))} |")
    return table


def steady_table(points):
    """How far the slowest and the fastest of many runs are from their median."""
    table = []
    for point in (p for p in points if (p.collective, p.ranks, p.bytes) == ("allreduce", 8, 256 << 20)):
        times = [r["p50_us"] for r in point.best("gloo_rs").values()]
        off = [us / statistics.median(times) - 1 for us in (min(times), max(times))]
        measured = " to ".join(f"{100 * part:+.1f} %" for part in off)
        cells = [f"own median, {len(times)} runs", f"±{100 * STEADY:.0f} %", measured, met(map(abs, off), STEADY)]
        table.append(f"| allreduce | 8 | 256 MiB | {' | '.join(cells)} |")
    return table


def auto_table(folder):
    """`auto` against the best single algorithm, from the record of algorithms.py if there is one."""
    path = os.path.join(folder, "algorithms.csv")
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["collective"] == "allreduce"]
    table = []
    for ranks in dict.fromkeys(r["ranks"] for r in rows):
        ratios = []
        for size in dict.fromkeys(r["bytes"] for r in rows if r["ranks"] == ranks):
            us = {r["algorithm"]: float(r["us"]) for r in rows if (r["ranks"], r["bytes"]) == (ranks, size)}
            auto = us.pop("auto", None)
            ratios += [auto / min(us.values())] if auto and us else []
        for what, ratio, limit in (("median", statistics.median(ratios), AUTO_MEDIAN), ("worst", max(ratios), AUTO_WORST)):
            best = f"the [best algorithm](algorithms.md), {what}"
            cells = ["allreduce, `auto`", ranks, "all", best, limit, f"{ratio:.2f}", met([ratio], limit)]
            table.append(f"| {' | '.join(map(str, cells))} |")
    return table


def size_table(kind, points):
    others = [p for p in (*kind.peers, *kind.floors) if any(p in point.rows for point in points)]
    head = ["size", "gloo_rs µs", "p99", "bus GB/s", *(f"{kind.programs()[p]} µs" for p in others)]
    head += ["the fastest peer's setting", "ratio to it"]
    table = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for point in (point for point in points if "gloo_rs" in point.rows):
        cells = [human(point.bytes) if point.bytes else "", times(point, "gloo_rs"), number(point.time("gloo_rs", "p99_us"))]
        cells += [f"{point.bus('gloo_rs'):.3f}"]
        cells += [times(point, p) if p in point.rows else "" for p in others]
        peers = [p for p in kind.peers if p in point.rows]
        fastest = min(peers, key=point.time, default=None)
        cells += [f"{kind.peers[fastest]}: {point.name(fastest)}", number(point.ratio(fastest))] if fastest else ["", ""]
        table.append("| " + " | ".join(cells) + " |")
    return table


def state_of(points):
    """A sentence on the times of a cache line's exchange."""
    lines = [us for point in points for us in point.line.values() if us]
    if not lines:
        return []
    far = sum(us >= FAR for us in lines)
    return [
        f"A cache line's exchange took {min(lines):.2f} to {max(lines):.2f} µs, median {statistics.median(lines):.2f}; it is measured "
        f"before every round, and in {far} of {len(lines)} it took {FAR} µs or more: the cores shared no cache then.",
        "",
    ]


def failures(kind, rows):
    failed = dict.fromkeys((r["program"], r["setting"], r["collective"], r["ranks"], r["failed"]) for r in rows if r["failed"])
    if not failed:
        return []
    text = ["", "## What failed, and was left out there", ""]
    lines = [(kind.programs()[program], *rest) for program, *rest in failed]
    return text + [f"- {name} {setting}, {collective}, {ranks} ranks: {why}" for name, setting, collective, ranks, why in lines]


def write(which, folder, rows):
    """Writes the tables of all measured points."""
    kind = RECORDS[which]
    points = points_of(rows)
    if not points:
        return
    all_ranks = sorted({point.ranks for point in points})
    rounds = statistics.mode(len(point.rounds) for point in points)
    text = f"""# {kind.title}

Made by `make bench-{which} RANKS={','.join(map(str, all_ranks))} ROUNDS={rounds}`, on {machine()}.

{kind.text}
All lines are in [{kind.name}.csv]({kind.name}.csv).{" Over TCP: [allreduce](allreduce.md)." if kind is HOST else ""}

""".splitlines()
    text += state_of(points)
    text += ["## Targets", ""] + target_table(kind, points)
    if which == "host":
        text += half_table(points) + steady_table(points) + auto_table(folder)
    for collective in dict.fromkeys(p.collective for p in points):
        for ranks in all_ranks:
            own = [p for p in points if (p.collective, p.dtype, p.ranks) == (collective, "float32", ranks)]
            if own:
                text += ["", f"## {collective}, {ranks} ranks", "", *images(kind, collective, ranks), *size_table(kind, own)]
    text += failures(kind, rows)
    with open(os.path.join(folder, f"{kind.name}.md"), "w") as file:
        file.write("\n".join(text) + "\n")


def plot_name(kind, collective, ranks, what):
    """Of a plot's file, without its ending."""
    return f"{what}-{ranks}" if kind is TCP else f"{kind.name}-{collective}-{ranks}"


def images(kind, collective, ranks):
    if collective == "barrier":
        return []
    names = [plot_name(kind, collective, ranks, what) for what in plots_of(kind)]
    return [" ".join(f"![{name}]({name}.svg)" for name in names), ""]


def plots_of(kind):
    return ["time", "bandwidth"] if kind is TCP else ["time"]


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in RECORDS:
        sys.exit(__doc__)
    write(sys.argv[1], sys.argv[2], load(os.path.join(sys.argv[2], f"{RECORDS[sys.argv[1]].name}.csv")))
