"""Triton kernels of the sliced losses. Importing this imports triton."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lpjepa.slicing._triton import matching
from lpjepa.slicing._triton.directions import DrawnDirections, GivenDirections
from lpjepa.slicing._triton.layout import MAX_DIM, MAX_SAMPLES
from lpjepa.slicing._triton.matching import Result

__all__ = ["matcher", "random_epps_pulley", "random_wasserstein2", "supports"]


def supports(z_VND: Tensor, samples: int | None = None) -> bool:
    """Whether the kernels take these features, by shape and type; `samples` of the target, if it has any."""
    return (
        z_VND.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and z_VND.numel() > 0
        and z_VND.shape[1] <= MAX_SAMPLES
        and z_VND.shape[2] <= MAX_DIM
        and samples in (None, z_VND.shape[1])
    )


def matcher(
    z_VND: Tensor, c: Tensor, y_VMD: Tensor, discrepancy: str, precision: str
) -> Callable[[Tensor, Tensor, Tensor, Tensor | float, bool], Result] | None:
    """What `_backend.choose` asks for: the kernels for given directions, or None where they do not apply."""
    applies = discrepancy == "wasserstein2" and precision == "fast" and c.shape[-2] > 0
    return _given if applies and supports(z_VND, y_VMD.shape[1]) else None


def random_wasserstein2(
    z_VND: Tensor, y_VND: Tensor, seed: Tensor, lo: int, hi: int, weight: Tensor | float, want_gradient: bool
) -> Result:
    """Σ w W2² along the random directions lo to hi of the seed, which are drawn on the way."""
    fill = DrawnDirections(seed, lo, z_VND.shape[2], _padded(z_VND.shape[2]))
    return matching.wasserstein2(z_VND, y_VND, hi - lo, fill, weight, want_gradient)


def random_epps_pulley(
    z_VND: Tensor, seed: Tensor, lo: int, hi: int, weight: float, t_max: float, num_points: int,
    want_gradient: bool,
) -> Result:  # fmt: skip
    """`weight` Σ Epps–Pulley along the random directions lo to hi of the seed."""
    fill = DrawnDirections(seed, lo, z_VND.shape[2], _padded(z_VND.shape[2]))
    return matching.epps_pulley(z_VND, hi - lo, fill, weight, t_max, num_points, want_gradient)


def _given(z_VND: Tensor, c: Tensor, y_VND: Tensor, weight: Tensor | float, want_gradient: bool) -> Result:
    pitch = _padded(z_VND.shape[2])
    if c.dim() == 2:
        fill = GivenDirections(c, pitch)
        return matching.wasserstein2(z_VND, y_VND, c.shape[0], fill, weight, want_gradient)
    # Views with directions of their own share no product.
    parts = [
        matching.wasserstein2(
            z_VND[v : v + 1], y_VND[v : v + 1], c.shape[1], GivenDirections(c[v], pitch),
            weight[v : v + 1] if isinstance(weight, Tensor) else weight, want_gradient,
        )
        for v in range(z_VND.shape[0])
    ]  # fmt: skip
    value = torch.stack([part[0] for part in parts]).sum()
    gradients = [part[1] for part in parts if part[1] is not None]
    return value, torch.cat(gradients) if gradients else None


def _padded(dim: int) -> int:
    return -(-dim // 64) * 64
