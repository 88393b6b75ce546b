"""Sparsity as a signal: how it moves between data sets, and between right and wrong predictions
("Additional Results on Transfer Sparsity")."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lpjepa.metrics.sparsity import l0_sparsity, l1_sparsity


def relative_mad(values: Sequence[float] | Tensor) -> float:
    """Relative mean absolute deviation from the median: mean_i |x_i - median(x)| / |median(x)|.

    `values` holds one number a data set, such as its l0 sparsity. The median of an even number of values is
    the mean of the middle two. All values equal give 0, also when they are 0; a median of 0 otherwise gives
    infinity.
    """
    x = torch.as_tensor(values, dtype=torch.float64).flatten()
    if x.numel() == 0:
        raise ValueError("relative_mad needs at least one value, one for each data set.")
    ordered = x.sort().values
    median = (ordered[(x.numel() - 1) // 2] + ordered[x.numel() // 2]) / 2
    deviation = (x - median).abs().mean()
    return 0.0 if deviation == 0 else float(deviation / median.abs())


class SparsityByCorrectness(NamedTuple):
    """Per-sample sparsity of the samples a classifier got right and of those it got wrong; each a vector."""

    l0_correct: Tensor
    l0_incorrect: Tensor
    l1_correct: Tensor
    l1_incorrect: Tensor


def sparsity_by_correctness(z: Tensor, predictions: Tensor, labels: Tensor) -> SparsityByCorrectness:
    """Distributions of l0 and l1 sparsity for right and wrong predictions. z: (N, D); the others: (N,).

    A side without samples is an empty vector.
    """
    if z.ndim != 2 or predictions.shape != labels.shape or labels.shape != z.shape[:1]:
        raise ValueError(
            "sparsity_by_correctness takes features (N, D) with predictions and labels (N,), not "
            f"{tuple(z.shape)}, {tuple(predictions.shape)} and {tuple(labels.shape)}."
        )
    correct = (predictions == labels).to(z.device)
    l0, l1 = l0_sparsity(z, reduce=False), l1_sparsity(z, reduce=False)
    return SparsityByCorrectness(l0[correct], l0[~correct], l1[correct], l1[~correct])
