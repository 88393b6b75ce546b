"""Rectifications of features."""

import torch.nn.functional as F
from torch import Tensor, nn

from lpjepa.slicing._checks import check_name


class RepReLU(nn.Module):
    """ReLU in the forward pass, with the gradient of GELU ("Baseline Designs" of the paper):

        RepReLU(z) = ReLU(z).detach() + GELU(z) − GELU(z).detach().

    Units that are off keep receiving a gradient. Any shape.
    """

    def forward(self, z: Tensor) -> Tensor:
        smooth = F.gelu(z)
        # The difference is exactly zero, so that what is off is exactly zero and what is on is not rounded.
        return F.relu(z).detach() + (smooth - smooth.detach())


_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "rep_relu": RepReLU, "identity": nn.Identity}


def activation_by_name(name: str) -> nn.Module:
    check_name("activation", name, _ACTIVATIONS)
    return _ACTIVATIONS[name]()
