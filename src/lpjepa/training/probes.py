"""Linear probes: trained along with the model on detached features, and to the end on frozen ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Above this many feature values a full-batch probe is no longer quick; `lpjepa evaluate` streams.
LARGEST_FROZEN_PROBE = 2**28
LARGEST_SEARCH = 50_000  # images by which the decay of a frozen probe is chosen
DECAYS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of frozen probes; the first is the weak one


class OnlineProbes(nn.Module):
    """One linear classifier on encoder features and one on projector features; gradients stop at both."""

    def __init__(self, encoder_dim: int, projector_dim: int, classes: int):
        super().__init__()
        self.encoder = nn.Linear(encoder_dim, classes)
        self.projector = nn.Linear(projector_dim, classes)

    def forward(self, h_NE: Tensor, z_ND: Tensor) -> dict[str, Tensor]:
        return {"encoder": self.encoder(h_NE.detach()), "projector": self.projector(z_ND.detach())}


@dataclass(frozen=True)
class FrozenProbe:
    """Validation accuracy with the weight decay that suits held-out training images, and with a weak one."""

    accuracy: float
    l2: float
    accuracy_weak: float


def frozen_probe(train_ND: Tensor, train_labels: Tensor, val_MD: Tensor, val_labels: Tensor) -> FrozenProbe:
    """Logistic regression on frozen features with a weight decay that is chosen on training images.

    Features of a long training want a strong one: an encoder knows the images it was trained on, and a probe
    with a weak decay learns them by heart. So a tenth of the training images (of a sample, where they are
    many) is held out, and the decay grows along `DECAYS` as long as their cross-entropy falls; with the best
    one the probe is fitted on all.
    """
    order = torch.randperm(len(train_ND), generator=torch.Generator().manual_seed(0))[:LARGEST_SEARCH]
    held, rest = order.to(train_ND.device).tensor_split([len(order) // 10])
    chosen = _best_decay(train_ND, train_labels, rest, held) if len(held) else DECAYS[0]
    data = train_ND, train_labels, val_MD, val_labels
    weak = frozen_probe_accuracy(*data, DECAYS[0])
    best = weak if chosen == DECAYS[0] else frozen_probe_accuracy(*data, chosen)
    return FrozenProbe(best, chosen, weak)


def _best_decay(x_ND: Tensor, labels_N: Tensor, rest: Tensor, held: Tensor) -> float:
    x_RD, x_HD = _standardised(x_ND[rest], x_ND[held])
    fitted, chosen, least = None, DECAYS[0], math.inf
    for l2 in DECAYS:
        fitted = _fit(x_RD, labels_N[rest], int(labels_N.max()) + 1, l2, fitted)
        # Not the accuracy, which is too coarse to compare on a few held-out images.
        loss = float(F.cross_entropy(torch.addmm(fitted[1], x_HD, fitted[0]), labels_N[held]))
        if loss >= least:
            break
        chosen, least = l2, loss
    return chosen


def frozen_probe_accuracy(
    train_ND: Tensor, train_labels: Tensor, val_MD: Tensor, val_labels: Tensor, l2: float = 1e-4
) -> float:
    """Validation accuracy of a multinomial logistic regression fitted to the end on frozen features.

    Features are standardised by the training set, all of it is one batch, and L-BFGS minimises
    cross-entropy + l2/2 · ‖W‖², a convex problem without a learning rate to choose.
    """
    if train_ND.numel() > LARGEST_FROZEN_PROBE:
        raise ValueError(
            f"{tuple(train_ND.shape)} features are too many for one batch; use `lpjepa evaluate`"
        )
    train_ND, val_MD = _standardised(train_ND, val_MD)
    classes = int(max(train_labels.max(), val_labels.max())) + 1
    return _accuracy(_fit(train_ND, train_labels, classes, l2), val_MD, val_labels)


def _standardised(train_ND: Tensor, val_MD: Tensor) -> tuple[Tensor, Tensor]:
    """Both by the mean and deviation of the first."""
    train_ND, val_MD = train_ND.float(), val_MD.float()
    mean = train_ND.mean(0)
    # A dead feature stays zero instead of being blown up.
    scale = train_ND.std(0).clamp(min=1e-3)
    return (train_ND - mean) / scale, (val_MD - mean) / scale


def _fit(
    x_ND: Tensor, labels_N: Tensor, classes: int, l2: float, start: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Weight (D, C) and bias (C,), from zero or from `start`."""
    if start is None:
        start = x_ND.new_zeros(x_ND.shape[1], classes), x_ND.new_zeros(classes)
    weight, bias = (part.clone().requires_grad_() for part in start)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = torch.addmm(bias, x_ND, weight)
        loss = F.cross_entropy(logits, labels_N) + 0.5 * l2 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return weight.detach(), bias.detach()


def _accuracy(fitted: tuple[Tensor, Tensor], x_ND: Tensor, labels_N: Tensor) -> float:
    weight, bias = fitted
    return float((torch.addmm(bias, x_ND, weight).argmax(1) == labels_N).float().mean())
