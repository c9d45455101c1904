"""The patterns of calls that `record.py programs` measures, what is compared there, and its tables: programs.md.

peers/patterns.h says what each pattern is. Those of one family run in one launch; a pattern's word is in the place of a collective.
"""

import dataclasses
import os
import statistics

import report
from programs import Cell, parse
from report import Target, human, number

LATE = ["late-20", "late-100", "late-1000", "late-10000"]
ROTATIONS = ["rotation-1", "rotation-8", "rotation-32", "rotation-64", "rotation-256", "rotation-1024", "rotation-mixed"]
LONGEST = "rotation-1024"
SEQUENCES = [f"sequence-{word}" for word in "ba ab bar barc gs ag ac bg bt cr ct".split()]
REQUESTS = ["requests-2", "requests-8", "requests-32"]
WAIT = ["wait-100"]
# The values of GLOO_RS_WAIT that are measured beside the default.
MODES = ("poll", "sleep")


@dataclasses.dataclass(frozen=True)
class Family:
    title: str
    # Numbers of ranks.
    ranks: tuple
    # What runs in one launch: patterns, and their sizes.
    launches: list
    # What a time is, and what stands in brackets behind it: the ratio to `beside_us`, or that itself.
    time: str
    beside: str
    ratio: bool
    # Whether the command line's sizes replace these.
    sized: bool = False


FAMILIES = {
    "late": Family(
        "Late ranks", (2, 4), [(LATE, "8,16Ki,1Mi")],
        "An allreduce to which the last rank comes 20 µs to 10 ms after the others, since it computes: the time from its arrival until "
        "the slowest rank has the result", "until that last rank has it", False, True,
    ),
    "rotation": Family(
        # The longest rotation has a launch of its own: with 64 ranks, no program ends it together with the others in time.
        "Calls in rotation", (2, 4, 16, 64), [([pattern for pattern in ROTATIONS if pattern != LONGEST], "8"), ([LONGEST], "8")],
        "Allreduces of so many different lengths, from 8 bytes on by 4, one after the other, or (mixed) a barrier, an allreduce of one "
        "float32 and a reduce of one float64: a call's time", "times the mean of such calls, each in a loop of its own", True,
    ),
    "sequence": Family(
        "Sequences of different calls", (2, 4, 16, 64), [(SEQUENCES, "16")],
        "Collectives of 16 bytes for each rank, back to back, a letter each: b barrier, a allreduce, r reduce, c broadcast, g allgather, "
        "s reduce_scatter, t alltoall: the sequence's time", "times the sum of its parts, each in a loop of its own", True,
    ),
    # Two buffers for each request: at most 256 MiB a rank.
    "requests": Family(
        "Requests at once", (2, 4), [(REQUESTS, "64Ki,1Mi"), (REQUESTS[:2], "16Mi")],
        "So many allreduces that are all started, and then waited for in the same order: the time of all", "times the same calls one "
        "after the other", True, True,
    ),
    "wait": Family(
        "Processor time of waiting", (2, 4), [(WAIT, "8")],
        "A rank that waits in an allreduce for one that comes 100 ms later: the processor time of its process", "of a rank that sleeps "
        "that long, without a call", False,
    ),
}  # fmt: skip

KIND = report.Kind(
    name="programs",
    title="What programs do",
    peers={"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI", "oneccl": "oneCCL"},
    floors={**{mode: f"gloo_rs, {mode}" for mode in MODES}, "gloo_rs_tcp": "gloo_rs, TCP", "openmpi_tcp": "Open MPI, TCP"},
    targets=[
        *(Target(pattern, (2,), "peers", 1.0, largest=16 << 10, fields=("beside_us",)) for pattern in LATE[1:]),
        *(Target(pattern, (2,), "peers", 1.0, smallest=1 << 20, fields=("beside_us",)) for pattern in LATE[1:3]),
        Target(LATE[3], (2,), "peers", 1.2, smallest=1 << 20, fields=("beside_us",)),
        *(Target(f"rotation-{lengths}", (2,), peer, 0.7) for lengths in (1, 64, 1024) for peer in ("openmpi", "impi")),
        *(Target(pattern, (2, 16, 64), "openmpi", 1.0) for pattern in SEQUENCES),
        *(Target(pattern, (2, 4), "beside", 1.0, of=of) for of in ("gloo_rs", "gloo_rs_tcp") for pattern in REQUESTS),
    ],
    tail=None,
    text="""The other records measure one call in a loop. Programs compute between calls, so that ranks come late; they make many different calls,
and several at once. All programs measured here have the same harness, `benches/peers/patterns.h`, which makes plain calls, and for requests
persistent ones of ours, `MPI_Iallreduce` of an MPI and events of oneCCL. Each pattern but the waiting warms up for a sixth of its time. A sample is
the slowest rank's; ranks start it at the same time, after a barrier. Samples of rotations and sequences are means of loops of 100 µs
at least. The buffers hold numbers other than zero, and results are verified before and after. All programs run in every round,
one after the other. A figure is the median over the rounds, and a ratio, ours divided by theirs, the median of the rounds' ratios. A short
trial of every sensible setting of each program selects what goes through the rounds, and the best in a round stands for the program.

- **Open MPI**, **MPICH**, **Intel MPI** and **oneCCL** (over Intel MPI) are as in [the record of single calls](host.md): the wheels of PyPI,
  with shared memory, ranks bound to cores and unbound, and more of their settings.
- **gloo_rs, poll** and **gloo_rs, sleep** are its other modes of waiting, by `GLOO_RS_WAIT`: in the patterns that wait.
- **gloo_rs, TCP** (`GLOO_RS_SHM=0`) and **Open MPI, TCP** (`--mca pml ob1 --mca btl tcp,self`) are both over loopback.
- MPICH and oneCCL poll without ever yielding: with more ranks than cores they are left out. There, the times of late ranks contain
  that the last rank's core runs others when it arrives.
""",
)


def family_of(collective):
    return collective.partition("-")[0]


def cells(families, all_ranks, sizes=None):
    """What to measure, one launch each. `sizes`, if given, replace those of the families that have several."""
    found = []
    for family in map(FAMILIES.get, families):
        for ranks in (ranks for ranks in all_ranks if ranks in family.ranks):
            for patterns, own in family.launches[: 1 if sizes else None]:
                text = sizes if sizes and family.sized else own
                found.append(Cell(",".join(patterns), ranks, tuple(map(parse, text.split(",")))))
    return found


def rivals(point):
    """Pairs of ours and of the fastest one to compare it with: on one host, and over TCP."""
    for ours, theirs in (("gloo_rs", KIND.peers), ("gloo_rs_tcp", ["openmpi_tcp"])):
        measured = [program for program in theirs if program in point.rows]
        if ours in point.rows and measured:
            yield ours, min(measured, key=point.time)


def heading(point):
    """A pattern, and its size where its family has several."""
    what = point.collective.partition("-")[2]
    family = family_of(point.collective)
    words = {"late": lambda: f"{float(what) / 1000:g} ms, {human(point.bytes)}", "requests": lambda: f"{what} × {human(point.bytes)}"}
    words |= {"wait": lambda: f"{what} ms", "sequence": lambda: what}
    lengths = lambda: what if not what.isdigit() else f"{what} length{'s' if what != '1' else ''}"
    return words.get(family, lengths)()


def standing(points):
    """For each family, where gloo_rs is ahead of all peers, and where it is furthest behind."""
    sentences = []
    for name, family in FAMILIES.items():
        pairs = [(point, *pair) for point in points if family_of(point.collective) == name for pair in rivals(point)]
        rows = [(point.ratio(theirs, of=ours), point, ours, theirs) for point, ours, theirs in pairs]
        if not rows:
            continue
        behind = sorted((row for row in rows if row[0] > 1), key=lambda row: row[0], reverse=True)
        sentence = f"**{family.title}**: gloo_rs is ahead of the fastest peer in {len(rows) - len(behind)} of {len(rows)} rows"
        by_ranks = {}
        for _, point, _, _ in behind:
            by_ranks[point.ranks] = by_ranks.get(point.ranks, 0) + 1
        if behind:
            ratio, point, ours, theirs = behind[0]
            where = ", ".join(f"{count} with {ranks} ranks" for ranks, count in sorted(by_ranks.items()))
            link = " over TCP" if ours == "gloo_rs_tcp" else ""
            sentence += f" and behind in {len(behind)} ({where}), furthest at {heading(point)}, {point.ranks} ranks{link}: "
            sentence += f"{number(ratio)} times the time of {KIND.programs()[theirs]}"
        sentences.append(sentence + ".")
    return " ".join(sentences)


def times(point, program, family):
    """p50 / p99, and in brackets what it is compared with."""
    text = f"{number(point.time(program))} / {number(point.time(program, 'p99_us'))}"
    beside = point.beside(program) if family.ratio else point.time(program, "beside_us")
    return text + ("" if beside is None else f" ({number(beside)})")


def table(points, family):
    others = [p for p in list(KIND.programs())[1:] if any(p in point.rows for point in points)]
    head = ["pattern", *(KIND.programs()[program] for program in ("gloo_rs", *others)), "the fastest peer's setting", "ratio to it"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for point in points:
        cells = [heading(point), *(times(point, p, family) if p in point.rows else "" for p in ("gloo_rs", *others))]
        pair = next((pair for pair in rivals(point) if pair[0] == "gloo_rs"), None)
        cells += [f"{KIND.peers[pair[1]]}: {point.name(pair[1])}", number(point.ratio(pair[1]))] if pair else ["", ""]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def in_order(points):
    """As the families list them."""
    order = [pattern for family in FAMILIES.values() for patterns, _ in family.launches for pattern in patterns]
    return sorted(points, key=lambda point: (order.index(point.collective), point.bytes))


def plot_names(points, family, ranks):
    """Of the plots of a family, without their endings: of late ranks one for each size."""
    if family == "wait":
        return []
    sizes = sorted({point.bytes for point in points}) if family == "late" else [None]
    return [f"programs-{family}-{ranks}" + (f"-{size}" if size else "") for size in sizes]


def write(folder, rows):
    points = in_order(report.points_of(rows))
    if not points:
        return
    all_ranks = sorted({point.ranks for point in points})
    rounds = statistics.mode(len(point.rounds) for point in points)
    text = [f"# {KIND.title}", "", standing(points), ""]
    text += [f"Made by `make bench-programs RANKS={','.join(map(str, all_ranks))} ROUNDS={rounds}`, on {report.machine()}.", ""]
    text += [*KIND.text.splitlines(), "", f"All lines are in [{KIND.name}.csv]({KIND.name}.csv).", "", *report.state_of(points)]
    text += ["## Targets", ""] + report.target_table(KIND, points)
    for name, family in FAMILIES.items():
        for ranks in all_ranks:
            own = [point for point in points if (family_of(point.collective), point.ranks) == (name, ranks)]
            if own:
                images = " ".join(f"![{plot}]({plot}.svg)" for plot in plot_names(own, name, ranks))
                text += ["", f"## {family.title}, {ranks} ranks", "", f"{family.time}, p50 / p99 in µs, and in brackets {family.beside}."]
                text += ["", images] if images else []
                text += ["", *table(own, family)]
    text += report.failures(KIND, rows)
    with open(os.path.join(folder, f"{KIND.name}.md"), "w") as file:
        file.write("\n".join(text) + "\n")
