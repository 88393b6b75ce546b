"""The sliced losses chunk by chunk: draw directions, project, compare, pull the gradient back.

A chunk's projections are sized to stay near the L2 cache between the product that writes them and the kernel
that sorts them; the gradient takes their place. Nothing is read back to the host, every buffer has a size
known from the shapes, and every sum has one order: the calls can be captured in a CUDA graph, and the same
input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache

import torch
import triton
from torch import Tensor

from lpjepa.slicing._triton.buffers import Buffer, Place
from lpjepa.slicing._triton.characteristic import SLOPE_SCALE, epps_pulley_kernel
from lpjepa.slicing._triton.directions import Fill
from lpjepa.slicing._triton.launch import KEPT, Launch, current_stream
from lpjepa.slicing._triton.layout import Layout
from lpjepa.slicing._triton.plan import Plan, Step
from lpjepa.slicing._triton.sorting import wasserstein2_kernel

Result = tuple[Tensor, "Tensor | None"]


def wasserstein2(
    z_VND: Tensor, y_VND: Tensor, slices: int, fill: Fill, weight: Tensor | float, want_gradient: bool
) -> Result:
    """Σ_vk w_vk W2²(z_v c_k, y_v c_k), and its gradient by z in float32. `weight`: one number or (V, K)."""
    z_VND, y_VND = z_VND.contiguous(), y_VND.contiguous()
    weighted = isinstance(weight, Tensor)
    if isinstance(weight, Tensor):
        # Relative weights are at most 1, so that float16 gradients cannot overflow.
        weight_max = weight.abs().amax().clamp(min=1e-30).float()
        relative = (weight / weight_max).float().contiguous()
    plan = _wasserstein2_plan(
        z_VND.shape, slices, type(fill), 1.0 if weighted else weight, weighted, want_gradient,
        _types(z_VND, y_VND),
    )  # fmt: skip
    work = _Work(plan, z_VND, y_VND, weight_max if weighted else None)

    def beside(step: Step) -> tuple[Place, Place]:
        if not weighted:
            return work.factor, work.bound  # the first is not read
        return Buffer(relative, 0, torch.float32).after(step.view * slices + step.lo), work.bound

    work.run(fill, beside)
    return work.loss_VK.sum().mul_(weight_max if weighted else weight), work.gradient


def epps_pulley(
    z_VND: Tensor, slices: int, fill: Fill, weight: float, t_max: float, num_points: int, want_gradient: bool
) -> Result:
    """`weight` times the sum over views and slices of the Epps–Pulley statistic, and its gradient by z."""
    z_VND = z_VND.contiguous()
    plan = _epps_pulley_plan(
        z_VND.shape, slices, type(fill), weight, t_max, num_points, want_gradient, _types(z_VND, z_VND)
    )
    work = _Work(plan, z_VND, z_VND, None)
    t_T = torch.linspace(0.0, t_max, num_points, dtype=torch.float32, device=z_VND.device)
    normal_T = t_T.mul_(t_T).mul_(-0.5).exp_()
    work.run(fill, lambda step: (normal_T,))
    return work.loss_VK.sum().mul_(weight), work.gradient


@lru_cache(KEPT)
def _wasserstein2_plan(
    shape: torch.Size, slices: int, fill: type[Fill], weight: float, weighted: bool, want_gradient: bool,
    types: Hashable,
) -> Plan:  # fmt: skip
    views, samples, dim = shape
    layout = Layout(views, samples, dim, slices, sides=2)

    def compare(size: int) -> Launch:
        return Launch(
            wasserstein2_kernel, (size, layout.group, 1),
            (layout.samples, layout.pitch, layout.group, slices, slices),
            {"WEIGHTED": weighted, "GRADIENT": want_gradient, "FULL": layout.samples == 2**layout.log_n,
             "LOG_N": layout.log_n, "LOG_WARPS": layout.log_warps},
            num_warps=2**layout.log_warps, maxnreg=layout.registers, num_stages=1,
        )  # fmt: skip

    return Plan(layout, fill, compare, 2.0 / layout.samples * weight, True, weighted, want_gradient)


@lru_cache(KEPT)
def _epps_pulley_plan(
    shape: torch.Size, slices: int, fill: type[Fill], weight: float, t_max: float, num_points: int,
    want_gradient: bool, types: Hashable,
) -> Plan:  # fmt: skip
    views, samples, dim = shape
    layout = Layout(views, samples, dim, slices, sides=1)

    def compare(size: int) -> Launch:
        return Launch(
            epps_pulley_kernel, (size, layout.group, 1),
            (layout.samples, layout.pitch, layout.group, slices, t_max / (num_points - 1), SLOPE_SCALE),
            {"POINTS": num_points, "POINTS_BLOCK": triton.next_power_of_2(num_points),
             "GRADIENT": want_gradient, "BLOCK": min(2**layout.log_n, 1024)},
            num_warps=1,
        )  # fmt: skip

    return Plan(layout, fill, compare, weight / SLOPE_SCALE, False, False, want_gradient)


class _Work:
    """One call: its memory, and the features and targets in the parts that products take."""

    def __init__(self, plan: Plan, z_VND: Tensor, y_VND: Tensor, weight_max: Tensor | None) -> None:
        self.plan, layout, device = plan, plan.layout, z_VND.device
        self.stream, self.space = current_stream(device), plan.space.allocate(device)
        self.high, self.low = Buffer(self.space, *plan.high), Buffer(self.space, *plan.low)
        self.factor = Buffer(self.space, *plan.factor)
        self.bound = torch.zeros(1, dtype=torch.int32, device=device)
        self.weight_max = self.bound if weight_max is None else weight_max
        self.loss_VK = torch.empty((layout.views, layout.slices), dtype=torch.float32, device=device)
        self.gradient = None
        if plan.want_gradient:
            self.gradient = torch.empty(z_VND.shape, dtype=torch.float32, device=device)
        plan.split(self.stream, z_VND, y_VND, self.high, self.low, self.factor, self.bound)

    def run(self, fill: Fill, beside: Callable[[Step], tuple[Place, ...]]) -> None:
        """All chunks; `beside` gives what the comparison of a step takes beside projections and losses."""
        plan, layout, stream = self.plan, self.plan.layout, self.stream
        p_KR = Buffer(self.space, *plan.projections)
        g_KR = Buffer(self.space, plan.projections.first, torch.float16)  # gradients in the same memory
        loss_VK = Buffer(self.loss_VK, 0, torch.float32)
        directions = Buffer(self.space, *plan.directions)
        sums = Buffer(self.space, *plan.sums)
        if self.gradient is not None and layout.in_place:
            sums = Buffer(self.gradient, 0, torch.float32)
        for steps in plan.chunks:
            first = steps[0].lo
            c, c_low = fill(stream, first, first + steps[0].size, directions)
            for step in steps:
                rows = step.view * layout.pitch  # of the views before, on one side
                high = self.high.after(layout.sides * rows * layout.dim_pitch)
                low = self.low.after(rows * layout.dim_pitch)
                step.project(stream, c, c_low, high, low, self.factor.after(layout.sides * rows), p_KR)
                loss = loss_VK.after(step.view * layout.slices + step.lo)
                step.compare(stream, p_KR, g_KR, loss, *beside(step))
                if self.gradient is not None:
                    summed = sums.after(rows * layout.dim_pitch)
                    step.pull_back(stream, g_KR, c, summed, self.bound, self.weight_max)
        if self.gradient is not None and not layout.in_place:
            plan.collect(stream, sums, self.gradient, self.bound, self.weight_max)


def _types(z_VND: Tensor, y_VND: Tensor) -> Hashable:
    """What compiled kernels depend on beside shapes."""
    return z_VND.dtype, y_VND.dtype, z_VND.data_ptr() % 16, y_VND.data_ptr() % 16, z_VND.device.index
