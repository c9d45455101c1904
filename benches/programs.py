"""What record.py measures: gloo_rs, other implementations, and programs that show what the machine can do.

Each takes a cell, which is one launch: a collective, or patterns of patterns.py, on some number of ranks, with several sizes. `settings`
lists what is sensible, `measure` runs one and returns a line for each size, with the fields of `gloo-rs bench --json`.
"""

import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import tempfile
import time

LARGEST_LOOPED = 64 << 10  # for larger calls a barrier before each makes no difference
LARGEST_BUSY = 8 << 20


class Failed(Exception):
    """Why, and the lines that were printed before."""

    def __init__(self, why, lines=()):
        super().__init__(why)
        self.lines = list(lines)


@dataclasses.dataclass(frozen=True)
class Cell:
    # Or patterns, separated by commas.
    collective: str
    ranks: int
    sizes: tuple
    dtype: str = "float32"

    @property
    def collectives(self):
        return self.collective.split(",")

    @property
    def measured(self):
        """The collective whose settings matter: of most patterns allreduce."""
        family = self.collective.partition("-")[0]
        return "allreduce" if family in ("late", "rotation", "requests", "wait") else family

    @property
    def calls(self):
        """How many calls of each size there are at once, of all patterns together."""
        return sum(int(name.partition("-")[2]) for name in self.collectives if name.startswith("requests-")) or 1

    @property
    def loop(self):
        return max(self.sizes) <= LARGEST_LOOPED

    def arguments(self, iterations, seconds):
        """Those of the programs in peers/."""
        sizes = ",".join(map(str, self.sizes))
        return [self.collective, sizes, str(iterations), str(seconds), str(int(self.loop))]


def parse(size):
    for unit, power in (("Ki", 10), ("Mi", 20), ("Gi", 30)):
        if size.endswith(unit):
            return int(size[:-2]) << power
    return int(size)


def cores_of(ranks):
    """The cores of each rank, as gloo-rs binds them; None if there are more ranks than cores."""
    cores = sorted(os.sched_getaffinity(0))
    if ranks > len(cores):
        return None
    return [set(cores[r * len(cores) // ranks : (r + 1) * len(cores) // ranks]) for r in range(ranks)]


def adopt_orphans():
    """Makes this process the parent of what its descendants leave behind, so that `end_all` finds it."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children():
    """The processes whose parent is this one."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == os.getpid():
            found.append(int(name))
    return found


def end_all(processes, grace=5):
    """Ends the processes, and all that they have started. On SIGTERM, unlike on SIGKILL, a launcher ends its ranks itself."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    end = time.monotonic() + grace
    for process in processes:
        try:
            process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    while left := children():
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def run(commands, patience, cores=None, environment=None):
    """Runs the commands concurrently, and returns the lines of JSON that the first one prints. They share the memory by which
    peers/harness.h lets ranks start at the same time."""
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        start = os.path.join(folder, "start")
        with open(start, "wb") as file:
            file.truncate(4096)
        paths = [[os.path.join(folder, f"{kind}-{index}") for kind in ("out", "err")] for index in range(len(commands))]
        why = None
        try:
            for index, command in enumerate(commands):
                bind = (lambda own=cores[index]: os.sched_setaffinity(0, own)) if cores else None
                env = os.environ | {"HARNESS_START": start} | (environment or {})
                with open(paths[index][0], "w") as out, open(paths[index][1], "w") as err:
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=bind, env=env
                    )
                processes.append(process)
            deadline = time.monotonic() + patience
            for process in processes:
                process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            why = f"not done after {patience} s"
        finally:
            end_all(processes)
        lines = parsed(paths[0][0])
        for process, (_, errors) in zip(processes, paths):
            if process.returncode and not why:
                with open(errors, errors="replace") as file:
                    why = f"status {process.returncode}: {' '.join(file.read().split())[-300:]}"
        if why:
            raise Failed(why, lines)
        return lines


def parsed(path):
    """The lines of JSON in a program's output, of which the last may be cut."""
    lines = []
    with open(path, errors="replace") as file:
        for line in file:
            try:
                lines += [json.loads(line)] if line.startswith("{") else []
            except ValueError:
                pass
    return lines


class GlooRs:
    """By PEER, a program that calls the C ABI as the other peers call theirs; without it, and for what it lacks, by the tool."""

    SMALL = 64 << 10  # up to here, buffers of gloo_rs_alloc make no difference

    def __init__(self, tool, transport, folder=None, allocated=False, environment=None):
        self.tool, self.transport, self.allocated, self.environment = tool, transport, allocated, environment or {}
        self.peer = folder and os.path.join(folder, "gloo_rs_peer")

    def settings(self, cell):
        if self.allocated and max(cell.sizes) <= self.SMALL:
            return []
        return ["bound", "unbound"]

    def measure(self, setting, cell, iterations, seconds, patience):
        bind = {"bound": "core", "unbound": "none"}[setting]
        secure = ["--tls"] if self.transport == "tls" else []
        command = [self.tool, "run", *secure, "-n", str(cell.ranks), "--bind-to", bind, "--no-prefix", "--"]
        environment = self.environment | ({"GLOO_RS_SHM": "0"} if self.transport == "tcp" else {})
        if self.peer and cell.dtype == "float32":
            return run([[*command, self.peer, *cell.arguments(iterations, seconds)]], patience, environment=environment)
        command += [self.tool, "bench", cell.collective, "--transport", self.transport, "--dtype", cell.dtype, "--json"]
        command += ["--sizes", ",".join(map(str, cell.sizes)), "--timeout", str(patience)]
        command += ["--iterations", str(iterations), "--warmup", str(iterations // 5), "--seconds", str(seconds)]
        command += ["--loop"] if cell.loop else []
        # MPI's is in place.
        command += ["--in-place"] if cell.collective == "broadcast" else []
        command += ["--alloc"] if self.allocated else []
        try:
            lines = run([command], patience, environment=self.environment)
        except Failed as why:
            raise Failed(why, [line for line in why.lines if line["verified"]])
        if not all(line["verified"] for line in lines):
            raise Failed("wrong results")
        return lines


class Gloo:
    """With ranks bound to cores as in gloo_rs, and unbound, because its asynchronous mode has its own thread. Also gloo_rs through
    Gloo's headers, by the program `gloo_headers`."""

    def __init__(self, folder, name="gloo", algorithms=None, environment=None):
        self.peer, self.environment = os.path.join(folder, f"{name}_peer"), environment
        listed = lambda: subprocess.run([self.peer, "list"], check=True, capture_output=True, text=True).stdout.splitlines()
        self.names = algorithms or listed()

    def settings(self, cell):
        # In the synchronous mode both sides write before they read: messages larger than the socket buffers time out.
        names = [name for name in self.names if "busy" not in name or max(cell.sizes) <= LARGEST_BUSY]
        return [name + how for name in names for how in (["", ", unbound"] if cores_of(cell.ranks) else [""])]

    def measure(self, setting, cell, iterations, seconds, patience):
        name = setting.removesuffix(", unbound")
        cores = cores_of(cell.ranks) if name == setting else None
        with tempfile.TemporaryDirectory() as store:
            rest = [str(cell.ranks), store, name, *cell.arguments(iterations, seconds)]
            return run([[self.peer, str(rank)] + rest for rank in range(cell.ranks)], patience, cores, self.environment)


class Launched:
    """A peer that an mpiexec starts. A setting is arguments of that, and variables of the environment."""

    options, environment = [], {}

    def __init__(self, folder, name, launcher=None):
        self.peer = os.path.join(folder, f"{name}_peer")
        self.place = os.path.abspath(os.path.join(folder, launcher or name))

    def measure(self, setting, cell, iterations, seconds, patience):
        words = setting.split()
        variables = dict(word.split("=", 1) for word in words if "=" in word)
        options = [word for word in words if "=" not in word]
        command = [os.path.join(self.place, "bin", "mpiexec"), *self.options, *options, "-n", str(cell.ranks), self.peer]
        environment = self.environment | {"I_MPI_ROOT": self.place} | variables
        return run([command + cell.arguments(iterations, seconds)], patience, environment=environment)


class OpenMpi(Launched):
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # How it waits with more ranks than cores; otherwise it would not yield.
    MANY = "--oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
    MANY_BOUND = "--map-by core:OVERSUBSCRIBE --bind-to core:overload-allowed --mca mpi_yield_when_idle 1"
    # Its collectives in shared memory, which it does not select by itself; copies through shared memory, not by the system.
    VARIANTS = [" --mca coll_sm_priority 90", " --mca smsc ^cma"]

    def settings(self, cell):
        if not cores_of(cell.ranks):
            return [many + variant for many in (self.MANY, self.MANY_BOUND) for variant in ["", *self.VARIANTS[1:]]]
        return ["--bind-to core", "--bind-to none"] + ["--bind-to core" + variant for variant in self.VARIANTS]


class OpenMpiTcp(OpenMpi):
    options = "--mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo --mca coll ^sm,han".split()
    VARIANTS = []


class Mpich(Launched):
    def settings(self, cell):
        # It polls without ever yielding.
        return ["-bind-to core", "-bind-to none"] if cores_of(cell.ranks) else []


class IntelMpi(Launched):
    environment = {"I_MPI_FABRICS": "shm"}
    # It has many algorithms for each collective: these have beaten its own choice on one of the machines tried.
    BESIDES = {"allreduce": ["I_MPI_ADJUST_ALLREDUCE=13"]}

    def settings(self, cell):
        many = ["I_MPI_PIN=0 I_MPI_THREAD_YIELD=2", "I_MPI_PIN=0 I_MPI_WAIT_MODE=1", "I_MPI_PIN=0 I_MPI_THREAD_YIELD=3"]
        many += ["I_MPI_PIN=1 I_MPI_THREAD_YIELD=2"]
        how = ["I_MPI_PIN=1", "I_MPI_PIN=0"] if cores_of(cell.ranks) else many
        return how + [f"{how[0]} {more}" for more in self.BESIDES.get(cell.measured, [])]


class OneCcl(Launched):
    """Bound only: it places its ranks itself, and unbound two of them share a core."""

    environment = {"I_MPI_FABRICS": "shm", "CCL_ATL_TRANSPORT": "mpi", "CCL_LOG_LEVEL": "error"}
    ALGORITHMS = {
        "allreduce": ["ALLREDUCE=direct", "ALLREDUCE=ring", "ALLREDUCE=2d"],
        "reduce_scatter": ["REDUCE_SCATTER=direct", "REDUCE_SCATTER=ring"],
        "allgather": ["ALLGATHER=direct", "ALLGATHER=naive"],
        "broadcast": ["BCAST=direct", "BCAST=naive"],
        "alltoall": ["ALLTOALL=direct", "ALLTOALL=naive"],
        "barrier": ["BARRIER=direct"],
    }

    def settings(self, cell):
        # It polls without ever yielding.
        names = [f" CCL_{name}" for name in self.ALGORITHMS.get(cell.measured, [])] or [""]
        return [f"I_MPI_PIN=1{name}" for name in names] if cores_of(cell.ranks) else []


class Only:
    """A program, for some families of patterns alone."""

    def __init__(self, program, *families):
        self.families, self.settings_of, self.measure = families, program.settings, program.measure

    def settings(self, cell):
        return self.settings_of(cell) if cell.collective.partition("-")[0] in self.families else []


class TcpFloor:
    def __init__(self, folder):
        self.peer = os.path.join(folder, "floor_peer")

    def settings(self, cell):
        if cell.ranks != 2 or not cores_of(2):
            return []
        return [f"send buffer {text}" for text in ("default", "64Ki", "128Ki", "256Ki", "512Ki")]

    def measure(self, setting, cell, iterations, seconds, patience):
        text = setting.split()[-1]
        size = 0 if text == "default" else parse(text)
        return run([[self.peer, str(size), *cell.arguments(iterations, seconds)]], patience)


class TlsPair:
    """Two processes with one TLS connection: how they exchange, how they read, and the size of the send buffer."""

    def __init__(self, folder):
        self.peer = os.path.join(folder, "tls_pair_peer")

    def settings(self, cell):
        if cell.ranks != 2 or not cores_of(2):
            return []
        return [f"{how} {reads} {size}" for how in ("whole", "halves") for reads in ("direct", "buffered", "unbuffered") for size in ("0", "128Ki")]

    def measure(self, setting, cell, iterations, seconds, patience):
        how, reads, size = setting.split()
        return run([[self.peer, how, reads, str(parse(size)), *cell.arguments(iterations, seconds)]], patience)


class Bare:
    """A plain exchange through shared memory."""

    def __init__(self, folder):
        self.peer = os.path.join(folder, "bare_peer")

    def settings(self, cell):
        small = max(cell.sizes) <= 64 << 10
        return ["double-buffered"] if cell.collective == "allreduce" and cell.ranks == 2 and small and cores_of(2) else []

    def measure(self, setting, cell, iterations, seconds, patience):
        return run([[self.peer, *cell.arguments(iterations, seconds)]], patience)

    def line(self):
        """Microseconds in which a cache line gets from one core to another; None on a machine with one core."""
        return run([[self.peer, "line"]], 30)[0]["line"] if cores_of(2) else None


class Switches:
    """Where ranks share cores: a rank that has published something must wait until its core has run all others, and itself again."""

    LARGEST = 1 << 10

    def __init__(self, folder):
        self.peer = os.path.join(folder, "bare_peer")

    def settings(self, cell):
        return [] if cores_of(cell.ranks) or min(cell.sizes) > self.LARGEST else ["sched_yield"]

    def measure(self, setting, cell, iterations, seconds, patience):
        switch = run([[self.peer, "switch"]], patience)[0]["switch"]
        us = switch * -(-cell.ranks // len(os.sched_getaffinity(0)))
        times = dict.fromkeys(("min_us", "p50_us", "p99_us", "max_us"), us)
        sizes = [size for size in cell.sizes if size <= self.LARGEST]
        return [{"bytes": size, "algorithm": f"{switch:.2f} us each", "iterations": 1, **times} for size in sizes]


class MemoryFloor:
    """The time in which the memory moves what an allreduce of large buffers must move."""

    SMALLEST = 32 << 20  # below, caches hold some of it

    def __init__(self, folder):
        self.peer = os.path.join(folder, "bare_peer")

    def settings(self, cell):
        large = max(cell.sizes) >= self.SMALLEST
        return ["bandwidth"] if cell.collective == "allreduce" and cell.ranks == 2 and large and cores_of(2) else []

    def measure(self, setting, cell, iterations, seconds, patience):
        bandwidth = run([[self.peer, "bandwidth"]], patience)[0]["bandwidth"]
        lines = []
        for size in (size for size in cell.sizes if size >= self.SMALLEST):
            # Every input is read once; every result is written once, and its first copy is read for the others.
            us = (3 * cell.ranks - 1) * size / bandwidth * 1e6
            times = dict.fromkeys(("min_us", "p50_us", "p99_us", "max_us"), us)
            lines.append({"bytes": size, "algorithm": f"{bandwidth / 1e9:.1f} GB/s", "iterations": 5, **times})
        return lines
