"""Groups that are made of others, and what programs set or ask of a group: timeouts, hooks, errors, sequence numbers, records."""

import datetime
import json
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from ranks import TIMEOUT, group_of, raises, run, same
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import gloo_rs.torch


def seconds(number):
    return datetime.timedelta(seconds=number)


def total_of(group):
    """The sum of the ranks of the job in the group, by a call and by a started one."""
    value, other = torch.tensor([float(dist.get_rank())]), torch.tensor([float(dist.get_rank())])
    dist.all_reduce(value, group=group)
    work = dist.all_reduce(other, group=group, async_op=True)
    same(work.get_future().wait()[0], value, "a future's")
    return value.item()


def split(rank, size, store):
    group_of(rank, size, store)
    # In the order of the list.
    lists = [[0, 2], [3, 1]]
    group = dist.split_group(split_ranks=lists, timeout=seconds(7), group_desc="halves")
    mine = next(ranks for ranks in lists if rank in ranks)
    assert isinstance(group, gloo_rs.torch.Group)
    assert (dist.get_rank(group), dist.get_world_size(group)) == (mine.index(rank), 2)
    assert (group.group_desc, dist.get_process_group_ranks(group)) == ("halves", mine)
    assert group._get_backend(torch.device("cpu")).options._timeout == seconds(7)
    assert total_of(group) == sum(mine)
    value = torch.tensor([rank])
    dist.broadcast(value, mine[0], group)
    assert value.item() == mine[0]
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    assert isinstance(work, gloo_rs.torch.Work) and work.wait()
    # A group of a group; and ranks that are in none.
    one = dist.split_group(group, [[1]])
    assert (one is dist.GroupMember.NON_GROUP_MEMBER) == (dist.get_rank(group) == 0)
    some = dist.split_group(split_ranks=[[1, 3]], backend="gloo_rs")
    assert (some is dist.GroupMember.NON_GROUP_MEMBER) == (rank not in (1, 3))
    if rank in (1, 3):
        assert total_of(some) == 4
        DistributedDataParallel(torch.nn.Linear(3, 3), process_group=some)(torch.ones(1, 3)).sum().backward()
    # A group lives longer than the one of which it was made.
    dist.barrier()
    dist.destroy_process_group(group)
    assert total_of(dist.group.WORLD) == sum(range(size))
    if rank not in (1, 3):
        return
    some.abort()
    raises(lambda: dist.all_reduce(torch.ones(1), group=some), "all_reduce on rank")


def shrunk_by_name(rank, size, store):
    """As the name gloo."""
    gloo_rs.torch.replace_gloo()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    dist.barrier()
    if rank == 0:
        return
    dist.shrink_group([0])
    assert isinstance(dist.group.WORLD, gloo_rs.torch.Group) and dist.get_backend() == "gloo"
    DistributedDataParallel(torch.nn.Linear(3, 3))(torch.ones(1, 3)).sum().backward()


def merged(rank, size, store):
    # Two jobs, that know nothing of each other but a store.
    half = rank // 2
    dist.init_process_group("gloo_rs", store=dist.PrefixStore(f"half{half}", store), rank=rank % 2, world_size=2, timeout=TIMEOUT)
    assert total_of(dist.group.WORLD) == 1
    group = dist.group.WORLD.merge_remote_group(dist.PrefixStore("both", store), size, TIMEOUT, "whole", "the whole")
    assert isinstance(group, gloo_rs.torch.Group)
    assert (group.size(), group.group_name, group.group_desc) == (size, "whole", "the whole")
    value = torch.tensor([float(rank)])
    group.allreduce([value]).wait()
    assert value.item() == sum(range(size))
    ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    group.allgather([ranks], [torch.tensor([group.rank()])]).wait()
    assert [int(one) for one in ranks] == list(range(size))
    group.shutdown()


def shrunk(rank, size, store):
    group_of(rank, size, store)
    other = dist.new_group(backend="gloo_rs")
    assert total_of(other) == sum(range(size))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raises(lambda: dist.all_reduce(torch.ones(1 << 20)), f"all_reduce on rank {rank} of {size}", "rank 1")
    group = dist.shrink_group([1])
    left = [0, *range(2, size)]
    assert group is dist.group.WORLD and isinstance(group, gloo_rs.torch.Group)
    assert (dist.get_rank(), dist.get_world_size()) == (left.index(rank), size - 1)
    DistributedDataParallel(torch.nn.Linear(3, 3))(torch.ones(1, 3)).sum().backward()
    assert total_of(None) == sum(range(size - 1))
    again = dist.new_group(backend="gloo_rs")
    assert total_of(again) == sum(range(size - 1))
    # A rank that lives is left out, while the others wait for it.
    if dist.get_rank() == size - 2:
        store.wait(["without me"], seconds(300))
        raises(lambda: dist.all_reduce(torch.ones(3)), "all_reduce")
        return
    work = dist.all_reduce(torch.ones(3), async_op=True)
    # A call that is started after the abort of the other rank is refused.
    store.set(f"started {dist.get_rank()}", "")
    store.wait([f"started {other}" for other in range(size - 2)], seconds(60))
    dist.shrink_group([size - 2], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    raises(work.wait, "all_reduce")
    assert total_of(None) == sum(range(size - 2))
    store.set("without me", "")


def observed(rank, size, store):
    """Errors, hooks and times."""
    group = group_of(rank, size, store)
    backend = group._get_backend(torch.device("cpu"))
    assert backend.get_error() == c10d.ErrorType.SUCCESS
    dist.all_reduce(torch.ones(1))
    before = group._get_sequence_number_for_group()
    # A call that its caller waits for has no work, and is counted.
    options = c10d.AllreduceOptions()
    options.asyncOp = False
    assert group.allreduce([value := torch.ones(1)], options) is None
    assert value.item() == 2 and group._get_sequence_number_for_group() == before + 1
    before += 1
    works = [dist.all_reduce(torch.ones(3), async_op=True), dist.broadcast(torch.ones(3), 0, async_op=True)]
    assert [work._get_sequence_number() for work in works] == [before + 1, before + 2] == [before + 1, group._get_sequence_number_for_group()]
    assert [work._get_op_type() for work in works] == [c10d.OpType.ALLREDUCE, c10d.OpType.BROADCAST]
    for work in works:
        work.wait()
        assert 0 < work._get_duration() < 60_000 and work.timeout == TIMEOUT

    ended = []
    group._register_on_completion_hook(ended.append)
    dist.all_reduce(torch.ones(3))
    dist.irecv(torch.ones(2), 1 - rank)  # whose end is reported though nobody waits for it
    dist.send(torch.ones(2), 1 - rank)
    deadline = time.monotonic() + 60
    while len(ended) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert {info.op_type for info in ended} == {c10d.OpType.ALLREDUCE, c10d.OpType.RECV, c10d.OpType.SEND}, ended
    assert all(info.time_finished - info.time_started == info.active_duration >= seconds(0) for info in ended), ended

    before, after = [], []
    group.register_pre_hook(7, lambda arguments: before.append(arguments.name))
    dist.all_reduce(torch.ones(2))
    group.unregister_pre_hook(7)
    group.register_post_hook(7, lambda arguments: after.append(arguments.name))
    dist.barrier()
    group.unregister_post_hook(7)
    dist.barrier()
    assert (before, after) == ([c10d.HookOpName.ALLREDUCE], [c10d.HookOpName.BARRIER]), (before, after)

    aborts = []
    assert group.supports_abort_hooks
    for number in range(2):
        group.register_abort_hook(number, lambda number=number: aborts.append(number))
    group.unregister_abort_hook(1)
    if rank == 1:
        store.wait(["given up"], seconds(300))
    else:
        group.set_timeout(seconds(0.3))
        raises(lambda: dist.all_reduce(torch.ones(2)), "timed out after 300ms")
        assert backend.get_error() == c10d.ErrorType.TIMEOUT
        assert aborts == [0]
        store.set("given up", "")
    raises(lambda: dist.all_reduce(torch.ones(2)), "all_reduce")
    assert backend.get_error() != c10d.ErrorType.SUCCESS
    group.abort()
    assert aborts == [0], "a hook is called once"


def longer_timeouts(rank, size, store):
    group = group_of(rank, size, store, seconds(0.3))
    dist.barrier()
    group._add_ephemeral_timeout(seconds(60))
    if rank == 1:
        # Longer than the timeout, and not as long as it is then.
        time.sleep(1)
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work.timeout == seconds(60.3)
    work.wait()
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    assert work.timeout == seconds(0.3)
    group._add_ephemeral_timeout(seconds(60))
    dist.all_reduce(torch.ones(2))
    group.set_timeout(seconds(5))
    work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    assert work.timeout == seconds(5)


def recorded(rank, size, store):
    """torch's flight recorder, where its variable is set."""
    group_of(rank, size, store)
    dist.all_reduce(torch.ones(3, 2))
    dist.barrier()
    entries = json.loads(c10d._dump_fr_trace_json(backend="gloo_rs"))["entries"]
    assert [entry["profiling_name"].rpartition(":")[2] for entry in entries] == ["all_reduce", "barrier"], entries
    assert entries[0]["input_sizes"] == [[3, 2]]


def checked(rank, size, store):
    """torch's check for NaN, where its variable is set."""
    group_of(rank, size, store)
    dist.all_reduce(torch.ones(3))
    raises(lambda: dist.all_reduce(torch.tensor([0, float("nan")])), "NaN")


# PyTorch 2.14 refuses to split groups without an accelerator, and its recorder does not name backends.
since_2_15 = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15), reason=f"NOT TESTED with torch {torch.__version__}"
)


@pytest.mark.parametrize(
    ("size", "function", "killed", "environment"),
    [
        pytest.param(4, split, (), {}, marks=since_2_15),
        (4, merged, (), {}),
        (4, shrunk, (1,), {}),
        (3, shrunk_by_name, (), {}),
        (2, observed, (), {}),
        (2, longer_timeouts, (), {}),
        pytest.param(2, recorded, (), {"TORCH_FR_BUFFER_SIZE": "100"}, marks=since_2_15),
        (2, checked, (), {"TORCH_DIST_NAN_CHECK": "1"}),
    ],
)
def test_groups(size, function, killed, environment):
    run(size, function, killed=killed, environment=environment)
