"""Dependence between features beyond correlation: the normalised Hilbert-Schmidt independence criterion."""

import torch
from torch import Tensor

from lpjepa.metrics._features import features

BANDWIDTHS = ("auto", "median", "positive_std")
# Entries of kernel matrices made at a time: what stays in a CPU's cache, or fills a GPU (64 MB in float32).
BLOCK_ELEMENTS = {"cpu": 2**18, "cuda": 2**24}


def nhsic(z: Tensor, bandwidth: str = "auto", block: int | None = None) -> Tensor:
    """Mean of nHSIC(z_i, z_j) over pairs of different features ("Hilbert-Schmidt Independence Criterion").

    z: (B, D). With the Gaussian kernel K_d[a, b] = exp(-(z_ad - z_bd)²/(2 σ_d²)) of each feature and
    H = I - 11ᵀ/B,

        HSIC(i, j) = Tr(K_i H K_j H)/(B - 1)²,   nHSIC(i, j) = HSIC(i, j)/sqrt(HSIC(i, i) HSIC(j, j)).

    σ_d is, by name, the `median` of |z_ad - z_bd| over pairs a < b (dense features), or `positive_std`, the
    standard deviation of the positive activations (rectified features); `auto` takes the second when no
    entry is negative and some are zero. A median of 0 is replaced by the feature's standard deviation, and
    a deviation of 0 (one positive value) by the mean of the positive values. A constant feature is
    independent of all: its pairs count as 0. A value that is not finite gives NaN.

    nHSIC is the cosine between centred kernel matrices, so with S the sum of the matrices H K_d H, each
    scaled to unit norm, the mean needs no pairs: (||S||² - D)/(D (D - 1)). Time O(D B²); `block` features
    at a time bound the memory, which is otherwise that of S, B².
    """
    z = features(z, "nhsic", minimum=2)
    if z.ndim != 2 or z.shape[1] < 2:
        raise ValueError(f"nhsic takes features of shape (B, D) with D of 2 or more, not {tuple(z.shape)}.")
    if bandwidth not in BANDWIDTHS:
        raise ValueError(f"nhsic knows no bandwidth {bandwidth!r}; choose one of {', '.join(BANDWIDTHS)}.")
    if not bool(z.isfinite().all()):
        return z.new_full((), torch.nan)
    if bandwidth == "auto":
        rectified = bool((z >= 0).all() & (z == 0).any())
        bandwidth = "positive_std" if rectified else "median"
    x_DB = z.T.contiguous()
    scale_D = _median_distance(x_DB) if bandwidth == "median" else _positive_deviation(x_DB)

    samples, size = z.shape
    block = block or max(1, BLOCK_ELEMENTS.get(z.device.type, 2**24) // samples**2)
    total = z.new_zeros((samples, samples), dtype=torch.float64)
    varying = z.new_zeros(())
    for x_dB, scale_d in zip(x_DB.split(block), scale_D.split(block)):
        # The kernel sees differences only; taking one sample off first keeps those of a large mean exact.
        scaled = (x_dB - x_dB[:, :1]) / scale_d.unsqueeze(-1)
        kernel = (scaled.unsqueeze(-1) - scaled.unsqueeze(-2)).square_().mul_(-0.5).exp_()
        rows = kernel.mean(-1, keepdim=True)
        kernel -= rows
        kernel -= rows.mT
        kernel += rows.mean(-2, keepdim=True)
        # A constant feature's kernel is all ones: what is left after centring is rounding, not dependence.
        varies = x_dB.amax(-1) > x_dB.amin(-1)
        norm = torch.linalg.vector_norm(kernel, dim=(-2, -1))
        weight = torch.where(varies & (norm > 0), 1 / norm, torch.zeros_like(norm))
        total += kernel.mul_(weight.view(-1, 1, 1)).sum(0)
        varying += (weight > 0).sum()
    mean = (total.square().sum() - varying.double()) / (size * (size - 1))
    return mean.to(z.dtype)


def _median_distance(x_dB: Tensor) -> Tensor:
    """Median over pairs a < b of |x_a - x_b|: the mean of the middle two where their number is even.

    Bisection on the distance: with the values in order, the pairs closer than t are counted by B searches,
    so the B²/2 distances are never made. 52 halvings of the range leave nothing of a float64.
    """
    x = x_dB.double().contiguous().sort(-1).values
    samples = x.shape[-1]
    pairs = samples * (samples - 1) // 2
    ranks = torch.tensor([(pairs + 1) // 2, pairs // 2 + 1], device=x.device)
    low = x.new_zeros(len(x), 2)
    high = (x[:, -1:] - x[:, :1]).expand(-1, 2)
    for _ in range(52):
        middle = (low + high) / 2
        reach = torch.searchsorted(x, (x.unsqueeze(1) + middle.unsqueeze(-1)).flatten(1), right=True)
        # Each sample reaches itself and those before it, besides the later ones that make pairs.
        closer = reach.view(len(x), 2, samples).sum(-1) - samples * (samples + 1) // 2
        low, high = torch.where(closer < ranks, middle, low), torch.where(closer < ranks, high, middle)
    median = high.mean(-1).to(x_dB.dtype)
    # A range of which only rounding is left has the median 0: more than half of the pairs are equal.
    median = torch.where(median > 1e-12 * (x[:, -1] - x[:, 0]).to(x_dB.dtype), median, x_dB.std(-1))
    return torch.where(median > 0, median, torch.ones_like(median))


def _positive_deviation(x_dB: Tensor) -> Tensor:
    """Standard deviation (unbiased) of the positive entries of each feature."""
    positive = x_dB > 0
    count = positive.sum(-1)
    mean = (x_dB * positive).sum(-1) / count.clamp(min=1)
    squares = ((x_dB - mean.unsqueeze(-1)).square() * positive).sum(-1)
    deviation = (squares / (count - 1).clamp(min=1)).sqrt()
    deviation = torch.where(deviation > 0, deviation, mean)
    return torch.where(deviation > 0, deviation, torch.ones_like(deviation))
