#!/usr/bin/env python3
"""Measures collectives between simulated hosts with slow links. Writes network.csv, network.md and plots.

    benches/network.py TOOL OUTPUT_FOLDER [--hosts 4,8] [--size 64Mi] [--rate 1gbit] [--iterations 5] [--quick]

A host is a network namespace with a veth pair to a bridge; `tc tbf` limits both ends of the pair, so each host sends and
receives at that rate. Nothing outside the namespaces is changed, and they exist only as long as this process has descriptors of
them, so they disappear however it ends. --quick measures auto only, to test the set-up.

Needs root, or permission to create user namespaces.
"""

import argparse
import csv
import ctypes
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

import plots
import report

FIELDS = ["part", "hosts", "ranks", "collective", "asked", "algorithm", "bytes", "iterations"]
FIELDS += ["min_us", "p50_us", "max_us", "link_bytes_s", "bound_us", "of_bound", "of_nominal", "predicted_us"]
COLLECTIVES = ["allreduce", "reduce_scatter", "allgather", "broadcast"]
TARGETS = {"allreduce": 0.90, "reduce_scatter": 0.90, "allgather": 0.90, "broadcast": 0.85}
FLAT = "ring_segmented"  # the baseline for algorithms that know the hosts
KNOW_HOSTS = ["hierarchical", "torus_2d"]
PATIENCE = 300
RIGHTS = "network namespaces take root with CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged), or user namespaces"
CLONE_NEWNET, PR_SET_PDEATHSIG = 0x40000000, 1
libc = ctypes.CDLL(None, use_errno=True)


def system(result):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def in_thread(work):
    """Runs `work` in its own thread, whose namespace it may change, and returns the result."""
    results, errors = [], []

    def body():
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class Namespace:
    def __init__(self):
        def make():
            try:
                system(libc.unshare(CLONE_NEWNET))
            except OSError as error:
                raise SystemExit(f"{RIGHTS}: {error.strerror}") from None
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

        self.fd = in_thread(make)
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        try:
            self.run("ip link set lo up")
        except SystemExit as error:
            raise SystemExit(f"{RIGHTS}: {error}") from None

    def enter(self):
        system(libc.setns(self.fd, CLONE_NEWNET))

    def start(self, command, **options):
        """Starts a process in the namespace that is killed when this one ends."""

        def before():
            self.enter()
            system(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))

        return subprocess.Popen(command, preexec_fn=before, text=True, **options)

    def run(self, command):
        environment = os.environ | {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = self.start(["sh", "-ec", command], env=environment, **pipes)
        output, _ = process.communicate(timeout=30)
        if process.returncode:
            raise SystemExit(f"{command}: {output}")


class Network:
    """`count` hosts connected by a bridge, each with a network card of `rate`."""

    def __init__(self, count, rate):
        self.switch = Namespace()
        self.switch.run("ip link add switch type bridge mcast_snooping 0; ip link set switch up")
        self.hosts = [Namespace() for _ in range(count)]
        # The burst is large enough for the largest segment of the network stack; packets queued longer than the latency are dropped.
        limit = f"root tbf rate {rate} burst 128kb latency 20ms"
        for number, host in enumerate(self.hosts):
            port = f"port{number}"
            self.switch.run(
                f"ip link add {port} type veth peer name eth0 netns {host.path};"
                f"ip link set {port} master switch up; tc qdisc add dev {port} {limit}"
            )
            host.run(f"ip address add {self.address(number)}/24 dev eth0; ip link set eth0 up; tc qdisc add dev eth0 {limit}")
        self.port = 29500

    @staticmethod
    def address(number):
        return f"10.77.0.{number + 1}"

    def close(self):
        for namespace in [self.switch, *self.hosts]:
            os.close(namespace.fd)

    def link(self, size):
        """Bytes per second in each direction of a TCP connection between two hosts that is used in both directions."""

        def listen():
            self.hosts[0].enter()
            return socket.create_server((self.address(0), 0))

        def connect():
            self.hosts[1].enter()
            return socket.create_connection(listener.getsockname(), timeout=PATIENCE)

        with in_thread(listen) as listener, in_thread(connect) as one, listener.accept()[0] as other:
            seconds = []

            def receive(end):
                left, buffer, begin = size, bytearray(1 << 20), time.monotonic()
                while left > 0:
                    got = end.recv_into(buffer, min(left, len(buffer)))
                    if got == 0:
                        raise SystemExit("the link's measurement broke off")
                    left -= got
                seconds.append(time.monotonic() - begin)

            data = bytes(size)
            for end in (one, other):
                end.settimeout(PATIENCE)
            threads = [threading.Thread(target=receive, args=[end], daemon=True) for end in (one, other)]
            threads += [threading.Thread(target=end.sendall, args=[data], daemon=True) for end in (one, other)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
        if len(seconds) != 2:
            raise SystemExit("the link's measurement failed")
        return size / max(seconds)

    def bench(self, tool, hosts, per_host, arguments):
        """Runs `gloo-rs bench` with ranks on the first hosts, and returns its result line."""
        line = self.run_ranks([tool, "bench", *arguments, "--json", "--timeout", str(PATIENCE)], hosts, per_host)
        if not line["verified"]:
            raise SystemExit(f"{' '.join(arguments)}: wrong results")
        return line

    def run_ranks(self, command, hosts=2, per_host=1):
        """Runs a command of the tool with ranks on the first hosts, and returns the last line of JSON of rank 0."""
        return self.lines(command, hosts, per_host)[-1]

    def lines(self, command, hosts, per_host, more=()):
        """Runs a command of the tool with ranks on the first hosts, and `more` variables. Returns rank 0's lines of JSON."""
        self.port += 1
        processes = []
        try:
            for rank in range(hosts * per_host):
                variables = {"RANK": rank, "WORLD_SIZE": hosts * per_host}
                variables |= {"LOCAL_RANK": rank % per_host, "LOCAL_WORLD_SIZE": per_host}
                environment = os.environ | {name: str(number) for name, number in variables.items()} | dict(more)
                environment["GLOO_RS_STORE"] = f"tcp://{self.address(0)}:{self.port}"
                pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
                processes.append(self.hosts[rank // per_host].start(command, env=environment, **pipes))
            outputs = [process.communicate(timeout=PATIENCE) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for rank, (process, (_, errors)) in enumerate(zip(processes, outputs)):
            if process.returncode:
                raise SystemExit(f"{' '.join(command)}: rank {rank}: {errors.strip()}")
        return [json.loads(line) for line in outputs[0][0].splitlines() if line.startswith("{")]


def bound(collective, size, ranks, bandwidth):
    """A lower bound in seconds for any algorithm, if every rank has its own link."""
    part = {"allreduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(collective, (ranks - 1) / ranks)
    return part * size / bandwidth


def hosts_bound(size, hosts, per_host, bandwidth):
    """A lower bound for an allreduce over hosts whose ranks share a card: a host counts as one rank that has its ranks' sum."""
    return bound("allreduce", size, hosts, bandwidth)


def bits(rate):
    for unit, factor in (("gbit", 1e9), ("mbit", 1e6)):
        if rate.endswith(unit):
            return float(rate[: -len(unit)]) * factor
    raise SystemExit(f"{rate}: rates are like 1gbit, 100mbit")


def algorithms(tool):
    listed = subprocess.run([tool, "list", "--json"], check=True, capture_output=True, text=True).stdout
    return {one["name"]: one["algorithms"] for one in json.loads(listed)["collectives"]}


def predict(tool, algorithm, hosts, per_host, size, bandwidth):
    """The predicted time in microseconds; None if this tool has no simulator."""
    command = [tool, "simulate", "allreduce", "--algorithm", algorithm, "--ranks", str(hosts * per_host), "--json"]
    command += ["--bytes", str(size), "--hosts", f"{hosts}x{per_host}", "--bandwidth", f"{bandwidth / 1e9}GB/s"]
    command += ["--alpha", "50us", "--intra-alpha", "10us", "--intra-bandwidth", "2GB/s", "--gamma", "5GB/s"]
    if subprocess.run([tool, "simulate", "--help"], capture_output=True).returncode:
        return None
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["time_us"]


def measure(args):
    rows = []
    names = algorithms(args.tool)

    def add(part, network, hosts, per_host, collective, asked, link, iterations, least, predicted=None):
        arguments = [collective, "--sizes", str(args.size), "--warmup", "1", "--iterations", str(iterations)]
        line = network.bench(args.tool, hosts, per_host, arguments + ["--algorithm", asked])
        seconds = line["p50_us"] / 1e6
        row = {"part": part, "hosts": hosts, "asked": asked, "link_bytes_s": round(link), "bound_us": round(least(link) * 1e6)}
        row |= {"of_bound": round(least(link) / seconds, 4), "of_nominal": round(least(bits(args.rate) / 8) / seconds, 4)}
        row["predicted_us"] = "" if predicted is None else round(predicted, 1)
        rows.append({field: row.get(field, line.get(field)) for field in FIELDS})
        share = f"{row['of_bound']:.1%} of the bound"
        print(f"{hosts} hosts, {hosts * per_host} ranks, {collective} {asked}: {seconds:.3f} s, {share}", file=sys.stderr)

    for hosts in args.hosts:
        network = Network(hosts, args.rate)
        link = statistics.median(network.link(args.size) for _ in range(3))
        print(f"{hosts} hosts: a link carries {link / 1e6:.1f} MB/s", file=sys.stderr)
        for collective in COLLECTIVES:
            least = lambda bandwidth: bound(collective, args.size, hosts, bandwidth)
            add("flat", network, hosts, 1, collective, "auto", link, args.iterations, least)
            for name in [] if args.quick else names[collective]:
                if name != "local":
                    add("flat", network, hosts, 1, collective, name, link, min(args.iterations, 3), least)
        network.close()

    network = Network(2, args.rate)
    link = statistics.median(network.link(args.size) for _ in range(3))
    least = lambda bandwidth: hosts_bound(args.size, 2, args.per_host, bandwidth)
    for name in [FLAT, *(name for name in KNOW_HOSTS if name in names["allreduce"]), "auto"]:
        predicted = None if name == "auto" else predict(args.tool, name, 2, args.per_host, args.size, link)
        add("two hosts", network, 2, args.per_host, "allreduce", name, link, args.iterations, least, predicted)
    network.close()
    return rows


def write(folder, rows, args):
    flat = [row for row in rows if row["part"] == "flat"]
    auto = {(row["hosts"], row["collective"]): row for row in flat if row["asked"] == "auto"}
    links = [row["link_bytes_s"] for row in rows]
    link, slowest, fastest = statistics.median(links), min(links), max(links)
    text = f"""# Collectives between hosts with {args.rate} links

Made by `make bench-network{" NETWORK=--quick" if args.quick else ""}`, on {report.machine()}.

Each host is a network namespace with one card, joined by a bridge; `tc tbf` limits both directions of every card to
{args.rate}. A link carries {link / 1e6:.1f} MB/s: what one plain TCP connection moves, each way, while it moves as much the
other way, {8 * link / bits(args.rate):.1%} of the nominal rate. The bound is the time that the fewest bytes take that any
algorithm must move through a card: 2S(P−1)/(PB) for allreduce, S(P−1)/(PB) for reduce_scatter and allgather, S/B for broadcast,
with S = {report.human(args.size)} of float32 and B as measured; beside it, with B as named. A time is the median of the
iterations', and an iteration's that of its slowest rank. [All lines](network.csv).

B as measured is noisy: each set of hosts has its own, the median of three measurements before the collectives, here {slowest / 1e6:.1f} to
{fastest / 1e6:.1f} MB/s. So a collective may take a little less time than that bound, a share of more than 100 %. The cards hold to B as named.

## One rank on each host

![share of the bound](network-flat.svg)

| hosts | collective | auto takes | s | of the bound | with the nominal B | at least | met |
|---|---|---|---|---|---|---|---|
""".splitlines()
    for (hosts, collective), row in auto.items():
        met = "yes" if row["of_bound"] >= TARGETS[collective] else "**no**"
        text.append(
            f"| {hosts} | {collective} | {row['algorithm']} | {row['p50_us'] / 1e6:.3f} | {row['of_bound']:.1%} "
            f"| {row['of_nominal']:.1%} | {TARGETS[collective]:.0%} | {met} |"
        )
    named = [row for row in flat if row["asked"] != "auto"]
    if named:
        text += ["", "Every algorithm, in seconds and of the bound:", ""]
        text += ["| collective | algorithm |" + "".join(f" {hosts} hosts |" for hosts in args.hosts)]
        text += ["|---|---|" + "---|" * len(args.hosts)]
        times = {(row["hosts"], row["collective"], row["asked"]): row for row in named}
        for collective, name in dict.fromkeys((row["collective"], row["asked"]) for row in named):
            cells = [times[hosts, collective, name] for hosts in args.hosts]
            cells = " | ".join(f"{cell['p50_us'] / 1e6:.3f}, {cell['of_bound']:.1%}" for cell in cells)
            text.append(f"| {collective} | {name} | {cells} |")

    two = [row for row in rows if row["part"] == "two hosts"]
    first = two[0]
    text += ["", f"## Two hosts of {args.per_host} ranks", "", "![time](network-hosts.svg)", ""]
    text += ["Allreduce; the ranks of a host share its card. Predicted is the time that `gloo-rs simulate` gives with the measured"]
    text += ["B between hosts; its figures for what is inside a host hardly matter here.", ""]
    text += ["| algorithm | s | of the bound | faster than the flat ring | predicted s | predicted to be faster |"]
    text += ["|---|---|---|---|---|---|"]
    for row in two:
        predicted, faster = "", ""
        if row["predicted_us"] != "":
            predicted = f"{row['predicted_us'] / 1e6:.3f}"
            faster = f"{first['predicted_us'] / row['predicted_us']:.2f}×"
        name = row["asked"] if row["asked"] != "auto" else f"auto: {row['algorithm']}"
        gain = f"{first['p50_us'] / row['p50_us']:.2f}×"
        text.append(f"| {name} | {row['p50_us'] / 1e6:.3f} | {row['of_bound']:.1%} | {gain} | {predicted} | {faster} |")
    with open(os.path.join(folder, "network.md"), "w") as file:
        file.write("\n".join(text) + "\n")
    with open(os.path.join(folder, "network.csv"), "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    plots.network(args.tool, folder)


def size(text):
    for unit, power in (("Ki", 10), ("Mi", 20), ("Gi", 30)):
        if text.endswith(unit):
            return int(text[:-2]) << power
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("folder")
    parser.add_argument("--hosts", type=lambda text: [int(count) for count in text.split(",")], default=[4, 8])
    parser.add_argument("--per-host", type=int, default=4)
    parser.add_argument("--size", type=size, default=64 << 20)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if os.geteuid() != 0:
        # Become root in a new user namespace.
        command = ["unshare", "--user", "--map-root-user", "--net", "--"]
        tried = subprocess.run([*command, "true"], capture_output=True, text=True)
        if tried.returncode:
            raise SystemExit(f"{RIGHTS}: {tried.stderr.strip()}")
        os.execvp(command[0], [*command, sys.executable, *sys.argv])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs(args.folder, exist_ok=True)
    write(args.folder, measure(args), args)


if __name__ == "__main__":
    main()
