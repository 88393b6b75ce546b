"""VICReg: invariance, variance and covariance (Bardes et al., 2022), and its rectified form."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpjepa._collectives import sum_over_ranks
from lpjepa.losses._objective import Objective, check_weight, pair_invariance, upcast
from lpjepa.losses.activations import activation_by_name


class VICRegParts(NamedTuple):
    loss: Tensor
    invariance: Tensor
    variance: Tensor
    covariance: Tensor


class VICReg(Objective):
    """VICReg: `w_i · invariance + w_v · variance + w_c · covariance` with

        invariance = mean over N and D of (z1 − z2)²,
        variance   = Σ over views of mean over D of max(0, 1 − sqrt(Var[z_d] + 10⁻⁴)),
        covariance = Σ over views of (1/D) Σ over d ≠ e of Cov[z_d, z_e]²,

    variances and covariances unbiased (divided by N − 1), of the global batch. The default weights 25, 25, 1
    are those of its paper. For V views the invariance is the mean over pairs of views, and the two sums over
    views are multiplied by 2/V, so that the weights keep their balance.

    Views: (N, D) each, or (V, N, D). In a job of many processes only the D means and the D × D products
    travel; nothing is gathered.
    """

    std_epsilon = 1e-4

    def __init__(
        self, invariance_weight: float = 25.0, variance_weight: float = 25.0, covariance_weight: float = 1.0
    ) -> None:
        super().__init__()
        check_weight("invariance_weight", invariance_weight)
        check_weight("variance_weight", variance_weight)
        check_weight("covariance_weight", covariance_weight)
        self.invariance_weight = invariance_weight
        self.variance_weight = variance_weight
        self.covariance_weight = covariance_weight

    def _components(self, z_VND: Tensor, sizes: list[int], **randomness: Any) -> VICRegParts:
        z_VND, count = upcast(z_VND), sum(sizes)
        invariance = sum_over_ranks(pair_invariance(z_VND, count))
        # The covariance is stationary in the mean it is taken about, so no gradient passes through the mean.
        mean_VD = sum_over_ranks(z_VND.detach().sum(1)) / count
        centred_VND = z_VND - mean_VD.unsqueeze(1)
        cov_VDD = sum_over_ranks(centred_VND.mT @ centred_VND) / (count - 1)
        var_VD = cov_VDD.diagonal(dim1=1, dim2=2)
        variance = 2 * torch.relu(1 - (var_VD + self.std_epsilon).sqrt()).mean()
        off_diagonal_VDD = cov_VDD - torch.diag_embed(var_VD)
        covariance = 2 * off_diagonal_VDD.square().sum((1, 2)).mean() / z_VND.shape[2]
        loss = (
            self.invariance_weight * invariance
            + self.variance_weight * variance
            + self.covariance_weight * covariance
        )
        return VICRegParts(loss, invariance, variance, covariance)

    def extra_repr(self) -> str:
        return f"{self.invariance_weight}, {self.variance_weight}, {self.covariance_weight}"


class NonNegativeVICReg(VICReg):
    """VICReg of rectified features ("Baseline Designs" of the paper: NVICReg-ReLU and NVICReg-RepReLU).

    `activation` is applied to the input: "relu", "rep_relu" (see `RepReLU`), or "identity" for features that
    are rectified already.
    """

    def __init__(
        self,
        invariance_weight: float = 25.0,
        variance_weight: float = 25.0,
        covariance_weight: float = 1.0,
        activation: str = "relu",
    ) -> None:
        super().__init__(invariance_weight, variance_weight, covariance_weight)
        self.activation = activation_by_name(activation)

    def _components(self, z_VND: Tensor, sizes: list[int], **randomness: Any) -> VICRegParts:
        return super()._components(self.activation(upcast(z_VND)), sizes)
