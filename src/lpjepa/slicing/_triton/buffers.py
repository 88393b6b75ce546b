"""A call's memory in one piece: to allocate or slice a tensor takes longer than to launch a kernel."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_ALIGNED = 512  # bytes: as tensors of their own would be


class Buffer:
    """Memory inside `whole` from a byte on: an address for a compiled kernel, a tensor if need be."""

    __slots__ = ("dtype", "first", "whole")

    def __init__(self, whole: Tensor, first: int, dtype: torch.dtype) -> None:
        self.whole, self.first, self.dtype = whole, first, dtype

    def data_ptr(self) -> int:
        return self.whole.data_ptr() + self.first

    def after(self, count: int) -> Buffer:
        """The same without its first `count` numbers."""
        return Buffer(self.whole, self.first + count * self.dtype.itemsize, self.dtype) if count else self

    def tensor(self) -> Tensor:
        """All numbers from the first on, (count,)."""
        return self.whole.view(torch.uint8).flatten()[self.first :].view(self.dtype)


# What a kernel takes for a pointer.
Place = Tensor | Buffer


class Part(NamedTuple):
    """Where a buffer lies in the piece, and what it holds."""

    first: int
    dtype: torch.dtype


class Space:
    """The sizes of the buffers of a call, one after the other."""

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, count: int, dtype: torch.dtype) -> Part:
        part = Part(self.bytes, dtype)
        self.bytes += -(-count * dtype.itemsize // _ALIGNED) * _ALIGNED
        return part

    def allocate(self, device: torch.device) -> Tensor:
        return torch.empty(self.bytes, dtype=torch.uint8, device=device)
