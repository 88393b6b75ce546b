"""Eigenvectors of symmetric positive semi-definite matrices by matrix products alone.

`torch.linalg.eigh` reads its status back to the host, so a CUDA graph cannot hold it. What stands here is a
fixed sequence of products: spectral bisection. The logarithms of the eigenvalues, between a floor and the
largest, are halved again and again; each time every group of eigenvectors whose eigenvalues share an interval
is split at its middle μ, all groups at once:

- S = sign(A − μ), the polar factor of A − μ, has eigenvalue +1 above μ and −1 below it;
- with as many coordinates marked D = +1 as S has eigenvalues +1, the polar factor of I + S D is the rotation
  that takes the marked coordinates to the upper half and the others to the lower (Davis and Kahan, 1970).

Polar factors come from a fixed number of products, too (`_polar.py`).

The result is orthonormal to 1e-13. Two eigenvectors mix only where their eigenvalues share the last
interval, that is agree to within 0.4 to 0.7 %, so that the correlation of two projections stays below half of
that; sampling noise is some 1/√N. Measured against `eigh` in `tests/slicing/test_bisection.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lpjepa._sort import argsort
from lpjepa.slicing._polar import norm_bound, polar

HALVINGS = 12
# Singular values that `polar` resolves. What lies below is a rare accident: an eigenvalue that close to a
# middle, relative to the width of its group, or a group that close to perpendicular to its coordinates.
_SMALLEST = 1e-8
# And relative to the middle itself, which the first groups exceed by orders of magnitude.
_SMALLEST_DISTANCE = 1e-7


def eigh_by_products(a: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Eigenvalues (V, R), descending, and eigenvectors as columns (V, R, R), of a: (V, R, R) in float64.

    Eigenvalues below `floor` times the largest are not told apart, nor their eigenvectors.
    """
    size = a.shape[-1]
    eye = torch.eye(size, dtype=a.dtype, device=a.device)
    position = torch.arange(size, device=a.device)
    top_V11 = norm_bound(a)
    # Between `floor` and 1 + floor; half the floor leaves room for rounding below it.
    a_scaled = a / top_V11 + floor * eye
    span = math.log(2 * (1 + floor) / floor)
    q = _generic_basis(eye).expand_as(a)
    group = torch.zeros(a.shape[:-1], dtype=a.dtype, device=a.device)  # 0 is the uppermost
    for halving in range(HALVINGS):
        rotated = q.mT @ a_scaled @ q
        width = span / 2**halving
        middle = (1 + floor) * torch.exp(-(group + 0.5) * width)
        # What couples different groups is rounding by now. √(μ_i μ_j) within a group is its μ.
        together = group.unsqueeze(-1) == group.unsqueeze(-2)
        unit = middle.rsqrt()
        shifted = (rotated * unit.unsqueeze(-1) * unit.unsqueeze(-2) - eye) * together
        sign = polar(
            shifted / norm_bound(shifted), eye, min(_SMALLEST, _SMALLEST_DISTANCE / math.expm1(width / 2))
        )
        upper = _upper_half(sign.diagonal(dim1=-2, dim2=-1), together, position)
        marks = torch.where(upper, 1.0, -1.0).to(a.dtype)
        q = q @ polar((eye + sign * marks.unsqueeze(-2)) / 2, eye, _SMALLEST)
        group = 2 * group + ~upper
    eigenvalues = (q * (a @ q)).sum(-2)
    order = argsort(-eigenvalues)
    return eigenvalues.gather(-1, order), q.gather(-1, order.unsqueeze(-2).expand_as(q))


def _upper_half(diagonal: Tensor, together: Tensor, position: Tensor) -> Tensor:
    """Which coordinates stand for the upper half of their group: those with the largest entries of S.

    As many as S has eigenvalues +1 in the group, which its trace tells.
    """
    mine, other = diagonal.unsqueeze(-1), diagonal.unsqueeze(-2)
    count = (together * (1 + other) / 2).sum(-1).round()
    before = (other > mine) | ((other == mine) & (position < position.unsqueeze(-1)))
    return (together & before).sum(-1) < count


def _generic_basis(eye: Tensor) -> Tensor:
    """A fixed orthogonal matrix, two sine transforms and signs between them, that no features are made of.

    In their own coordinates features may have blocks, copies and zeros; a group can then be perpendicular to
    the coordinates chosen for it. In coordinates unrelated to the features it is not.
    """
    size = len(eye)
    index = torch.arange(1, size + 1, dtype=eye.dtype, device=eye.device)
    angle = torch.outer(index, index) % (2 * (size + 1)) * (math.pi / (size + 1))
    sine = math.sqrt(2 / (size + 1)) * torch.sin(angle)
    return torch.where(torch.sin(index * index * math.sqrt(2)) < 0, -sine, sine) @ sine
