"""What the pictures of features need, computed once from one feature matrix and its target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian
from lpjepa.metrics import active_fraction, l0_sparsity, l1_sparsity

QUANTILE_LEVELS = (torch.arange(199, dtype=torch.float64) + 1) / 200


@dataclass(frozen=True)
class Portrait:
    """Statistics of features z_ND (as float64 arrays), beside those of as many samples of the target."""

    samples: int
    active_D: np.ndarray  # fraction of samples in which each feature is active
    values: np.ndarray  # pooled entries, thinned to at most `pool`
    eigenvalues_D: np.ndarray  # of the covariance, falling
    rectified: bool
    quantiles_KQ: np.ndarray | None = None  # along K random directions at QUANTILE_LEVELS
    target_quantiles_KQ: np.ndarray | None = None
    target_eigenvalues_D: np.ndarray | None = None
    variance: float = float("nan")  # mean over features
    l0: float = float("nan")
    l1: float = float("nan")


def portrait(
    z_ND: Tensor,
    target: GeneralizedGaussian | RectifiedGeneralizedGaussian | None = None,
    num_directions: int = 24,
    pool: int = 400_000,
    seed: int = 0,
) -> Portrait:
    """Measure z_ND (N samples, D features). ``target`` is a one-dimensional distribution or None.

    Rows that are not finite are an error: a picture of them would say nothing.
    """
    if z_ND.ndim != 2 or z_ND.shape[0] < 2:
        raise ValueError(f"features must be (N, D) with at least 2 samples, got shape {tuple(z_ND.shape)}")
    if not z_ND.isfinite().all():
        raise ValueError("features hold NaN or infinite values: metrics.jsonl shows where the training broke")
    z_ND = z_ND.detach().cpu().double()
    samples, features = z_ND.shape
    generator = torch.Generator().manual_seed(seed)
    flat = z_ND.flatten()
    values = flat if flat.numel() <= pool else flat[torch.randint(flat.numel(), (pool,), generator=generator)]
    quantiles = target_quantiles = target_eigenvalues = None
    if target is not None:
        y_ND = target.sample((samples, features), generator=generator).double()
        c_KD = torch.randn(num_directions, features, generator=generator, dtype=torch.float64)
        c_KD = torch.nn.functional.normalize(c_KD, dim=1)
        quantiles = torch.quantile(z_ND @ c_KD.T, QUANTILE_LEVELS, dim=0).T.numpy()
        target_quantiles = torch.quantile(y_ND @ c_KD.T, QUANTILE_LEVELS, dim=0).T.numpy()
        target_eigenvalues = _spectrum(y_ND)
    return Portrait(
        samples=samples,
        active_D=active_fraction(z_ND).numpy(),
        values=values.numpy(),
        eigenvalues_D=_spectrum(z_ND),
        rectified=bool((z_ND >= 0).all()),
        quantiles_KQ=quantiles,
        target_quantiles_KQ=target_quantiles,
        target_eigenvalues_D=target_eigenvalues,
        variance=float(z_ND.var(0).mean()),
        l0=float(l0_sparsity(z_ND)),
        l1=float(l1_sparsity(z_ND)),
    )


def _spectrum(x_ND: Tensor) -> np.ndarray:
    """Falling eigenvalues of the sample covariance, from singular values of the centred matrix."""
    singular = torch.linalg.svdvals(x_ND - x_ND.mean(0))
    padded = torch.zeros(x_ND.shape[1], dtype=torch.float64)
    padded[: len(singular)] = singular[: x_ND.shape[1]].square() / (x_ND.shape[0] - 1)
    return padded.numpy()
