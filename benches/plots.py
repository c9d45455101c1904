#!/usr/bin/env python3
"""Draws plots from the CSV files of recorded measurements, with `gloo-rs plot`.

    benches/plots.py TOOL FOLDER

The scripts that measure also do this after writing their records.
"""

import csv
import json
import os
import subprocess
import sys

import patterns
import report


# What moves the bytes of each record, for the titles of its plots.
TRANSPORTS = {"host": "shared memory", "tcp": "TCP", "tls": "TLS", "gloo": "TCP and shared memory", "programs": "shared memory"}


def draw(tool, folder, name, chart):
    path = os.path.join(folder, f"{name}.svg")
    subprocess.run([tool, "plot", path], input=json.dumps(chart), text=True, check=True)


def read(folder, name):
    """The lines of a record; empty if the file does not exist."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def collectives(tool, folder, which):
    """Times, and over TCP bandwidths, of gloo_rs and the other implementations, for each collective and number of ranks."""
    kind = report.RECORDS[which]
    path = os.path.join(folder, f"{kind.name}.csv")
    points = report.points_of(report.load(path)) if os.path.exists(path) else []
    for collective, ranks in dict.fromkeys((p.collective, p.ranks) for p in points if p.bytes and p.dtype == "float32"):
        own = [p for p in points if (p.collective, p.dtype, p.ranks) == (collective, "float32", ranks)]
        for what, label, unit, value in [
            ("time", "median time", "seconds", lambda point, program: point.time(program) / 1e6),
            ("bandwidth", "bus bandwidth, GB/s", "number", report.Point.bus),
        ]:
            if what not in report.plots_of(kind):
                continue
            series = []
            for program, title in kind.programs().items():
                line = [[point.bytes, value(point, program)] for point in own if program in point.rows]
                series += [{"name": title, "points": line}] if line else []
            axes = {"x": {"label": "bytes per rank", "unit": "bytes"}, "y": {"label": label, "unit": unit}}
            name = report.plot_name(kind, collective, ranks, what)
            title = f"{collective}, {ranks} ranks on one host, {TRANSPORTS[which]}"
            draw(tool, folder, name, {"title": title, **axes, "series": series})


def host(tool, folder):
    collectives(tool, folder, "host")


def tcp(tool, folder):
    collectives(tool, folder, "tcp")


def tls(tool, folder):
    collectives(tool, folder, "tls")


def gloo(tool, folder):
    collectives(tool, folder, "gloo")


def programs(tool, folder):
    """Late ranks by how late, rotations by their length, sequences, and requests beside the same calls one after the other."""
    path = os.path.join(folder, f"{patterns.KIND.name}.csv")
    points = patterns.in_order(report.points_of(report.load(path))) if os.path.exists(path) else []
    names = patterns.KIND.programs()
    number_of = lambda point: point.collective.partition("-")[2]
    seconds = lambda point, program: point.time(program) / 1e6
    present = lambda own: [program for program in names if any(program in point.rows for point in own)]
    for family, ranks in dict.fromkeys((patterns.family_of(point.collective), point.ranks) for point in points):
        own = [point for point in points if (patterns.family_of(point.collective), point.ranks) == (family, ranks)]
        title = f"{patterns.FAMILIES[family].title}, {ranks} ranks on one host, {TRANSPORTS['programs']}"
        for name in patterns.plot_names(own, family, ranks):
            if family in ("late", "rotation"):
                late = family == "late"
                of = [p for p in own if number_of(p).isdigit() and (not late or name.endswith(f"-{p.bytes}"))]
                x = lambda point: int(number_of(point)) / 1e6 if late else int(number_of(point))
                lines = {program: [[x(point), seconds(point, program)] for point in of if program in point.rows] for program in present(of)}
                how = {"label": "how late the last rank is", "unit": "seconds"} if late else {"label": "lengths in rotation", "unit": "number"}
                what = "time from its arrival" if late else "time of a call"
                series = [{"name": names[program], "points": line} for program, line in lines.items()]
                title_of = f"{title}, {report.human(of[0].bytes)}" if late else title
                chart = {"title": title_of, "x": how, "y": {"label": what, "unit": "seconds"}, "series": series}
            else:
                value = report.Point.beside if family == "requests" else report.Point.time
                values = lambda program: [value(point, program) if program in point.rows else None for point in own]
                bars = [{"name": names[program], "values": values(program)} for program in present(own)]
                label = "times the same calls one after the other" if family == "requests" else "µs"
                chart = {"title": title, "label": label, "groups": list(map(patterns.heading, own)), "bars": bars}
            draw(tool, folder, name, chart)


def algorithms(tool, folder):
    """Time by size of every allreduce algorithm, for each number of ranks."""
    rows = [row for row in read(folder, "algorithms.csv") if row["collective"] == "allreduce"]
    for ranks in dict.fromkeys(row["ranks"] for row in rows):
        lines = {}
        for row in (row for row in rows if row["ranks"] == ranks):
            # A time of 0 cannot be shown on a logarithmic axis.
            lines.setdefault(row["algorithm"], []).append([int(row["bytes"]), max(float(row["us"]), 1e-3) / 1e6])
        series = [{"name": name, "points": points} for name, points in sorted(lines.items())]
        axes = {"x": {"label": "bytes", "unit": "bytes"}, "y": {"label": "time", "unit": "seconds"}}
        title = f"Allreduce, {ranks} ranks on one host, shared memory"
        draw(tool, folder, f"algorithms-{ranks}", {"title": title, **axes, "series": series})


def network(tool, folder):
    """Collectives between hosts as a fraction of their bound, and the gain of algorithms that know the hosts."""
    rows = read(folder, "network.csv")
    if not rows:
        return
    auto = {(row["hosts"], row["collective"]): row for row in rows if row["part"] == "flat" and row["asked"] == "auto"}
    size = report.human(max(int(row["bytes"]) for row in rows))
    groups = list(dict.fromkeys(collective for _, collective in auto))
    share = lambda hosts: [100 * float(auto[hosts, collective]["of_bound"]) for collective in groups]
    bars = [{"name": f"{hosts} hosts", "values": share(hosts)} for hosts in dict.fromkeys(hosts for hosts, _ in auto)]
    title = f"auto, {size}, one rank on each host, TCP"
    draw(tool, folder, "network-flat", {"title": title, "label": "% of the bound", "groups": groups, "bars": bars})

    two = [row for row in rows if row["part"] == "two hosts"]
    seconds = lambda field: [float(row[field]) / 1e6 if row[field] else None for row in two]
    bars = [{"name": "measured", "values": seconds("p50_us")}, {"name": "predicted", "values": seconds("predicted_us")}]
    title = f"Allreduce of {size}, two hosts of {int(two[0]['ranks']) // 2} ranks, TCP between them"
    groups = [row["asked"] for row in two]
    draw(tool, folder, "network-hosts", {"title": title, "label": "seconds", "groups": groups, "bars": bars})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for record in (host, tcp, tls, gloo, programs, algorithms, network):
        record(*sys.argv[1:])
