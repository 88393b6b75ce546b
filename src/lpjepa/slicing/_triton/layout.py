"""Sizes of the kernels' buffers and blocks, from the shapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import triton

MAX_SAMPLES = 16384
MAX_DIM = 32768  # one program holds one direction in registers
LOG_WARP = 10  # 2^LOG_WARP samples are sorted in one warp's registers; longer slices take more warps
ENOUGH_BLOCKS = 200  # for every multiprocessor; where there are as many, larger ones are faster


@dataclass(frozen=True)
class Layout:
    """V views of N samples in D dimensions along K slices; two sides with target samples, one without."""

    views: int
    samples: int
    dim: int
    slices: int
    sides: int

    @cached_property
    def log_n(self) -> int:
        """Of the power of two that holds the samples."""
        return max((self.samples - 1).bit_length(), 4)

    @cached_property
    def log_warps(self) -> int:
        """Of the warps that hold one slice."""
        return max(self.log_n - LOG_WARP, 0)

    @cached_property
    def registers(self) -> int:
        """A thread's, so that a multiprocessor holds 16 warps with 32 keys a thread, or 32 with half."""
        keys = 2 ** max(self.log_n - self.log_warps - 5, 0)
        return min(max(4 * keys, 64), 255)

    @cached_property
    def pitch(self) -> int:
        """Samples rounded up so that every view starts on an aligned address."""
        return -(-self.samples // 16) * 16

    @cached_property
    def dim_pitch(self) -> int:
        """Dimensions rounded up to whole steps of the products, filled with zeros."""
        return -(-self.dim // 64) * 64

    @cached_property
    def group(self) -> int:
        """Views at a time: one where it fills the multiprocessors, with twice the slices for two views.

        Gradients, which are summed over chunks of slices in memory, then take fewer rounds.
        """
        tiles = triton.cdiv(self.pitch, 128) * triton.cdiv(self.dim_pitch, 256)
        return 1 if self.enough(tiles) else self.views

    @cached_property
    def columns(self) -> int:
        """Of the projections in one row: of all views that are worked on at a time."""
        return self.group * self.sides * self.pitch

    @cached_property
    def chunk(self) -> int:
        """Slices at a time: some 28 MB of projections and directions, more where features are larger.

        A power of two, which divides evenly among blocks and multiprocessors.
        """
        per_slice = 4 * self.columns + 2 * self.dim_pitch
        budget = 28 * 2**20 + 6 * self.views * self.samples * self.dim
        largest = max(256, 1 << (budget // per_slice).bit_length() - 1)
        return min(largest, -(-self.slices // 256) * 256)

    @cached_property
    def splits(self) -> int:
        """Parts of a chunk's slices whose gradients are summed apart, to fill the multiprocessors."""
        if self.group < self.views:
            return 1
        tiles = self.views * triton.cdiv(self.pitch, 128) * triton.cdiv(self.dim_pitch, 128)
        return max(1, min(8, 64 // tiles, self.chunk // 256))

    @cached_property
    def in_place(self) -> bool:
        """Whether the summed gradients have the layout of the result."""
        return self.splits == 1 and self.pitch == self.samples and self.dim_pitch == self.dim

    @staticmethod
    def enough(blocks: int) -> bool:
        """Whether there are enough blocks of a product to make them larger."""
        return blocks >= ENOUGH_BLOCKS
