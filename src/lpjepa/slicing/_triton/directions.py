"""Where the kernels' directions come from: drawn chunk by chunk, or given as a tensor."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from lpjepa.slicing._triton import random
from lpjepa.slicing._triton.buffers import Buffer, Place


class Fill(Protocol):
    """Directions times `scale`, in float16 with rows padded to whole steps of the products."""

    scale: ClassVar[float]
    two_parts: ClassVar[bool]
    """Whether rounding leaves something, which products take as a second part."""

    def __call__(self, stream: int | None, first: int, last: int, buffer: Buffer) -> tuple[Place, Place]:
        """Slices first to last, and what their rounding left, if anything. There is room in `buffer`."""
        ...


class DrawnDirections:
    """Random directions of slices lo, lo + 1, ... of a seed: what is rounded is as good a direction."""

    scale: ClassVar[float] = 1.0
    two_parts: ClassVar[bool] = False

    def __init__(self, seed: Tensor, lo: int, dim: int, dim_pitch: int) -> None:
        self.seed, self.lo, self.dim, self.dim_pitch = seed, lo, dim, dim_pitch

    def __call__(self, stream: int | None, first: int, last: int, buffer: Buffer) -> tuple[Buffer, Buffer]:
        random.draw_directions(
            stream, self.seed, self.lo + first, self.lo + last, buffer, self.dim, self.dim_pitch
        )
        return buffer, buffer


class GivenDirections:
    """Given directions in two float16 parts.

    Entries of a unit vector are at most 1; scaled so, high and low parts stay clear of float16's subnormal
    numbers, and two parts carry all that float32 had.
    """

    scale: ClassVar[float] = 2.0**14
    two_parts: ClassVar[bool] = True

    def __init__(self, c_KD: Tensor, dim_pitch: int) -> None:
        self.c_KD, self.dim_pitch = c_KD, dim_pitch

    def __call__(self, stream: int | None, first: int, last: int, buffer: Buffer) -> tuple[Tensor, Tensor]:
        c = self.c_KD[first:last]
        parts = torch.zeros((2, last - first, self.dim_pitch), dtype=torch.float16, device=c.device)
        scaled = c.float() * self.scale
        parts[0, :, : c.shape[1]] = scaled
        parts[1, :, : c.shape[1]] = scaled - scaled.half().float()
        return parts[0], parts[1]
