#!/usr/bin/env python3
"""Times a new membership by a reconfigure beside one by a new context, and records it in membership.csv and membership.md.

    benches/membership.py PREFIX FOLDER [--ranks 2,4,8] [--rounds N]

Compiles benches/membership.c against the library in PREFIX, and runs it over shared memory and over TCP, with a store that rank 0
serves and with one in a directory.
"""

import argparse
import csv
import datetime
import os
import pathlib
import re
import subprocess
import tempfile

import report

HERE = pathlib.Path(__file__).parent
# Value of GLOO_RS_SHM.
TRANSPORTS = {"shared memory": "1", "TCP": "0"}
STORES = ["tcp", "file"]
WAYS = ["device and context", "context", "reconfigure", "context without one", "reconfigure without one"]
LINE = re.compile(r"(.*?) +([0-9.]+) ms \(median of [0-9]+; lowest ([0-9.]+), highest ([0-9.]+)\)")
FIELDS = ["transport", "store", "ranks", "way", "median_ms", "lowest_ms", "highest_ms"]
PORT = 29571


def measure(args, folder):
    program = folder / "membership"
    libraries = args.prefix / "lib"
    command = ["cc", "-O2", "-std=c11", f"-I{args.prefix / 'include'}", HERE / "membership.c", "-o", program]
    subprocess.run([*command, f"-L{libraries}", "-lgloo_rs", f"-Wl,-rpath,{libraries.resolve()}"], check=True)
    rows = []
    for transport, memory in TRANSPORTS.items():
        for store in STORES:
            for ranks in args.ranks:
                url = f"tcp://127.0.0.1:{PORT}" if store == "tcp" else f"file://{tempfile.mkdtemp(dir=folder)}"
                run = [program, str(ranks), str(args.rounds), url]
                done = subprocess.run(run, check=True, capture_output=True, text=True, env=os.environ | {"GLOO_RS_SHM": memory})
                found = [LINE.fullmatch(line).groups() for line in done.stdout.splitlines()]
                if [way for way, *_ in found] != WAYS:
                    raise SystemExit(f"{transport}, {store}, {ranks} ranks: {done.stdout}")
                rows += [dict(zip(FIELDS, (transport, store, ranks, *row))) for row in found]
    return rows


def table(rows):
    lines = ["| transport | store | ranks | new device and context | new context | reconfigured | of it | new context without one | reconfigured without one | of it |"]
    lines.append("|---" * 10 + "|")
    times = {(row["transport"], row["store"], row["ranks"], row["way"]): float(row["median_ms"]) for row in rows}
    for key in dict.fromkeys((row["transport"], row["store"], row["ranks"]) for row in rows):
        device, context, reconfigure, smaller, without = (times[*key, way] for way in WAYS)
        cells = [*key, f"{device:.1f}", f"{context:.1f}", f"{reconfigure:.1f}", f"{reconfigure / context:.0%}"]
        cells += [f"{smaller:.1f}", f"{without:.1f}", f"{without / smaller:.0%}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def write(args, rows, load):
    with open(args.folder / "membership.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (args.folder / "membership.md").write_text(f"""# A new membership

Made by `make bench-membership`, on {report.machine()}, {datetime.date.today()}; other programs kept {load:.1f} of them busy before.

Ranks of one host get a new membership: by a device and a context that are made anew, by a new context on the device that they have, or by a
[reconfigure](../recovery.md#a-membership-that-changes) of the context that they have; with all of them, and without the last one. Times are
in ms, from when all begin until the last has the result of an allreduce of 4 B; medians of {args.rounds} ({HERE.name}/membership.c). *of
it* is the part that a reconfigure takes of the time of a new context. The store is served by rank 0 (`tcp`), or is a directory (`file`).

{table(rows)}
""")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--ranks", type=lambda text: [int(ranks) for ranks in text.split(",")], default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=61)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args, pathlib.Path(folder))
    write(args, rows, load)


main()
