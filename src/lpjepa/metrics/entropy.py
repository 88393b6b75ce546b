"""The d(ξ)-dimensional entropy of each feature, estimated from samples (the paper's m-spacing estimator)."""

from typing import NamedTuple

import torch
from torch import Tensor

from lpjepa.metrics._features import features, nan_where_not_finite


class MarginalEntropy(NamedTuple):
    """Entropies in nats; `total` bounds the joint entropy from above, exactly for independent features."""

    total: Tensor  # (...), the sum over features
    per_feature: Tensor  # (..., D)
    dimension: Tensor  # (..., D), the estimated Rényi information dimension: the share of active samples


def marginal_entropy(z: Tensor, m: int | None = None, bias_corrected: bool = False) -> MarginalEntropy:
    """Entropy of each feature as the mixture of an atom at zero and a density elsewhere.

    z: (..., N, D). With B samples of a feature, B' of them active (not zero), d = B'/B, and z_(1) ≤ z_(2) ≤
    … the active ones in order:

        H = d · H1 + d log(1/d) + (1 - d) log(1/(1 - d))
        H1 = 1/(B' - m) · sum_{i=1}^{B'-m} log((B' + 1)/m · (z_(i+m) - z_(i)))

    `m` is the spacing, by default sqrt(B') rounded, and at most B' - 1. For rectified features this is the
    paper's estimator; for dense ones d = 1 and H is the ordinary differential entropy. H1 falls short by
    log m - digamma(m) + digamma(B' + 1) - log(B' + 1) ≈ 1/(2m) on average; `bias_corrected=True` adds it
    back (exact for uniform values).

    Defined values: a dead feature has entropy 0; with one active sample there is no spacing, and H1 counts
    as 0; equal values have no spacing either, and count as apart by the resolution of the dtype of `z`, so
    that a constant feature has a large negative, finite entropy; a feature with a value that is not finite
    gives NaN.
    """
    if m is not None and m < 1:
        raise ValueError(
            f"marginal_entropy needs a spacing m of at least 1, not {m}; leave it out for sqrt(B')."
        )
    resolution = torch.finfo(z.dtype).eps if isinstance(z, Tensor) and z.is_floating_point() else 0.0
    z = features(z, "marginal_entropy")
    finite = z.isfinite().all(-2)
    x_DB = z.mT.double()
    x_DB = torch.where(x_DB.isfinite(), x_DB, torch.zeros_like(x_DB))
    active = x_DB != 0
    count = active.sum(-1)
    # Zeros go to the end, so that the active values of every feature stand in order from the start.
    x_DB = torch.where(active, x_DB, torch.full_like(x_DB, torch.inf)).sort(-1).values

    spacing = count.double().sqrt().round().long() if m is None else torch.full_like(count, m)
    spacing = torch.minimum(spacing, count - 1).clamp(min=1)
    index = torch.arange(x_DB.shape[-1], device=z.device)
    upper = (index + spacing.unsqueeze(-1)).clamp(max=x_DB.shape[-1] - 1)
    used = index < (count - spacing).unsqueeze(-1)
    low = torch.where(used, x_DB, torch.ones_like(x_DB))
    high = torch.where(used, x_DB.gather(-1, upper), torch.ones_like(x_DB))
    gap = torch.maximum(high - low, low.abs().clamp(min=torch.finfo(z.dtype).tiny) * max(resolution, 1e-16))

    count_d, spacing_d = count.double(), spacing.double()
    terms = used.sum(-1)
    logs = torch.where(used, gap.log(), torch.zeros_like(gap)).sum(-1) / terms.clamp(min=1)
    entropy = torch.where(terms > 0, logs + ((count_d + 1) / spacing_d).log(), torch.zeros_like(logs))
    if bias_corrected:
        bias = spacing_d.log() - spacing_d.digamma() + (count_d + 1).digamma() - (count_d + 1).log()
        entropy = entropy + torch.where(terms > 0, bias, torch.zeros_like(bias))
    dimension = count_d / x_DB.shape[-1]
    entropy = dimension * entropy + torch.special.entr(dimension) + torch.special.entr(1 - dimension)
    entropy = nan_where_not_finite(entropy, finite).to(z.dtype)
    return MarginalEntropy(entropy.sum(-1), entropy, nan_where_not_finite(dimension, finite).to(z.dtype))
