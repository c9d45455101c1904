"""The backend under the name of torch's own, whose class torch expects there."""

from __future__ import annotations

import torch.distributed as dist

from ._backend import Backend
from ._group import Group


class GlooBackend(Backend):
    """Passes torch's check that what has the name `gloo` is a ProcessGroupGloo."""

    @property
    def __class__(self) -> type:
        return dist.ProcessGroupGloo


class GlooGroup(Group):
    """As GlooBackend. In C++ it has the name of its type: the logger of DistributedDataParallel takes what is named `gloo` for the class
    of torch's own."""

    def getBackendName(self) -> str:
        return "custom"

    @property
    def __class__(self) -> type:
        return dist.ProcessGroupGloo
