"""Philox 4×32-10 in torch operations: counter-based random numbers without a kernel language.

Used on CUDA where triton cannot be imported, and beside its kernels for what those do not draw: float64,
uniform numbers of any type but float32, and targets whose parameters have more than one element. Salmon et
al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The 32-bit words live in int64 tensors; nothing
here reads a value back to the host.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_ROUNDS = 10
# Marsaglia–Tsang accepts more than 95 % of its proposals for shapes above 1, so that fewer than one number
# in ten thousand million is still undecided after this many; those keep their last proposal.
_ATTEMPTS = 8


def words(key: Tensor, count: int, sequence: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four tensors of 32-bit words, shape (*key.shape, count), for counters (0..count, sequence)."""
    index = torch.arange(count, device=key.device)
    c0, c1 = index & _WORD, index >> 32
    c2 = torch.full_like(index, sequence)
    c3 = torch.zeros_like(index)
    k0, k1 = (key & _WORD).unsqueeze(-1), ((key >> 32) & _WORD).unsqueeze(-1)
    for _ in range(_ROUNDS):
        # The 64-bit products wrap into the sign; shifting and masking recovers their unsigned halves.
        low, high = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            ((high >> 32) & _WORD) ^ c1 ^ k0,
            high & _WORD,
            ((low >> 32) & _WORD) ^ c3 ^ k1,
            low & _WORD,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def uniform(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype, sequence: int = 0) -> Tensor:
    """Uniform numbers strictly inside (0, 1): midpoints of 2²³ cells in float32, of 2³² in float64."""
    numel = math.prod(shape)
    stacked = torch.stack(words(key, -(-numel // 4), sequence), dim=-1).flatten(-2)[..., :numel]
    return _open_interval(stacked, dtype).reshape(*key.shape, *shape)


def normal(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype, sequence: int = 0) -> Tensor:
    """Standard normal numbers by Box–Muller, shape (*key.shape, *shape)."""
    numel = math.prod(shape)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    w0, w1, w2, w3 = words(key, -(-numel // 4), sequence)
    pairs = []
    for radius_word, angle_word in ((w0, w1), (w2, w3)):
        radius = torch.sqrt(-2 * torch.log((radius_word + 1).to(exact) * 2.0**-32))
        angle = angle_word.to(exact) * (2 * math.pi * 2.0**-32)
        pairs += [radius * torch.cos(angle), radius * torch.sin(angle)]
    return torch.stack(pairs, dim=-1).flatten(-2)[..., :numel].reshape(*key.shape, *shape).to(dtype)


def generalized_gaussian(
    key: Tensor,
    loc: Tensor,
    scale: Tensor,
    p: Tensor,
    rectified: bool,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Tensor:
    """loc + scale · s · (p G)^(1/p) with s = ±1 and G ~ Gamma(1/p), rectified if asked.

    Gamma(a) for a = 1/p < 1 is Gamma(a + 1) · U^p, hence (p G)^(1/p) = (p G₊)^(1/p) · U with
    G₊ ~ Gamma(1 + 1/p) by Marsaglia and Tsang, ACM TOMS 26 (2000): no case of p needs its own branch, and
    U^p never underflows.
    """
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    loc, scale, p = (t.to(exact) for t in (loc, scale, p))
    d = 1 / p + 2 / 3
    c = 1 / torch.sqrt(9 * d)
    gamma = d.expand(shape)
    undecided = torch.ones(shape, dtype=torch.bool, device=key.device)
    for attempt in range(_ATTEMPTS):
        x = normal(key, shape, exact, sequence=2 * attempt + 2)
        v = (1 + c * x) ** 3
        log_v = torch.log(v.clamp(min=1e-30))
        u = uniform(key, shape, exact, sequence=2 * attempt + 3)
        accepted = (v > 0) & (torch.log(u) < 0.5 * x * x + d * (1 - v + log_v))
        gamma = torch.where(undecided & (v > 0), d * v, gamma)
        undecided = undecided & ~accepted
    magnitude = (p * gamma) ** (1 / p) * uniform(key, shape, exact, sequence=0)
    sign = torch.where(uniform(key, shape, exact, sequence=1) < 0.5, -1.0, 1.0)
    sample = loc + scale * sign * magnitude
    return (sample.relu() if rectified else sample).to(dtype)


def _open_interval(word: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float64:
        return (word.to(dtype) + 0.5) * 2.0**-32
    return ((word >> 9).to(dtype) + 0.5) * 2.0**-23
