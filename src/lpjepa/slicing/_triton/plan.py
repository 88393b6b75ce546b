"""The launches of a sliced loss, made ready once for each shape: what a call adds to them is tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton

from lpjepa.slicing._triton import products
from lpjepa.slicing._triton.buffers import Space
from lpjepa.slicing._triton.directions import Fill
from lpjepa.slicing._triton.launch import Launch
from lpjepa.slicing._triton.layout import Layout


class Step(NamedTuple):
    """Slices from `lo` on, as many as a chunk has, of the views from `view` on, as many as go together."""

    lo: int
    size: int
    view: int
    project: Launch
    compare: Launch
    pull_back: Launch


class Plan:
    """All launches of a call but those that draw directions, and the sizes of its buffers.

    compare: for the number of slices of a chunk, the launch that writes their losses and leaves gradients in
        the place of the projections.
    coefficient: of the float16 gradients that it leaves, in the loss; `scaled` if they are scaled by the
        features' bound, `weighted` if relative to the largest of the slices' weights.
    """

    def __init__(
        self, layout: Layout, fill: type[Fill], compare: Callable[[int], Launch], coefficient: float,
        scaled: bool, weighted: bool, want_gradient: bool,
    ) -> None:  # fmt: skip
        self.layout, self.fill, self.want_gradient = layout, fill, want_gradient
        self._factor = coefficient / fill.scale
        self._factors = {"SCALED": scaled, "WEIGHTED": weighted}
        rows = layout.views * layout.pitch
        self.space = Space()
        # Features in two float16 parts and targets in one, below each other.
        self.high = self.space.add(layout.sides * rows * layout.dim_pitch, torch.float16)
        self.low = self.space.add(rows * layout.dim_pitch, torch.float16)
        self.factor = self.space.add(layout.sides * rows, torch.float32)
        chunk = min(layout.chunk, layout.slices)
        self.projections = self.space.add(chunk * layout.columns, torch.float32)
        self.directions = self.space.add(0 if fill.two_parts else chunk * layout.dim_pitch, torch.float16)
        summed = want_gradient and not layout.in_place
        self.sums = self.space.add(layout.splits * rows * layout.dim_pitch if summed else 0, torch.float32)
        self.split = Launch(
            products.split_kernel, (layout.pitch, layout.sides * layout.views, 1),
            (layout.samples, layout.dim, layout.pitch, layout.dim_pitch, 1.0 / fill.scale, layout.views),
            {"BLOCK": min(triton.next_power_of_2(layout.dim_pitch), 4096)},
        )  # fmt: skip
        self.collect = Launch(
            products.collect_kernel, (triton.cdiv(layout.samples * layout.dim, 1024), layout.views, 1),
            (layout.samples, layout.dim, layout.pitch, layout.dim_pitch, self._factor, layout.splits),
            {**self._factors, "BLOCK": 1024},
        )  # fmt: skip
        made: dict[tuple[int, int, bool], tuple[Launch, Launch, Launch]] = {}
        self.chunks: list[list[Step]] = []
        for lo in range(0, layout.slices, layout.chunk):
            size = min(layout.chunk, layout.slices - lo)
            steps = []
            for view in range(0, layout.views, layout.group):
                same = (size, view, lo > 0)
                if same not in made:
                    made[same] = (self._project(size), compare(size), self._pull_back(size, lo > 0))
                steps.append(Step(lo, size, view, *made[same]))
            self.chunks.append(steps)

    def _project(self, size: int) -> Launch:
        layout, low = self.layout, self.fill.two_parts
        rows = layout.sides * layout.pitch
        block_r = min(128, max(16, triton.next_power_of_2(rows)))
        blocks_r = triton.cdiv(rows, block_r)
        wide = not low and layout.enough(blocks_r * (size // 256) * layout.group)
        block_k = 256 if wide else 128
        return Launch(
            products.project_kernel, (triton.cdiv(size, block_k) * blocks_r, layout.group, 1),
            (size, rows, layout.pitch, layout.dim_pitch),
            {"C_LOW": low, "EVEN": layout.sides == 1 or layout.pitch % block_r == 0,
             "BLOCK_K": block_k, "BLOCK_R": block_r, "BLOCK_D": 64},
            num_warps=8, num_stages=2 if low else 3,
        )  # fmt: skip

    def _pull_back(self, size: int, add: bool) -> Launch:
        layout = self.layout
        block_n = min(128, max(16, triton.next_power_of_2(layout.pitch)))
        blocks_n = triton.cdiv(layout.pitch, block_n)
        tiles = blocks_n * triton.cdiv(layout.dim_pitch, 256) * layout.group * layout.splits
        wide = block_n == 128 and layout.enough(tiles)
        block_d = 256 if wide else 128
        split = triton.cdiv(triton.cdiv(size, layout.splits), 64) * 64
        return Launch(
            products.gradient_kernel,
            (blocks_n * triton.cdiv(layout.dim_pitch, block_d), layout.group, layout.splits),
            (size, layout.pitch, layout.dim_pitch, 2 * layout.columns, 2 * layout.sides * layout.pitch, split,
             self._factor, int(add)),
            {"FACTORS": layout.in_place, **self._factors,
             "BLOCK_N": block_n, "BLOCK_D": block_d, "BLOCK_K": 64},
            num_warps=8 if wide else 4, num_stages=4 if wide else 3,
        )  # fmt: skip
