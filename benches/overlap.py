#!/usr/bin/env python3
"""Measures how much of an allreduce is hidden behind the multiplication of matrices. Writes overlap.csv, overlap.md and a plot.

    benches/overlap.py PREFIX FOLDER [--size 64Mi] [--rate 1gbit] [--rounds 7] [--quick]

Compiles benches/overlap.c against the library in PREFIX. Two ranks run it, each on one core: in network namespaces, those of
network.py, and on one host in shared memory. --quick takes one round of a small size, to test all that.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import network
import plots
import report
import streams

HERE = pathlib.Path(__file__).parent
RANKS = 2
# The multiplications' time, as parts of the allreduce's.
PARTS = [0.5, 1, 2]
TARGET = 0.9
APART, SHARED = "TCP, {rate}", "shared memory"
SIZES = {"1Mi": 1 << 20, "4Mi": 4 << 20, "64Mi": 64 << 20}


def compiled(prefix, folder):
    program, libraries = folder / "overlap", prefix / "lib"
    command = ["cc", "-O3", "-march=native", "-std=c11", f"-I{prefix / 'include'}", HERE / "overlap.c", "-o", program]
    subprocess.run([*command, f"-L{libraries}", "-lgloo_rs", f"-Wl,-rpath,{libraries.resolve()}"], check=True)
    return str(program)


def on_one_host(command, folder):
    """Runs the command on both ranks of one host, and returns the lines of JSON of rank 0."""
    store = {"WORLD_SIZE": str(RANKS), "GLOO_RS_STORE": f"file://{tempfile.mkdtemp(dir=folder)}"}
    start = lambda rank: subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | store | {"RANK": str(rank)})
    processes = [start(rank) for rank in range(RANKS)]
    outputs = [process.communicate(timeout=network.PATIENCE)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{' '.join(command)}: a rank has failed")
    return [json.loads(line) for line in outputs[0].splitlines()]


def measure(args, folder):
    command = [compiled(args.prefix, folder), str(SIZES[args.size]), str(args.rounds), *map(str, PARTS)]
    hosts = network.Network(RANKS, args.rate)
    apart = hosts.lines(command, RANKS, 1)
    hosts.close()
    rows = []
    for link, lines in ((APART.format(rate=args.rate), apart), (SHARED, on_one_host(command, folder))):
        for line in lines:
            line.pop("sum")
            ideal = max(line["reduce_ms"], line["multiply_ms"])
            rows.append({"link": link, **line, "of_ideal": round(ideal / line["both_ms"], 4)})
            print(f"{link}: {rows[-1]}", file=sys.stderr)
    return rows


def summary(rows):
    """For each link and part: the medians of each figure, and lowest and highest share of the ideal."""
    found = {}
    for key in dict.fromkeys((row["link"], row["part"]) for row in rows):
        own = [row for row in rows if (row["link"], row["part"]) == key]
        figures = {name: statistics.median(row[name] for row in own) for name in ("reduce_ms", "multiply_ms", "both_ms", "of_ideal")}
        shares = [row["of_ideal"] for row in own]
        found[key] = figures | {"lowest": min(shares), "highest": max(shares)}
    return found


def write(args, rows, load):
    streams.save(args.folder / "overlap.csv", rows)
    found = summary(rows)
    lines = ["| link | multiplication alone, ms | allreduce alone, ms | both, ms | ideal over both | lowest, highest |", "|---" * 6 + "|"]
    for (link, _), row in found.items():
        times = [f"{row[name]:.1f}" for name in ("multiply_ms", "reduce_ms", "both_ms")]
        lines.append("| " + " | ".join([link, *times, f"{row['of_ideal']:.3f}", f"{row['lowest']:.3f}, {row['highest']:.3f}"]) + " |")
    apart = APART.format(rate=args.rate)
    worst = min(row["of_ideal"] for (link, _), row in found.items() if link == apart)
    table = "\n".join(lines)
    text = f"""# Work beside an allreduce

Made by `make bench-overlap`, on {report.machine()}, {datetime.date.today()}; other programs kept {load:.1f} of them busy before.

Two ranks, each on one core with all its threads, start an allreduce of {args.size}B of float32, multiply matrices, and wait for the allreduce
({HERE.name}/overlap.c). They do each of it alone, too. The ideal is the longer of the two alone. Times are those of the slower rank, the median
of {args.rounds} rounds, in which all take turns; the share of the ideal is the median of the rounds' shares. [All lines](overlap.csv).

{table}

Between network namespaces with links of {args.rate}, the target is a share of {TARGET}; the worst is {worst:.3f}. The core that
multiplies also sends, receives and adds the bytes: that part of an allreduce cannot be hidden. In shared memory it is all of it.

![Share of the ideal](overlap.svg)
"""
    (args.folder / "overlap.md").write_text(text)
    series = [
        {"name": link, "points": [[row["multiply_ms"] / row["reduce_ms"], row["of_ideal"]] for (own, _), row in found.items() if own == link]}
        for link in (apart, SHARED)
    ]
    axes = {"x": {"label": "multiplication alone / allreduce alone", "unit": "number"}, "y": {"label": "ideal / both", "unit": "number"}}
    title = f"matrices multiplied beside an allreduce of {args.size}B, {RANKS} ranks"
    plots.draw(args.prefix / "bin" / "gloo-rs", args.folder, "overlap", {"title": title, **axes, "series": series})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--size", choices=SIZES, default="64Mi")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.size, args.rounds = "1Mi", 1
    args.folder.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args, pathlib.Path(folder))
    write(args, rows, load)


if __name__ == "__main__":
    main()
