"""Three replicas of a model train over gloo_rs with torchft, whose manager makes a new group whenever one is lost or comes. Replica 1 is
killed in the middle, and started again. In the end all have the same weights.

    replicas.py                                 starts them
    replicas.py NUMBER LIGHTHOUSE MARK OUT      is one; the file OUT gets its weights
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torchft
from torchft.coordination import LighthouseServer
from torchft.process_group import ProcessGroupWrapper

import gloo_rs.torch

REPLICAS = 3
KILLED, KILLED_AT = 1, 3
STEPS = 8
TIMEOUT = timedelta(seconds=30)


class ReplicaGroup(ProcessGroupWrapper):
    """What torchft calls with a new store whenever the replicas have changed."""

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        return gloo_rs.torch.Group(gloo_rs.torch.Backend(store, rank, world_size, self._timeout), store, rank, world_size)

    def getBackendName(self) -> str:
        return "gloo_rs"


def replica(number, lighthouse, mark, out):
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    # Other weights in each, which the first one's replace.
    torch.manual_seed(number)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=ReplicaGroup(timeout=TIMEOUT),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=2,
        replica_id=f"replica_{number}",
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname="localhost",
        timeout=TIMEOUT,
        use_async_quorum=False,
    )
    replicas = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, inner)
    # Exists once the one that was killed is back: before it takes part again.
    back = mark.with_name("back")
    if number == KILLED and mark.exists():
        back.touch()
    # Goes on until all are there again: they learn that of the manager, in the same step.
    while manager.current_step() < STEPS or not back.exists() or manager.num_participants() < REPLICAS:
        step = manager.current_step()
        # It may have come when the others were beyond that step.
        if number == KILLED and step >= KILLED_AT and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + number))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(replicas(inputs), inputs[:, :4].argmax(1)).backward()
        optimizer.step()
    torch.save(model.state_dict(), out)
    print(f"replica {number} ends at step {manager.current_step()}", flush=True)
    manager.shutdown(wait=False)
    # The threads of the manager's server need not end.
    os._exit(0)


def main():
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=1000, heartbeat_timeout_ms=2000)
    with tempfile.TemporaryDirectory() as folder:
        mark = pathlib.Path(folder, "killed")
        outs = [pathlib.Path(folder, str(number)) for number in range(REPLICAS)]

        def start(number):
            port = lighthouse.address().rpartition(":")[2]
            return subprocess.Popen([sys.executable, __file__, str(number), f"http://localhost:{port}", mark, outs[number]])

        processes = [start(number) for number in range(REPLICAS)]
        try:
            assert processes[KILLED].wait(100) == -signal.SIGKILL
            processes[KILLED] = start(KILLED)
            for process in processes:
                assert process.wait(100) == 0
        finally:
            for process in processes:
                process.kill()
        weights = [torch.load(out) for out in outs]
        for other in weights[1:]:
            for name, value in weights[0].items():
                assert torch.equal(value, other[name]), name
    print("the replicas are the same", flush=True)
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    number, lighthouse, mark, out = sys.argv[1:]
    replica(int(number), lighthouse, pathlib.Path(mark), out)
