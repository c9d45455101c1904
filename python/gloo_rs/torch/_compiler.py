"""Keeps torch.compile from what it cannot compile: the methods that C++ calls, such as those of a group in a model that is compiled."""

from __future__ import annotations

import types


def not_compiled(cls: type) -> type:
    """Has the methods of a class, and what they call, run as they are. As torch.compiler.disable, which imports the compiler."""
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:
        return cls
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for member in vars(cls).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, types.FunctionType):
            set_code_exec_strategy(function.__code__, skip)
    return cls
