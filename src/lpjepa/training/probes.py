"""Linear probes: trained along with the model on detached features, and to the end on frozen ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Above this many feature values a full-batch probe is no longer quick; `lpjepa evaluate` streams.
LARGEST_FROZEN_PROBE = 2**28


class OnlineProbes(nn.Module):
    """One linear classifier on encoder features and one on projector features; gradients stop at both."""

    def __init__(self, encoder_dim: int, projector_dim: int, classes: int):
        super().__init__()
        self.encoder = nn.Linear(encoder_dim, classes)
        self.projector = nn.Linear(projector_dim, classes)

    def forward(self, h_NE: Tensor, z_ND: Tensor) -> dict[str, Tensor]:
        return {"encoder": self.encoder(h_NE.detach()), "projector": self.projector(z_ND.detach())}


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
    train_ND, val_MD = train_ND.float(), val_MD.float()
    mean = train_ND.mean(0)
    # A dead feature stays zero instead of being blown up.
    scale = train_ND.std(0).clamp(min=1e-3)
    train_ND, val_MD = (train_ND - mean) / scale, (val_MD - mean) / scale
    classes = int(max(train_labels.max(), val_labels.max())) + 1
    weight = torch.zeros(train_ND.shape[1], classes, device=train_ND.device, requires_grad=True)
    bias = torch.zeros(classes, device=train_ND.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = torch.addmm(bias, train_ND, weight)
        loss = F.cross_entropy(logits, train_labels) + 0.5 * l2 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    with torch.no_grad():
        predicted = torch.addmm(bias, val_MD, weight).argmax(1)
    return float((predicted == val_labels).float().mean())
