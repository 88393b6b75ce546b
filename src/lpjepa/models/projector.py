"""The projector: an MLP with BatchNorm whose last activation decides whether features are non-negative."""

from __future__ import annotations

from torch import nn

from lpjepa.losses import RepReLU
from lpjepa.models.calibration import CalibratedReLU, SoftTopReLU, TopReLU

LARGEST = {"top": TopReLU, "soft_top": SoftTopReLU}  # these keep the largest features of each image
ACTIVATIONS = ("relu", "calibrated", "top", "soft_top", "rep_relu", "none")


def build_projector(
    in_dim: int, hidden_dim: int, out_dim: int, layers: int = 3, activation: str = "relu"
) -> nn.Sequential:
    """`layers` linear layers, BatchNorm and ReLU between them, `activation` at the end (paper, Architecture).

    "relu" gives the rectified features of Rectified LpJEPA, "rep_relu" the same values with the gradient
    of GELU, "calibrated" rectified features each of which is active on a given share of the images, "top" a
    given share of the features of each image, "soft_top" what these have above the next largest, "none" the
    dense features of LpJEPA, LeJEPA, VICReg and SimCLR.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"model.activation: {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    if layers < 1:
        raise ValueError(f"model.projector_layers: at least one layer is needed, not {layers}")
    modules: list[nn.Module] = []
    for _ in range(layers - 1):
        modules += [nn.Linear(in_dim, hidden_dim), nn.BatchNorm1d(hidden_dim), nn.ReLU(inplace=True)]
        in_dim = hidden_dim
    modules.append(nn.Linear(in_dim, out_dim))
    if activation == "relu":
        modules.append(nn.ReLU())
    elif activation == "calibrated":
        modules.append(CalibratedReLU(out_dim))
    elif activation in LARGEST:
        modules.append(LARGEST[activation]())
    elif activation == "rep_relu":
        modules.append(RepReLU())
    return nn.Sequential(*modules)


def keep_largest(projector: nn.Sequential, activation: str, active: float) -> tuple[nn.Sequential, str]:
    """A projector of `activation`, whose layers it shares, that keeps this share of each image's features.

    The second is its activation: its own where that keeps the largest already, and top where it does not.
    """
    layers = list(projector) if activation == "none" else list(projector)[:-1]
    name = activation if activation in LARGEST else "top"
    return nn.Sequential(*layers, LARGEST[name](active)), name
