"""Parts of torch that run over a group: they get the same results over gloo_rs as over torch's own backend, or as one process alone.

With two ranks, sums have one order, so that results are the same bit by bit. Groups of the same ranks are made over both backends.
"""

import os
import tempfile

import pytest
import torch
import torch.distributed as dist
from ranks import TIMEOUT, group_of, run, same
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def model_of(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))


def batch_of(rank, step, rows=8):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(rows, 16, generator=generator)
    return inputs, inputs[:, :8].argmax(1)


def train(model, optimizer, rank, steps=STEPS, first=0):
    losses = []
    for step in range(first, first + steps):
        inputs, labels = batch_of(rank, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def over_both(rank, size, store, program):
    """What the program returns over either backend, as the default group."""
    results = []
    for backend in ("gloo", "gloo_rs"):
        dist.init_process_group(backend, store=dist.PrefixStore(backend, store), rank=rank, world_size=size, timeout=TIMEOUT)
        results.append(program(rank, size))
        dist.destroy_process_group()
    return results


def same_over_both(rank, size, store, program):
    theirs, ours = over_both(rank, size, store, program)
    assert len(theirs) == len(ours) > 0
    for number, (one, other) in enumerate(zip(theirs, ours)):
        same(torch.as_tensor(other), torch.as_tensor(one), f"{program.__name__}, result {number}")


def hybrid_shards(rank, size):
    """HSDP: replicas of a model whose parameters are split."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    model = model_of()
    for layer in model[::2]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(model, sgd(model), rank)
    return [*losses, *(parameter.full_tensor().detach() for parameter in model.parameters())]


def tensor_parallel(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    mesh = init_device_mesh("cpu", (size,))
    model = model_of()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    # All ranks have the same batches.
    losses = train(model, sgd(model), 0)
    norm = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 16))
    torch.nn.init.eye_(norm[1].weight)
    parallelize_module(norm, mesh, {"0": SequenceParallel(sequence_dim=0)})
    out = norm[0](batch_of(0, 0)[0])
    out = out.full_tensor() if hasattr(out, "full_tensor") else out
    return [*losses, out.detach()]


def distributed_tensors(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(48.0).view(8, 6)
    split = distribute_tensor(whole, mesh, [Shard(0)])
    results = [split.redistribute(placements=[placement]).to_local() for placement in (Shard(1), Replicate(), Shard(0))]
    results.append((split @ split.T).full_tensor())
    results.append(split.sum().full_tensor())
    partial = split.mean(0)
    assert any(isinstance(placement, Partial) for placement in partial.placements) or partial.placements
    results.append(partial.full_tensor())
    # Rows that do not divide.
    uneven = distribute_tensor(torch.arange(35.0).view(7, 5), mesh, [Shard(0)])
    results.append(uneven.redistribute(placements=[Shard(1)]).full_tensor())
    return results


def zero(rank, size):
    """The state of the optimizer, split."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(model_of())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    losses = train(model, optimizer, rank)
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def pipeline(rank, size):
    """Stages of a model as ranks; micro-batches go from one to the next, and gradients back."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    results = []
    for schedule_class in (ScheduleGPipe, Schedule1F1B):
        layers = list(model_of())
        mine = torch.nn.Sequential(*(layers[:3] if rank == 0 else layers[3:]))
        stage = PipelineStage(mine, rank, size, torch.device("cpu"))
        schedule = schedule_class(stage, 4, loss_fn=torch.nn.functional.cross_entropy)
        inputs, labels = batch_of(0, 0, rows=16)
        for _ in range(2):
            if rank == 0:
                schedule.step(inputs)
            else:
                losses = []
                schedule.step(target=labels, losses=losses)
                results.append(torch.stack(losses).detach())
        results += [parameter.grad for parameter in mine.parameters()]
    return results


def compiled(rank, size):
    """Collectives that are part of a compiled graph, and a model that is compiled."""
    import torch.distributed._functional_collectives as functional

    def of_group(value):
        total = functional.all_reduce(value * 2, "sum", dist.group.WORLD)
        return functional.all_gather_tensor(total + 1, 0, dist.group.WORLD).sum(1)

    torch._dynamo.reset()
    value = torch.full((2, 3), rank + 1.0)
    found = torch.compile(of_group, backend="aot_eager", fullgraph=True)(value)
    same(found, of_group(value), "the compiled function")
    model = torch.compile(DistributedDataParallel(model_of()), backend="aot_eager")
    return [found, *train(model, sgd(model), rank, steps=3)]


def objects(rank, size):
    every = [None] * size
    dist.all_gather_object(every, {"rank": rank, "text": "x" * (10 * rank)})
    assert [one["rank"] for one in every] == list(range(size))
    to_all = [{"of": 1}, rank] if rank == 1 else [None, None]
    dist.broadcast_object_list(to_all, 1)
    assert to_all == [{"of": 1}, 1]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object((rank, "gathered"), gathered)
    assert rank != 0 or gathered == [(r, "gathered") for r in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, [[r] * r for r in range(size)] if rank == 0 else None)
    assert mine == [[rank] * rank]
    if rank == 0:
        dist.send_object_list(["to", 1], 1)
    else:
        got = [None, None]
        dist.recv_object_list(got, 0)
        assert got == ["to", 1]
    dist.monitored_barrier()
    return [len(every)]


def uneven_inputs(rank, size):
    """Ranks with different numbers of batches."""
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(model_of())
    with Join([model]):
        losses = train(model, sgd(model), rank, steps=3 + rank)
    dist.barrier()
    return [*losses[:3], *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.parametrize(
    "program", [tensor_parallel, distributed_tensors, zero, pipeline, compiled, objects, uneven_inputs], ids=lambda program: program.__name__
)
def test_two_ranks(program):
    run(2, same_over_both, program)


def test_hybrid_shards():
    run(4, same_over_both, hybrid_shards)


def checkpoint(rank, size, store, folder):
    """A checkpoint that four ranks save, and two load, goes on as the four would."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    def states(model, optimizer):
        weights, of_optimizer = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": of_optimizer}

    def of_both(model, optimizer):
        # Every rank has the same batches, so that the number of ranks does not matter.
        train(model, optimizer, 0, steps=2, first=10)
        return [parameter.full_tensor().detach() for parameter in model.parameters()]

    group_of(rank, size, store)
    model = fully_shard(model_of())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, 0)
    dcp.save(states(model, optimizer), checkpoint_id=folder)
    future = dcp.async_save(states(model, optimizer), checkpoint_id=f"{folder}/async")
    future.result()
    wanted = of_both(model, optimizer)
    dist.barrier()
    if rank >= 2:
        return
    half = dist.new_group([0, 1], use_local_synchronization=True)
    from torch.distributed.device_mesh import DeviceMesh

    for path in (folder, f"{folder}/async"):
        again = fully_shard(model_of(seed=2), mesh=DeviceMesh.from_group(half, "cpu"))
        optimizer = torch.optim.AdamW(again.parameters(), lr=0.01)
        loaded = states(again, optimizer)
        dcp.load(loaded, checkpoint_id=path, process_group=half)
        set_state_dict(again, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        for one, other in zip(of_both(again, optimizer), wanted):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        run(4, checkpoint, os.path.join(folder, "checkpoint"))
