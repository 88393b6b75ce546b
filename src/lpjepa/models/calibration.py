"""Rectifiers that set the share of active features instead of leaving it to the loss.

RDMReg matches random projections, which by the central limit theorem say little about how often a single
coordinate is zero; the share of active features may drift from the target's ρ.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lpjepa._collectives import sum_over_ranks, world
from lpjepa._sort import sort_stable, sort_values

MEMORY = 50  # batches over which a threshold is averaged
COLUMNS = 64  # sorted at a time where there are many images


class ShareReLU(nn.Module):
    """A rectifier that knows which share of features is to be active, and since when.

    `active` (ρ) is a buffer that training sets to the target's active probability, and `after` one that it
    sets to the number of batches for which this is a plain ReLU.
    """

    active: Tensor
    batches: Tensor
    after: Tensor

    def __init__(self, active: float) -> None:
        super().__init__()
        self.register_buffer("active", torch.tensor(float(active)))
        self.register_buffer("batches", torch.zeros(()))
        self.register_buffer("after", torch.zeros(()), persistent=False)  # a matter of the training

    @staticmethod
    def within(module: nn.Module) -> list[ShareReLU]:
        """Those of a module."""
        return [part for part in module.modules() if isinstance(part, ShareReLU)]

    def extra_repr(self) -> str:
        return f"active={float(self.active):.4g}"


class CalibratedReLU(ShareReLU):
    r"""z = relu(u − τ), where τ_j follows the (1 − ρ)-quantile of feature j of the batches seen.

    Every feature is active on a share ρ of the images; no gradient passes through τ, and a feature that has
    died is brought back. In evaluation τ stays as it is. In many processes τ follows the mean of their
    quantiles.
    """

    threshold: Tensor

    def __init__(self, dim: int, active: float = 0.5) -> None:
        super().__init__(active)
        self.register_buffer("threshold", torch.zeros(dim))

    def forward(self, u_ND: Tensor) -> Tensor:
        if self.training:
            self._follow(u_ND.detach().float())
        return torch.relu(u_ND.float() - self.threshold).to(u_ND.dtype)

    @torch.no_grad()
    def fit(self, u_ND: Tensor) -> None:
        """Set τ to the quantiles of `u_ND`, of any number of images, instead of following batches."""
        parts = u_ND.float().split(COLUMNS, dim=1)
        self.threshold.copy_(torch.cat([self._quantile(part_Nd.sort(dim=0).values) for part_Nd in parts]))

    @torch.no_grad()
    def _follow(self, u_ND: Tensor) -> None:
        quantile_D = self._quantile(sort_values(u_ND.T).T)
        ranks = world()[1]
        if ranks > 1:
            quantile_D = sum_over_ranks(quantile_D) / ranks
        self.batches += 1
        followed = (self.batches - self.after).clamp(min=0)
        rate = (1 / followed.clamp(min=1)).clamp(min=1 / MEMORY) * (followed > 0)
        self.threshold.lerp_(quantile_D, rate)

    def _quantile(self, ascending_ND: Tensor) -> Tensor:
        """What a share ρ of each column lies above. Tensors throughout: nothing waits for the device."""
        # The i-th of N values, from 0, stands for the probability (i + 1/2) / N.
        count = len(ascending_ND)
        position = ((1 - self.active) * count - 0.5).clamp(0, count - 1)
        below = position.floor().clamp(max=max(count - 2, 0))
        pair_2D = ascending_ND.index_select(0, torch.stack([below, (below + 1).clamp(max=count - 1)]).long())
        return torch.lerp(pair_2D[0], pair_2D[1], position - below)


class TopReLU(ShareReLU):
    r"""The k largest features of each image; k is ρ D, rounded, from 1 to D − 1. All others are zero.

    They keep their values where k features are positive; where fewer are, all are raised until k are. So
    every image has k active features, whatever data it is from, and no statistics are kept.

    Where features are raised, the gradient also passes through what they are raised by, the next largest one:
    without it all of them together would seem to matter, which they do not, and would drift until the
    training diverges.
    """

    def __init__(self, active: float = 0.5) -> None:
        super().__init__(active)

    def kept(self, dim: int) -> Tensor:
        """k, of so many features."""
        return (self.active * dim).round().clamp(1, dim - 1)

    def level(self, values_ND: Tensor, kept_ND: Tensor, next_N1: Tensor) -> Tensor:
        """What is subtracted, by the values, which of them are kept, and the largest of the others."""
        return next_N1.clamp(max=0)

    def forward(self, u_ND: Tensor) -> Tensor:
        if self.training:
            self.batches += 1
        values_ND, dim = u_ND.float(), u_ND.shape[-1]
        count = self.kept(dim)
        order_ND = sort_stable(values_ND.detach())[1]
        next_N1 = values_ND.gather(1, order_ND.index_select(1, (dim - 1 - count).long().view(1)))
        rank_ND = torch.empty_like(order_ND).scatter(
            1, order_ND, torch.arange(dim, device=u_ND.device).expand_as(order_ND)
        )  # of equal values, which 16 bits have, one comes before the other
        kept_ND = rank_ND >= dim - count
        z_ND = torch.relu(values_ND - self.level(values_ND, kept_ND, next_N1)) * kept_ND
        since = self.batches > self.after if self.training else self.batches >= self.after
        return torch.where(since, z_ND, torch.relu(values_ND)).to(u_ND.dtype)


class SoftTopReLU(TopReLU):
    r"""The k largest features of each image, less the next largest one: a threshold of each image's own.

    A feature that leaves the k largest has come down to zero by then, instead of falling to it. And features
    that follow RGN_p(μ, σ) follow RGN_p(μ − τ, σ) once τ ≥ 0 is subtracted and they are rectified: those of a
    training at a dense location come close to a sparser target, in how large they are, too.
    """

    def level(self, values_ND: Tensor, kept_ND: Tensor, next_N1: Tensor) -> Tensor:
        """The largest value below all that are kept: below `next_N1` where 16 bits make it equal to one."""
        least_N1 = values_ND.masked_fill(~kept_ND, torch.inf).amin(1, keepdim=True)
        lower_N1 = values_ND.masked_fill(values_ND >= least_N1, -torch.inf).amax(1, keepdim=True)
        return torch.where(lower_N1.isinf(), next_N1, lower_N1)
