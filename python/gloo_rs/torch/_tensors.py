"""Tensors as memory of the library, and lists of tensors as one."""

from __future__ import annotations

import ctypes
import operator

import torch

_ARITHMETIC = [
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.bool,
]
# The types that the library computes with, by its names. Elements of others it moves.
NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in _ARITHMETIC}


class _Arrays(dict):
    """The types of so many bytes."""

    def __missing__(self, n: int) -> type[ctypes.Array]:
        if len(self) == 4096:
            self.clear()
        self[n] = ctypes.c_ubyte * n
        return self[n]


_arrays = _Arrays()


def view(tensor: torch.Tensor) -> ctypes.Array:
    """The memory of a contiguous tensor as bytes, with the buffer protocol; valid as long as the tensor.

    Faster than DLPack, and it takes tensors that require gradients.
    """
    return _arrays[tensor.nbytes].from_address(tensor.data_ptr())


def check(operation: str, tensors: list[torch.Tensor]) -> None:
    """Refuses what a call cannot take."""
    if not tensors:
        raise ValueError(f"{operation}: there is no tensor")
    dtype = tensors[0].dtype
    for tensor in tensors:
        if not tensor.is_cpu:
            raise ValueError(f"{operation}: a tensor is on {tensor.device}: this backend takes tensors on the CPU")
        if tensor.layout is not torch.strided:
            raise ValueError(f"{operation}: a tensor is sparse: the call takes dense tensors")
        if tensor.dtype is not dtype:
            raise ValueError(f"{operation}: tensors have different types: {dtype} and {tensor.dtype}")


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy if its elements do not follow each other."""
    if tensor.is_contiguous() and not (tensor.is_complex() and tensor.is_conj()):
        return tensor
    return tensor.detach().resolve_conj().contiguous()


def flat_like(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Memory for the elements of all tensors."""
    return torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype)


def flatten(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The elements of all tensors, one after the other, in new memory."""
    flat = flat_like(tensors)
    at = 0
    for tensor in tensors:
        n = tensor.numel()
        flat[at : at + n].view(tensor.shape).copy_(tensor.detach())
        at += n
    return flat


def unflatten(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copies the elements into the tensors."""
    at = 0
    for tensor in tensors:
        n = tensor.numel()
        tensor.detach().copy_(flat[at : at + n].view(tensor.shape))
        at += n


def counts(tensors: list[torch.Tensor]) -> list[int]:
    return list(map(operator.methodcaller("numel"), tensors))
