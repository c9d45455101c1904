#!/usr/bin/env python3
"""Times allreduce of torch.distributed with two ranks, over gloo_rs and over torch's own backend gloo.

    benches/torch.py PREFIX FOLDER [--sizes 4,64Ki,4Mi,64Mi] [--rounds N]

PREFIX is where gloo_rs is installed; scripts/test-torch-extension.sh has built the module in build/torch. Writes torch.csv, torch.md and
torch.svg in FOLDER.
"""

import argparse
import csv
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

import plots
import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Value of GLOO_RS_SHM, and the name.
WAYS = {"1": "shared memory", "0": "TCP"}


def bytes_of(text):
    units = {"Ki": 1 << 10, "Mi": 1 << 20}
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units else int(text)


def build(prefix):
    subprocess.run(["cmake", "-S", "examples/torch", "-B", "build/torch", f"-DCMAKE_PREFIX_PATH={prefix.resolve()}",
                    "-DPython_EXECUTABLE=/usr/bin/python3"], cwd=ROOT, check=True, capture_output=True)  # fmt: skip
    subprocess.run(["cmake", "--build", "build/torch"], cwd=ROOT, check=True, capture_output=True)


def measure(sizes, rounds, way):
    environment = os.environ | {"GLOO_RS_SHM": way, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT / "build/torch")}
    command = ["/usr/bin/python3", "-W", "ignore", ROOT / "benches/peers/torch_ranks.py", ",".join(map(str, sizes)), str(rounds)]
    said = subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout
    return [json.loads(line) | {"way": WAYS[way]} for line in said.splitlines()]


def summaries(rows):
    """A line for each way and size: medians over the rounds, of the times and of the ratios."""
    for way, size in dict.fromkeys((row["way"], int(row["bytes"])) for row in rows):
        own = [row for row in rows if (row["way"], int(row["bytes"])) == (way, size)]
        median = lambda value: statistics.median(map(value, own))
        yield way, size, median(lambda row: row["gloo"]), median(lambda row: row["gloo_rs"]), median(lambda row: row["gloo_rs"] / row["gloo"])


def write(args, rows, loads):
    with open(args.folder / "torch.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["way", "bytes", "round", "gloo", "gloo_rs"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {name: f"{row[name]:.2f}" for name in ("gloo", "gloo_rs")} for row in rows)
    lines = ["| gloo_rs over | bytes | gloo, µs | gloo_rs, µs | ratio |", "|---|---|---|---|---|"]
    for way, size, theirs, ours, ratio in summaries(rows):
        lines.append(f"| {way} | {report.human(size)} | {theirs:.1f} | {ours:.1f} | {ratio:.2f} |")
    table = "\n".join(lines)
    text = f"""# torch.distributed

Made by `make bench-torch TORCH='--rounds {args.rounds}'`, on {report.machine()}, {datetime.date.today()}; the machine's load was {loads[0]:.1f} before and {loads[1]:.1f} after.

`torch.distributed.all_reduce` of float32 with two ranks on one host, in Debian's PyTorch: over [the backend gloo_rs](../../examples/torch/README.md),
and over PyTorch's own backend gloo, which uses TCP on loopback. Both groups are in the same two processes, and take turns in each of
{args.rounds} rounds; who is first changes from round to round. A round's time is the median of its calls, of the slower rank. The table has
the medians of the rounds, and of the ratio in each round. What Python and the change to a thread take is in both.

{table}

![Times by size](torch.svg)
"""
    (args.folder / "torch.md").write_text(text)
    series = {}
    for way, size, theirs, ours, _ in summaries(rows):
        series.setdefault(f"gloo_rs, {way}", []).append([size, ours / 1e6])
        if way == "TCP" or len({row["way"] for row in rows}) == 1:
            series.setdefault("gloo", []).append([size, theirs / 1e6])
    axes = {"x": {"label": "bytes per rank", "unit": "bytes"}, "y": {"label": "median time", "unit": "seconds"}}
    lines = [{"name": name, "points": points} for name, points in series.items()]
    title = "torch.distributed.all_reduce, 2 ranks on one host, gloo over TCP"
    plots.draw(args.prefix / "bin/gloo-rs", args.folder, "torch", {"title": title, **axes, "series": lines})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--sizes", type=lambda text: [bytes_of(size) for size in text.split(",")], default="4,64Ki,4Mi,64Mi")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        build(args.prefix)
    except subprocess.CalledProcessError as error:
        sys.exit(f"torch.py: {error}\n{(error.stdout + error.stderr).decode()}")
    before = os.getloadavg()[0]
    rows = [row for way in WAYS for row in measure(args.sizes, args.rounds, way)]
    write(args, rows, (before, os.getloadavg()[0]))


main()
