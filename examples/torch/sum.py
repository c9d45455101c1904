"""Adds tensors over the backend gloo_rs. With PYTHONPATH=build/torch:

    MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 gloo-rs run -n 2 -- python3 examples/torch/sum.py
"""
import torch
import torch.distributed as dist

import gloo_rs_torch  # noqa: F401  registers the backend

dist.init_process_group("gloo_rs")
tensor = torch.full((3,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {tensor.tolist()}", flush=True)
