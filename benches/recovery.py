#!/usr/bin/env python3
"""Kills ranks in the middle of random collectives, and records how soon the others know and go on.

    benches/recovery.py FOLDER [--kills N] [--ranks 2,4,8] [--transports shm,tcp] [--seed N] [--dev]

Runs tests/recovery/ for each transport, and writes recovery.json and recovery.md in FOLDER.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys

import report

# Value of GLOO_RS_SHM.
TRANSPORTS = {"shm": "1", "tcp": "0"}
NAMES = {"shm": "shared memory", "tcp": "TCP"}
# Largest 99th percentile of the time to the error, in ms.
TARGET = 100


def measure(args, transport):
    """The jobs of one run of the tests."""
    path = args.folder / "jobs.json"
    path.unlink(missing_ok=True)
    # The options are those of the other tests, so that nothing is compiled once more.
    command = ["scripts/cargo.sh", "test"] if args.dev else ["cargo", "test", "--release", "--locked"]
    command += ["--quiet", "--test", "recovery", "--", "kills", "--kills", str(args.kills), "--ranks", args.ranks, "--seed", str(args.seed)]
    subprocess.run([*command, "--json", str(path.resolve())], check=True, env=os.environ | {"GLOO_RS_SHM": TRANSPORTS[transport]})
    jobs = json.loads(path.read_text())["jobs"]
    path.unlink()
    return [job | {"transport": transport} for job in jobs]


def table(jobs):
    lines = ["| ranks | kills | error p50 | p99 | max | p99 at most | met | connects p50 | p99 | max | shrinks p50 | p99 | max |", "|---" * 13 + "|"]
    for job in jobs:
        error, ways = job["error_ms"], (job["connects_ms"], job["shrinks_ms"])
        cells = [job["ranks"], job["kills"], *(f"{error[name]:.2f}" for name in ("p50", "p99", "max"))]
        cells += [TARGET, "yes" if error["p99"] <= TARGET else "**no**", *(f"{way[name]:.1f}" for way in ways for name in ("p50", "p99", "max"))]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def write(args, jobs, load):
    command = f"make bench-recovery KILLS={args.kills}"
    if args.dev:
        command = f"benches/recovery.py docs/benchmarks --dev --kills {args.kills} --transports {','.join(args.transports)}"
    text = f"""# Ranks that are killed

Made by `{command}`, on {report.machine()}, {datetime.date.today()}; other programs kept {load:.1f} of them busy before.

All ranks are processes of one host, which run random collectives of 4 B to 4 MiB (allreduce, reduce, broadcast, allgather, alltoall,
reduce_scatter, barrier; `auto` or any algorithm) on one context. At a random moment one of them is killed by SIGKILL. Times are in ms,
from just before the kill, on the monotonic clock that all processes share: *error* is until a survivor's call has returned its
error, which names the killed rank; *connects* until it has a result of a new context of the survivors over the same store, a directory;
*shrinks* the same of a context that they make by `gloo_rs_context_shrink`, without a store, after every other kill.
Each figure is over all survivors of all kills; then a new process takes the place of the killed one. After each kill the survivors hold
no more descriptors, mappings and memory than before, and `/dev/shm` is empty.
[What a program does](../recovery.md).
"""
    for transport in dict.fromkeys(job["transport"] for job in jobs):
        text += f"\n## Over {NAMES[transport]}\n\n{table([job for job in jobs if job['transport'] == transport])}\n"
    (args.folder / "recovery.json").write_text(json.dumps({"seed": args.seed, "jobs": jobs}, indent=1) + "\n")
    (args.folder / "recovery.md").write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=10000)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--transports", type=lambda text: text.split(","), default=list(TRANSPORTS))
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--dev", action="store_true", help="with little optimisation, as `cargo test` builds the tests")
    args = parser.parse_args()
    if unknown := set(args.transports) - set(TRANSPORTS):
        sys.exit(f"recovery.py: no transport is called {', '.join(sorted(unknown))}")
    args.folder.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    jobs = []
    for transport in args.transports:
        jobs += measure(args, transport)
        # A later transport that fails does not take this one's results with it.
        write(args, jobs, load)


main()
