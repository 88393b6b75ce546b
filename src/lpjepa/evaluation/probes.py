"""Linear probes on frozen features, many at a time.

Both protocols are the paper's: "Transfer evaluation protocol" (`adam`) and "Continuous mapping theorem
evaluation" (`sgd`). Probes of the same shape are one batched model: their weights are stacked, (P, F, C),
and every step is one batched product for all of them. A probe's start and the order of its samples come
from its own seed, so it learns the same whether it is trained alone or with others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lpjepa.evaluation.features import require_finite


@dataclass(frozen=True)
class ProbeProtocol:
    """How a probe is trained. No augmentation, and features as they are unless `standardize`."""

    optimizer: str
    lr: float = 1e-2
    weight_decay: float = 0.0
    cosine: bool = False
    epochs: int = 100
    batch_size: int = 512
    standardize: bool = False


PROTOCOLS = {
    "adam": ProbeProtocol("adam"),
    "sgd": ProbeProtocol("sgd", weight_decay=1e-6, cosine=True),  # momentum 0.9
}


def probe_protocol(name: str, **changes: int | float | bool) -> ProbeProtocol:
    """A protocol by name, with fields changed by keyword."""
    if name not in PROTOCOLS:
        raise ValueError(f"There is no probe protocol {name!r}; choose one of {', '.join(PROTOCOLS)}.")
    return replace(PROTOCOLS[name], **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ProbeJob:
    """One probe: train on rows `indices` (all by default) of `train`, test on `test`."""

    train: Tensor  # (N, F)
    train_labels: Tensor  # (N,)
    test: Tensor  # (M, F)
    test_labels: Tensor  # (M,)
    indices: Tensor | None = None
    seed: int = 0

    def size(self) -> int:
        return len(self.train) if self.indices is None else len(self.indices)


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies in [0, 1] and what they came from; tensors are on the CPU."""

    top1: float
    top5: float
    predictions: Tensor  # (M,)
    weight: Tensor  # (F, C)
    bias: Tensor  # (C,)


def train_probes(
    jobs: Sequence[ProbeJob],
    protocol: ProbeProtocol,
    device: torch.device | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[ProbeResult]:
    """Trains every job under `protocol`, those of equal shape together; results in the order of the jobs.

    `progress(epochs_done, epochs_in_all)` is called after each epoch of a group. The steps do not wait for
    the device: nothing is read back before the end.
    """
    groups: dict[tuple[int, int, int], list[int]] = {}
    for position, job in enumerate(jobs):
        groups.setdefault((job.train.shape[-1], job.size(), _check(job)), []).append(position)
    results: dict[int, ProbeResult] = {}
    for done, ((_, _, classes), positions) in enumerate(groups.items()):
        group = [jobs[p] for p in positions]
        on = torch.device(device) if device is not None else group[0].train.device

        def report(epoch: int, finished: int = done * protocol.epochs) -> None:
            if progress is not None:
                progress(finished + epoch, len(groups) * protocol.epochs)

        results.update(zip(positions, _train_group(group, classes, protocol, on, report)))
    return [results[p] for p in range(len(jobs))]


def _check(job: ProbeJob) -> int:
    """The number of classes, after the checks that need the values."""
    for name, x, y in (("train", job.train, job.train_labels), ("test", job.test, job.test_labels)):
        if x.ndim != 2 or y.shape != x.shape[:1]:
            raise ValueError(
                f"A probe's {name} features (N, F) and labels (N,) do not fit together: {tuple(x.shape)} and "
                f"{tuple(y.shape)}."
            )
        if len(x) == 0:
            raise ValueError(f"A probe needs at least one {name} sample, but the {name} split is empty.")
        require_finite(x, f"A probe's {name} features")
    if job.size() == 0:
        raise ValueError("A probe needs at least one training sample, but its draw of labels is empty.")
    if job.train.shape[1] != job.test.shape[1]:
        raise ValueError(
            f"Train features have {job.train.shape[1]} entries, test features {job.test.shape[1]}."
        )
    lowest = min(int(job.train_labels.min()), int(job.test_labels.min()))
    if lowest < 0:
        raise ValueError(
            f"Labels are class numbers from 0, but one is {lowest}; leave unlabelled samples out."
        )
    return 1 + max(int(job.train_labels.max()), int(job.test_labels.max()))


def _train_group(
    group: list[ProbeJob],
    classes: int,
    protocol: ProbeProtocol,
    device: torch.device,
    report: Callable[[int], None],
) -> list[ProbeResult]:
    size, features = group[0].size(), group[0].train.shape[1]
    # Jobs that share a tensor (several draws of one split) share its copy on the device.
    moved: dict[int, Tensor] = {}
    move = lambda x: moved.setdefault(id(x), x.to(device))
    trains = [move(job.train) for job in group]
    labels = [move(job.train_labels) for job in group]
    indices = [torch.arange(size) if job.indices is None else job.indices.cpu() for job in group]
    standard = _standardization(trains, indices) if protocol.standardize else None

    generators = [torch.Generator().manual_seed(job.seed) for job in group]
    bound = 1 / math.sqrt(features)  # as torch.nn.Linear starts
    uniform = lambda *shape: (
        torch.stack([torch.rand(*shape, generator=g) * 2 - 1 for g in generators]) * bound
    )
    weight_PFC = uniform(features, classes).to(device).requires_grad_()
    bias_P1C = uniform(1, classes).to(device).requires_grad_()
    optimizer: torch.optim.Optimizer
    if protocol.optimizer == "adam":
        optimizer = torch.optim.Adam(
            [weight_PFC, bias_P1C], lr=protocol.lr, weight_decay=protocol.weight_decay
        )
    else:
        optimizer = torch.optim.SGD(
            [weight_PFC, bias_P1C], lr=protocol.lr, momentum=0.9, weight_decay=protocol.weight_decay
        )

    for epoch in range(protocol.epochs):
        if protocol.cosine:
            lr = protocol.lr * (1 + math.cos(math.pi * epoch / protocol.epochs)) / 2
            optimizer.param_groups[0]["lr"] = lr
        orders = [i[torch.randperm(size, generator=g)] for i, g in zip(indices, generators)]
        order_PN = torch.stack(orders).to(device, non_blocking=True)
        for batch_PB in order_PN.split(protocol.batch_size, dim=1):
            x_PBF = torch.stack([x[batch] for x, batch in zip(trains, batch_PB)])
            y_PB = torch.stack([y[batch] for y, batch in zip(labels, batch_PB)])
            if standard is not None:
                x_PBF = (x_PBF - standard[0]) * standard[1]
            logits_PBC = torch.baddbmm(bias_P1C, x_PBF, weight_PFC)
            # The mean over a probe's batch, summed over probes: their gradients do not touch each other.
            loss = (
                F.cross_entropy(logits_PBC.flatten(0, 1), y_PB.flatten(), reduction="sum") / batch_PB.shape[1]
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        report(epoch + 1)

    with torch.no_grad():
        weight, bias = weight_PFC, bias_P1C
        if standard is not None:  # folded into the weights: what comes back works on the features as they are
            weight = weight_PFC * standard[1].mT
            bias = bias_P1C - standard[0] @ weight
        return [
            _test(move(job.test), move(job.test_labels), weight[p], bias[p, 0]) for p, job in enumerate(group)
        ]


def _standardization(trains: list[Tensor], indices: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Shift and scale (P, 1, F) from the training samples; a constant feature is shifted only."""
    shifts, scales = [], []
    for x, i in zip(trains, indices):
        chosen = x[i.to(x.device)]
        deviation = chosen.std(0, unbiased=False)
        shifts.append(chosen.mean(0, keepdim=True))
        scales.append(torch.where(deviation > 0, 1 / deviation, torch.ones_like(deviation)).unsqueeze(0))
    return torch.stack(shifts), torch.stack(scales)


def _test(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, chunk: int = 8192) -> ProbeResult:
    top = torch.cat([(part @ weight + bias).topk(min(5, len(bias))).indices for part in x.split(chunk)])
    hit = top == y.unsqueeze(1)
    return ProbeResult(
        top1=float(hit[:, 0].float().mean()),
        top5=float(hit.any(1).float().mean()),
        predictions=top[:, 0].cpu(),
        weight=weight.detach().cpu(),
        bias=bias.detach().cpu(),
    )
