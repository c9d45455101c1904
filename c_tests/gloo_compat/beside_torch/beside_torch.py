"""An allreduce by the headers of Gloo's API, in a library that is loaded with RTLD_GLOBAL, and one by torch's own backend.

usage: beside_torch.py FOLDER LIBRARY torch headers, in the order in which they are loaded and called. gloo-rs run starts it.
"""

import ctypes
import os
import sys

folder, library, *order = sys.argv[1:]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
loaded = {}
for name in order:
    if name == "torch":
        import torch
        import torch.distributed
    else:
        loaded[name] = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL).allreduce_by_headers

for name in order:
    if name == "torch":
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/torch", rank=rank, world_size=size)
        data = torch.full((1000,), float(rank + 1))
        torch.distributed.all_reduce(data)
        assert data.eq(size * (size + 1) / 2).all(), data
    else:
        loaded[name].restype = ctypes.c_bool
        assert loaded[name](rank, size, folder.encode()), name
