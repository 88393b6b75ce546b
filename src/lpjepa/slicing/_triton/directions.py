"""Where the kernels' directions come from: drawn chunk by chunk, or given as a tensor."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lpjepa.slicing._triton import random


class Fill(Protocol):
    """Directions times `scale`, in float16 with rows padded to whole steps of the products."""

    scale: float

    def __call__(self, first: int, last: int, buffer: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Slices first to last, and what their rounding left, if anything. `buffer` is the last result."""
        ...


class DrawnDirections:
    """Random directions of slices lo, lo + 1, ... of a seed: what is rounded is as good a direction."""

    scale = 1.0

    def __init__(self, seed: Tensor, lo: int, dim: int, dim_pitch: int) -> None:
        self.seed, self.lo, self.dim, self.dim_pitch = seed, lo, dim, dim_pitch

    def __call__(self, first: int, last: int, buffer: Tensor | None) -> tuple[Tensor, None]:
        shape = (last - first, self.dim_pitch)
        if buffer is None or buffer.shape != shape:
            buffer = torch.empty(shape, dtype=torch.float16, device=self.seed.device)
        random.directions(self.seed, self.lo + first, self.lo + last, buffer, self.dim)
        return buffer, None


class GivenDirections:
    """Given directions in two float16 parts.

    Entries of a unit vector are at most 1; scaled so, high and low parts stay clear of float16's subnormal
    numbers, and two parts carry all that float32 had.
    """

    scale = 2.0**14

    def __init__(self, c_KD: Tensor, dim_pitch: int) -> None:
        self.c_KD, self.dim_pitch = c_KD, dim_pitch

    def __call__(self, first: int, last: int, buffer: Tensor | None) -> tuple[Tensor, Tensor]:
        c = self.c_KD[first:last]
        parts = torch.zeros((2, last - first, self.dim_pitch), dtype=torch.float16, device=c.device)
        scaled = c.float() * self.scale
        parts[0, :, : c.shape[1]] = scaled
        parts[1, :, : c.shape[1]] = scaled - scaled.half().float()
        return parts[0], parts[1]
