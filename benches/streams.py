#!/usr/bin/env python3
"""Times allreduce between two simulated hosts by 1, 2, 4 and 8 connections. Writes streams.csv and streams.md.

    benches/streams.py TOOL OUTPUT_FOLDER [--rate 200mbit] [--rounds 3] [--quick]

Hosts are those of network.py. `htb` gives each connection a class of its own, with a limit, as clouds and long ways have one; the
class is chosen by both ports. Once more without a limit. `gloo-rs tune` then says how many connections it would write to its file:
with the limit it must be several. Then, over TLS on loopback, how the work is divided among threads: the processor time of the busiest one.
--quick tests all that, with one round of the smaller size.
"""

import argparse
import contextlib
import csv
import json
import os
import statistics
import subprocess
import sys
import time

import network
import report

NUMBERS = [1, 2, 4, 8]
SIZES = {"4Mi": 4 << 20, "64Mi": 64 << 20}
CLASSES = 1024
# The exclusive or of both ports, modulo CLASSES, behind 14 bytes of Ethernet and 20 of IPv4: classes 1:10 and on.
CLASSIFIER = f"7,40 0 0 34,7 0 0 0,40 0 0 36,172 0 0 0,84 0 0 {CLASSES - 1},4 0 0 {0x10010},22 0 0 0"


class Hosts(network.Network):
    """Two hosts, between which each connection has this rate, or any, if it is None."""

    def __init__(self, rate):
        super().__init__(2, "100gbit")
        if rate:
            classes = "\n".join(f"class add dev eth0 parent 1: classid 1:{0x10 + number:x} htb rate {rate} quantum 10000" for number in range(CLASSES))
        for host in self.hosts:
            host.run("tc qdisc delete dev eth0 root")
            if rate:
                host.run(f"tc qdisc add dev eth0 root handle 1: htb\ntc -batch - <<'END'\n{classes}\nEND\n"
                         f"tc filter add dev eth0 parent 1: protocol all bpf bytecode '{CLASSIFIER}'")  # fmt: skip
        for number in range(2):
            self.switch.run(f"tc qdisc delete dev port{number} root")


def threads_of(parent):
    """The processor time of all threads of the processes that `parent` has started, in seconds; not of all of them if one ends meanwhile."""
    times = {}
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{task}/children") as file:
                children = file.read().split()
            for child in children:
                for thread in os.listdir(f"/proc/{child}/task"):
                    with open(f"/proc/{child}/task/{thread}/schedstat") as file:
                        times[thread] = int(file.read().split()[0]) / 1e9
    return times


def encrypted(tool, size, streams):
    """The time of an allreduce of two ranks over TLS, for how much of it the busiest thread runs, both in microseconds, and that thread's part of
    all that a rank's threads run."""
    command = [tool, "bench", "allreduce", "--transport", "tls", "--sizes", size, "--iterations", "100000", "--seconds", "3", "--json"]
    environment = dict(os.environ, GLOO_RS_STREAMS=str(streams))
    samples = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as ranks:
        while ranks.poll() is None:
            samples.append((time.monotonic(), threads_of(ranks.pid)))
            time.sleep(0.1)
        output = ranks.stdout.read()
    if ranks.returncode:
        raise SystemExit(f"{' '.join(command)} has failed")
    # Samples while all threads ran; the first ones are of connecting and of the warm-up.
    number = max(len(times) for _, times in samples)
    samples = [sample for sample in samples if len(sample[1]) == number]
    (since, before), (until, after) = samples[len(samples) // 2], samples[-1]
    if since == until:
        raise SystemExit(f"{' '.join(command)} has ended before its threads could be seen twice")
    p50 = json.loads(output.splitlines()[-1])["p50_us"]
    times = [after[thread] - before[thread] for thread in before]
    return p50, p50 * max(times) / (until - since), 2 * max(times) / sum(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tool", type=os.path.abspath)
    parser.add_argument("folder")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    sizes = ["4Mi"] if args.quick else list(SIZES)
    args.rounds = 1 if args.quick else args.rounds
    rows, chosen = [], {}
    for rate in (args.rate, None):
        hosts, name = Hosts(rate), rate or "none"
        for number in range(args.rounds):
            for size in sizes:
                for streams in NUMBERS:
                    os.environ["GLOO_RS_STREAMS"] = str(streams)
                    calls = 30 if rate is None or size == "4Mi" else 3
                    arguments = ["allreduce", "--sizes", size, "--warmup", "2", "--iterations", str(calls)]
                    line = hosts.bench(args.tool, 2, 1, arguments)
                    rows.append({"limit": name, "bytes": SIZES[size], "streams": streams, "round": number, "p50_us": line["p50_us"]})
                    print(f"limit {name}, {size}, {streams} connections: {line['p50_us'] / 1e3:.2f} ms", file=sys.stderr)
        del os.environ["GLOO_RS_STREAMS"]
        tuned = hosts.run_ranks([args.tool, "tune", "--collective", "allreduce", "--sizes", "4", "--budget", "1", "--json"])
        chosen[name] = tuned["constants"]["streams"]
        hosts.close()
    if chosen[args.rate] < 2:
        raise SystemExit("gloo-rs tune takes one connection, where each has only a part of the network's bandwidth")
    tls, part = [], 0
    for number in range(args.rounds):
        for size in sizes:
            for streams in NUMBERS:
                p50, busiest, part = encrypted(args.tool, size, streams)
                tls.append({"bytes": SIZES[size], "streams": streams, "round": number, "p50_us": p50, "busiest_us": busiest})
                print(f"TLS, {size}, {streams} connections: {p50 / 1e3:.2f} ms, busiest thread {busiest / 1e3:.2f} ms", file=sys.stderr)
    if part > 0.5:
        raise SystemExit(f"one thread does {part:.0%} of a rank's work, with {NUMBERS[-1]} encrypted connections")
    write(args, rows, sizes, chosen, tls)


def save(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def cells(rows, field):
    """For each number of connections: the median over the rounds, in milliseconds, and how many times as long one connection takes."""
    times = {(row["streams"], row["round"]): row[field] for row in rows}
    rounds = {row["round"] for row in rows}
    median = lambda streams: statistics.median(times[streams, number] for number in rounds) / 1e3
    gain = lambda streams: statistics.median(times[1, number] / times[streams, number] for number in rounds)
    return " | ".join(f"{median(streams):.2f}, {gain(streams):.2f}×" for streams in NUMBERS)


def write(args, rows, sizes, chosen, tls):
    save(os.path.join(args.folder, "streams.csv"), rows)
    save(os.path.join(args.folder, "streams-tls.csv"), tls)
    head = " | ".join(f"{streams} connection{'s' * (streams > 1)}, ms" for streams in NUMBERS)
    text = f"""# Allreduce by several connections

Made by `make bench-streams`, on {report.machine()}.

Two ranks, each in a network namespace, exchange float32 over a bridge. In the first part each connection is limited to {args.rate} in each
direction by a class of `htb` of its own; in the second nothing is limited, so the two processors are the limit. A time is the median
iteration's, the median of {args.rounds} rounds, in which all numbers of connections take turns; behind it, how many times as fast
that is as one connection in the same round. [All lines](streams.csv).

| limit of a connection | size | {head} | `gloo-rs tune` takes |
|---|---|{"---|" * len(NUMBERS)}---|
""".splitlines()
    for limit, tuned in chosen.items():
        for size in sizes:
            of_this = [row for row in rows if (row["limit"], row["bytes"]) == (limit, SIZES[size])]
            text.append(f"| {limit} | {size}B | {cells(of_this, 'p50_us')} | {tuned:.0f} |")
    text += f"""
## TLS: the work of the busiest thread

Two ranks on loopback. The thread that makes progress encrypts one connection, and each other one has a thread. This machine has two cores,
which are busy with one connection already, so more connections cost time here. What they gain elsewhere is bounded by the thread that has
most to do: the table has its processor time for a call, measured by the kernel in ranks that run all the time, and behind it how many times as
many bytes it could move as with one connection. [All lines](streams-tls.csv).

| size | {head} |
|---|{"---|" * len(NUMBERS)}
""".splitlines()
    for size in sizes:
        of_this = [row for row in tls if row["bytes"] == SIZES[size]]
        text.append(f"| {size}B | {cells(of_this, 'busiest_us')} |")
    with open(os.path.join(args.folder, "streams.md"), "w") as file:
        file.write("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
