#!/usr/bin/env python3
"""Measures allreduce over loopback TCP with gloo_rs, Gloo, Open MPI and the floor program. Writes CSV, tables and plots.

    benches/record.py TOOL PEERS OUTPUT_FOLDER [--ranks 2,4,8] [--rounds 5] [--sizes 4,64Ki,...] [--keep] [--budget SECONDS]

PEERS is the folder with gloo_peer, openmpi_peer and floor. The speed of a machine varies over time, so all programs run in every
round with the same sizes; a figure is the median of the rounds' medians, and a ratio the median of the rounds' ratios. A program
has many settings: a short trial selects the best few, which run in all rounds, and the best in a round represents the program.

Results are saved after every point. --keep continues an earlier run of the same command, --budget limits the time of a run.
"""

import argparse
import csv
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time

import plots
import report

SIZES = "4,1Ki,8Ki,64Ki,512Ki,4Mi,32Mi,256Mi"
FINALISTS = 2  # settings of a program that run in all rounds
# Number of measured calls of a run: as many as fit into the time, within these bounds. A median needs at least 15.
SECONDS, FEWEST, MOST = 0.2, 15, 2000
TRIAL_SECONDS = 8  # slower settings are not used
PATIENCE = 120  # seconds for a run in a round
LARGEST_BUSY = 8 << 20


class Failed(Exception):
    pass


def cores_of(ranks):
    """The cores of each rank, as gloo-rs binds them; None if there are more ranks than cores."""
    cores = sorted(os.sched_getaffinity(0))
    if ranks > len(cores):
        return None
    return [set(cores[r * len(cores) // ranks : (r + 1) * len(cores) // ranks]) for r in range(ranks)]


def run(commands, patience, cores=None, environment=None):
    """Runs the commands concurrently, and returns the line of JSON that the first one prints."""
    processes = []
    try:
        for index, command in enumerate(commands):
            bind = (lambda own=cores[index]: os.sched_setaffinity(0, own)) if cores else None
            env = os.environ | (environment or {})
            processes.append(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=bind, env=env
                )
            )
        deadline = time.monotonic() + patience
        outputs = [process.communicate(timeout=max(0, deadline - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {patience} s")
    finally:
        # A launcher ends its ranks on SIGTERM, which it cannot on SIGKILL.
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    for process, (_, errors) in zip(processes, outputs):
        if process.returncode:
            raise Failed(f"status {process.returncode}: {errors.strip()[-300:]}")
    return json.loads(next(line for line in outputs[0][0].splitlines() if line.startswith("{")))


class GlooRs:
    def __init__(self, tool):
        self.tool = tool

    def settings(self, ranks, size):
        return [""]

    def measure(self, setting, ranks, size, iterations, patience):
        command = [self.tool, "bench", "allreduce", "--ranks", str(ranks), "--sizes", str(size), "--json"]
        line = run([command + ["--iterations", str(iterations), "--warmup", str(iterations // 5 + 2)]], patience)
        if not line["verified"]:
            raise Failed("wrong results")
        return line


class Gloo:
    """With ranks bound to cores as in gloo_rs, and unbound, because its asynchronous mode has its own thread."""

    def __init__(self, folder):
        self.peer = os.path.join(folder, "gloo_peer")
        self.names = subprocess.run([self.peer, "list"], check=True, capture_output=True, text=True).stdout.splitlines()

    def settings(self, ranks, size):
        # In the synchronous mode both sides write before they read: messages larger than the socket buffers time out.
        names = [name for name in self.names if "busy" not in name or size <= LARGEST_BUSY]
        return [name + how for name in names for how in (["", ", unbound"] if cores_of(ranks) else [""])]

    def measure(self, setting, ranks, size, iterations, patience):
        name = setting.removesuffix(", unbound")
        cores = cores_of(ranks) if name == setting else None
        with tempfile.TemporaryDirectory() as store:
            rest = [str(ranks), store, name, str(size), str(iterations)]
            return run([[self.peer, str(rank)] + rest for rank in range(ranks)], patience, cores)


class OpenMpi:
    MPIRUN = "mpirun.openmpi --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo"

    def __init__(self, folder):
        self.peer = os.path.join(folder, "openmpi_peer")

    def settings(self, ranks, size):
        if cores_of(ranks):
            return ["--bind-to core", "--bind-to none"]
        # The default of Open MPI for more ranks than cores.
        return ["--oversubscribe --bind-to none --mca mpi_yield_when_idle 1"]

    def measure(self, setting, ranks, size, iterations, patience):
        command = self.MPIRUN.split() + setting.split() + ["-n", str(ranks), self.peer, str(size), str(iterations)]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return run([command], patience, environment=root)


class Floor:
    def __init__(self, folder):
        self.peer = os.path.join(folder, "floor")

    def settings(self, ranks, size):
        if ranks != 2 or not cores_of(2):
            return []
        return [f"send buffer {text}" for text in ("default", "64Ki", "128Ki", "256Ki", "512Ki")]

    def measure(self, setting, ranks, size, iterations, patience):
        text = setting.split()[-1]
        return run([[self.peer, str(size), str(iterations), str(0 if text == "default" else parse(text))]], patience)


def parse(size):
    for unit, power in (("Ki", 10), ("Mi", 20), ("Gi", 30)):
        if size.endswith(unit):
            return int(size[:-2]) << power
    return int(size)


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

    def of(self, ranks, size, number):
        return [row for row in self.rows if (row["ranks"], row["bytes"], row["round"]) == (ranks, size, number)]


def trials(record, programs, ranks, size, check):
    """Selects what runs in all rounds: a list of (program, setting, iterations)."""
    chosen = []
    for name, program in programs.items():
        done = {row["setting"]: row for row in record.of(ranks, size, "trial") if row["program"] == name}
        for setting in program.settings(ranks, size):
            if setting in done:
                continue
            check()
            iterations = 1 if size > LARGEST_BUSY else 3 if size > 512 << 10 else 50 if cores_of(ranks) else 10
            try:
                line = program.measure(setting, ranks, size, iterations, TRIAL_SECONDS)
            except Failed as why:
                print(f"  {name} {setting}: out, {why}", file=sys.stderr)
                line = {"p50_us": math.inf}
            done[setting] = report.row(name, setting, ranks, size, "trial", line)
            record.add([done[setting]])
        best = sorted((row for row in done.values() if row["p50_us"] < math.inf), key=lambda row: row["p50_us"])
        if done and not best:
            raise SystemExit(f"{name} does not run: {ranks} ranks, {size} bytes")
        for row in best[:FINALISTS]:
            fit = int(SECONDS * 1e6 / row["p50_us"])
            chosen.append((name, row["setting"], min(max(fit, FEWEST), MOST)))
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("peers")
    parser.add_argument("folder")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--budget", type=float, default=math.inf)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = time.monotonic() + args.budget

    def check():
        if time.monotonic() > end:
            print("the time limit is reached; --keep continues from here", file=sys.stderr)
            sys.exit(75)

    os.makedirs(args.folder, exist_ok=True)
    record = Record(os.path.join(args.folder, "allreduce.csv"), args.keep)
    programs = {
        "gloo_rs": GlooRs(args.tool),
        "gloo": Gloo(args.peers),
        "openmpi": OpenMpi(args.peers),
        "floor": Floor(args.peers),
    }
    for ranks in map(int, args.ranks.split(",")):
        for size in map(parse, args.sizes.split(",")):
            todo = [number for number in range(args.rounds) if not record.of(ranks, size, number)]
            if not todo:
                continue
            chosen = trials(record, programs, ranks, size, check)
            for number in todo:
                check()
                # Alternate the order, so that no program always runs after the same one.
                order = chosen if number % 2 == 0 else chosen[::-1]
                rows = []
                for name, setting, count in order:
                    try:
                        line = programs[name].measure(setting, ranks, size, count, PATIENCE)
                        rows.append(report.row(name, setting, ranks, size, number, line))
                    except Failed as why:
                        print(f"  {name} {setting}: failed in round {number}, {why}", file=sys.stderr)
                failed = {name for name, _, _ in chosen} - {row["program"] for row in rows}
                if failed:
                    sys.exit(f"{', '.join(failed)} failed: {ranks} ranks, {size} bytes")
                record.add(rows)
            print(report.summary(record.rows, ranks, size), file=sys.stderr)
        report.write(args.folder, record.rows)
        plots.allreduce(args.tool, args.folder)


if __name__ == "__main__":
    main()
