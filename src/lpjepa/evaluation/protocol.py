"""What is measured on the features of one data set, piece by piece: measures, probes, kNN, post-hoc ReLU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lpjepa._spread import spread
from lpjepa.evaluation.features import KINDS, Features
from lpjepa.evaluation.knn import knn_classify
from lpjepa.evaluation.posthoc import rectification
from lpjepa.evaluation.probes import ProbeJob, ProbeResult, probe_protocol, train_probes
from lpjepa.evaluation.progress import Progress
from lpjepa.evaluation.regimes import FRACTIONS, mean_std, plain_draw, stratified_draw
from lpjepa.evaluation.results import Entry
from lpjepa.metrics import (
    FeatureSample,
    always_on_fraction,
    covariance_loss,
    dead_fraction,
    effective_rank,
    l0_sparsity,
    l1_sparsity,
    marginal_entropy,
    nhsic,
    predicted_sparsity,
    sparsity_by_correctness,
    variance_loss,
)

# Rows on which second-order measures and entropy are taken; nHSIC, quadratic in them, takes fewer.
SAMPLE, NHSIC_SAMPLE = 4096, 512
QUANTILES = 101  # of per-sample sparsity, for violins


@dataclass(frozen=True)
class EvaluationSettings:
    """How a run is evaluated; the defaults are the paper's transfer protocol."""

    protocol: str = "adam"
    """adam or sgd: the paper's two ways to train a linear probe."""
    fractions: tuple[float, ...] = FRACTIONS
    """Label regimes, as fractions of the training samples."""
    stratified: bool = True
    """Draw that fraction of each class, at least one sample, and not of all samples whatever their class."""
    draws: int = 3
    """Draws of labels in each regime below 1; all labels are one draw."""
    epochs: int = 100
    """Epochs of each probe."""
    standardize: bool = False
    """Standardise features before a probe (the paper does not)."""
    neighbours: int = 20
    """k of the kNN classifiers."""
    posthoc: bool = True
    """Also probe rectified features."""
    seed: int = 0
    """Fixes draws, initialisation and order."""

    def check(self) -> None:
        probe_protocol(self.protocol)
        for name in ("draws", "epochs", "neighbours"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected 1 or more, got {getattr(self, name)}.")
        if not self.fractions or not all(0 < f <= 1 for f in self.fractions):
            raise ValueError(f"fractions: expected numbers above 0 and up to 1, got {list(self.fractions)}.")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def piece_names(settings: EvaluationSettings, labelled: bool = True) -> list[str]:
    """The pieces of an evaluation, in order; a data set without labels has measures only."""
    if not labelled:
        return ["measures"]
    probes = [f"probe {fraction:g}" for fraction in sorted(settings.fractions)]
    return ["measures", *probes, "knn", *(["posthoc"] if settings.posthoc else [])]


def evaluate_features(
    entry: Entry,
    train: Features,
    val: Features,
    settings: EvaluationSettings,
    target: Any = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Computes the pieces that `entry` does not have yet, and gives its content."""
    settings.check()
    progress = progress or Progress(plain=True)
    labelled = train.labels is not None and val.labels is not None
    source = entry.content["source"]
    for name in entry.missing(piece_names(settings, labelled)):
        with progress.task(f"{source}: {name}") as task:
            entry.store(name, _compute(name, train, val, settings, target, device, task))
    return entry.finish()


def _compute(
    name: str,
    train: Features,
    val: Features,
    settings: EvaluationSettings,
    target: Any,
    device: torch.device | str | None,
    task: Callable[[int, int], None],
) -> dict[str, Any]:
    if name == "measures":
        return measures(val if device is None else val.to(device), target, settings.seed)
    if name == "knn":
        return knn_accuracies(train, val, settings.neighbours, device)
    if name == "posthoc":
        protocol = probe_protocol("sgd", epochs=settings.epochs)
        return rectification(train, val, protocol, settings.seed, device, task)
    return probe_regime(train, val, float(name.removeprefix("probe ")), settings, device, task)


def measures(val: Features, target: Any = None, seed: int = 0) -> dict[str, Any]:
    """Sparsity of all validation features; covariance, rank, entropy of a sample; predictions."""
    result: dict[str, Any] = {"samples": len(val)}
    for kind in KINDS:
        z = val.kind(kind)
        few = FeatureSample(SAMPLE, seed).update(z).compute()
        values: dict[str, Any] = {
            "l0": l0_sparsity(z),
            "l1": l1_sparsity(z),
            "dead": dead_fraction(z),
            "always_on": always_on_fraction(z),
            "effective_rank": effective_rank(few),
            "entropy": marginal_entropy(few).per_feature.mean(),
        }
        if len(few) > 1:
            values["covariance_loss"] = covariance_loss(few)
            if z.shape[1] > 1:
                fewer = few[spread(len(few), NHSIC_SAMPLE)]
                values["nhsic"] = nhsic(fewer)
                values["nhsic_shuffled"] = nhsic(_shuffled(fewer, seed))
            if target is not None and kind == "projector":
                values["variance_loss"] = variance_loss(few, target)
        result[kind] = {key: float(value) for key, value in values.items()}
    if target is not None:
        predicted: dict[str, float] = {
            "variance": float(torch.as_tensor(target.variance).mean()),
            "entropy": float(torch.as_tensor(target.entropy()).mean()),
        }
        if hasattr(target, "active_probability"):
            predicted |= predicted_sparsity(target)._asdict()
        result["predicted"] = predicted
    return result


def _shuffled(z_ND: Tensor, seed: int) -> Tensor:
    """Each feature in an order of samples of its own: independent features of the same marginals.

    nHSIC of few samples is positive even then, and by how much depends on the marginals.
    """
    order_ND = torch.rand(z_ND.shape, generator=torch.Generator().manual_seed(seed)).argsort(0)
    return z_ND.gather(0, order_ND.to(z_ND.device))


def probe_regime(
    train: Features,
    val: Features,
    fraction: float,
    settings: EvaluationSettings,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Linear probes of both kinds of features in one label regime, all draws together."""
    labels, val_labels = train.require_labels(), val.require_labels()
    draws = settings.draws if fraction < 1 else 1
    some = stratified_draw if settings.stratified else plain_draw
    chosen = [some(labels, fraction, settings.seed + draw) for draw in range(draws)]
    jobs = [
        ProbeJob(train.kind(kind), labels, val.kind(kind), val_labels, indices, settings.seed + draw)
        for kind in KINDS
        for draw, indices in enumerate(chosen)
    ]
    protocol = probe_protocol(settings.protocol, epochs=settings.epochs, standardize=settings.standardize)
    results = train_probes(jobs, protocol, device, progress)
    content: dict[str, Any] = {"fraction": fraction, "samples": len(chosen[0]), "draws": draws}
    for position, kind in enumerate(KINDS):
        own = results[position * draws : (position + 1) * draws]
        content[kind] = {name: _summary([getattr(r, name) for r in own]) for name in ("top1", "top5")}
        if fraction == 1:
            content[kind]["by_correctness"] = _by_correctness(val.kind(kind), own[0], val_labels)
    return content


def _summary(values: list[float]) -> dict[str, Any]:
    return {**mean_std(values)._asdict(), "values": values}


def _by_correctness(z: Tensor, result: ProbeResult, labels: Tensor) -> dict[str, list[float]]:
    """Quantiles of per-sample sparsity, for right and wrong predictions; an empty list for an empty side."""
    groups = sparsity_by_correctness(z, result.predictions, labels.cpu())
    levels = torch.linspace(0, 1, QUANTILES)
    return {
        name: torch.quantile(values.cpu().float(), levels).tolist() if values.numel() else []
        for name, values in groups._asdict().items()
    }


def knn_accuracies(
    train: Features, val: Features, k: int, device: torch.device | str | None = None
) -> dict[str, Any]:
    """Weighted kNN accuracy of both kinds of features under both metrics."""
    if device is not None:
        train, val = train.to(device), val.to(device)
    labels, val_labels = train.require_labels(), val.require_labels()
    result: dict[str, Any] = {"k": min(k, len(train))}
    for kind in KINDS:
        result[kind] = {}
        for metric in ("cosine", "euclidean"):
            voted = knn_classify(train.kind(kind), labels, val.kind(kind), k, metric)
            result[kind][metric] = float((voted == val_labels).float().mean())
    return result
