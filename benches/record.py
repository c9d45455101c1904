#!/usr/bin/env python3
"""Times allreduce over loopback TCP, gloo_rs and Gloo in turn, and writes table, CSV and plots.

    benches/record.py TOOL GLOO_PEER OUTPUT_FOLDER [--ranks 2,4] [--rounds 5] [--sizes ...]

Machines drift, so both run in every round with the same sizes; a figure is the median of the rounds' medians, and a ratio
the median of the rounds' ratios. Gloo's figure is that of its best algorithm and mode in that round.
"""

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

SIZES = [4, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20, 256 << 20]


def iterations(size):
    return 2000 if size <= 8 << 10 else 500 if size <= 64 << 10 else 100 if size <= 512 << 10 else 40 if size <= 4 << 20 else 8


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def ours(tool, ranks, size):
    command = [tool, "bench", "allreduce", "--ranks", str(ranks), "--sizes", str(size)]
    command += ["--iterations", str(iterations(size)), "--json"]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    (line,) = lines(result.stdout)
    assert line["verified"], line
    return line


def gloo(peer, ranks, size):
    with tempfile.TemporaryDirectory() as folder:
        # Fewer of what takes Gloo long: eight modes in turn.
        command = [str(ranks), folder, str(size), str(min(iterations(size), 100))]
        started = [
            subprocess.Popen([peer, str(rank)] + command, stdout=subprocess.PIPE, text=True) for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate(timeout=300)[0] for process in started]
        finally:
            for process in started:
                process.kill()
    assert all(process.returncode == 0 for process in started), [process.returncode for process in started]
    return lines(outputs[0])


def machine():
    with open("/proc/cpuinfo") as file:
        model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    return f"{os.cpu_count()} cores of {model}, Linux {platform.release()}, shared with other work"


def human(size):
    for unit, power in (("Mi", 20), ("Ki", 10)):
        if size >= 1 << power:
            return f"{size >> power} {unit}B"
    return f"{size} B"


def plot(folder, name, title, ylabel, rows, columns):
    data = os.path.join(folder, name + ".dat")
    with open(data, "w") as file:
        for row in rows:
            file.write(" ".join([str(row["bytes"])] + [str(row[c]) for c, _ in columns]) + "\n")
    curves = ", ".join(
        f"'{data}' using 1:{i + 2} with linespoints pt 7 ps 0.5 title '{label}'" for i, (_, label) in enumerate(columns)
    )
    script = f"""set terminal svg size 720,440 background 'white'
set output '{os.path.join(folder, name)}.svg'
set logscale x 2
set logscale y 10
set format x '%.0b %BB'
set key left top
set grid
set title '{title}'
set xlabel 'bytes per rank'
set ylabel '{ylabel}'
plot {curves}
"""
    subprocess.run(["gnuplot"], input=script, text=True, check=True)
    os.remove(data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("peer")
    parser.add_argument("folder")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    args = parser.parse_args()
    sizes = [int(s) for s in args.sizes.split(",")]
    os.makedirs(args.folder, exist_ok=True)
    table = ["# Allreduce of float32 sums over loopback TCP", ""]
    table += [f"Made by `make bench RANKS={args.ranks} ROUNDS={args.rounds}`, on {machine()}. Median of {args.rounds} rounds; each round runs both, one after the", ""]
    table[-2] += " other, size by size."
    table += ["A time is the median iteration's, and an iteration's time its slowest rank's. Gloo is Debian's `libgloo-dev`, the"]
    table += ["best of its algorithms and modes at each size, busy-polling included. Bus bandwidth as nccl-tests define it.", ""]
    raw = []
    for ranks in map(int, args.ranks.split(",")):
        rows = []
        for size in sizes:
            times, theirs, ratios, names, tails = [], [], [], [], []
            for number in range(args.rounds):
                own, others = ours(args.tool, ranks, size), gloo(args.peer, ranks, size)
                best = min(others, key=lambda line: line["p50_us"])
                for line in [own] + others:
                    raw.append({"round": number, **{k: line.get(k) for k in FIELDS}})
                times.append(own["p50_us"])
                tails.append(own["p99_us"])
                theirs.append(best["p50_us"])
                ratios.append(own["p50_us"] / best["p50_us"])
                names.append(best["algorithm"])
            mid = statistics.median
            bandwidth = lambda us: size / us / 1e3 * 2 * (ranks - 1) / ranks
            row = {"bytes": size, "ours": mid(times), "p99": mid(tails), "gloo": mid(theirs), "ratio": mid(ratios)}
            row |= {"algorithm": own["algorithm"], "gloo_algorithm": statistics.mode(names)}
            row |= {"ours_bus": bandwidth(row["ours"]), "gloo_bus": bandwidth(row["gloo"])}
            rows.append(row)
            print(f"{ranks} ranks, {human(size)}: {row['ours']:.1f} us, Gloo {row['gloo']:.1f} us", file=sys.stderr)
        table += [f"## {ranks} ranks", "", f"![time](time-{ranks}.svg) ![bus bandwidth](bandwidth-{ranks}.svg)", ""]
        table += ["| size | gloo_rs p50 µs | p99 µs | bus GB/s | algorithm | Gloo p50 µs | bus GB/s | algorithm | ratio |"]
        table += ["|---|---|---|---|---|---|---|---|---|"]
        for r in rows:
            table.append(
                f"| {human(r['bytes'])} | {r['ours']:.1f} | {r['p99']:.1f} | {r['ours_bus']:.3f} | {r['algorithm']} "
                f"| {r['gloo']:.1f} | {r['gloo_bus']:.3f} | {r['gloo_algorithm']} | {r['ratio']:.2f} |"
            )
        table.append("")
        plot(args.folder, f"time-{ranks}", f"Allreduce, {ranks} ranks, loopback TCP", "p50 µs", rows,
             [("ours", "gloo\\\\_rs"), ("gloo", "Gloo, its best")])
        plot(args.folder, f"bandwidth-{ranks}", f"Allreduce, {ranks} ranks, loopback TCP", "bus bandwidth, GB/s", rows,
             [("ours_bus", "gloo\\\\_rs"), ("gloo_bus", "Gloo, its best")])
    with open(os.path.join(args.folder, "allreduce.md"), "w") as file:
        file.write("\n".join(table))
    with open(os.path.join(args.folder, "allreduce.csv"), "w", newline="") as file:
        writer = csv.DictWriter(file, ["round"] + FIELDS)
        writer.writeheader()
        writer.writerows(raw)


FIELDS = ["collective", "algorithm", "transport", "ranks", "bytes", "iterations", "min_us", "p50_us", "p99_us", "max_us"]

if __name__ == "__main__":
    main()
