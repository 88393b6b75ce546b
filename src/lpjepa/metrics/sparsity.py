"""How sparse features are: per sample, per feature, and what a target predicts (section "Sparsity Metrics").

An entry is *active* when it is not zero. Rectified features hold exact zeros, so there is no threshold.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lpjepa.metrics._features import features, nan_where_not_finite


class SparseTarget(Protocol):
    """What a target distribution must know for its sparsity to be predicted (`lpjepa.distributions`)."""

    @property
    def active_probability(self) -> Tensor: ...

    @property
    def expected_l1_metric(self) -> Tensor: ...


class PredictedSparsity(NamedTuple):
    """What features that follow a target exactly would measure."""

    l0: float
    l1: float


def l0_sparsity(z: Tensor, reduce: bool = True) -> Tensor:
    """Fraction of active entries, m_l0 = E[||z||_0] / D: 0 for all-zero, 1 for dense features.

    z: (..., N, D). Returns the mean over all samples, or the value of each, (..., N), with `reduce=False`.
    A sample with an entry that is not finite counts as NaN.
    """
    z = features(z, "l0_sparsity")
    fraction = (z != 0).to(z.dtype).mean(-1)
    fraction = nan_where_not_finite(fraction, z.isfinite().all(-1))
    return fraction.mean() if reduce else fraction


def l1_sparsity(z: Tensor, reduce: bool = True) -> Tensor:
    """The scale-free measure m_l1 = E[||z||_1² / ||z||_2²] / D: 1/D for one active entry, 1 if all are equal.

    z: (..., N, D). Returns the mean over all samples, or the value of each, (..., N), with `reduce=False`.
    An all-zero vector, where the ratio is 0/0, is defined as 0, the limit of sparsity (and what the
    authors' code gives with its epsilon). A sample with an entry that is not finite counts as NaN.
    """
    z = features(z, "l1_sparsity")
    finite = z.isfinite().all(-1)
    # Dividing by the largest entry keeps the squares of tiny or huge features inside the range of float32.
    magnitude = z.abs()
    largest = magnitude.amax(-1, keepdim=True)
    magnitude = magnitude / torch.where(largest > 0, largest, torch.ones_like(largest))
    ratio = magnitude.sum(-1).square() / magnitude.square().sum(-1).clamp(min=1.0) / z.shape[-1]
    ratio = nan_where_not_finite(ratio, finite)
    return ratio.mean() if reduce else ratio


def active_fraction(z: Tensor) -> Tensor:
    """Share of samples on which each feature is active. z: (..., N, D); returns (..., D)."""
    z = features(z, "active_fraction")
    fraction = (z != 0).to(z.dtype).mean(-2)
    return nan_where_not_finite(fraction, z.isfinite().all(-2))


def dead_fraction(z: Tensor) -> Tensor:
    """Share of the features that are zero on every sample. z: (..., N, D); a scalar, averaged over views."""
    return _share_at(active_fraction(z), 0.0)


def always_on_fraction(z: Tensor) -> Tensor:
    """Share of the features that are active on every sample. z: (..., N, D); a scalar, as `dead_fraction`."""
    return _share_at(active_fraction(z), 1.0)


def _share_at(fraction: Tensor, level: float) -> Tensor:
    share = (fraction == level).to(fraction.dtype).mean()
    return nan_where_not_finite(share, fraction.isfinite().all())


def predicted_sparsity(target: SparseTarget) -> PredictedSparsity:
    """l0 and l1 of features that follow `target`: P(x > 0), and E[x]²/E[x²], m_l1 of many features.

    A target with a batch shape (one distribution a feature) gives the means over its features. Reads the
    values back to the host: call it once, not in a training step.
    """
    try:
        l0, l1 = target.active_probability, target.expected_l1_metric
    except AttributeError as error:
        raise TypeError(
            f"predicted_sparsity takes a RectifiedGeneralizedGaussian, not {type(target).__name__}."
        ) from error
    return PredictedSparsity(l0=float(torch.as_tensor(l0).mean()), l1=float(torch.as_tensor(l1).mean()))
