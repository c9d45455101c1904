#!/usr/bin/env python3
"""Measures gloo_rs beside other implementations on this host. Writes CSV, tables and plots.

    benches/record.py host|tcp|tls|gloo|programs TOOL PEERS OUTPUT_FOLDER [--ranks 2,4,8] [--rounds 5] [--sizes 4,64Ki,...]
                      [--collectives allreduce,...] [--quick] [--keep] [--budget SECONDS]

`host` measures collectives with whatever each implementation has for ranks on one host, `tcp` allreduce over loopback TCP, `tls`
allreduce of two ranks over TLS, `gloo` allreduce of a program written for Gloo, over Gloo and over gloo_rs, `programs` the patterns of
patterns.py, whose families --collectives names. PEERS is the folder that peers/build.sh filled; what is not there is left out.

The speed of a machine varies over time, so all programs run in every round with the same sizes; a figure is the median of the
rounds' medians, and a ratio the median of the rounds' ratios. A program has many settings: a short trial selects the best
few, which run in all rounds, and the best in a round represents the program. A setting that fails is recorded, and left out.

Results are saved after every round. --keep continues an earlier run of the same command, --budget limits the time of a run.
"""

import argparse
import csv
import math
import os
import signal
import sys
import time

import patterns
import plots
import programs
import report
from programs import Cell, Failed, parse

# Settings of a program that run in all rounds; others than the best one only if they need at most WITHIN times as long as that
# where they do best.
FINALISTS, WITHIN = 2, 1.2
# Number of measured calls: as many as fit into the time, but at least 5 and at most MOST. A trial has a fifth of the time.
SECONDS, MOST = {True: 0.04, False: 0.15}, 2000
# Seconds for a launch, or for each pattern and size in it if that is more, besides what its bytes may take, a slow setting included.
PATIENCE, PATIENCE_EACH, SLOWEST_BYTES = 20, 5, 20e6
# Sizes of one launch: ranks that poll without yielding, or another that waits for them, disturb no later launch.
GROUPS = [64 << 10, 1 << 40]
# float16 and bfloat16 are compared with float32 at this number of elements.
ELEMENTS = 4 << 20
# Runs of the largest allreduce whose times are compared with each other.
STEADY_RUNS, STEADY_SIZE, STEADY_RANKS = 10, 256 << 20, 8

BLOCKS = ["reduce_scatter", "allgather", "alltoall"]
COLLECTIVES = ["allreduce", *BLOCKS, "broadcast", "barrier"]
ALLREDUCE = "4,1Ki,8Ki,64Ki,512Ki,4Mi,32Mi,256Mi"


def sizes_of(collective, ranks, quick):
    """What is measured by default. 32 bytes are one element for each of 8 ranks."""
    if collective == "allreduce":
        return {2: ALLREDUCE, 4: "4,1Ki,8Ki,64Ki,512Ki,4Mi,64Mi,256Mi"}.get(ranks, "4,1Ki,8Ki,64Ki,512Ki,4Mi,64Mi")
    return "32,8Ki,64Ki,4Mi" if quick else "32,1Ki,8Ki,64Ki,512Ki,4Mi" + (",32Mi" if ranks <= 4 else "")


def cells(collectives, all_ranks, sizes, quick=False):
    """What to measure, one launch each. `sizes`, if given, apply to all collectives but barrier."""
    found = []
    for ranks in all_ranks:
        for collective in collectives:
            text = "0" if collective == "barrier" else sizes or sizes_of(collective, ranks, quick)
            # Blocks for all ranks are of one length.
            unit = 4 * ranks if collective in BLOCKS else 1
            own, last = [max(size // unit, 1) * unit if size else 0 for size in map(parse, text.split(","))], -1
            for largest in GROUPS:
                group = tuple(size for size in own if last < size <= largest)
                found += [Cell(collective, ranks, group)] if group else []
                last = largest
    return found


class Record:
    """The lines of the CSV file."""

    def __init__(self, path, keep):
        self.path = path
        self.rows = report.load(path) if keep and os.path.exists(path) else []

    def add(self, rows):
        self.rows += rows
        with open(self.path + ".new", "w", newline="") as file:
            writer = csv.DictWriter(file, report.FIELDS)
            writer.writeheader()
            writer.writerows(self.rows)
        os.replace(self.path + ".new", self.path)

    def of(self, cell, number):
        key = (cell.dtype, cell.ranks, number)
        own = [row for row in self.rows if (row["dtype"], row["ranks"], row["round"]) == key]
        return [row for row in own if row["collective"] in cell.collectives and row["bytes"] in cell.sizes]


class Recorder:
    def __init__(self, record, known, bare, rounds, quick, check):
        self.record, self.programs, self.bare, self.check = record, known, bare, check
        self.rounds, self.quick = rounds, quick

    def measure(self, name, setting, cell, number, line_us, share=1.0):
        """The rows of one launch; if it failed, also one that says so."""
        several = PATIENCE_EACH * len(cell.collectives) * len(cell.sizes) if len(cell.collectives) > 1 else 0
        patience = max(PATIENCE, several) + cell.ranks * cell.calls * sum(cell.sizes) / SLOWEST_BYTES
        known = {"program": name, "setting": setting, "dtype": cell.dtype, "ranks": cell.ranks, "round": number, "line_us": line_us}
        failure = []
        try:
            lines = self.programs[name].measure(setting, cell, MOST, SECONDS[cell.loop] * share, patience)
        except Failed as why:
            print(f"  {name} {setting}, {describe(cell)}: failed, {why}", file=sys.stderr)
            lines, failed = why.lines, {"collective": cell.collectives[-1], "bytes": cell.sizes[-1], "failed": str(why)}
            failure = [report.row(known | failed, {})]
        return [report.row(known, {"collective": cell.collective} | line) for line in lines] + failure

    def trials(self, cell):
        """Selects what runs in all rounds: a list of (program, setting). In a quick record that is everything."""
        chosen = []
        for name, program in self.programs.items():
            done = [row for row in self.record.of(cell, "trial") if row["program"] == name]
            settings = program.settings(cell)
            if len(settings) > 1 and not self.quick:
                for setting in settings:
                    if not any(row["setting"] == setting for row in done):
                        self.check()
                        rows = self.measure(name, setting, cell, "trial", None, 0.2)
                        self.record.add(rows)
                        done += rows
                settings = finalists(done, FINALISTS)
            chosen += [(name, setting) for setting in settings]
        return chosen

    def cell(self, cell):
        todo = [number for number in range(self.rounds) if not self.record.of(cell, number)]
        if not todo:
            return
        chosen = self.trials(cell)
        for number in todo:
            self.check()
            line_us = self.bare and self.bare.line()
            rows = []
            # Alternate the order, so that no program always runs after the same one.
            for name, setting in chosen if number % 2 == 0 else chosen[::-1]:
                rows += self.measure(name, setting, cell, number, line_us)
            self.record.add(rows)
        print(report.summary(self.record.rows, cell), file=sys.stderr, flush=True)


def describe(cell):
    sizes = f"{report.human(cell.sizes[0])} to {report.human(cell.sizes[-1])}"
    return f"{cell.collective} of {cell.dtype}, {cell.ranks} ranks, {sizes}"


def finalists(rows, most):
    """The settings with the best times in a trial: the one that is best on average, then those that are best somewhere."""
    times = {}
    for row in rows:
        if not row["failed"]:
            times.setdefault(row["setting"], {})[row["collective"], row["bytes"]] = row["p50_us"]
    if not times:
        return []
    best = {point: min(own[point] for own in times.values() if point in own) for own in times.values() for point in own}
    # A size that a setting lacks, because it failed there, counts as very slow.
    ratios = {setting: [own.get(point, math.inf) / us for point, us in best.items()] for setting, own in times.items()}
    mean = lambda setting: sum(math.log(min(ratio, 1e3)) for ratio in ratios[setting])
    order = sorted(ratios, key=mean)
    first = order[0]
    # How many times as long the first one needs where this one does best, compared with it.
    gain = lambda setting: max(a / b for a, b in zip(ratios[first], ratios[setting]) if b < math.inf)
    rest = sorted((setting for setting in order[1:] if gain(setting) > 1 / WITHIN), key=gain, reverse=True)
    return [first, *rest][:most]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", choices=[*report.RECORDS, "programs"])
    parser.add_argument("tool")
    parser.add_argument("peers")
    parser.add_argument("folder")
    parser.add_argument("--ranks", help="default: 2,4,8, of `programs` 2,4,16,64; of a quick record, 2,4")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--sizes")
    parser.add_argument("--collectives", help="of `host`; families of `programs`")
    parser.add_argument("--quick", action="store_true", help="one round of everything, few sizes, no trials")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--budget", type=float, default=math.inf)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    programs.adopt_orphans()
    end = time.monotonic() + args.budget

    def check():
        if time.monotonic() > end:
            print("the time limit is reached; --keep continues from here", file=sys.stderr)
            sys.exit(75)

    os.makedirs(args.folder, exist_ok=True)
    there = lambda name: os.path.exists(os.path.join(args.peers, f"{name}_peer"))
    usual = "2,4" if args.quick else "2,4,16,64" if args.record == "programs" else "2,4,8"
    all_ranks = list(map(int, (args.ranks or usual).split(",")))
    collectives = args.collectives and args.collectives.split(",")
    bare = programs.Bare(args.peers) if there("bare") else None
    if args.record == "tcp":
        known = {"gloo_rs": programs.GlooRs(args.tool, "tcp", args.peers)}
        known |= {"gloo": programs.Gloo(args.peers)} if there("gloo") else {}
        known |= {"openmpi_tcp": programs.OpenMpiTcp(args.peers, "openmpi")} if there("openmpi") else {}
        known |= {"floor": programs.TcpFloor(args.peers)} if there("floor") else {}
        todo = cells(["allreduce"], all_ranks, args.sizes or ALLREDUCE)
    elif args.record == "tls":
        known = {"gloo_rs": programs.GlooRs(args.tool, "tls")}
        known |= {"tls_pair": programs.TlsPair(args.peers)} if there("tls_pair") else {}
        known |= {"gloo_rs_tcp": programs.GlooRs(args.tool, "tcp")}
        todo = cells(["allreduce"], [2], args.sizes or "4,1Ki,64Ki,4Mi,256Mi")
    elif args.record == "gloo":
        ours = lambda shm: programs.Gloo(args.peers, "gloo_headers", ["default"], {"GLOO_RS_SHM": shm})
        known = {"gloo_rs": ours("0"), "shared": ours("1"), "gloo": programs.Gloo(args.peers)}
        known |= {"floor": programs.TcpFloor(args.peers)} if there("floor") else {}
        known |= {"bare": bare} if bare else {}
        todo = cells(["allreduce"], [2], args.sizes or "4,64Ki,4Mi,256Mi")
    else:
        collectives = collectives or (list(patterns.FAMILIES) if args.record == "programs" else COLLECTIVES)
        known = {"gloo_rs": programs.GlooRs(args.tool, "auto", args.peers)}
        known |= {"openmpi": programs.OpenMpi(args.peers, "openmpi")} if there("openmpi") else {}
        known |= {"mpich": programs.Mpich(args.peers, "mpich")} if there("mpich") else {}
        known |= {"impi": programs.IntelMpi(args.peers, "impi")} if there("impi") else {}
        known |= {"oneccl": programs.OneCcl(args.peers, "oneccl", "impi")} if there("oneccl") else {}
        if args.record == "programs":
            waits = lambda mode: programs.GlooRs(args.tool, "auto", args.peers, environment={"GLOO_RS_WAIT": mode})
            known |= {mode: programs.Only(waits(mode), "late", "wait") for mode in patterns.MODES}
            known |= {"gloo_rs_tcp": programs.Only(programs.GlooRs(args.tool, "tcp", args.peers), "requests")}
            known |= {"openmpi_tcp": programs.Only(programs.OpenMpiTcp(args.peers, "openmpi"), "requests")} if there("openmpi") else {}
            todo = patterns.cells(collectives, all_ranks, args.sizes)
        else:
            known |= {"allocated": programs.GlooRs(args.tool, "auto", allocated=True)}
            if bare:
                known |= {"bare": bare, "memory": programs.MemoryFloor(args.peers), "switches": programs.Switches(args.peers)}
            todo = cells(collectives, all_ranks, args.sizes, args.quick)
    kind = patterns.KIND if args.record == "programs" else report.RECORDS[args.record]
    record = Record(os.path.join(args.folder, f"{kind.name}.csv"), args.keep)
    rounds = args.rounds or (1 if args.quick else 5)
    recorder = Recorder(record, known, bare, rounds, args.quick, check)

    def write():
        if args.record == "programs":
            patterns.write(args.folder, record.rows)
            return plots.programs(args.tool, args.folder)
        report.write(args.record, args.folder, record.rows)
        plots.collectives(args.tool, args.folder, args.record)

    for cell in todo:
        recorder.cell(cell)
        write()
    if args.record == "host" and not args.sizes and "allreduce" in collectives:
        tool = {"gloo_rs": programs.GlooRs(args.tool, "auto")}
        alone = Recorder(record, tool, bare, rounds, args.quick, check)
        # All types in every round, so that a round's times are comparable.
        for number in range(rounds):
            alone.rounds = number + 1
            for dtype, size in (("float16", 2), ("bfloat16", 2), ("float32", 4)):
                alone.cell(Cell("allreduce", 2, (ELEMENTS * size,), dtype))
        if STEADY_RANKS in all_ranks and not args.quick:
            alone.rounds = STEADY_RUNS
            alone.cell(Cell("allreduce", STEADY_RANKS, (STEADY_SIZE,)))
        write()
    if any(row["failed"] for row in record.rows if row["program"].startswith(("gloo_rs", *patterns.MODES))):
        sys.exit("gloo_rs failed somewhere: see the end of the record")


if __name__ == "__main__":
    main()
