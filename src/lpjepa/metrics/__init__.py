"""Measures on features: sparsity, entropy, independence, covariance, rank. They need torch alone.

Functions take features (..., N, D) and return tensors; `streaming` has their forms for sets that do not fit,
`torchmetrics` their forms for that library (imported on demand).
"""

from lpjepa.metrics.comparison import SparsityByCorrectness, relative_mad, sparsity_by_correctness
from lpjepa.metrics.covariance import covariance_loss, effective_rank, variance_loss
from lpjepa.metrics.entropy import MarginalEntropy, marginal_entropy
from lpjepa.metrics.independence import nhsic
from lpjepa.metrics.lidar import lidar
from lpjepa.metrics.sparsity import (
    PredictedSparsity,
    active_fraction,
    always_on_fraction,
    dead_fraction,
    l0_sparsity,
    l1_sparsity,
    predicted_sparsity,
)
from lpjepa.metrics.streaming import FeatureSample, MomentStream, SparsityStream, SparsitySummary

__all__ = [
    "FeatureSample",
    "MarginalEntropy",
    "MomentStream",
    "PredictedSparsity",
    "SparsityByCorrectness",
    "SparsityStream",
    "SparsitySummary",
    "active_fraction",
    "always_on_fraction",
    "covariance_loss",
    "dead_fraction",
    "effective_rank",
    "l0_sparsity",
    "l1_sparsity",
    "lidar",
    "marginal_entropy",
    "nhsic",
    "predicted_sparsity",
    "relative_mad",
    "sparsity_by_correctness",
    "variance_loss",
]
