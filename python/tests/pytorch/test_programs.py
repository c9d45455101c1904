"""Programs over gloo_rs: models that train as over torch's own backend gloo, torchrun, and the name gloo."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.distributed as dist
from ranks import both, group_of, run, same
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

STEPS = 12
BATCH = 32


def model_of():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))


def batch_of(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(BATCH, 64, generator=generator)
    # What can be learnt.
    return inputs, inputs[:, :10].argmax(1)


def step_of(model, optimizer, rank, step):
    inputs, labels = batch_of(rank, step)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def hooked(name, group):
    if name == "bf16":
        return group, default_hooks.bf16_compress_hook
    if name == "powerSGD":
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5)
        return state, powerSGD_hook.powerSGD_hook
    return None


def train(rank, group, hook, bucket_mb):
    """The loss of each step, and the weights."""
    model = DistributedDataParallel(model_of(), process_group=group, bucket_cap_mb=bucket_mb)
    if hook is not None:
        model.register_comm_hook(*hooked(hook, group))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = [step_of(model, optimizer, rank, step) for step in range(STEPS)]
    return losses, torch.cat([p.detach().view(-1) for p in model.parameters()])


def data_parallel(rank, size, store, hook):
    theirs, ours = both(rank, size, store)
    # Several buckets; but the callbacks of powerSGD start collectives, which those of several buckets do in no order.
    bucket_mb = 25 if hook == "powerSGD" else 0.01
    their_losses, their_weights = train(rank, theirs, hook, bucket_mb)
    our_losses, our_weights = train(rank, ours, hook, bucket_mb)
    assert our_losses[-1] < our_losses[0], f"nothing was learnt: {our_losses}"
    every = [torch.zeros_like(our_weights) for _ in range(size)]
    dist.all_gather(every, our_weights, theirs)
    for weights in every:
        same(weights, our_weights, "the weights of the ranks")
    if size == 2:
        # Sums of two numbers have one result: all steps are the same, bit by bit.
        same(our_weights, their_weights, "weights")
        assert our_losses == their_losses
    else:
        # More numbers may be added in another order.
        torch.testing.assert_close(our_weights, their_weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("hook", [None, "bf16", "powerSGD"])
def test_data_parallel(size, hook):
    if hook == "bf16" and size != 2:
        pytest.skip("the order of sums that are rounded to 8 bits makes a difference that no tolerance tells from an error")
    run(size, data_parallel, hook)


def fully_sharded(rank, size, store):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    group_of(rank, size, store)
    mesh = DeviceMesh("cpu", list(range(size)))
    model = model_of()
    for layer in (*[layer for layer in model if isinstance(layer, torch.nn.Linear)], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        step_of(model, optimizer, rank, step)
    weights = torch.cat([p.full_tensor().detach().view(-1) for p in model.parameters()])

    # One process that has the batches of all ranks.
    alone = model_of()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for other in range(size):
            inputs, labels = batch_of(other, step)
            (torch.nn.functional.cross_entropy(alone(inputs), labels) / size).backward()
        optimizer.step()
    wanted = torch.cat([p.detach().view(-1) for p in alone.parameters()])
    torch.testing.assert_close(weights, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3])
def test_fully_sharded(size):
    run(size, fully_sharded)


def functional(rank, size, store):
    import torch.distributed._functional_collectives as functional_collectives

    group_of(rank, size, store)
    value = torch.full((4,), float(rank + 1))
    total = functional_collectives.all_reduce(value, "sum", dist.group.WORLD)
    same(functional_collectives.wait_tensor(total), torch.full((4,), size * (size + 1) / 2), "sum")
    gathered = functional_collectives.all_gather_tensor(value, 0, dist.group.WORLD)
    same(gathered + 0, torch.arange(1.0, size + 1).repeat_interleave(4), "all_gather_tensor")
    with dist._coalescing_manager(async_ops=True) as coalesced:
        values = [torch.full((3,), float(rank)), torch.full((2, 2), 1.0)]
        for one in values:
            dist.all_reduce(one)
    coalesced.wait()
    same(values[1], torch.full((2, 2), float(size)), "coalesced")


def test_functional_and_coalesced_collectives():
    run(2, functional)


def named_gloo(rank, size, store):
    import gloo_rs.torch

    gloo_rs.torch.replace_gloo()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    assert isinstance(dist.group.WORLD, gloo_rs.torch.Group)
    assert dist.get_backend() == "gloo"
    model = DistributedDataParallel(model_of())
    step_of(model, torch.optim.SGD(model.parameters(), lr=0.1), rank, 0)
    dist.monitored_barrier()


def test_the_name_gloo():
    run(2, named_gloo)


def launched(tmp_path, text, ranks=2, environment=None):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "1"]
    done = subprocess.run(
        [*command, program], capture_output=True, text=True, timeout=600, check=False,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_torchrun_restarts_a_job(tmp_path):
    """The name is found without an import. Rank 1 is killed in the first attempt, and the second ends well."""
    mark = tmp_path / "was here"
    done = launched(
        tmp_path,
        f"""
        import os, pathlib, signal
        import torch, torch.distributed as dist
        dist.init_process_group("gloo_rs")
        dist.all_reduce(torch.ones(3))
        mark = pathlib.Path({str(mark)!r})
        if dist.get_rank() == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(total := torch.ones(3))
        if dist.get_rank() == 0:
            print("sum", total.tolist())
        dist.destroy_process_group()
        """,
    )
    assert "sum [2.0, 2.0, 2.0]" in done.stdout
    assert mark.exists()


def test_replicas_of_torchft():
    """In a network of its own, since the servers of torchft listen on all addresses."""
    unshare = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--net"]
    program = pathlib.Path(__file__).with_name("replicas.py")
    done = subprocess.run(
        [*unshare, "bash", "-c", 'PATH=$PATH:/usr/sbin:/sbin; ip link set lo up && exec "$@"', "-", sys.executable, program],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the replicas are the same" in done.stdout


def test_the_variable_replaces_gloo(tmp_path):
    program = """
        import sys
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.all_reduce(total := torch.ones(3))
        if dist.get_rank() == 0:
            print(type(dist.group.WORLD).__module__, total.tolist(), "gloo_rs" in sys.modules)
        dist.destroy_process_group()
        """
    done = launched(tmp_path, program, environment={"GLOO_RS_TORCH": "replace"})
    assert "gloo_rs.torch._gloo [2.0, 2.0, 2.0] True" in done.stdout
    done = launched(tmp_path, program)
    assert "torch.distributed.distributed_c10d [2.0, 2.0, 2.0] False" in done.stdout


def test_a_broken_install_does_not_break_torch(tmp_path):
    """torch calls the module of the variable whenever it is imported."""
    import gloo_rs_autoload

    source = pathlib.Path(gloo_rs_autoload.__file__).read_text()
    (tmp_path / "gloo_rs").mkdir()
    (tmp_path / "gloo_rs" / "__init__.py").write_text("raise OSError('no such library')")
    (tmp_path / "program.py").write_text(source + "\nautoload()\nprint('goes on')")
    for value, said in (("replace", "no such library"), ("", "")):
        done = subprocess.run(
            [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False, env=os.environ | {"GLOO_RS_TORCH": value}
        )
        assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
        assert said in done.stderr
