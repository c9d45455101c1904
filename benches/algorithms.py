#!/usr/bin/env python3
"""Measures every algorithm and the choice of `auto` with `gloo-rs tune`, and records the results.

    benches/algorithms.py TOOL FOLDER [--ranks 2,4,8] [--sizes 4..256Mi:4] [--budget SECONDS] [--others NAMES]

Writes algorithms.md, algorithms.csv and a plot for each number of ranks to FOLDER: allreduce for each size, a summary of the other
collectives.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile

import plots
import report

MEDIAN, WORST = report.AUTO_MEDIAN, report.AUTO_WORST
# Collectives with more than one algorithm for `auto` to choose from.
OTHERS = "reduce,reduce_scatter,broadcast,allgather,gather,scatter,alltoall"
FIELDS = ["collective", "ranks", "bytes", "algorithm", "us"]


def tune(args, ranks, collectives, budget):
    """The result lines of `gloo-rs tune`, one per size."""
    with tempfile.TemporaryDirectory() as folder:
        command = [args.tool, "tune", "--ranks", str(ranks), "--collective", collectives, "--sizes", args.sizes]
        command += ["--budget", str(budget), "--output", os.path.join(folder, "tuning.toml"), "--json"]
        lines = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    sizes = [line for line in map(json.loads, lines) if "times_us" in line]
    if not sizes or not all(line["verified"] for line in sizes):
        sys.exit(f"{' '.join(command)}: no results, or wrong ones")
    return sizes


def summary(sizes):
    """A table that compares `auto` with the best algorithm, one row per collective and number of ranks."""
    text = [
        "| collective | ranks | sizes | to | median of auto / best | met | worst | at | met |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    met = lambda value, limit: "yes" if value <= limit else "**no**"
    keys = dict.fromkeys((line["collective"], line["ranks"]) for line in sizes)
    for collective, ranks in keys:
        lines = [line for line in sizes if (line["collective"], line["ranks"]) == (collective, ranks)]
        median = statistics.median(line["ratio"] for line in lines)
        worst = max(lines, key=lambda line: line["ratio"])
        cells = [collective, ranks, len(lines), report.human(lines[-1]["bytes"]), f"{median:.2f}", met(median, MEDIAN)]
        cells += [f"{worst['ratio']:.2f}", report.human(worst["bytes"]), met(worst["ratio"], WORST)]
        text.append(f"| {' | '.join(map(str, cells))} |")
    return text


def by_size(sizes, ranks):
    """A table of the best algorithms, one row per size."""
    text = ["| size | best | µs | `auto` takes | ratio | next best |", "|---|---|---|---|---|---|"]
    for line in (line for line in sizes if line["ranks"] == ranks):
        order = sorted(line["times_us"].items(), key=lambda item: item[1])
        after = ", ".join(f"{name} {us / order[0][1]:.2f}" for name, us in order[1:5])
        cells = [report.human(line["bytes"]), line["best"], f"{line['best_us']:.1f}", line["auto"], f"{line['ratio']:.2f}"]
        text.append(f"| {' | '.join(cells)} | {after} |")
    return text


def write(args, sizes, others):
    with open(os.path.join(args.folder, "algorithms.csv"), "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(FIELDS)
        for line in sizes + others:
            key = [line["collective"], line["ranks"], line["bytes"]]
            rows.writerow([*key, "auto", line["auto_us"]])
            rows.writerows([*key, name, us] for name, us in sorted(line["times_us"].items()))
    left_out = "" if args.others == OTHERS else f' --others "{args.others}"'
    command = f"make bench-algorithms ALGORITHMS='--sizes {args.sizes} --budget {args.budget}{left_out}'"
    text = [
        "# Every algorithm, and what `auto` chooses",
        "",
        f"Made by `{command}`, on {report.machine()}.",
        "",
        "float32 between ranks of one host that share memory, sums of random numbers, every result verified. A time is the median of an",
        "iteration's time on the slowest rank; the algorithms and `auto` take turns in shuffled order. An algorithm that takes",
        "more than four times as long as the best is left out at larger sizes. `auto` goes by what rank 0 measured when the",
        f"context connected, not by a file. It may take {MEDIAN} times as long as the best in the median over sizes, and {WORST} times",
        "at any size; the best of many is the luckiest, too. [All times](algorithms.csv).",
        "",
        *summary(sizes),
    ]
    for ranks in dict.fromkeys(line["ranks"] for line in sizes):
        text += ["", f"## allreduce, {ranks} ranks", "", f"![time against size, {ranks} ranks](algorithms-{ranks}.svg)", ""]
        text += by_size(sizes, ranks)
    if others:
        text += ["", "## Other collectives", "", *summary(others)]
    with open(os.path.join(args.folder, "algorithms.md"), "w") as file:
        file.write("\n".join(text) + "\n")
    plots.algorithms(args.tool, args.folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("folder")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default="4..256Mi:4")
    parser.add_argument("--budget", type=int, default=120, help="seconds for each number of ranks, and half of it for --others")
    parser.add_argument("--others", default=OTHERS, help="collectives beside allreduce; '' for none")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    sizes, others = [], []
    for ranks in map(int, args.ranks.split(",")):
        sizes += tune(args, ranks, "allreduce", args.budget)
        others += tune(args, ranks, args.others, args.budget / 2) if args.others else []
    write(args, sizes, sorted(others, key=lambda line: (line["collective"], line["ranks"])))


if __name__ == "__main__":
    main()
