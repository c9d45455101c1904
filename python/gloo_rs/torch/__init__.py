"""gloo_rs as a backend of torch.distributed, for PyTorch 2.14 and later.

`torch.distributed.init_process_group("gloo_rs")` finds it without an import. The manual is docs/pytorch.md in the sources.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

if not dist.is_available():
    raise ImportError("gloo_rs.torch needs a PyTorch with torch.distributed")
try:
    from torch._C._distributed_c10d import Backend as _TorchBackend

    class _Probe(_TorchBackend):
        """A backend in Python."""

    _Probe(0, 1)
except (ImportError, TypeError) as _error:
    raise ImportError(
        f"gloo_rs.torch needs PyTorch 2.14 or later, where backends can be written in Python, and this is {torch.__version__}"
    ) from _error

from ._backend import Backend
from ._group import Group
from ._work import Work

__all__ = ["Backend", "Group", "Work", "register", "replace_gloo"]


def register() -> None:
    """Registers the backend `gloo_rs`. torch calls it when the name is first used."""
    _register("gloo_rs", Backend, Group)


def replace_gloo() -> None:
    """Has the name `gloo` stand for this backend in groups that are made from now on, so that programs which name it run unmodified."""
    if dist.is_gloo_available():
        from ._gloo import GlooBackend, GlooGroup

        _register("gloo", GlooBackend, GlooGroup)
    else:
        _register("gloo", Backend, Group)


def _register(name: str, backend_class: type[Backend], group_class: type[Group]) -> None:
    def create(options: Any, _backend_options: Any) -> Backend | Group:
        rank, size, store = options.group_rank, options.group_size, options.store
        is_alone = _is_alone(options.process_group)
        # PyTorch 2.14 has no such option.
        reconfigured = getattr(options, "enable_reconfigure", False)
        if reconfigured and not is_alone:
            raise ValueError(f"[{name}] enable_reconfigure=True: a group that also has other backends cannot be reconfigured")
        backend = backend_class(store, rank, size, options.timeout, name, reconfigured)
        if is_alone:
            return group_class(backend, store, rank, size)
        return backend

    _group_classes[backend_class] = group_class
    _shrink_to_own_groups()
    dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu"])


# The classes of groups, by those of their backends.
_group_classes: dict[type[Backend], type[Group]] = {}


def _shrink_to_own_groups() -> None:
    """Has torch.distributed.shrink_group return a group of ours. It makes one that says that its backend is torch's own, for which
    DistributedDataParallel then takes ours, and the process crashes."""
    distributed_c10d = dist.distributed_c10d
    original = getattr(distributed_c10d, "_create_shrunk_process_group", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def create(new_backend: Any, *arguments: Any, **keywords: Any) -> dist.ProcessGroup:
        group = original(new_backend, *arguments, **keywords)
        group_class = _group_classes.get(type(new_backend))
        if group_class is None:
            return group
        configuration = distributed_c10d._world.pg_backend_config
        own = group_class.like(group)
        if group in configuration:
            configuration[own] = configuration.pop(group)
        return own

    distributed_c10d._create_shrunk_process_group = create


def _is_alone(group: dist.ProcessGroup) -> bool:
    """Whether a new group has no backend for other devices."""
    return group.name() == "custom"
