"""Structured orthonormal directions: D directions in D log D operations instead of D².

One block of D directions is the product of two rounds of (random order, random signs, Hadamard transform),
each an orthogonal map, so the D directions are exactly orthonormal. One round would make every entry
±1/√D, directions that never point near an axis; after two, an entry is a sum of D signs and close to the
normal entry of a uniform direction.

A Hadamard transform has a power of two of coordinates. In D dimensions with P = 2^k ≤ D < 2P a round
transforms the first P coordinates and then, if P < D, the last P: both are orthogonal maps of all D
coordinates, where padding to 2P and cutting back would be none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lpjepa._random import rand
from lpjepa._sort import argsort

ROUNDS = 2
# With fewer coordinates the signs are too few to resemble a continuous distribution; a QR is cheap there.
SMALLEST_DIM = 32


def hadamard_rows(seed: Tensor, lo: int, hi: int, dim: int, dtype: torch.dtype, stream: int) -> Tensor:
    """Rows lo to hi of the stacked blocks, (hi − lo, D); block b takes stream `stream + b`."""
    first, last = lo // dim, -(-hi // dim)
    identity = torch.eye(dim, dtype=dtype, device=seed.device)
    blocks = [project_block(identity, seed, stream + block).mT for block in range(first, last)]
    return torch.cat(blocks)[lo - first * dim : hi - first * dim]


def project_block(x: Tensor, seed: Tensor, stream: int) -> Tensor:
    """Projections of x (..., D) onto one block's D directions, (..., D), without forming them."""
    dim = x.shape[-1]
    size = 1 << (dim.bit_length() - 1)
    uniform = rand(seed, (ROUNDS, 3, dim), stream)
    for order, *signs in uniform.unbind():
        x = x[..., argsort(order)]
        for window, sign in zip((slice(0, size), slice(dim - size, dim)), signs):
            x = x * torch.where(sign < 0.5, -1.0, 1.0).to(x.dtype)
            x[..., window] = _transform(x[..., window])
            if size == dim:
                break
    return x


def _transform(x: Tensor) -> Tensor:
    """Orthonormal Hadamard transform of the last dimension, P = a·b: H_P = H_a ⊗ H_b, two small products."""
    log_size = x.shape[-1].bit_length() - 1
    left = _matrix(log_size // 2, x)
    right = _matrix(log_size - log_size // 2, x)
    return (left @ x.unflatten(-1, (left.shape[0], right.shape[0])) @ right).flatten(-2)


def _matrix(log_size: int, like: Tensor) -> Tensor:
    """Sylvester's symmetric, orthonormal matrix of size 2^log_size: entries (−1)^(number of shared bits)."""
    index = torch.arange(1 << log_size, device=like.device)
    shared = index.unsqueeze(0) & index.unsqueeze(1)
    parity = sum(((shared >> bit) & 1 for bit in range(log_size)), start=torch.zeros_like(shared)) & 1
    return (1 - 2 * parity).to(like.dtype) * 2.0 ** (-log_size / 2)
