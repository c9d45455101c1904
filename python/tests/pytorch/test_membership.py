"""Groups that get another membership while their processes live, by torch's calls for it. A `process` has this number as long as it lives,
whatever its rank is."""

import datetime
import os
import signal

import pytest
import torch
import torch.distributed as dist
from ranks import TIMEOUT, group_of, raises, run, same
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import gloo_rs.torch


def seconds(number):
    return datetime.timedelta(seconds=number)


def without_members(process, store, size=3):
    dist.init_process_group("gloo_rs", store=store, rank=process, world_size=size, timeout=TIMEOUT, enable_reconfigure=True)
    return dist.group.WORLD


def handles_of(store, id, process, members):
    """The handles of the members, which all of them call for."""
    store.set(f"handle/{id}/{process}", dist._get_reconfigure_handle())
    return [store.get(f"handle/{id}/{member}").decode() for member in members]


def change(store, id, process, members, form=list):
    """Gives the group these members, if this process is one of them, and makes calls with them."""
    if process not in members:
        return
    work = dist._reconfigure(id, form(handles_of(store, id, process, members)), timeout=TIMEOUT)
    assert work.wait() and work.is_completed() and work.exception() is None
    size = len(members)
    assert dist.get_world_size() == size
    if form is list:
        assert dist.get_rank() == members.index(process)
    rank, group = dist.get_rank(), dist.group.WORLD
    assert dist.get_process_group_ranks(None) == list(range(size))

    value, other = torch.tensor([float(process)]), torch.tensor([float(process)])
    dist.all_reduce(value)
    assert value.item() == sum(members), f"{value.item()} is not the sum of {members}"
    same(dist.all_reduce(other, async_op=True).get_future().wait()[0], value, "a future's")
    found = [None] * size
    dist.all_gather_object(found, (rank, process))
    assert [one for one, _ in found] == list(range(size)) and {one for _, one in found} == set(members), found
    if size > 1:
        work = dist.isend(torch.tensor([process]), (rank + 1) % size)
        dist.recv(got := torch.zeros(1, dtype=torch.int64), (rank - 1) % size)
        assert got.item() == found[(rank - 1) % size][1]
        work.wait()
    # The slots of this one are counted.
    group.monitored_barrier(TIMEOUT)
    numbers = [None] * size
    dist.all_gather_object(numbers, group._get_sequence_number_for_group())
    assert len(set(numbers)) == 1, numbers
    # What C++ finds.
    assert (dist.ProcessGroup.rank(group), dist.ProcessGroup.size(group)) == (rank, size)


def memberships(process, size, store):
    group = without_members(process, store)
    assert isinstance(group, gloo_rs.torch.Group) and dist._supports_reconfigure()
    raises(lambda: dist.all_reduce(torch.ones(1)), "all_reduce", "the context has no members")
    group.abort()  # of nothing
    # First use, alone; and up to all.
    change(store, 10 + process, process, [process])
    change(store, 20, process, [0, 1, 2])
    change(store, 21, process, [0, 1, 2])
    change(store, 30, process, [0, 1])
    if process == 2:
        raises(lambda: dist.all_reduce(torch.ones(1)), "all_reduce", "has reconfigured its context")
    # The left one comes again, when the others have made many calls.
    change(store, 31, process, [0, 1, 2])
    change(store, 32, process, [0, 2])
    change(store, 33, process, [2, 0])
    if process != 1:
        # Gradients are divided by the number of ranks.
        model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
        model(torch.tensor([[1.0 + process]])).sum().backward()
        assert model.module.weight.grad.item() == 2
    change(store, 34, process, [0, 2], set)
    # Two groups, which become one.
    change(store, 35 if process == 1 else 36, process, [1] if process == 1 else [2, 0])
    change(store, 37, process, [1, 2, 0])
    # A group of ranks of this one, and one that is left alone.
    part = dist.new_group([0, 2], backend="gloo_rs")
    if dist.get_rank() != 1:
        dist.all_reduce(value := torch.ones(1), group=part)
        assert value.item() == 2
    change(store, 40 + process, process, [process])


def later(process, size, store):
    """A process that comes when the others are a group already, whose number of ranks it did not know."""
    if process == 2:
        store.wait(["come"], seconds(300))
    without_members(*((0, store, 1) if process == 2 else (process, store, 2)))
    change(store, 1, process, [0, 1])
    store.set("come", "")
    change(store, 2, process, [2, 0, 1])


def failures(process, size, store):
    group = without_members(process, store)
    backend = group._get_backend(torch.device("cpu"))
    change(store, 1, process, [0, 1, 2])
    aborts = []
    group.register_abort_hook(1, lambda: aborts.append(1))
    # After an abort, of whatever was in progress.
    for id in (2, 3):
        received = torch.zeros(1)
        works = [dist.irecv(received, (dist.get_rank() + 1) % 3)]
        if process == 2:
            store.wait([f"started {id} {other}" for other in range(2)], seconds(60))
            backend.abort()
        else:
            works.append(dist.all_reduce(torch.ones(3), async_op=True))
            future = works[1].get_future()
            store.set(f"started {id} {process}", "")
            raises(works[1].wait, "all_reduce", "rank 2")
            raises(future.wait, "all_reduce")
        assert backend.get_error() == c10d.ErrorType.REMOTE_ERROR
        change(store, id, process, [0, 1, 2])
        assert backend.get_error() == c10d.ErrorType.SUCCESS
        assert len(aborts) == id - 1, "a hook is called once in each membership"
        for work in works:
            assert work.is_completed() and work.exception() is not None
    # After a timeout; and what has begun before a change fails by it.
    group.set_timeout(seconds(0.3))
    if process != 2:
        raises(lambda: dist.all_reduce(torch.ones(2)), "timed out after 300ms")
        assert backend.get_error() != c10d.ErrorType.SUCCESS
    group.set_timeout(TIMEOUT)
    change(store, 4, process, [0, 1, 2])
    work = dist.irecv(torch.zeros(1), (process + 1) % 3)
    change(store, 5, process, [0, 1, 2])
    assert not backend._pending
    assert work.is_completed() and "reconfigures the context" in str(work.exception()), work.exception()
    # Wrong calls leave the group as it is.
    handles = handles_of(store, "last", process, [0, 1, 2])
    others = handles[:process] + handles[process + 1 :]
    raises(lambda: dist._reconfigure(6, others), "is not among the 2")
    raises(lambda: dist._reconfigure(6, [*handles, handles[0]]), "is twice among the handles")
    raises(lambda: dist._reconfigure(6, []), "there are no handles")
    raises(lambda: dist._reconfigure(6, ["gloo:0:5:0:"]), "is not the handle of a group of gloo_rs")
    raises(lambda: dist._reconfigure(6, ['["a", "b", "c", "d", "e"]']), "is not the handle of a group of gloo_rs")
    raises(lambda: dist._reconfigure(6, handles, hints={"fast": "yes"}), "there are no hints", "fast")
    raises(lambda: dist._reconfigure(5, handles), "the id 5 ", "each change has an id of its own")
    if process == 0:
        raises(lambda: dist._reconfigure(7, handles[:2], timeout=seconds(0.3)), "Timed out waiting 300ms for reconfigure", "not arrived: 1")
    dist.all_reduce(value := torch.ones(1))
    assert value.item() == 3
    # Without a rank that is lost.
    if process == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    raises(lambda: dist.all_reduce(torch.ones(1 << 20)), "rank 2")
    change(store, 8, process, [0, 1])


def connected(process, size, store):
    """A group that was made with all its members."""
    group = group_of(process, size, store)
    assert dist._supports_reconfigure()
    other = dist.new_group(backend="gloo_rs")
    dist.all_reduce(torch.ones(1))
    change(store, 1, process, [0, 2])
    # Groups that were made before go on, with the ranks that they had.
    other.allreduce([value := torch.ones(1)]).wait()
    assert value.item() == 3
    # An abort is the end of this one.
    if process != 1:
        group.abort()
        raises(lambda: change(store, 2, process, [0, 2]), "reconfigure", "closed")


def two_stores(process, size, store):
    """Jobs that know nothing of each other but handles."""
    job = process // 2
    if process % 2 == 0:
        own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set(f"port {job}", str(own.port))
    else:
        # This is the first process's store, under another name.
        own = dist.TCPStore("localhost", int(store.get(f"port {job}")), is_master=False)
    dist.init_process_group("gloo_rs", store=own, rank=process % 2, world_size=2, timeout=TIMEOUT, enable_reconfigure=True)
    change(store, 1, process, [2 * job, 2 * job + 1])
    change(store, 2, process, [0, 1, 2, 3])
    change(store, 3, process, [3, 0], set)
    change(store, 4, process, [1, 2])
    dist.destroy_process_group()
    # Stores that only their own process reaches.
    dist.init_process_group("gloo_rs", store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True)
    handles = handles_of(store, "alone", process, [0, 1, 2, 3])
    if process == 3:
        raises(lambda: dist._reconfigure(5, handles), "the members have different stores")
    # Until the others need their stores no longer.
    store.set(f"end {process}", "")
    store.wait([f"end {other}" for other in range(4)], seconds(60))


def several_backends(process, size, store):
    """A group with two backends cannot be reconfigured."""
    gpu = "cpu:gloo_rs,cuda:nccl"
    raises(lambda: dist.init_process_group(gpu, store=store, rank=0, world_size=1, enable_reconfigure=True), "other backends")
    # Where there is no GPU, there is none with NCCL.
    group = dist.ProcessGroup(store, 0, 1)
    backends = [gloo_rs.torch.Backend(dist.PrefixStore(name, store), 0, 1, TIMEOUT) for name in ("cpu", "cuda")]
    types = [dist.ProcessGroup.BackendType.CUSTOM, dist.ProcessGroup.BackendType.NCCL]
    for device, kind, backend in zip(("cpu", "cuda"), types, backends):
        group._register_backend(torch.device(device), kind, backend)
    raises(lambda: dist._supports_reconfigure(group), "multiple backends")
    raises(lambda: dist._get_reconfigure_handle(group), "multiple backends")
    raises(lambda: dist._reconfigure(1, [""], group), "multiple backends")
    for backend in backends:
        assert not (backend.supports_reconfigure or backend.supports_window or backend._supports_time_estimate)
        backend.shutdown()


@pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason=f"NOT TESTED with torch {torch.__version__}, which cannot reconfigure")
@pytest.mark.parametrize(
    ("size", "function", "killed"),
    [
        (3, memberships, ()),
        (3, later, ()),
        (3, failures, (2,)),
        (3, connected, ()),
        (4, two_stores, ()),
        (1, several_backends, ()),
    ],
)
def test_membership(size, function, killed):
    run(size, function, killed=killed)
