#!/usr/bin/env python3
"""Times allreduce where ranks of a host read each other's memory, where they may not, and over TCP. Writes reads.csv and reads.md.

    benches/reads.py TOOL OUTPUT_FOLDER [--rounds 5] [--quick]

Ranks are on one host, or on two of streams.py without a limit of their connections. All ways are measured in turn in every round. --quick
measures two small sizes once.
"""

import argparse
import csv
import os
import statistics
import sys

import report
import streams

HERE = os.path.dirname(os.path.abspath(__file__))
WAYS = {
    "reads": "with reads",
    "copies": "without reads",
    "tcp": "over TCP",
}
# Hosts, and ranks on each.
JOBS = [(1, 2), (1, 4), (2, 2)]
SIZES = ["4", "1Ki", "16Ki", "64Ki", "256Ki", "1Mi", "4Mi", "16Mi", "64Mi"]
FIELDS = ["hosts", "ranks", "way", "round", "bytes", "algorithm", "min_us", "p50_us", "p99_us"]


def name(hosts, per_host):
    return f"{hosts * per_host} ranks on one host" if hosts == 1 else f"{hosts} hosts of {per_host} ranks"


def measure(args):
    pair = streams.Hosts(None)
    sizes = SIZES[:2] if args.quick else SIZES
    rows = []
    for turn in range(args.rounds):
        for hosts, per_host in JOBS:
            for way in WAYS:
                command = [os.path.join(HERE, "without_reads.py")] if way == "copies" else []
                command += [args.tool, "bench", "allreduce", "--sizes", ",".join(sizes), "--json"]
                variables = {"GLOO_RS_SHM": "0"} if way == "tcp" else {}
                for line in pair.lines(command, hosts, per_host, variables):
                    # What is measured is the way that it is said to be.
                    expected = ("tcp", None) if way == "tcp" else ("shm", way == "reads")
                    if hosts == 1 and (line["transport"], line["single_copy"]) != expected or not line["verified"]:
                        raise SystemExit(f"{name(hosts, per_host)}, {WAYS[way]}: {line}")
                    row = {"hosts": hosts, "ranks": hosts * per_host, "way": way, "round": turn}
                    rows.append({field: row.get(field, line.get(field)) for field in FIELDS})
                print(f"round {turn + 1}: {name(hosts, per_host)}, {WAYS[way]}", file=sys.stderr)
    pair.close()
    return rows


def write(folder, rows, rounds):
    times, algorithms = {}, {}
    for row in rows:
        key = row["hosts"], row["ranks"] // row["hosts"], row["bytes"]
        times.setdefault(key, {}).setdefault(row["way"], []).append(row["p50_us"])
        algorithms.setdefault(key, {})[row["way"]] = row["algorithm"]
    text = f"""# Where no process may read another's memory

Made by `make bench-reads ROUNDS={rounds}`, on {report.machine()}.

Ubuntu's default of Yama and the seccomp filters of some containers forbid that a process reads another one's memory. Ranks of one host
then copy through shared memory, twice. Here a filter, `benches/without_reads.py`, forbids it. Two hosts are network namespaces, and their
links have no limit but the processors. A time is the median of {rounds} rounds' medians of allreduce of float32, and a ratio the median of
the rounds' ratios. The bound: without reads a call takes at most as long as over TCP. [All lines](reads.csv).
""".splitlines()
    missed = 0
    for hosts, per_host in JOBS:
        text += ["", f"## {name(hosts, per_host).capitalize()}", ""]
        text += ["| bytes | with reads, µs | without reads, µs | over TCP, µs | without reads / with | without reads / TCP | takes, without reads |"]
        text += ["|---|---|---|---|---|---|---|"]
        for (h, p, size), ways in times.items():
            if (h, p) != (hosts, per_host):
                continue
            ratio = lambda one, other: statistics.median(a / b for a, b in zip(ways[one], ways[other]))
            of_tcp = ratio("copies", "tcp")
            missed += of_tcp > 1
            cells = [report.human(size), *(report.number(statistics.median(ways[way])) for way in WAYS)]
            cells += [f"{ratio('copies', 'reads'):.2f}", f"{of_tcp:.2f}" if of_tcp <= 1 else f"**{of_tcp:.2f}**", algorithms[h, p, size]["copies"]]
            text.append("| " + " | ".join(cells) + " |")
    text += ["", "The bound is met in every row." if not missed else f"The bound is missed in {missed} rows, in bold."]
    with open(os.path.join(folder, "reads.md"), "w") as file:
        file.write("\n".join(text) + "\n")
    with open(os.path.join(folder, "reads.csv"), "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tool")
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.rounds = 1 if args.quick else args.rounds
    os.makedirs(args.folder, exist_ok=True)
    write(args.folder, measure(args), args.rounds)


if __name__ == "__main__":
    main()
