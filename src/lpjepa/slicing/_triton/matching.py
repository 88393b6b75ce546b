"""The sliced losses chunk by chunk: draw directions, project, compare, pull the gradient back.

A chunk's projections are sized to stay near the L2 cache between the product that writes them and the kernel
that sorts them; the gradient takes their place. Nothing is read back to the host, every buffer has a size
known from the shapes, and every sum has one order: the calls can be captured in a CUDA graph, and the same
input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
import triton
from torch import Tensor

from lpjepa.slicing._triton import products
from lpjepa.slicing._triton.characteristic import SLOPE_SCALE, epps_pulley_kernel
from lpjepa.slicing._triton.directions import Fill
from lpjepa.slicing._triton.launch import launch
from lpjepa.slicing._triton.layout import Layout
from lpjepa.slicing._triton.sorting import wasserstein2_kernel

Result = tuple[Tensor, "Tensor | None"]


def wasserstein2(
    z_VND: Tensor, y_VND: Tensor, slices: int, fill: Fill, weight: Tensor | float, want_gradient: bool
) -> Result:
    """Σ_vk w_vk W2²(z_v c_k, y_v c_k), and its gradient by z in float32. `weight`: one number or (V, K)."""
    views, samples, dim = z_VND.shape
    layout = Layout(views, samples, dim, slices, sides=2)
    work = _Work(layout, z_VND, y_VND, fill, want_gradient)
    weighted = isinstance(weight, Tensor)
    if isinstance(weight, Tensor):
        # Relative weights are at most 1, so that float16 gradients cannot overflow.
        weight_max = weight.abs().amax().clamp(min=1e-30).float()
        relative = (weight / weight_max).float().contiguous()
    else:
        weight_max = relative = work.factor
    constants = {
        "WEIGHTED": weighted, "GRADIENT": want_gradient, "FULL": layout.samples == 2**layout.log_n,
        "LOG_N": layout.log_n, "LOG_WARPS": layout.log_warps,
    }  # fmt: skip
    strides = (layout.samples, layout.pitch, layout.group, slices, slices)

    def compare(p_KR: Tensor, size: int, lo: int, view: int) -> None:
        pieces = (
            p_KR.view(torch.float16), work.loss_VK[view:, lo:],
            relative[view:, lo:] if weighted else relative, work.bound,
        )  # fmt: skip
        launch(
            (work.seen, size, view), wasserstein2_kernel, (size, layout.group, 1), (p_KR, *pieces, *strides),
            constants, num_warps=2**layout.log_warps, maxnreg=layout.registers,
            num_stages=1,
        )  # fmt: skip

    coefficient = 2.0 / layout.samples * (1.0 if isinstance(weight, Tensor) else weight)
    work.run(compare, coefficient, weight_max if weighted else None, True)
    return work.loss_VK.sum() * (weight_max if weighted else weight), work.gradient


def epps_pulley(
    z_VND: Tensor, slices: int, fill: Fill, weight: float, t_max: float, num_points: int, want_gradient: bool
) -> Result:
    """`weight` times the sum over views and slices of the Epps–Pulley statistic, and its gradient by z."""
    views, samples, dim = z_VND.shape
    layout = Layout(views, samples, dim, slices, sides=1)
    work = _Work(layout, z_VND, None, fill, want_gradient)
    t = torch.linspace(0.0, t_max, num_points, device=z_VND.device)
    normal = torch.exp(-t.square() / 2)
    spacing = t_max / (num_points - 1)
    # Both signs of t count, and the two ends of the trapezoidal rule count half.
    quadrature = normal * torch.where((t > 0) & (t < t_max - spacing / 2), 2 * spacing, spacing)
    constants = {
        "POINTS": num_points,
        "POINTS_BLOCK": triton.next_power_of_2(num_points),
        "GRADIENT": want_gradient,
        "BLOCK": min(2**layout.log_n, 1024),
    }

    def compare(p_KR: Tensor, size: int, lo: int, view: int) -> None:
        launch(
            (work.seen, size, view), epps_pulley_kernel, (size, layout.group, 1),
            (p_KR, p_KR.view(torch.float16), work.loss_VK[view:, lo:], quadrature, normal,
             layout.samples, layout.pitch, layout.group, slices, spacing, SLOPE_SCALE),
            constants, num_warps=1,
        )  # fmt: skip

    work.run(compare, weight / SLOPE_SCALE, None, False)
    return work.loss_VK.sum() * weight, work.gradient


class _Work:
    """The buffers of one call. `seen` is what the compiled kernels depend on beside a chunk's size."""

    def __init__(
        self, layout: Layout, z_VND: Tensor, y_VND: Tensor | None, fill: Fill, want_gradient: bool
    ) -> None:
        self.layout, self.fill = layout, fill
        device = z_VND.device
        z_VND = z_VND.contiguous()
        y_VND = z_VND if y_VND is None else y_VND.contiguous()
        rows = layout.views * layout.pitch

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        # Features in two float16 parts and targets in one, below each other.
        self.high = empty(layout.sides * rows, layout.dim_pitch, dtype=torch.float16)
        self.low = empty(rows, layout.dim_pitch, dtype=torch.float16)
        self.factor = empty(layout.sides * rows)
        self.bound = torch.zeros(1, dtype=torch.int32, device=device)
        self.loss_VK = empty(layout.views, layout.slices)
        self.p_KR = empty(min(layout.chunk, layout.slices), layout.columns)
        self.acc = (
            empty(layout.splits, layout.views, layout.pitch, layout.dim_pitch) if want_gradient else None
        )
        self.gradient: Tensor | None = None
        aligned = z_VND.data_ptr() % 16, y_VND.data_ptr() % 16
        self.seen: Hashable = (layout, z_VND.dtype, y_VND.dtype, aligned, fill.scale, device.index)
        launch(
            self.seen, products.split_kernel, (layout.pitch, layout.sides * layout.views, 1),
            (z_VND, y_VND, self.high, self.low, self.factor, self.bound, layout.samples, layout.dim,
             layout.pitch, layout.dim_pitch, 1.0 / fill.scale, layout.views),
            {"BLOCK": min(triton.next_power_of_2(layout.dim_pitch), 4096)},
        )  # fmt: skip

    def run(
        self, compare: Callable[[Tensor, int, int, int], None], coefficient: float,
        weight_max: Tensor | None, scaled: bool,
    ) -> None:  # fmt: skip
        """All chunks: `compare(projections, size, lo, view)` writes losses and leaves gradients there."""
        layout = self.layout
        factor = coefficient / self.fill.scale
        c = None
        for lo in range(0, layout.slices, layout.chunk):
            size = min(layout.chunk, layout.slices - lo)
            c, c_low = self.fill(lo, lo + size, c)
            p = self.p_KR[:size]
            for view in range(0, layout.views, layout.group):
                self._project(c, c_low, p, size, view)
                compare(p, size, lo, view)
                if self.acc is not None:
                    self._pull_back(c, p, size, view, lo > 0, factor, weight_max, scaled)
        if self.acc is None:
            return
        if layout.in_place:
            self.gradient = self.acc[0]
            return
        shape = (layout.views, layout.samples, layout.dim)
        self.gradient = torch.empty(shape, dtype=torch.float32, device=self.acc.device)
        launch(
            self.seen, products.collect_kernel,
            (triton.cdiv(layout.samples * layout.dim, 1024), layout.views, 1),
            (self.acc, self.gradient, self.bound, self.bound if weight_max is None else weight_max,
             layout.samples, layout.dim, layout.pitch, layout.dim_pitch, factor, layout.splits),
            {"SCALED": scaled, "WEIGHTED": weight_max is not None, "BLOCK": 1024},
        )  # fmt: skip

    def _project(self, c: Tensor, c_low: Tensor | None, p: Tensor, size: int, view: int) -> None:
        layout = self.layout
        rows = layout.sides * layout.pitch
        block_r = min(128, max(16, triton.next_power_of_2(rows)))
        blocks_r = triton.cdiv(rows, block_r)
        wide = c_low is None and layout.enough(blocks_r * (size // 256) * layout.group)
        block_k = 256 if wide else 128
        constants: dict[str, Any] = {
            "C_LOW": c_low is not None, "EVEN": layout.sides == 1 or layout.pitch % block_r == 0,
            "BLOCK_K": block_k, "BLOCK_R": block_r, "BLOCK_D": 64,
        }  # fmt: skip
        launch(
            (self.seen, size), products.project_kernel,
            (triton.cdiv(size, block_k) * blocks_r, layout.group, 1),
            (c, c if c_low is None else c_low, self.high[view * rows :], self.low[view * layout.pitch :],
             self.factor[view * rows :], p, size, rows, layout.pitch, layout.dim_pitch),
            constants, num_warps=8, num_stages=3 if c_low is None else 2,
        )  # fmt: skip

    def _pull_back(
        self, c: Tensor, p: Tensor, size: int, view: int, add: bool, factor: float,
        weight_max: Tensor | None, scaled: bool,
    ) -> None:  # fmt: skip
        layout = self.layout
        assert self.acc is not None
        block_n = min(128, max(16, triton.next_power_of_2(layout.pitch)))
        blocks_n = triton.cdiv(layout.pitch, block_n)
        tiles = blocks_n * triton.cdiv(layout.dim_pitch, 256) * layout.group * layout.splits
        wide = block_n == 128 and layout.enough(tiles)
        block_d = 256 if wide else 128
        split = triton.cdiv(triton.cdiv(size, layout.splits), 64) * 64
        constants: dict[str, Any] = {
            "FACTORS": layout.in_place, "SCALED": scaled, "WEIGHTED": weight_max is not None,
            "BLOCK_N": block_n, "BLOCK_D": block_d, "BLOCK_K": 64,
        }  # fmt: skip
        launch(
            (self.seen, size), products.gradient_kernel,
            (blocks_n * triton.cdiv(layout.dim_pitch, block_d), layout.group, layout.splits),
            (p.view(torch.float16), c, self.acc[:, view:], self.bound,
             self.bound if weight_max is None else weight_max, size, layout.pitch, layout.dim_pitch,
             2 * layout.columns, 2 * layout.sides * layout.pitch, split, factor, int(add)),
            constants, num_warps=8 if wide else 4, num_stages=4 if wide else 3,
        )  # fmt: skip
