"""Label regimes: seeded draws of a fraction of the labels ("Transfer evaluation protocol")."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

FRACTIONS = (0.01, 0.1, 1.0)  # the paper's 1-shot, 10-shot and All-shot


def stratified_draw(labels: Tensor, fraction: float, seed: int = 0) -> Tensor:
    """Indices, ascending, of `fraction` of the samples of each class, drawn without replacement.

    A class with n samples gives round(fraction · n) of them, and never fewer than one: a class with a
    single example is in every draw. Where classes are small that is more than `fraction` of all: of ten
    samples a class (Oxford Flowers) 1 % and 10 % are the same single one. `fraction=1` gives all samples.
    The draw depends on the labels, the fraction and the seed only.
    """
    labels = _checked(labels, fraction)
    if fraction == 1:
        return torch.arange(len(labels))
    order = _shuffled(len(labels), seed)
    # A stable sort by class keeps the random order within each class: the first ones of a class are the draw.
    order = order[labels[order].sort(stable=True).indices]
    _, counts = labels.unique(return_counts=True)
    wanted = (counts.double() * fraction).round().long().clamp(min=1)
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return order[rank < wanted.repeat_interleave(counts)].sort().values


def plain_draw(labels: Tensor, fraction: float, seed: int = 0) -> Tensor:
    """Indices, ascending, of `fraction` of all samples, at least one, drawn without replacement.

    Whichever classes they are of: where 1 % is fewer samples than there are classes, most classes have none.
    """
    count = len(_checked(labels, fraction))
    return _shuffled(count, seed)[: max(1, round(fraction * count))].sort().values


def _checked(labels: Tensor, fraction: float) -> Tensor:
    if not 0 < fraction <= 1:
        raise ValueError(f"A label regime is a fraction above 0 and up to 1, not {fraction}; 1 % is 0.01.")
    if labels.ndim != 1 or len(labels) == 0:
        raise ValueError(f"A label regime needs labels of shape (N,) with N ≥ 1, not {tuple(labels.shape)}.")
    return labels.cpu()


def _shuffled(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


class MeanStd(NamedTuple):
    """Mean over draws and standard deviation (n - 1; none for a single draw)."""

    mean: float
    std: float | None


def mean_std(values: Sequence[float]) -> MeanStd:
    x = torch.tensor(list(values), dtype=torch.float64)
    if x.numel() == 0:
        raise ValueError("mean_std needs at least one value.")
    return MeanStd(float(x.mean()), float(x.std()) if x.numel() > 1 else None)
