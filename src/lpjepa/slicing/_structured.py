"""The sliced matching along Hadamard directions without forming them: D log D operations a block, not D².

The directions are those of `hadamard.hadamard_rows`. A block of D of them is an orthogonal map made of random
orders, random signs and Hadamard transforms; projecting applies it, and pulling a gradient back applies its
transpose, the same steps in reverse. This pays on the CPU, where products bound the loss; a GPU forms the
directions and uses its matrix units.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from lpjepa._random import rand
from lpjepa._sort import argsort
from lpjepa.slicing.discrepancies import get_discrepancy
from lpjepa.slicing.hadamard import ROUNDS, _matrix


@torch.library.custom_op(
    "lpjepa::hadamard_matching",
    mutates_args=(),
    schema="(Tensor z_VND, Tensor y_VMD, Tensor seed, int stream, SymInt lo, SymInt hi, float weight, "
    "str discrepancy, bool want_gradient) -> (Tensor, Tensor)",
)
def hadamard_matching(
    z_VND: Tensor,
    y_VMD: Tensor,
    seed: Tensor,
    stream: int,
    lo: int,
    hi: int,
    weight: float,
    discrepancy: str,
    want_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """`weight` times the sum over views and slices lo to hi, and its gradient by z (empty if not wanted)."""
    views, n, dim = z_VND.shape
    dtype = torch.float64 if z_VND.dtype == torch.float64 else torch.float32
    rows_VLD = torch.cat([z_VND.to(dtype), y_VMD.to(dtype)], dim=1)
    compare = get_discrepancy(discrepancy)
    value = rows_VLD.new_zeros(())
    gradient = rows_VLD.new_zeros((views, n, dim)) if want_gradient else rows_VLD.new_empty(0)
    for number in range(lo // dim, -(-hi // dim)):
        block = HadamardBlock(seed, stream + number, dim)
        first, last = max(lo - number * dim, 0), min(hi - number * dim, dim)
        proj_VkL = block.project(rows_VLD)[..., first:last].transpose(1, 2).contiguous()
        value_Vk, slope_Vkn = compare(proj_VkL[..., :n], proj_VkL[..., n:], want_gradient)
        value += value_Vk.sum()
        if slope_Vkn is not None:
            slope_VnD = slope_Vkn.transpose(1, 2)
            if last - first < dim:
                slope_VnD = torch.nn.functional.pad(slope_VnD, (first, dim - last))
            gradient += block.pull_back(slope_VnD.contiguous())
    return value * weight, gradient.mul_(weight)


@hadamard_matching.register_fake
def _(
    z_VND: Tensor,
    y_VMD: Tensor,
    seed: Tensor,
    stream: int,
    lo: int,
    hi: int,
    weight: float,
    discrepancy: str,
    want_gradient: bool,
) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if z_VND.dtype == torch.float64 else torch.float32
    shape = z_VND.shape if want_gradient else (0,)
    return z_VND.new_empty((), dtype=dtype), z_VND.new_empty(shape, dtype=dtype)


class HadamardBlock:
    """One block of D directions, the rows of `hadamard_rows(seed, b·D, (b+1)·D, D, ...)` for stream b."""

    def __init__(self, seed: Tensor, stream: int, dim: int) -> None:
        size = 1 << (dim.bit_length() - 1)
        windows = [slice(0, size)] if size == dim else [slice(0, size), slice(dim - size, dim)]
        # Each step: an order, or signs followed by a transform of a window.
        self.rounds = [
            (argsort(order), [(window, 1.0 - 2.0 * (sign < 0.5)) for window, sign in zip(windows, signs)])
            for order, *signs in rand(seed, (ROUNDS, 3, dim), stream).unbind()
        ]

    def project(self, x: Tensor) -> Tensor:
        """Projections of x (..., D) onto the block's directions, (..., D)."""
        for order, steps in self.rounds:
            x = _permute(x, order)
            for window, sign in steps:
                x *= sign.to(x.dtype)
                x = _transform(x, window)
        return x

    def pull_back(self, g: Tensor) -> Tensor:
        """Σ over the block's directions k of g[..., k] c_k, (..., D): the transpose of `project`."""
        g = g.clone()
        for order, steps in reversed(self.rounds):
            for window, sign in reversed(steps):
                # The transform is symmetric, and so are the signs.
                g = _transform(g, window)
                g *= sign.to(g.dtype)
            g = _permute(g, argsort(order))
        return g


def _permute(x: Tensor, order: Tensor) -> Tensor:
    # As a matrix: torch's index_select has a fast path for two dimensions only.
    return x.reshape(-1, x.shape[-1]).index_select(1, order).view(x.shape)


def _transform(x: Tensor, window: slice) -> Tensor:
    """Orthonormal Hadamard transform of a window of the last dimension: H_ab = H_a ⊗ H_b, two products."""
    size = window.stop - window.start
    log_size = size.bit_length() - 1
    left = _hadamard(log_size // 2, x.dtype, x.device)
    right = _hadamard(log_size - log_size // 2, x.dtype, x.device)
    part = x if size == x.shape[-1] else x[..., window]
    part = (left @ (part.unflatten(-1, (left.shape[0], right.shape[0])) @ right)).flatten(-2)
    if size == x.shape[-1]:
        return part
    x[..., window] = part
    return x


@functools.lru_cache(maxsize=32)
def _hadamard(log_size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _matrix(log_size, torch.empty((), dtype=dtype, device=device))
