"""Polar factors by matrix products alone, and what they are good for: uniform orthogonal matrices.

Factorisations of cuSOLVER make the host wait, and a CUDA graph cannot hold them; products it can. Newton
and Schulz's iteration x ← ρx (3 − ρ² xᵀx)/2 takes every singular value to 1; its step ρ is scaled up while
singular values are small (Chen and Chow, 2014). The number of iterations is a constant, whatever the values.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

_LARGEST_STEP = 1.6  # √3 is best in theory, but would throw the largest singular values back to zero
# A square Gaussian matrix of size D has singular values down to about 1/(2D) of its largest, and below this
# share of it once in some 10⁸/(2D) draws.
_SMALLEST_OF_GAUSSIAN = 1e-8


def uniform_orthogonal(gaussian: Tensor) -> Tensor:
    """Orthogonal matrices (V, D, D), uniform (Haar), from matrices of independent standard normal numbers.

    The distribution of a Gaussian matrix is the same after any rotation, so that of its polar factor is, too.
    """
    eye = torch.eye(gaussian.shape[-1], dtype=gaussian.dtype, device=gaussian.device)
    largest = norm_bound(gaussian.mT @ gaussian).sqrt()
    return polar(gaussian / largest, eye, _SMALLEST_OF_GAUSSIAN)


def polar(x: Tensor, eye: Tensor, smallest: float) -> Tensor:
    """The orthogonal polar factor of matrices (V, D, D) with singular values between `smallest` and 1."""
    for step in _steps(smallest):
        x = x @ torch.baddbmm(eye.expand_as(x), x.mT, x, beta=1.5 * step, alpha=-0.5 * step**3)
    return x


@functools.cache
def _steps(smallest: float) -> tuple[float, ...]:
    """The steps ρ after which a singular value that began at `smallest` is 1 to rounding."""
    steps, low = [], smallest
    while 1 - low > 1e-13:
        step = min(math.sqrt(3 / (1 + low + low * low)), _LARGEST_STEP)
        steps.append(step)
        low = min(0.5 * step * edge * (3 - step**2 * edge**2) for edge in (low, 1.0))
    return tuple(steps)


def norm_bound(a: Tensor) -> Tensor:
    """At least the largest |eigenvalue|, and at most R^(1/32) times it: ‖A^16‖_F^(1/16). Shape (V, 1, 1)."""
    norm = torch.linalg.matrix_norm(a, keepdim=True).clamp(min=1e-300)
    power = a / norm  # eigenvalues up to 1 and, as the norm is at most √R of the largest, not much below it
    for _ in range(4):
        power = power @ power
    return norm * torch.linalg.matrix_norm(power, keepdim=True).clamp(min=1e-300) ** (1 / 16)
