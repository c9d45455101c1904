#!/usr/bin/env python3
"""Measures every algorithm beside what `auto` chooses, with `gloo-rs tune`, and records it.

    benches/algorithms.py TOOL FOLDER [--ranks 2,4,8] [--sizes 4..256Mi:4] [--budget SECONDS] [--collective NAMES]

FOLDER gets algorithms.md, algorithms.csv and a plot for each number of ranks.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile

import report

# The most that auto's time may be of the best algorithm's: in the median over sizes, and at any size.
MEDIAN, WORST = 1.10, 1.30
FIELDS = ["collective", "ranks", "bytes", "algorithm", "us"]


def tune(args, ranks):
    """What `gloo-rs tune` says of each size."""
    plot = os.path.join(args.folder, f"algorithms-{ranks}.svg")
    with tempfile.TemporaryDirectory() as folder:
        command = [args.tool, "tune", "--ranks", str(ranks), "--collective", args.collective, "--sizes", args.sizes]
        command += ["--budget", str(args.budget), "--output", os.path.join(folder, "tuning.toml"), "--plot", plot, "--json"]
        lines = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    sizes = [line for line in map(json.loads, lines) if "times_us" in line]
    if not sizes or not all(line["verified"] for line in sizes):
        sys.exit(f"{' '.join(command)}: no results, or wrong ones")
    return sizes


def write(args, sizes):
    ratios = {}
    with open(os.path.join(args.folder, "algorithms.csv"), "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(FIELDS)
        for line in sizes:
            key = [line["collective"], line["ranks"], line["bytes"]]
            rows.writerow([*key, "auto", line["auto_us"]])
            rows.writerows([*key, name, us] for name, us in sorted(line["times_us"].items()))
            ratios.setdefault(line["ranks"], []).append(line["ratio"])
    command = f"make bench-algorithms ALGORITHMS='--sizes {args.sizes} --budget {args.budget}'"
    text = [
        "# Every algorithm, and what `auto` chooses",
        "",
        f"Made by `{command}`, on {report.machine()}.",
        "",
        f"{args.collective} of float32 over TCP between ranks of one host, sums of random numbers, every result verified. A time is",
        "the median of an iteration's time on the slowest rank; the algorithms and `auto` take turns in shuffled order. An algorithm",
        "that takes more than four times as long as the best is left out at larger sizes. `auto` goes by what rank 0 measured when",
        f"the context connected, not by a file. It may take {MEDIAN} times as long as the best in the median over sizes, and {WORST}",
        "times at any size; the best of many is the luckiest, too. [All times](algorithms.csv).",
        "",
        "| ranks | sizes | median of auto / best | met | worst | met |",
        "|---|---|---|---|---|---|",
    ]
    met = lambda value, limit: "yes" if value <= limit else "**no**"
    for ranks, values in ratios.items():
        median, worst = statistics.median(values), max(values)
        text.append(f"| {ranks} | {len(values)} | {median:.2f} | {met(median, MEDIAN)} | {worst:.2f} | {met(worst, WORST)} |")
    for ranks in ratios:
        text += ["", f"## {ranks} ranks", "", f"![time against size, {ranks} ranks](algorithms-{ranks}.svg)", ""]
        text += ["| size | best | µs | `auto` takes | ratio | next best |", "|---|---|---|---|---|---|"]
        for line in (line for line in sizes if line["ranks"] == ranks):
            order = sorted(line["times_us"].items(), key=lambda item: item[1])
            after = ", ".join(f"{name} {us / order[0][1]:.2f}" for name, us in order[1:5])
            cells = [report.human(line["bytes"]), line["best"], f"{line['best_us']:.1f}", line["auto"], f"{line['ratio']:.2f}"]
            text.append(f"| {' | '.join(cells)} | {after} |")
    with open(os.path.join(args.folder, "algorithms.md"), "w") as file:
        file.write("\n".join(text) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("folder")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default="4..256Mi:4")
    parser.add_argument("--budget", type=int, default=120, help="seconds for each number of ranks")
    parser.add_argument("--collective", default="allreduce")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    write(args, [line for ranks in args.ranks.split(",") for line in tune(args, int(ranks))])


if __name__ == "__main__":
    main()
