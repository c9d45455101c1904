"""Ranks as processes of a test, and the two groups that it compares: torch's own backend gloo, and gloo_rs."""

import datetime
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist

# Seconds after which a rank that hangs is ended. No test expects that this time passes, nor that anything takes less.
LIMIT_S = 120
TIMEOUT = datetime.timedelta(seconds=60)

# The server loads torch once, and what DistributedDataParallel loads.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed", "gloo_rs.torch"])


def start(function, rank, size, path, args, environment, limit_s):
    # With the stacks of all threads.
    faulthandler.dump_traceback_later(limit_s, exit=True)
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", **environment})
    torch.set_num_threads(1)
    store = dist.FileStore(path, size)
    try:
        function(rank, size, store, *args)
    except BaseException:
        sys.stderr.write(f"rank {rank} of {size}:\n{traceback.format_exc()}")
        sys.stderr.flush()
        os._exit(1)
    # A program destroys its groups before the interpreter ends.
    if dist.is_initialized():
        dist.destroy_process_group()


def run(size, function, *args, killed=(), environment=None, limit_s=LIMIT_S):
    """Runs `function(rank, size, store, *args)` in `size` processes; all but the `killed` must end well."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        given = path, args, environment or {}, limit_s
        ranks = [_processes.Process(target=start, args=(function, rank, size, *given)) for rank in range(size)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    for rank, process in enumerate(ranks):
        wanted = -signal.SIGKILL if rank in killed else 0
        assert process.exitcode == wanted, f"rank {rank} of {size} ended with {process.exitcode}"


def both(rank, size, store):
    """The default group, of gloo, and one of gloo_rs."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    return dist.group.WORLD, dist.new_group(backend="gloo_rs", timeout=TIMEOUT)


def group_of(rank, size, store, timeout=TIMEOUT):
    """The default group, of gloo_rs."""
    dist.init_process_group("gloo_rs", store=store, rank=rank, world_size=size, timeout=timeout)
    return dist.group.WORLD


def random(rank, shape, dtype, seed=0):
    """The input of `rank`. Numbers are small integers: sums and products of few of them are exact in every type and order."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    low = 0 if dtype == torch.uint8 else -2
    return torch.randint(low, 3, shape, generator=generator).to(dtype)


def same(one, other, what):
    assert one.dtype == other.dtype and one.shape == other.shape, f"{what}: {one.dtype} {one.shape} and {other.dtype} {other.shape}"
    assert torch.equal(one, other), f"{what}: {one} and {other}"


def raises(function, *texts):
    """Asserts that `function` raises an error whose message has all `texts`; returns the message."""
    try:
        function()
    except (RuntimeError, ValueError) as error:
        for text in texts:
            assert text in str(error), f"no {text!r} in: {error}"
        return str(error)
    raise AssertionError(f"no error with {texts}")
