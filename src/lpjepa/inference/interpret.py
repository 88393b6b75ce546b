"""What single features stand for: the images that activate them most, their classes, their part in decisions.

Non-negative features can be read one by one: a feature is there or it is not, and a linear probe's
decision is a sum of the contributions of those that are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lpjepa.evaluation import ProbeJob, probe_protocol, run_features, train_probes
from lpjepa.evaluation.features import Features


class TopImages(NamedTuple):
    """For each feature the images that activate it most, strongest first; -1 and 0 where there are none."""

    images_DK: Tensor
    values_DK: Tensor


class Selectivity(NamedTuple):
    """How far each feature keeps to one class.

    index_D: (m - r) / (m + r), with m the feature's mean over its preferred class and r that over all other
        classes together (mean of their means): 1 is active in one class alone, 0 in all alike. 0 where dead.
    class_D: the preferred class, the one with the largest mean; -1 where the feature is dead.
    share_D: of the images in which the feature is active, the share that belongs to the preferred class.
    """

    index_D: Tensor
    class_D: Tensor
    share_D: Tensor


class Contribution(NamedTuple):
    """A feature's part in a decision: its activation, and what it adds to the class's score over the mean."""

    feature: int
    activation: float
    amount: float


@dataclass(frozen=True)
class Explanation:
    """Why a linear probe chose a class: score = bias + all contributions (`rest`: those not shown).

    Scores are logits minus their mean over the classes, which no constant changes.
    """

    predicted: int
    score: float
    bias: float
    features: list[Contribution]
    rest: float


def top_images(z_ND: Tensor, k: int = 8) -> TopImages:
    """The k rows with the largest values in each column; rows where it is not active do not count."""
    if z_ND.ndim != 2 or not len(z_ND):
        raise ValueError(f"features are (N, D) of at least one image, not {tuple(z_ND.shape)}.")
    values_KD, rows_KD = z_ND.topk(min(k, len(z_ND)), dim=0)
    active = values_KD > 0
    return TopImages(
        torch.where(active, rows_KD, -1).T.contiguous(), torch.where(active, values_KD, 0).T.contiguous()
    )


def class_selectivity(z_ND: Tensor, labels_N: Tensor) -> Selectivity:
    """Selectivity of non-negative features; classes without images do not count."""
    if (z_ND < 0).any():
        raise ValueError("class selectivity is that of non-negative features; rectify these first.")
    if labels_N.shape != z_ND.shape[:1]:
        raise ValueError(
            f"features {tuple(z_ND.shape)} and labels {tuple(labels_N.shape)} do not fit together."
        )
    classes, numbers_N = labels_N.unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError("class selectivity needs images of two classes or more.")
    z_ND = z_ND.double()
    sums_CD = z_ND.new_zeros(len(classes), z_ND.shape[1]).index_add_(0, numbers_N, z_ND)
    means_CD = sums_CD / torch.bincount(numbers_N).unsqueeze(1)
    best_D, preferred_D = means_CD.max(0)
    others_D = (means_CD.sum(0) - best_D) / (len(classes) - 1)
    alive_D = best_D > 0
    index_D = torch.where(alive_D, (best_D - others_D) / (best_D + others_D).clamp(min=1e-300), 0.0)
    active_ND = z_ND > 0
    own_ND = numbers_N.unsqueeze(1) == preferred_D
    share_D = (active_ND & own_ND).sum(0) / active_ND.sum(0).clamp(min=1)
    return Selectivity(index_D.float(), torch.where(alive_D, classes[preferred_D], -1), share_D)


def explain(
    z_D: Tensor, weight_DC: Tensor, bias_C: Tensor, wanted: int | None = None, k: int = 8
) -> Explanation:
    """The k features that add most to the score of class `wanted` (by default the predicted one)."""
    logits_C = z_D.double() @ weight_DC.double() + bias_C.double()
    predicted = int(logits_C.argmax()) if wanted is None else wanted
    amounts_D = z_D.double() * (weight_DC[:, predicted] - weight_DC.mean(1)).double()
    order = amounts_D.abs().argsort(descending=True, stable=True)[:k].tolist()
    shown = [Contribution(j, float(z_D[j]), float(amounts_D[j])) for j in order if z_D[j] != 0]
    return Explanation(
        predicted,
        float(logits_C[predicted] - logits_C.mean()),
        float(bias_C[predicted] - bias_C.double().mean()),
        shown,
        float(amounts_D.sum()) - sum(part.amount for part in shown),
    )


@dataclass(frozen=True)
class Atlas:
    """The features of a run on its held-out images: what each stands for, and the decisions of a probe."""

    features: Features
    top: TopImages
    selectivity: Selectivity | None
    weight_DC: Tensor | None
    bias_C: Tensor | None

    def explain(self, row: int, k: int = 8) -> Explanation:
        """The features behind the probe's prediction for one held-out image."""
        if self.weight_DC is None or self.bias_C is None:
            raise ValueError("a prediction is explained by a probe, which needs labelled images.")
        count = len(self.features.projector)
        if not 0 <= row < count:
            raise ValueError(f"there is no image {row}: the {count} held-out images are 0 to {count - 1}.")
        return explain(self.features.projector[row], self.weight_DC, self.bias_C, k=k)

    def most_selective(self, count: int) -> list[int]:
        """Features worth looking at: the most selective ones, or the strongest without labels."""
        score_D = self.top.values_DK.mean(1) if self.selectivity is None else self.selectivity.index_D
        alive = (self.top.images_DK >= 0).all(1)  # active in as many images as are shown
        ranked = torch.where(alive, score_D, -1.0).argsort(descending=True, stable=True)
        return [j for j in ranked[:count].tolist() if alive[j]]


def atlas(
    folder: str | Path, source: str | None = None, k: int = 8, epochs: int = 30, device: str = "auto"
) -> Atlas:
    """The atlas of a run's projector features on the held-out images of a source (by default its own)."""
    val = run_features(folder, source, "test", device)
    train = None if val.labels is None else run_features(folder, source, "train", device)
    return atlas_of(val, train, k, epochs)


def atlas_of(val: Features, train: Features | None = None, k: int = 8, epochs: int = 30) -> Atlas:
    """The atlas of features; the probe learns from `train`, or from every other image where there is none."""
    z_ND = val.projector.relu()
    if val.labels is None or len(val.labels.unique()) < 2:
        return Atlas(val, top_images(z_ND, k), None, None, None)
    if train is None or train.labels is None:
        train = Features(val.encoder[::2], val.projector[::2], val.labels[::2])
    job = ProbeJob(train.projector, train.require_labels(), val.projector, val.labels)
    (probe,) = train_probes([job], probe_protocol("adam", epochs=epochs))
    return Atlas(val, top_images(z_ND, k), class_selectivity(z_ND, val.labels), probe.weight, probe.bias)
