"""Linear probes on frozen features, many at a time.

Both protocols are the paper's: "Transfer evaluation protocol" (`adam`) and "Continuous mapping theorem
evaluation" (`sgd`). Probes of the same shape are one batched model: their weights are stacked, (P, F, C),
and every step is one batched product for all of them. A probe's start and the order of its samples come
from its own seed, so it learns the same whether it is trained alone or with others. On a GPU, where launching
a step takes longer than computing it, spans of steps are recorded as CUDA graphs and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lpjepa.evaluation._graphs import Replayed, recorder_for
from lpjepa.evaluation.features import require_finite
from lpjepa.training.optimizers import set_rate

SPAN_STEPS = 32  # steps in a CUDA graph: enough to hide its launch, few enough to hold their features


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

        trained = _Group(group, classes, protocol, on)
        trained.train(report)
        results.update(zip(positions, trained.results()))
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


class _Group:
    """Probes of equal shape as one model, and the training of it."""

    def __init__(self, jobs: list[ProbeJob], classes: int, protocol: ProbeProtocol, device: torch.device):
        self.jobs, self.protocol, self.device = jobs, protocol, device
        self.size, features = jobs[0].size(), jobs[0].train.shape[1]
        # Jobs that share a tensor (several draws of one split) share its copy on the device.
        self._moved: dict[int, Tensor] = {}
        self.trains = [self._move(job.train) for job in jobs]
        self.labels = [self._move(job.train_labels) for job in jobs]
        every = torch.arange(self.size)
        self.indices = [every if job.indices is None else job.indices.cpu() for job in jobs]
        self.standard = _standardization(self.trains, self.indices) if protocol.standardize else None

        self.generators = [torch.Generator().manual_seed(job.seed) for job in jobs]
        bound = 1 / math.sqrt(features)  # as torch.nn.Linear starts
        uniform = lambda *shape: (
            torch.stack([torch.rand(*shape, generator=g) * 2 - 1 for g in self.generators]) * bound
        )
        self.weight_PFC = uniform(features, classes).to(device).requires_grad_()
        self.bias_P1C = uniform(1, classes).to(device).requires_grad_()
        self.optimizer = _optimizer([self.weight_PFC, self.bias_P1C], protocol)

    def train(self, report: Callable[[int], None]) -> None:
        advance = Replayed(self.advance, recorder_for(self.device))
        span = _span(self.size, self.protocol.batch_size, advance.recorder is not None)
        for epoch in range(self.protocol.epochs):
            if self.protocol.cosine:
                lr = self.protocol.lr * (1 + math.cos(math.pi * epoch / self.protocol.epochs)) / 2
                set_rate(self.optimizer, lr)
            for order_Pn in self._order().split(span, dim=1):
                advance(order_Pn)
            report(epoch + 1)

    def _order(self) -> Tensor:
        """The samples (P, N) of the next epoch, in the order in which each probe sees them."""
        orders = [i[torch.randperm(self.size, generator=g)] for i, g in zip(self.indices, self.generators)]
        order_PN = torch.stack(orders)
        # From pinned memory, or the host would wait here for the epoch before.
        pinned = order_PN.pin_memory() if self.device.type == "cuda" else order_PN
        return pinned.to(self.device, non_blocking=True)

    def advance(self, order_Pn: Tensor) -> None:
        """The steps on these samples, in this order. Only device tensors change: it can be recorded."""
        x_PnF = torch.stack([x[rows] for x, rows in zip(self.trains, order_Pn)])
        y_Pn = torch.stack([y[rows] for y, rows in zip(self.labels, order_Pn)])
        if self.standard is not None:
            x_PnF = (x_PnF - self.standard[0]) * self.standard[1]
        parameters = [self.weight_PFC, self.bias_P1C]
        batch_size = self.protocol.batch_size
        for x_PBF, y_PB in zip(x_PnF.split(batch_size, dim=1), y_Pn.split(batch_size, dim=1)):
            logits_PBC = torch.baddbmm(self.bias_P1C, x_PBF, self.weight_PFC)
            # The mean over a probe's batch, summed over probes: their gradients do not touch each other.
            loss = F.cross_entropy(logits_PBC.flatten(0, 1), y_PB.flatten(), reduction="sum") / y_PB.shape[1]
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                parameter.grad = gradient
            self.optimizer.step()

    @torch.no_grad()
    def results(self) -> list[ProbeResult]:
        weight, bias = self.weight_PFC, self.bias_P1C
        if self.standard is not None:  # folded into the weights: they then work on the features as they are
            weight = self.weight_PFC * self.standard[1].mT
            bias = self.bias_P1C - self.standard[0] @ weight
        return [
            _test(self._move(job.test), self._move(job.test_labels), weight[p], bias[p, 0])
            for p, job in enumerate(self.jobs)
        ]

    def _move(self, x: Tensor) -> Tensor:
        return self._moved.setdefault(id(x), x.to(self.device))


def _optimizer(parameters: list[Tensor], protocol: ProbeProtocol) -> torch.optim.Optimizer:
    """The protocol's optimizer; on a GPU one kernel a step, with a rate that a recorded step reads anew."""
    gpu = parameters[0].is_cuda
    rate: Any = torch.tensor(protocol.lr, device=parameters[0].device) if gpu else protocol.lr
    fused = True if gpu else None
    decay = protocol.weight_decay
    if protocol.optimizer == "adam":
        return torch.optim.Adam(parameters, rate, weight_decay=decay, fused=fused, capturable=gpu)
    return torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=decay, fused=fused)


def _span(size: int, batch_size: int, recorded: bool) -> int:
    """Samples that are fetched, and stepped through, at a time: a batch, or many where they are recorded.

    Spans of an epoch are as equal as whole batches allow: all but the last have one shape, one graph.
    """
    if not recorded:
        return batch_size
    steps = math.ceil(size / batch_size)
    return batch_size * math.ceil(steps / math.ceil(steps / SPAN_STEPS))


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
