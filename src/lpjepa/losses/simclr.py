"""SimCLR (Chen et al., 2020) and Non-Negative Contrastive Learning (Wang et al., 2024)."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpjepa._collectives import gather_batch, sum_over_ranks, world
from lpjepa.losses._objective import Objective, check_number, upcast
from lpjepa.losses.activations import activation_by_name

# Below this norm a feature vector has no direction: it is compared as zero and receives no gradient.
_SMALLEST_NORM = 1e-12


class ContrastiveParts(NamedTuple):
    loss: Tensor
    alignment: Tensor
    contrast: Tensor


class SimCLR(Objective):
    """SimCLR's normalised-temperature cross-entropy over the 2N (or VN) views of the global batch:

        − mean over anchors a of log( Σ over positives b of s(a, b) / Σ over all b ≠ a of s(a, b) ),
        s(a, b) = exp(⟨a/|a|, b/|b|⟩ / temperature),

    positives being the other views of the anchor's sample; for two views there is one, and this is the loss
    of the paper. `components` gives `alignment` = − mean of log Σ over positives and `contrast` = mean of
    log Σ over all, whose sum is the loss. The default temperature 0.2 is the one the authors train with.

    Views: (N, D) each, or (V, N, D). Each rank compares its own anchors with the features of all ranks.
    """

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        check_number("temperature", temperature)
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {temperature}.")
        self.temperature = temperature

    def _components(self, z_VND: Tensor, sizes: list[int], **randomness: Any) -> ContrastiveParts:
        z_VND = _unit(upcast(z_VND))
        V, N, _ = z_VND.shape
        first = sum(sizes[: world()[0]])
        all_VMD = gather_batch(z_VND, sizes)
        sim_VNUM = torch.einsum("vnd,umd->vnum", z_VND, all_VMD) / self.temperature
        # For sample n, its own M is first + n: there U = V is the anchor itself, U ≠ V a positive.
        n = torch.arange(N, device=z_VND.device)
        itself_VV = torch.eye(V, dtype=torch.bool, device=z_VND.device)
        itself_VNUM = (
            itself_VV[:, None, :, None]
            & (n[:, None] + first == torch.arange(sum(sizes), device=z_VND.device))[None, :, None, :]
        )
        contrast_VN = sim_VNUM.masked_fill(itself_VNUM, -torch.inf).flatten(2).logsumexp(2)
        positives_NVU = sim_VNUM.diagonal(first, dim1=1, dim2=3).permute(2, 0, 1)
        alignment_NV = -positives_NVU.masked_fill(itself_VV, -torch.inf).logsumexp(2)
        alignment, contrast = sum_over_ranks(
            torch.stack([alignment_NV.sum(), contrast_VN.sum()]) / (V * sum(sizes))
        )
        return ContrastiveParts(alignment + contrast, alignment, contrast)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"


class NonNegativeContrastive(SimCLR):
    """SimCLR of rectified features: Non-Negative Contrastive Learning ("Baseline Designs" of the paper).

    `activation` is applied to the input: "relu", "rep_relu" (see `RepReLU`), or "identity" for features that
    are rectified already.
    """

    def __init__(self, temperature: float = 0.2, activation: str = "relu") -> None:
        super().__init__(temperature)
        self.activation = activation_by_name(activation)

    def _components(self, z_VND: Tensor, sizes: list[int], **randomness: Any) -> ContrastiveParts:
        return super()._components(self.activation(upcast(z_VND)), sizes)


def _unit(z_VND: Tensor) -> Tensor:
    norm_VN1 = z_VND.norm(dim=2, keepdim=True)
    has_direction = norm_VN1 > _SMALLEST_NORM
    return torch.where(has_direction, z_VND / norm_VN1.clamp_min(_SMALLEST_NORM), torch.zeros_like(z_VND))
